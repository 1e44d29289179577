"""17M parameters in windows of 512 BPE tokens, as in benchmark/larger/: python train.py config/larger.py config/rope.py

For a GPU: 1,860 steps of 32,768 tokens. Prepare the text first: python -m benchmark.texts packages
Best validation loss: 2.54 nats per token (mean of three seeds), in bfloat16 on an NVIDIA H200.
"""

dataset = "packages"
n_layer = 8
n_head = 8
n_embd = 384
block_size = 512
batch_size = 64
max_iters = 1860
eval_interval = 1860
