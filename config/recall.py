"""Facts to look up (data/recall_char), for evaluation.answers: python train.py config/recall.py config/alibi.py

Best validation loss 0.82 nats in 2000 steps with rope, alibi, t5 or transformer_xl, and 0.84 without positions, in ten
minutes on one core of an AMD EPYC. A model that does not learn to look facts up stays above 1.0, as one of five without
positions did. Looking up takes one layer that finds the digit and one that reads the letter after it. Without
positions, it takes one or two more layers before them, which learn about order.
"""

dataset = "recall_char"
n_layer = 4
n_embd = 64
batch_size = 64
learning_rate = 2e-3
max_iters = 2000
