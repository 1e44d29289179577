import torch
import torch.nn.functional as F

from model import PositionScheme
from schemes import draw_as_linear, learned


class FIRE(PositionScheme, name="fire"):
    """Li et al. 2023 (arXiv 2310.04418): scores + f(log(1 + |c|·(i−j)) / log(1 + |c|·max(|512·w|, i))) with an MLP f of
    1 → 32 → n_head channels and a ReLU. Each layer learns its own f, c and w.

    First values: c = 0.1, w = 1, f as torch.nn.Linear.

    Deviations: f's last bias is left out, as it cancels in the softmax.
    """

    no_decay = ("b_1",)
    width = 32

    def __init__(self, config):
        super().__init__(config)
        n_layer = config.n_layer
        self.c = learned(n_layer)
        self.w = learned(n_layer)
        self.w_1 = learned(n_layer, self.width)
        self.b_1 = learned(n_layer, self.width)
        self.w_2 = learned(n_layer, config.n_head, self.width)

    def init_weights(self, generator):
        self.c.data.fill_(0.1)
        self.w.data.fill_(1)
        draw_as_linear(self.w_1, 1, generator)
        draw_as_linear(self.b_1, 1, generator)
        draw_as_linear(self.w_2, self.width, generator)

    def bias(self, q, k, q_pos, k_pos, prepared, layer):
        c = self.c[layer].abs()
        threshold = (512 * self.w[layer]).abs()
        i = q_pos[:, None]
        distance = (i - k_pos).clamp(min=0)
        share = torch.log1p(c * distance) / torch.log1p(c * torch.maximum(threshold, i))  # (queries, keys)
        hidden = F.relu(share[..., None] * self.w_1[layer] + self.b_1[layer])  # (queries, keys, width)
        bias = F.linear(hidden, self.w_2[layer])  # (queries, keys, H)
        return bias.permute(2, 0, 1)[None].contiguous()
