"""Trinity (Arcee 2026, arXiv 2602.17004): three layers with RoPE and a window, then one without positions.

Published for Nano and Mini: base 1e4, a window of 2,048. The share of 1/2 assumes 4,096 tokens in pre-training.
Muse Glimmer has the same kinds, counted from the last layer (without positions), with base 5e5.
Source: transformers, models/afmoe (AfmoeAttention) and models/muse_glimmer.
Left out, because it is not position: GQA, gates, experts, the weights of the norms.
"""

pos_scheme = "rope"
qk_norm = True
layers = "window=1/2 *3 | pos_scheme=none"
