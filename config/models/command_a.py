"""Command A (Cohere 2025): three layers with RoPE and a window, then one without positions that sees everything.

Published: base 5e4, a window of 4,096 of the 8,192 tokens of pre-training: 1/2. No scaling, no norm of q and k.
Source: transformers, models/cohere2 (Cohere2Config, Cohere2Attention); the base is that of the published model.
Left out, because it is not position: GQA, attention and MLP side by side.
"""

pos_scheme = "rope"
rope_theta = 5e4
layers = "window=1/2 *3 | pos_scheme=none"
