import math

import torch
import torch.nn as nn

from model import PositionScheme


class CoPE(PositionScheme, name="cope"):
    """Golovneva et al. 2024 (arXiv 2405.18719), contextual positions: scores s + q·e[p] / sqrt(D). p_ij = Σ_{t=j..i}
    σ(s_it), at most p_max, counts the tokens that the query cares about; between integers, e is interpolated. Each
    layer learns its own e, shared by the heads. p_max is an option.

    First values: e = 0.

    Cost: a training step takes 1.79 × RoPE's time on one core of an Intel Xeon, with a mask. Training's memory
    grows with the square of the length (a step on 2,048 tokens: 1.4 GB, RoPE 0.08), evaluation's with the length
    (one layer on 16,384 tokens: 0.31 GB, RoPE 0.10).

    Seen (docs/evidence.md, five seeds): loss 1.148 at the training length (RoPE 1.141), Δ at 16 times +0.584 ±0.123.
    """

    options = {"p_max": 64.0}
    pairwise = False  # the scores depend on the keys between

    @classmethod
    def check(cls, config):
        if (p_max := cls.own_options(config)["p_max"]) < 1 or not p_max.is_integer():
            raise ValueError(f"pos_options: p_max={p_max} must be a whole number of at least 1")

    def __init__(self, config):
        super().__init__(config)
        self.p_max = int(self.own_options(config)["p_max"])
        self.e = nn.Parameter(torch.empty(config.n_layer, config.n_embd // config.n_head, self.p_max + 1))

    def init_weights(self, generator):
        nn.init.zeros_(self.e)

    def bias(self, q, k, q_pos, k_pos, prepared, layer):
        scale = 1 / math.sqrt(q.size(-1))
        wide = torch.promote_types(q.dtype, torch.float32)  # bfloat16 could not count past 256
        gates = (q @ k.mT).to(wide).mul(scale).sigmoid().where(q_pos[:, None] >= k_pos, 0.0)
        p = gates.flip(-1).cumsum(dim=-1).flip(-1).clamp(max=self.p_max)
        low = p.floor()
        by_position = (q @ self.e[layer] * scale).to(wide)  # (B, H, queries, p_max + 1)
        below, above = (by_position.gather(-1, some.long()) for some in (low, p.ceil()))
        return below + (p - low) * (above - below)
