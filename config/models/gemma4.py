"""Gemma 4 (Google 2026): Gemma 3's layers, but without a window only the fastest quarter of the pairs turns (p-RoPE).

Published: bases 1e4 and 1e6, a window of 512 (small models) or 1,024. Its training length is not: the share is Gemma
3's. At other depths than multiples of six, the last layer has no window either.
Source: transformers, models/gemma4 (Gemma4TextConfig), modeling_rope_utils.py (proportional).
Left out, because it is not position: GQA, wider heads without a window, shared keys and values, scale 1, norm of v.
"""

n_layer = 12  # two periods, and GPT-2's depth; the baseline's 4 would have no layer without a window
pos_scheme = "rope"
qk_norm = True
layers = "window=1/32 *5 | rope_theta=1e6 rope_fraction=.25"
