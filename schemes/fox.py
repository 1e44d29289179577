import math

import torch
import torch.nn as nn
import torch.nn.functional as F

from model import PositionScheme, widen
from schemes import learned


class FoX(PositionScheme, name="fox"):
    """Lin et al. 2025 (arXiv 2503.02130), the forgetting transformer: scores + c_i − c_j, where c is the running sum of
    log σ(w_h·x + b_h) and x the layer's normed input. Each layer learns a forget gate (w_h, b_h) per head.

    First values: w normal with standard deviation 0.02, b = 0, or the option b (5: gates that forget slowly).

    Deviations: without the paper's "Pro" block (output gate, output norm, QK-norm and KV-shift).

    Computed without a mask, as ALiBi is: c_i is constant within a row, so it cancels in the softmax, and −c_j is a
    channel of k, in 16-bit floats the sum of four digits of 8 bits. In float32, the rounding error of a score is that
    of c, about 1e-3 where c reaches 10,000.
    """

    options = {"b": 0.0}
    no_decay = ("b",)
    shifted = True

    def __init__(self, config):
        super().__init__(config)
        self.w = learned(config.n_layer, config.n_head, config.n_embd)
        self.b = learned(config.n_layer, config.n_head)

    def init_weights(self, generator):
        super().init_weights(generator)
        nn.init.constant_(self.b, self.config.options.b)

    def rotate(self, q, k, x, prepared, layer, past):
        dtype = torch.promote_types(x.dtype, torch.float32)
        with torch.autocast(x.device.type, enabled=False):
            gates = F.linear(x.to(dtype), self.w[layer].to(dtype), self.b[layer].to(dtype))
            gates = F.logsigmoid(gates)  # (B, T, H)
        c = past.get("c", 0) + gates.cumsum(dim=1)
        past["c"] = c[:, -1:]

        # −c as one channel, or as four digits
        rest = -c.mT[..., None] * math.sqrt(q.size(-1))  # (B, H, T, 1), at least 0
        channels = []
        for unit in (65536, 256, 1) if q.dtype.itemsize < 4 else ():
            digit = rest.div(unit, rounding_mode="floor") * unit
            channels.append(digit)
            rest = rest - digit
        channels.append(rest)
        return widen(q, q.new_ones(1, 1, 1, len(channels))), widen(k, torch.cat(channels, dim=-1))
