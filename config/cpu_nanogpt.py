"""nanoGPT's recipe for Tiny Shakespeare by character on a CPU (0.8M parameters): python train.py config/cpu_nanogpt.py

Loss over the whole validation text: 1.90 nats, or 1.77 with --pos_scheme=rope, in a minute and a half on two cores of
an AMD EPYC. nanoGPT itself reaches 1.905, 1.914 and 1.917.
"""

dataset = "shakespeare_char"
block_size = 64
batch_size = 12
max_iters = 2000
eval_interval = 250
optimizer = "adamw"
learning_rate = 1e-3
min_lr = 1e-4
warmup_iters = 100
decay = "cosine"
