import torch
import torch.nn.functional as F

from model import PositionScheme, frequencies
from schemes import learned


class PoPE(PositionScheme, name="pope"):
    """Gopalakrishnan et al. 2025 (arXiv 2509.10534), polar coordinates: scores Σ_c μ(q_c)·μ(k_c)·cos((i−j)·θ_c − δ_c)
    / sqrt(D), with the magnitude μ = softplus and θ_c = 10000^(−c/D). So content sets only the magnitudes, and position
    only the phases. Each layer learns δ per head and channel.

    First values: δ = 0.

    Deviations: δ may take any value; the authors clamp it to [−2π, 0], where a δ that turns positive stops learning.

    Computed as q and k of twice the width: the cosine and the sine of each channel's phase.
    """

    no_decay = ("delta",)

    def __init__(self, config):
        super().__init__(config)
        self.delta = learned(config.n_layer, config.n_head, 1, config.head_size)

    def init_weights(self, generator):
        self.delta.data.zero_()

    def prepare(self, q_pos, k_pos):
        phases = q_pos[:, None] * frequencies(2 * self.delta.size(-1), q_pos.device)
        return phases.cos(), phases.sin()  # each (T, D)

    def rotate(self, q, k, x, prepared, layer, past):
        dtype = torch.promote_types(q.dtype, torch.float32)
        cos, sin = (table.to(dtype) for table in prepared)
        delta = self.delta[layer].to(dtype)  # (H, 1, D)
        cos_d = delta.cos()
        sin_d = delta.sin()

        def polar(x, cos, sin):
            size = F.softplus(x.to(dtype).contiguous())
            return torch.cat((size * cos, size * sin), dim=-1).to(x.dtype)

        return polar(q, cos, sin), polar(k, cos * cos_d - sin * sin_d, sin * cos_d + cos * sin_d)
