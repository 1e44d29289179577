import math

import torch
import torch.nn as nn
import torch.nn.functional as F

from model import PositionScheme, Sinusoidal, frequencies


class TransformerXL(PositionScheme, name="transformer_xl"):
    """Dai et al. 2019 (arXiv 1901.02860): scores (q·k + q·r + u·k + v·r)/sqrt(D) with r = W_r·R(i−j), where R(n) are
    the sinusoids [sin ‖ cos] of the distance n. Each layer learns its own W_r; all layers share the learned u and v.

    Deviation: there is no segment memory.
    """

    reads = ("pos_init",)
    no_decay = ("u", "v")
    gaps = pairwise = False  # the relative shift counts keys
    check = staticmethod(Sinusoidal.check)  # n_embd must be even, as for sinusoidal

    def __init__(self, config):
        super().__init__(config)
        C, H = config.n_embd, config.n_head
        self.w_r = nn.ParameterList(torch.empty(C, C) for _ in range(config.n_layer))
        self.u, self.v = nn.Parameter(torch.empty(H, C // H)), nn.Parameter(torch.empty(H, C // H))

    def prepare(self, q_pos, k_pos):
        """r of all layers for the distances S−1 … 0: (n_layer, H, D, S)."""
        distance = torch.arange(len(k_pos), device=k_pos.device).flip(0)
        a = distance[:, None] * frequencies(self.u.numel(), k_pos.device)
        R = torch.cat((a.sin(), a.cos()), dim=-1).to(self.u.dtype)  # (S, C)
        return (torch.stack(tuple(self.w_r)) @ R.T).unflatten(1, self.u.shape)

    def rotate(self, q, k, x, prepared, layer, past):
        return q + self.u[:, None], k  # (q + u)·k

    def bias(self, q, k, q_pos, k_pos, prepared, layer):
        Q, K = len(q_pos), len(k_pos)  # consecutive positions that end at the same one
        r = F.pad(prepared[layer, ..., -K:], (1, 0))  # (H, D, 1 + K): zeros, then the distances K−1 … 0
        by_distance = (q + (self.v - self.u)[:, None]) / math.sqrt(q.size(-1)) @ r
        # The paper's relative shift: key c is at distance K−Q+i−c from query i, which is column Q−i+c. Entries above
        # the diagonal are meaningless; the causal mask removes them.
        return by_distance.flatten(-2)[..., Q:].unflatten(-1, (Q, K))
