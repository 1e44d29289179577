import torch
import torch.nn as nn
import torch.nn.functional as F

from model import PositionScheme


class FIRE(PositionScheme, name="fire"):
    """Li et al. 2023 (arXiv 2310.04418): scores + f(log(1 + |c|·(i−j)) / log(1 + |c|·max(|512·w|, i))) with an MLP f of
    1 → 32 → n_head channels and a ReLU. Each layer learns its own f, c and w.

    First values: c = 0.1, w = 1, f as torch.nn.Linear.

    Deviations: f's last bias is left out, as it cancels in the softmax.

    Cost: a training step takes 1.06 × RoPE's time on one core of an Intel Xeon, with a mask. Training's memory
    grows with the square of the length (a step on 2,048 tokens: 1.5 GB, RoPE 0.08), evaluation's with the length
    (one layer on 16,384 tokens: 0.61 GB, RoPE 0.10).

    Seen (docs/evidence.md, five seeds): loss 1.146 at the training length (RoPE 1.141), Δ at 16 times +0.842 ±0.153.
    """

    no_decay = ("b_1",)
    shift_invariant = pairwise = False  # the scores depend on i itself
    width, threshold = 32, 512

    def __init__(self, config):
        super().__init__(config)
        self.c, self.w = (nn.Parameter(torch.empty(config.n_layer)) for _ in range(2))
        self.w_1, self.b_1 = (nn.Parameter(torch.empty(config.n_layer, self.width)) for _ in range(2))
        self.w_2 = nn.Parameter(torch.empty(config.n_layer, config.n_head, self.width))

    def init_weights(self, generator):
        nn.init.constant_(self.c, 0.1)
        nn.init.ones_(self.w)
        for p, inputs in ((self.w_1, 1), (self.b_1, 1), (self.w_2, self.width)):
            nn.init.uniform_(p, -(inputs**-0.5), inputs**-0.5, generator=generator)

    def bias(self, q, k, q_pos, k_pos, prepared, layer):
        c, longest = self.c[layer].abs(), (self.threshold * self.w[layer]).abs()
        distance = (q_pos[:, None] - k_pos).clamp(min=0)
        share = torch.log1p(c * distance) / torch.log1p(c * torch.maximum(longest, q_pos[:, None]))
        hidden = F.relu(share[..., None] * self.w_1[layer] + self.b_1[layer])  # (queries, keys, width)
        return F.linear(hidden, self.w_2[layer]).permute(2, 0, 1)[None].contiguous()
