import math

import torch
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

    A gate's gradient is the sum over the pairs of a later query and an earlier key. As the channel's gradient, it would
    be a difference of sums over all pairs, of which 16-bit floats leave little. So there each of 12 groups of
    consecutive queries has a channel of its own: its value is 0, but its gradient that of (the mean c of the group)
    − c_j, in which all keys before the group cancel exactly.
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
        self.b.data.fill_(self.config.options.b)

    def rotate(self, q, k, x, prepared, layer, past):
        dtype = torch.promote_types(x.dtype, torch.float32)
        with torch.autocast(x.device.type, enabled=False):
            gates = F.linear(x.to(dtype), self.w[layer].to(dtype), self.b[layer].to(dtype))
            gates = F.logsigmoid(gates)  # (B, T, H)
            c = past.get("sum of gates", 0) + gates.cumsum(dim=1)
            past["sum of gates"] = c[:, -1:]
            c = c.mT[..., None] * math.sqrt(q.size(-1))  # (B, H, T, 1), at most 0
            if q.dtype.itemsize >= 4:
                return widen(q, q.new_ones(1, 1, 1, 1)), widen(k, -c)

            x = -c.detach()
            channels = [x // 65536 * 65536, x // 256 % 256 * 256, x // 1 % 256, x % 1]
            group = torch.arange(q.size(2), device=q.device) * 12 // q.size(2)
            member = F.one_hot(group, 12).to(dtype)  # (T, groups)
            difference = c.mT @ F.normalize(member, p=1, dim=0) - c  # (B, H, T, groups)
            channels.append(difference - difference.detach())
        return widen(q, F.pad(member, (4, 0), value=1.0)[None, None]), widen(k, torch.cat(channels, dim=-1))
