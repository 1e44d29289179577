"""ALiBi at the baseline size: python train.py config/alibi.py"""

pos_scheme = "alibi"
