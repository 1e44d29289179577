"""Ministral 3 (Mistral 2025): RoPE in every layer, all of whose scores grow past the length of pre-training.

Published: base 1e6, temperature .1 per 16,384 tokens, YaRN by 16, to 262,144, without its factor on q and k. This file
trains the model before YaRN. _stretched is the published one, for --layers at evaluation.
Source: transformers, models/ministral3 (Ministral3Config, Ministral3Attention). Left out, because it is not position:
GQA.
"""

pos_scheme = "rope"
rope_theta = 1e6
rope_size = 1.0
temperature = 0.1
_stretched = "rope_scaling=yarn rope_factor=16"
