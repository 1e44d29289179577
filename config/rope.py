"""RoPE at the baseline size: python train.py config/rope.py"""

pos_scheme = "rope"
