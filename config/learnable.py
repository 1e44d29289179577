"""Learnable at the baseline size: python train.py config/learnable.py"""

pos_scheme = "learnable"
