"""Position schemes, one file each. The file's name is the scheme's: --pos_scheme=t5 reads schemes/t5.py.

_rope_scaling.py is no scheme: it has the functions of --rope_scaling.
"""

import torch


def learned(*shape):
    """A parameter of a scheme, whose `init_weights` draws the first values."""
    return torch.nn.Parameter(torch.empty(shape))


def draw_as_linear(p, inputs, generator):
    """Draws the parameter p as torch.nn.Linear does, with so many inputs."""
    bound = inputs**-0.5
    p.data.uniform_(-bound, bound, generator=generator)
