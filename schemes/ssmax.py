import math

import torch
import torch.nn as nn

from model import RoPE


class SSMax(RoPE, name="ssmax"):
    """Nakanishi 2025 (arXiv 2501.19399), scalable softmax on RoPE: scores · s·log n, so that attention does not spread
    out as the number n of visible keys grows. s is learned per head and layer.

    First values: s = 1 / (the mean of log n over the training length), so that scores start at their usual size.

    Cost: a training step takes 1.02 × RoPE's time on one core of an Intel Xeon, with flash attention and RoPE's
    memory.

    Seen (docs/evidence.md, five seeds): loss 1.129 at the training length (RoPE 1.141), Δ at 16 times +2.192 ±0.219.
    """

    no_decay = ("s",)
    pairwise = False  # the scores depend on the number of keys

    def __init__(self, config):
        super().__init__(config)
        self.windows = [config.window or math.inf if on else math.inf for on in config.layers(config.window_pattern)]
        self.s = nn.Parameter(torch.empty(config.n_layer, config.n_head, 1, 1))

    def init_weights(self, generator):
        n = torch.arange(1.0, max(2, self.config.block_size) + 1)
        for s, window in zip(self.s.data, self.windows, strict=True):
            s.fill_(1 / n.clamp(max=max(2, window)).log().mean())

    def prepare(self, q_pos, k_pos):
        n = torch.arange(len(k_pos), device=k_pos.device)[-len(q_pos) :] + 1.0  # the keys up to each query
        return n, super().prepare(q_pos, k_pos)

    def rotate(self, q, k, x, prepared, layer, past):
        n, turns = prepared
        scale = self.s[layer] * n.clamp(max=self.windows[layer]).log()[:, None]  # (H, T, 1)
        return super().rotate((q * scale).to(q.dtype), k, x, turns, layer, past)
