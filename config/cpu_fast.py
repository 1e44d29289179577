"""nanoGPT's loss on Tiny Shakespeare by character, at its CPU size, in a fifth of its time

python -m data.prepare shakespeare_char && python train.py config/cpu_fast.py

Loss over the whole validation text: 1.89 nats, and 1.90 with seeds 1 and 2. The whole command takes 13 to 20 seconds on
two cores of an AMD EPYC. There, nanoGPT's own train.py takes 84 to 86 seconds and reaches 1.91.
"""

dataset = "shakespeare_char"
pos_scheme = "t5"
block_size = 64
batch_size = 16
max_iters = 140
eval_interval = 140
learning_rate = 8e-3
muon_lr = 0.06
warmup_iters = 10
