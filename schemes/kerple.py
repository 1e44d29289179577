import torch
import torch.nn.functional as F

from model import PositionScheme
from schemes import learned


class KERPLE(PositionScheme, name="kerple"):
    """Chi et al. 2022 (arXiv 2205.09921), logarithmic kernel: scores − r1·log(1 + r2·(i−j)). r1, r2 > 0 are learned per
    head and shared by all layers.

    First values: r1 and r2 uniform in (0, 2) and (0, 1), as in the authors' code.

    Deviations: a softplus keeps them positive, where the authors clamp them.
    """

    no_decay = ("r",)

    def __init__(self, config):
        super().__init__(config)
        self.r = learned(2, config.n_head, 1, 1)  # softplus makes r1 and r2 of it

    def init_weights(self, generator):
        r1, r2 = torch.rand(self.r.shape, generator=generator).clamp(min=1e-3)
        r = torch.stack((2 * r1, r2))
        self.r.data = r.expm1().log()  # the inverse of softplus

    def bias(self, q, k, q_pos, k_pos, prepared, layer):
        r1, r2 = F.softplus(self.r)  # each (H, 1, 1)
        distance = (q_pos[:, None] - k_pos).clamp(min=0)
        bias = -(r1 * torch.log1p(r2 * distance))  # (H, queries, keys)
        return bias[None]
