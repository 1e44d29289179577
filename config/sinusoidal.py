"""Sinusoidal positions at the baseline size: python train.py config/sinusoidal.py

Best validation loss 1.15 nats (mean of five seeds), in three minutes on two cores of an AMD EPYC.
"""

pos_scheme = "sinusoidal"
sinusoidal_size = 0.1  # the loss is far higher at 0.02, the size that token embeddings start with
