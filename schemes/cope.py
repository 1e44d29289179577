import math

import torch

from model import PositionScheme
from schemes import learned


class CoPE(PositionScheme, name="cope"):
    """Golovneva et al. 2024 (arXiv 2405.18719), contextual positions: scores s + q·e[p] / sqrt(D). p_ij = Σ_{t=j..i}
    σ(s_it), at most p_max, counts the tokens that the query cares about; between integers, e is interpolated. Each
    layer learns its own e, shared by the heads. p_max is an option.

    First values: e = 0.
    """

    options = {"p_max": 64.0}

    def __init__(self, config):
        super().__init__(config)
        self.p_max = int(config.options.p_max)
        self.e = learned(config.n_layer, config.head_size, self.p_max + 1)

    def init_weights(self, generator):
        self.e.data.zero_()

    def bias(self, q, k, q_pos, k_pos, prepared, layer):
        scale = 1 / math.sqrt(q.size(-1))
        dtype = torch.promote_types(q.dtype, torch.float32)  # bfloat16 could not count past 256
        gates = (q @ k.mT).to(dtype).mul(scale).sigmoid()  # (B, H, queries, keys)
        gates = gates.where(q_pos[:, None] >= k_pos, 0.0)
        p = gates.flip(-1).cumsum(dim=-1).flip(-1)
        p = p.clamp(max=self.p_max)

        # interpolate between the scores of the positions below and above p
        scores = (q @ self.e[layer] * scale).to(dtype)  # (B, H, queries, p_max + 1)
        low = p.floor()
        below = scores.gather(-1, low.long())
        above = scores.gather(-1, p.ceil().long())
        return below + (p - low) * (above - below)
