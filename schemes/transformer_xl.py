import math

import torch
import torch.nn.functional as F

from model import PositionScheme, frequencies
from schemes import learned


class TransformerXL(PositionScheme, name="transformer_xl"):
    """Dai et al. 2019 (arXiv 1901.02860): scores (q·k + q·r + u·k + v·r)/sqrt(D) with r = W_r·R(i−j), where R(n) are
    the sinusoids [sin ‖ cos] of the distance n. Each layer learns its own W_r; all layers share the learned u and v.

    Deviation: there is no segment memory.
    """

    no_decay = ("u", "v")
    gaps = False  # the relative shift counts keys

    def __init__(self, config):
        super().__init__(config)
        C = config.n_embd
        self.w_r = torch.nn.ParameterList(torch.empty(C, C) for _ in range(config.n_layer))
        self.u = learned(config.n_head, config.head_size)
        self.v = learned(config.n_head, config.head_size)

    def prepare(self, q_pos, k_pos):
        """r of all layers for the distances S−1 … 0: (n_layer, H, D, S)."""
        distance = torch.arange(len(k_pos), device=k_pos.device).flip(0)
        angles = distance[:, None] * frequencies(self.u.numel(), k_pos.device)
        R = torch.cat((angles.sin(), angles.cos()), dim=-1).to(self.u.dtype)  # (S, C)
        r = torch.stack(tuple(self.w_r)) @ R.T  # (n_layer, C, S)
        return r.unflatten(1, self.u.shape)

    def rotate(self, q, k, x, prepared, layer, past):
        return q + self.u[:, None], k  # (q + u)·k

    def bias(self, q, k, q_pos, k_pos, prepared, layer):
        Q = len(q_pos)  # consecutive positions that end at the same one as the keys'
        K = len(k_pos)
        r = F.pad(prepared[layer, ..., -K:], (1, 0))  # (H, D, 1 + K): zeros, then the distances K−1 … 0
        q = q + (self.v - self.u)[:, None]  # q + v
        by_distance = q / math.sqrt(q.size(-1)) @ r  # (B, H, Q, 1 + K)
        # The paper's relative shift: key c is at distance K−Q+i−c from query i, which is column Q−i+c. Entries above
        # the diagonal are meaningless; the causal mask removes them.
        shifted = by_distance.flatten(-2)[..., Q:]
        return shifted.unflatten(-1, (Q, K))
