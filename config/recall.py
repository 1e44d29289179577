"""Looks answers up (data/recall_char), for eval_length.py --recall: python train.py config/recall.py config/alibi.py

Two layers of 64 channels. SEEN
"""

dataset = "recall_char"
n_layer = 2
n_embd = 64
batch_size = 64
learning_rate = 2e-3
max_iters = 1000
