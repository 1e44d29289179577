"""DroPE (arXiv 2512.12167): RoPE's run goes on without positions, a tenth of its steps, at the training length.

Best validation loss 2.03 nats, against 1.10 of out/rope and 1.29 without positions from scratch, seen on two cores
of an AMD EPYC: at this size a tenth of the steps is too few.
"""

init_from = "out/rope"
pos_scheme = "none"
max_iters = 85
warmup_iters = 10
