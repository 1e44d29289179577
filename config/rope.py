"""RoPE at the baseline size: python train.py config/rope.py

Best validation loss 1.15 nats (mean of five seeds), in three minutes on two cores of an AMD EPYC.
"""

pos_scheme = "rope"
