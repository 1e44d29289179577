"""nanoGPT's recipe for Tiny Shakespeare by character (10.6M parameters), for a GPU.

python train.py config/shakespeare_char.py
nanoGPT reports a best validation loss of 1.4697; not run here yet.
"""

dataset = "shakespeare_char"
n_layer = 6
n_head = 6
n_embd = 384
block_size = 256
batch_size = 64
dropout = 0.2
max_iters = 5000
eval_interval = 250
optimizer = "adamw"
learning_rate = 1e-3
min_lr = 1e-4
warmup_iters = 100
decay = "cosine"
