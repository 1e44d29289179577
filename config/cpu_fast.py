"""nanoGPT's loss on Tiny Shakespeare by character, at its CPU size, in an eighth of its time

python -m data.prepare shakespeare_char && python train.py config/cpu_fast.py

Loss over the whole validation text: 1.89 nats, and 1.91 and 1.89 with seeds 1 and 2. The whole command takes 12 to 15
seconds on two cores of an AMD EPYC. There, nanoGPT's own train.py takes 100 to 106 seconds and reaches 1.90 to 1.92.
A CPU without AVX512_BF16 or AMX may be faster with --dtype=float32.
"""

dataset = "shakespeare_char"
pos_scheme = "t5"
block_size = 64
batch_size = 16
max_iters = 140
eval_interval = 140
learning_rate = 0.012
muon_lr = 0.06
warmup_iters = 10
dtype = "bfloat16"
