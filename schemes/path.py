import math

import torch
import torch.nn.functional as F

from model import PositionScheme, widen
from schemes import draw_as_linear, learned


class PaTH(PositionScheme, name="path"):
    """Yang et al. 2025 (arXiv 2505.16381): scores qᵀ·H_i·H_{i−1} ⋯ H_{j+1}·k / sqrt(D) with H_t = I − β_t·w_t·w_tᵀ.
    Each layer and head learns β = 2σ(v·x + b) and w from the layer's normed input x: w is a projection of rank 32, a
    causal convolution over 3 tokens and a SiLU, scaled to length 1.

    First values: projections normal with standard deviation 0.02, b = 0, the convolution as torch.nn.Conv1d.

    Computed as a bias, these scores − q·k / sqrt(D). w and β are channels of k, so that the cache keeps them; q is zero
    there. The bias walks backwards over 64 keys at a time: H_i ⋯ H_{t+1} turns q by −Σ a_s·w_s, and a triangular system
    gives all a of a step.
    """

    no_decay = ("b",)
    rank = 32
    width = 3  # of the convolution
    step = 64  # keys at a time

    def __init__(self, config):
        super().__init__(config)
        n_layer = config.n_layer
        C = config.n_embd
        self.down = learned(n_layer, C, self.rank)
        self.up = learned(n_layer, self.rank, C)
        self.conv = learned(n_layer, C, 1, self.width)
        self.v = learned(n_layer, C, config.n_head)
        self.b = learned(n_layer, config.n_head)

    def init_weights(self, generator):
        super().init_weights(generator)
        draw_as_linear(self.conv, self.width, generator)
        self.b.data.zero_()

    def rotate(self, q, k, x, prepared, layer, past):
        B, _, C = x.shape
        w = x @ self.down[layer] @ self.up[layer]  # (B, T, C)
        before = past.get("projections", w.new_zeros(B, self.width - 1, C))
        w = torch.cat((before, w), dim=1)
        past["projections"] = w[:, 1 - self.width :]
        w = F.silu(F.conv1d(w.mT, self.conv[layer], groups=C))  # (B, C, T)
        w = w.unflatten(1, (-1, self.config.head_size)).mT  # (B, H, T, D)
        beta = 2 * (x @ self.v[layer] + self.b[layer]).sigmoid()  # (B, T, H)
        channels = torch.cat((w, beta.mT[..., None]), dim=-1)  # (B, H, T, D + 1)
        return widen(q, torch.zeros_like(channels)), widen(k, channels)

    def bias(self, q, k, q_pos, k_pos, prepared, layer):
        D = self.config.head_size
        dtype = torch.promote_types(q.dtype, torch.float32)
        with torch.autocast(q.device.type, enabled=False):
            q = q[..., :D].to(dtype)
            k, w, beta = k[..., : 2 * D + 1].to(dtype).split((D, D, 1), dim=-1)
            w = F.normalize(w, dim=-1)
            beta = beta.mT
            seen = q_pos[:, None] >= k_pos
            turned = q  # by all H from the query back to the keys of the step
            scores = []
            for start in reversed(range(0, len(k_pos), self.step)):
                # a_t = β_t·(turned·w_t − Σ_{s>t} a_s·w_s·w_t), and key j scores turned·k_j − Σ_{s>j} a_s·w_s·k_j
                t = slice(start, start + self.step)
                right = turned @ w[:, :, t].mT * beta[..., t]
                right = right.where(seen[:, t], 0.0)
                left = (w[:, :, t] @ w[:, :, t].mT * beta[..., t]).tril(-1)  # and 1 on the diagonal
                a = torch.linalg.solve_triangular(left, right, upper=False, left=False, unitriangular=True)
                step_scores = turned @ k[:, :, t].mT - a @ (w[:, :, t] @ k[:, :, t].mT).tril(-1)
                scores.append(step_scores)
                turned = turned - a @ w[:, :, t]
            scores = torch.cat(scores[::-1], dim=-1)
            return (scores - q @ k.mT) / math.sqrt(D)
