"""nanoGPT's recipe for Tiny Shakespeare by character on a CPU (0.8M parameters)."""

dataset = "shakespeare_char"
block_size = 64
batch_size = 12
max_iters = 2000
eval_interval = 250
learning_rate = 1e-3
