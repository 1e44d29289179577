"""Transformer-XL's relative positions at the baseline size: python train.py config/transformer_xl.py

Its steps take 15 to 20% longer than rope's (two cores of an AMD EPYC).
"""

pos_scheme = "transformer_xl"
