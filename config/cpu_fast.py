"""nanoGPT's loss on Tiny Shakespeare by character, at its CPU size, in a ninth of its processor time

python -m data.prepare shakespeare_char && python train.py config/cpu_fast.py

Loss over the whole validation text: 1.889 nats, and 1.901 and 1.888 with seeds 1 and 2. The whole command takes 16 to
17 seconds of processor time on one thread of an AMD EPYC. There, nanoGPT's own train.py takes 157 and reaches 1.898.
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
