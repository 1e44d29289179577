"""No positional encoding at the baseline size: python train.py config/none.py

Best validation loss 1.40 nats (one seed), in three minutes on two cores of an AMD EPYC.
"""

pos_scheme = "none"
