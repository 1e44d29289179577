"""Inkling (Thinking Machines 2026): no rotation; each query reads a learned bias for every distance, up to an extent.

Published: five layers with a window of 512 and a bias as far, then one that sees everything with a bias up to 1,024,
16 numbers per head and query. The training length is not published: here the far extent is block_size/2 (the scheme's
default) and the window half of it. Source: transformers, models/inkling (InklingAttention, InklingRelativeLogits).
Other than published: the temperature grows in steps of block_size; there it is 1 + .1·ln((p + 1)/128,000) from 128,000
on. Left out, because it is not position: the scale 1/D of normalised q and k, convolutions of k and v, GQA, experts.
"""

n_layer = 12  # two periods, and GPT-2's depth; the baseline's 4 would have no layer without a window
pos_scheme = "inkling"
qk_norm = True
layers = "window=1/4 *5 | temperature=.1"
