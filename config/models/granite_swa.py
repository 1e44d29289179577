"""Granite Swash (IBM 2026): a small window in all layers but every fourth, the first of them, and sinks everywhere.

Published (2B): base 1e4, a window of 128 of 8,192 tokens: 1/64. Its code can give each layer a base of its own, with 0
for no positions; the published model has one base.
Source: transformers, models/granite_swa. The sink there is a factor on the output, sigmoid(logsumexp(scores) − sink):
the same function. Left out, because it is not position: GQA, multipliers (its scores have 1/D, not 1/sqrt(D)).
"""

pos_scheme = "rope"
sink = True
layers = "window=0 | window=1/64 *3"
