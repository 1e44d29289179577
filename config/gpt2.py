"""GPT-2 (124M), nanoGPT's recipe, for GPUs: torchrun --standalone --nproc_per_node=8 train.py config/gpt2.py

First prepare its text, OpenWebText: pip install datasets && python -m data.prepare openwebtext
nanoGPT reports about 2.85 on OpenWebText; not run here yet.
"""

dataset = "openwebtext"
vocab_size = 50304  # 50257, padded to a multiple of 64
block_size = 1024
n_layer = 12
n_head = 12
n_embd = 768
batch_size = 12
gradient_accumulation_steps = 40
max_iters = 600_000
optimizer = "adamw"
learning_rate = 6e-4
min_lr = 6e-5
warmup_iters = 2000
decay = "cosine"
beta2 = 0.95
eval_interval = 1000
