"""Gemma 3 (Google 2025, arXiv 2503.19786): five layers with a window and a small base, then one with a large base.

Published: bases 1e4 and 1e6, a window of 1,024 of the 32,768 tokens of pre-training: 1/32 (1B: 512). From 4B up, the
layers without a window were then slowed by 8, to 131,072. This file trains what was pre-trained. _stretched is the
published model, for --layers at evaluation. Source: transformers, models/gemma3 (Gemma3TextConfig).
Left out, because it is not position: GQA, the weights of the norms.
"""

n_layer = 12  # two periods, and GPT-2's depth; the baseline's 4 would have no layer without a window
pos_scheme = "rope"
qk_norm = True
layers = "window=1/32 *5 | rope_theta=1e6"
_stretched = "window=1/32 *5 | rope_theta=1e6 rope_scaling=linear rope_factor=8"
