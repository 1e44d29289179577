"""Sinusoidal at the baseline size: python train.py config/sinusoidal.py"""

pos_scheme = "sinusoidal"
