"""Tiny Shakespeare by character, at nanoGPT's CPU size, to nanoGPT's loss and no further: python train.py config/cpu_fast.py"""

dataset = "shakespeare_char"
pos_scheme = "t5"
block_size = 64
batch_size = 16
max_iters = 140
eval_interval = 140
learning_rate = 8e-3
muon_lr = 0.06
warmup_iters = 10
