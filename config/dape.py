"""DAPE at the baseline size: python train.py config/dape.py

Best validation loss 1.08 nats (mean of five seeds), in seven minutes on two cores of an AMD EPYC.
"""

pos_scheme = "dape"
