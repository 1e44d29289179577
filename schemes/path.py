import math

import torch
import torch.nn as nn
import torch.nn.functional as F

from model import PositionScheme, widen


class PaTH(PositionScheme, name="path"):
    """Yang et al. 2025 (arXiv 2505.16381): scores qᵀ·H_i·H_{i−1} ⋯ H_{j+1}·k / sqrt(D) with H_t = I − β_t·w_t·w_tᵀ.
    Each layer and head learns β = 2σ(v·x + b) and w from the layer's normed input x: w is a projection of rank 32, a
    causal convolution over 3 tokens and a SiLU, scaled to length 1.

    First values: projections normal with standard deviation 0.02, b = 0, the convolution as torch.nn.Conv1d.

    Computed as a bias, these scores − q·k / sqrt(D). w and β are channels of k, so that the cache keeps them; q is zero
    there. The bias walks backwards over 64 keys at a time: H_i ⋯ H_{t+1} turns q by −Σ a_s·w_s, and a triangular system
    gives all a of a step.

    Cost: a training step takes 2.6 × RoPE's time on one core of an Intel Xeon, with a mask. Training's memory grows
    with the square of the length (a step on 2,048 tokens: 0.86 GB, RoPE 0.08), evaluation's with the length (one
    layer on 16,384 tokens: 0.24 GB, RoPE 0.10).

    Seen (docs/evidence.md, five seeds): loss 1.162 at the training length (RoPE 1.141), Δ at 16 times +1.011 ±0.149.
    """

    no_decay = ("b",)
    pairwise = False  # the scores depend on the keys between
    rank, width, step = 32, 3, 64

    def __init__(self, config):
        super().__init__(config)
        n, C, H = config.n_layer, config.n_embd, config.n_head
        self.head_size = C // H
        self.down, self.up = nn.Parameter(torch.empty(n, C, self.rank)), nn.Parameter(torch.empty(n, self.rank, C))
        self.conv = nn.Parameter(torch.empty(n, C, 1, self.width))
        self.v, self.b = nn.Parameter(torch.empty(n, C, H)), nn.Parameter(torch.empty(n, H))

    def init_weights(self, generator):
        super().init_weights(generator)
        nn.init.uniform_(self.conv, -(self.width**-0.5), self.width**-0.5, generator=generator)
        nn.init.zeros_(self.b)

    def rotate(self, q, k, x, prepared, layer, past):
        w = x @ self.down[layer] @ self.up[layer]  # (B, T, C)
        w = torch.cat((past.get("w", w.new_zeros(w.size(0), self.width - 1, w.size(2))), w), dim=1)
        past["w"] = w[:, 1 - self.width :]
        w = F.silu(F.conv1d(w.mT, self.conv[layer], groups=w.size(2))).unflatten(1, (-1, self.head_size)).mT
        beta = 2 * (x @ self.v[layer] + self.b[layer]).sigmoid()  # (B, T, H)
        channels = torch.cat((w, beta.mT[..., None]), dim=-1)
        return widen(q, torch.zeros_like(channels)), widen(k, channels)

    def bias(self, q, k, q_pos, k_pos, prepared, layer):
        D, wide = self.head_size, torch.promote_types(q.dtype, torch.float32)
        with torch.autocast(q.device.type, enabled=False):
            q, k, w, beta = q[..., :D].to(wide), *k[..., : 2 * D + 1].to(wide).split((D, D, 1), dim=-1)
            w, beta, seen = F.normalize(w, dim=-1), beta.mT, q_pos[:, None] >= k_pos
            turned, scores = q, []
            for start in reversed(range(0, len(k_pos), self.step)):
                t = slice(start, start + self.step)
                right = (turned @ w[:, :, t].mT * beta[..., t]).where(seen[:, t], 0.0)
                left = (w[:, :, t] @ w[:, :, t].mT * beta[..., t]).tril(-1)  # and 1 on the diagonal
                a = torch.linalg.solve_triangular(left, right, upper=False, left=False, unitriangular=True)
                scores.insert(0, turned @ k[:, :, t].mT - a @ (w[:, :, t] @ k[:, :, t].mT).tril(-1))
                turned = turned - a @ w[:, :, t]
            return (torch.cat(scores, dim=-1) - q @ k.mT) / math.sqrt(D)
