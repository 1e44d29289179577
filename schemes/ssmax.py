import torch

from model import RoPE
from schemes import learned


class SSMax(RoPE, name="ssmax"):
    """Nakanishi 2025 (arXiv 2501.19399), scalable softmax on RoPE: scores · s·log n, so that attention does not spread
    out as the number n of visible keys grows. s is learned per head and layer.

    First values: s = 1 / (the mean of log n over the training length), so that scores start at their usual size.
    """

    no_decay = ("s",)

    def __init__(self, config):
        super().__init__(config)
        self.s = learned(config.n_layer, config.n_head, 1, 1)

    def init_weights(self, generator):
        n = torch.arange(1.0, self.config.block_size + 1)
        for layer, kind in enumerate(self.config.kinds):
            mean = n.clamp(max=kind.n_keys).log().mean()
            self.s.data[layer] = 1 / mean

    def prepare(self, q_pos, k_pos):
        n = torch.arange(len(k_pos), device=k_pos.device) + 1.0
        n = n[-len(q_pos) :]  # the keys up to each query
        return n, super().prepare(q_pos, k_pos)

    def rotate(self, q, k, x, prepared, layer, past):
        n, freqs_cis = prepared
        n = n.clamp(max=self.config.kinds[layer].n_keys)
        scale = self.s[layer] * n.log()[:, None]  # (H, T, 1)
        q = (q * scale).to(q.dtype)
        return super().rotate(q, k, x, freqs_cis, layer, past)
