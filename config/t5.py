"""T5's relative bias at the baseline size: python train.py config/t5.py

Best validation loss 1.11 nats (mean of five seeds), in three minutes on two cores of an AMD EPYC.
"""

pos_scheme = "t5"
