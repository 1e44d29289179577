"""K-EXAONE (LG 2026): Command A's layers with a far smaller window and with normalised queries and keys.

Published: base 1e6, a window of 128 of the 8,192 tokens of pre-training: 1/64. It reaches 262,144 without any scaling.
Source: transformers, models/exaone_moe (ExaoneMoeAttention: the layers without a window do not rotate).
Left out, because it is not position: GQA, experts, the weights of the norms.
"""

pos_scheme = "rope"
rope_theta = 1e6
qk_norm = True
layers = "window=1/64 *3 | pos_scheme=none"
