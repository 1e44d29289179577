"""DroPE (arXiv 2512.12167): the RoPE run is trained further without positions, for a tenth of its steps.

The length stays the training length. Best validation loss 2.03 nats on two cores of an AMD EPYC, compared with 1.10 for
out/rope and 1.29 for a model trained without positions from scratch. At this size, a tenth of the steps is too few.
"""

init_from = "out/rope"
pos_scheme = "none"
optimizer = "muon"
max_iters = 85
warmup_iters = 10
