import math

import torch
import torch.nn as nn
import torch.nn.functional as F

from model import PositionScheme


class DAPE(PositionScheme, name="dape"):
    """Zheng et al. 2024 (arXiv 2405.14722): s + b + f([s ; b]), where s are the scores of all heads, b is KERPLE's bias
    −r1·log(1 + r2·(i−j)) with r1, r2 > 0 learned per head, and f an MLP over heads, of 2·n_head → 32 → n_head channels
    and a LeakyReLU. All layers share r1 and r2; each learns its own f.

    First values: r1 and r2 uniform in (0, 2) and (0, 1), f as torch.nn.Linear.

    Deviations: f's last bias is left out, as it cancels in the softmax. A softplus keeps r1 and r2 positive, where the
    authors clamp them.

    Cost: a training step takes 2.1 × RoPE's time on one core of an AMD EPYC, with a mask. Training's memory grows
    with the square of the length (a step on 2,048 tokens: 2.0 GB, RoPE 0.08), evaluation's with the length (one
    layer on 16,384 tokens: 0.74 GB, RoPE 0.09).

    Seen (docs/evidence.md, five seeds): loss 1.049 at the training length (RoPE 1.141), Δ at 16 times -0.044 ±0.027.
    Flat in all six settings.
    """

    no_decay, width = ("r", "b_1"), 32

    def __init__(self, config):
        super().__init__(config)
        n, H = config.n_layer, config.n_head
        self.r = nn.Parameter(torch.empty(2, H, 1, 1))
        self.w_1, self.b_1 = nn.Parameter(torch.empty(n, self.width, 2 * H)), nn.Parameter(torch.empty(n, self.width))
        self.w_2 = nn.Parameter(torch.empty(n, H, self.width))

    def init_weights(self, generator):
        r1, r2 = torch.rand(self.r.shape, generator=generator).clamp(min=1e-3)
        self.r.data = torch.stack((2 * r1, r2)).expm1().log()  # the inverse of softplus
        for p, inputs in ((self.w_1, 2 * len(r1)), (self.b_1, 2 * len(r1)), (self.w_2, self.width)):
            nn.init.uniform_(p, -(inputs**-0.5), inputs**-0.5, generator=generator)

    def bias(self, q, k, q_pos, k_pos, prepared, layer):
        r1, r2 = F.softplus(self.r)
        b = -(r1 * torch.log1p(r2 * (q_pos[:, None] - k_pos).clamp(min=0)))  # (H, queries, keys)
        s = q @ k.mT / math.sqrt(q.size(-1))  # (B, H, queries, keys)
        w_s, w_b = self.w_1[layer].chunk(2, dim=1)
        of_b = w_b @ b.flatten(1) + self.b_1[layer][:, None]  # once for the batch
        w_s, of_b, w_2 = (t.expand(len(q), -1, -1) for t in (w_s, of_b, self.w_2[layer]))
        hidden = F.leaky_relu_(torch.baddbmm(of_b, w_s, s.flatten(2)))  # (B, width, queries·keys)
        return b + (w_2 @ hidden).view_as(s)
