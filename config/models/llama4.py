"""Llama 4 Maverick (Meta 2025): RoPE inside a window, then a layer without positions whose scores grow with length.

Published: base 5e5; chunks of 8,192 of the 262,144 tokens of training: 1/32; temperature .1 without positions.
Source: transformers, models/llama4 (Llama4TextAttention).
Other than published: a window instead of chunks (a query there sees 1 to 8,192 keys); the temperature counts in
block_size, there in 8,192 tokens and from position p + 1. Scout also norms q and k where it rotates, and slows the
pairs longer than 8,192 by 16, without a ramp: rope_scaling=llama3 has Llama 3.1's ramp. Left out: GQA, experts.
"""

pos_scheme = "rope"
rope_theta = 5e5
layers = "window=1/32 *3 | pos_scheme=none temperature=.1"
