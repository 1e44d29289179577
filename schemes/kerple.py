import torch
import torch.nn as nn
import torch.nn.functional as F

from model import PositionScheme


class KERPLE(PositionScheme, name="kerple"):
    """Chi et al. 2022 (arXiv 2205.09921), logarithmic kernel: scores − r1·log(1 + r2·(i−j)). r1, r2 > 0 are learned per
    head and shared by all layers.

    First values: r1 and r2 uniform in (0, 2) and (0, 1), as in the authors' code.

    Deviations: a softplus keeps them positive, where the authors clamp them.

    Cost: a training step takes 1.03 × RoPE's time on one core of an Intel Xeon, with a mask. Training's memory
    grows with the square of the length (a step on 2,048 tokens: 0.58 GB, RoPE 0.08), evaluation's with the length
    (one layer on 16,384 tokens: 0.12 GB, RoPE 0.10).

    Seen (docs/evidence.md, five seeds): loss 1.155 at the training length (RoPE 1.141), Δ at 16 times +0.032 ±0.053.
    """

    no_decay = ("r",)

    def __init__(self, config):
        super().__init__(config)
        self.r = nn.Parameter(torch.empty(2, config.n_head, 1, 1))

    def init_weights(self, generator):
        r1, r2 = torch.rand(self.r.shape, generator=generator).clamp(min=1e-3)
        self.r.data = torch.stack((2 * r1, r2)).expm1().log()  # the inverse of softplus

    def bias(self, q, k, q_pos, k_pos, prepared, layer):
        r1, r2 = F.softplus(self.r)
        return -(r1 * torch.log1p(r2 * (q_pos[:, None] - k_pos).clamp(min=0)))[None]
