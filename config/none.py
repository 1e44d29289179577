"""No positional encoding at the baseline size: python train.py config/none.py

Best validation loss 1.39 nats (mean of five seeds), in three minutes on two cores of an AMD EPYC.
"""

pos_scheme = "none"
