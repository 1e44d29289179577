import math

import torch
import torch.nn.functional as F

from schemes import draw_as_linear, learned
from schemes.kerple import KERPLE


class DAPE(KERPLE, name="dape"):
    """Zheng et al. 2024 (arXiv 2405.14722): s + b + f([s ; b]), where s are the scores of all heads, b is KERPLE's bias
    −r1·log(1 + r2·(i−j)) with r1, r2 > 0 learned per head, and f an MLP over heads, of 2·n_head → 32 → n_head channels
    and a LeakyReLU. All layers share r1 and r2; each learns its own f.

    First values: r1 and r2 uniform in (0, 2) and (0, 1), f as torch.nn.Linear.

    Deviations: f's last bias is left out, as it cancels in the softmax. A softplus keeps r1 and r2 positive, where the
    authors clamp them.
    """

    no_decay = ("r", "b_1")
    width = 32

    def __init__(self, config):
        super().__init__(config)
        n_layer = config.n_layer
        H = config.n_head
        self.w_1 = learned(n_layer, self.width, 2 * H)
        self.b_1 = learned(n_layer, self.width)
        self.w_2 = learned(n_layer, H, self.width)

    def init_weights(self, generator):
        super().init_weights(generator)
        inputs = self.w_1.size(-1)
        draw_as_linear(self.w_1, inputs, generator)
        draw_as_linear(self.b_1, inputs, generator)
        draw_as_linear(self.w_2, self.width, generator)

    def bias(self, q, k, q_pos, k_pos, prepared, layer):
        B = q.size(0)
        b = super().bias(q, k, q_pos, k_pos, prepared, layer)  # (1, H, queries, keys)
        s = q @ k.mT / math.sqrt(q.size(-1))  # (B, H, queries, keys)
        w_s, w_b = self.w_1[layer].chunk(2, dim=1)  # each (width, H)
        bias_part = w_b @ b[0].flatten(1) + self.b_1[layer][:, None]  # (width, queries·keys), once for the batch
        hidden = torch.baddbmm(
            bias_part.expand(B, -1, -1),
            w_s.expand(B, -1, -1),
            s.flatten(2),
        )  # (B, width, queries·keys)
        hidden = F.leaky_relu_(hidden)
        f = self.w_2[layer].expand(B, -1, -1) @ hidden
        return b + f.view_as(s)
