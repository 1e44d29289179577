"""Qwen3 (Alibaba 2025, arXiv 2505.09388): RoPE with a large base in every layer, normalised queries and keys.

Published: base 1e6, 32,768 tokens in training. For longer texts its card adds YaRN by 4 when the model is used, to
131,072: _stretched, for --layers at evaluation (--rope_scaling=yarn does the same by as much as a text needs).
Source: transformers, models/qwen3. Left out, because it is not position: GQA, the weights of the norms.
"""

pos_scheme = "rope"
rope_theta = 1e6
qk_norm = True
_stretched = "rope_scaling=yarn rope_factor=4"
