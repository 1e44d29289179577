"""RoPE at the baseline size: python train.py config/rope.py

Best validation loss 1.10 nats, in three minutes on two cores of an AMD EPYC (Python 3.11.7's library).
"""

pos_scheme = "rope"
