"""AdamW with nanoGPT's schedule, after a scheme's config: python train.py config/rope.py config/adamw.py

This was the baseline's optimizer before Muon. Best validation loss with rope: 1.23 nats, compared with 1.10 for Muon
after the same number of steps (two cores of an AMD EPYC, --dataset=stdlib_char with Python 3.11.7).
"""

optimizer = "adamw"
learning_rate = 4e-3
decay = "cosine"
warmup_iters = 100
min_lr = 1e-4
sinusoidal_size = 0.02
