"""MiMo-V2-Flash (Xiaomi 2025): a third of the channels turns; no window in the first and every sixth layer, else sinks.

Published: base 1e4 with a window and 5e6 without; a window of 128 keys before the query, so 129 of 32,768 in
pre-training. Below 512 tokens that is the query's own key alone: train a wider one with --layers.
Source: transformers, models/mimo_v2_flash. Left out, because it is not position: GQA, experts, narrower and scaled v.
"""

n_layer = 12  # the first 12 of 48, and GPT-2's depth
pos_scheme = "rope"
rope_partial = 1 / 3
_global = "rope_theta=5e6"
_local = "window=129/32768 sink"
layers = f"{_global} | {_local} *4 | {_global}" + f" | {_local} *5 | {_global}" * 7
