"""RoPE at the baseline size: python train.py config/rope.py

Best validation loss 1.16 nats (one seed), in three minutes on two cores of an AMD EPYC.
"""

pos_scheme = "rope"
