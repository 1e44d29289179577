"""NoPE at the baseline size: python train.py config/none.py"""

pos_scheme = "none"
