"""gpt-oss (OpenAI 2025, arXiv 2508.10925): a window in every second layer, and a sink in every head.

Published: base 150,000, a window of 128 of the first 4,096 tokens: 1/32; YaRN by 32 in all layers, to 131,072, with a
ramp that starts and ends between pairs (8.09 to 17.40 of 32). This file trains the model before YaRN. _stretched is the
published one, for --layers at evaluation; --rope_scaling=yarn would leave the layers with a window as they are.
Source: transformers, models/gpt_oss (GptOssConfig, GptOssAttention); gpt-oss, torch/model.py. Left out: GQA, experts.
"""

pos_scheme = "rope"
rope_theta = 150_000
rope_truncate = False
sink = True
layers = "window=1/32 | window=0"
_stretched = "window=1/32 rope_scaling=yarn rope_factor=32 | rope_scaling=yarn rope_factor=32"
