"""AdamW with nanoGPT's schedule, after a scheme's config: python train.py config/rope.py config/adamw.py

What the baseline had before Muon. Best validation loss after as many steps: 1.23 nats with rope, where Muon has 1.10
(two cores of an AMD EPYC, Python 3.11.7's library).
"""

optimizer = "adamw"
learning_rate = 4e-3
decay = "cosine"
warmup_iters = 100
min_lr = 1e-4
sinusoidal_size = 0.02
