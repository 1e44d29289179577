import torch.nn.functional as F

from model import PositionScheme, widen
from schemes import learned


class Inkling(PositionScheme, name="inkling"):
    """Inkling (Thinking Machines 2026, as in Hugging Face's transformers): scores + r_i·P[i−j] where i−j is below
    `extent`, and + 0 beyond. r_i = W_h·x_i has 16 values for head h, and x is the layer's normed input, so each query
    chooses how the distance counts. Each layer learns W per head, and P (extent × 16) for all heads.

    First values: W and P normal with standard deviation 0.02.

    The option extent is a number of tokens up to block_size, or a share of it below 1. So training reaches all of P. By
    default it is a half, so that training also shows distances without a bias. Inkling has 1024 tokens, and in layers
    with a window 512, the whole window.

    Deviations: scores are divided by sqrt(D), as in all schemes, not by D. Inkling normalises queries and keys (here:
    qk_norm). Its full-attention layers multiply scores by 1 + 0.1·ln(max(1, (i+1)/n)) (here: temperature, which grows
    in steps). Its convolutions over 4 tokens (keys, values, the outputs of attention and MLP) are left out.

    r becomes 16 more channels of q, for which k is 0, and `bias` reads it there.
    """

    options = {"extent": 0.5}
    no_decay = ("p",)
    width = 16

    @staticmethod
    def extent(config):
        """Up to which distance there is a bias, in tokens."""
        return config.count_tokens("pos_options: extent", min(config.options.extent, config.block_size))

    def __init__(self, config):
        super().__init__(config)
        self.w = learned(config.n_layer, config.n_head * self.width, config.n_embd)
        self.p = learned(self.extent(config), config.n_layer, self.width)

    def start_from(self, config):
        self.p.data[self.extent(config) :] = 0

    def rotate(self, q, k, x, prepared, layer, past):
        r = F.linear(x, self.w[layer])
        r = r.unflatten(-1, (-1, self.width)).transpose(1, 2)  # (B, H, T, 16)
        return widen(q, r), widen(k, k.new_zeros(1, 1, 1, self.width))

    def bias(self, q, k, q_pos, k_pos, prepared, layer):
        r = q[..., self.config.head_size :][..., : self.width]
        by_distance = F.pad(r @ self.p[:, layer].T, (0, 1))  # (B, H, queries, extent + 1), 0 in the last column
        distance = (q_pos[:, None] - k_pos).clamp(0, len(self.p))
        return by_distance.gather(-1, distance.expand(*r.shape[:2], -1, -1))
