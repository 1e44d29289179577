"""OLMo 3 (Ai2 2025): RoPE in every layer, a window in three of four; only the layers without a window are stretched.

Published: base 5e5, a window of 4,096 of the 8,192 tokens of pre-training: 1/2; then YaRN by 8, to 65,536.
This file trains what was pre-trained, without YaRN. _stretched is the published model, for --layers at evaluation.
Source: transformers, models/olmo3 (Olmo3Config); OLMo-core. Any depth but a multiple of four must end without a window.
Left out, because it is not position: the norm of q and k spans all heads and has weights.
"""

pos_scheme = "rope"
rope_theta = 5e5
qk_norm = True
layers = "window=1/2 *3 | window=0"
_stretched = "window=1/2 *3 | rope_scaling=yarn rope_factor=8"
