"""RoPE at the baseline size: python train.py config/rope.py

Best validation loss 1.10 nats on --dataset=stdlib_char (Python 3.11.7), in three minutes on two cores of an AMD EPYC.
"""

pos_scheme = "rope"
