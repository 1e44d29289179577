"""Looks answers up (data/recall_char), for --protocol=recall: python train.py config/recall.py config/alibi.py

Best validation loss 0.86 nats in 2000 steps with rope, five to six minutes on one core of an AMD EPYC (2 layers, 64
channels). A model that does not look up stays above 1.1.
"""

dataset = "recall_char"
n_layer = 2
n_embd = 64
batch_size = 64
learning_rate = 2e-3
max_iters = 2000
