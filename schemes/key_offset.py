import torch

from model import RoPE, apply_rotary_emb


class KeyOffset(RoPE, name="key_offset"):
    """Partial key offset, ClassicLarry 2025 (github.com/KellerJordan/modded-nanogpt/pull/169, record 49): scores
    (q_i·R(i−j)·k_j + q'_i·k'_{j−1}) / sqrt(D). R is RoPE's rotation of the first half of the channels. In the second
    half, each token has the key k' of the token before it, so a single layer can find what followed an earlier
    occurrence of the current token. The first token keeps its own k', as in the author's code. Nothing is learned.

    The shift counts tokens, whatever their positions. Under a window, the oldest visible key has the k' of a token
    outside it.

    Deviations: every layer shifts its keys (see `layers`); in the record, only those with a long window do, and the
    others rotate half of their channels. The base is rope_theta, as in RoPE; the author's n = D/4 frequencies run from
    1 to 1/1024, which rope_theta = 1024^(n/(n−1)) gives. If the number of pairs is odd, the rotated half is larger.
    """

    def prepare(self, q_pos, k_pos):
        """Every other one of RoPE's frequencies: those of half as many channels."""
        return super().prepare(q_pos, k_pos)[:, ::2]

    def rotate(self, q, k, x, prepared, layer, past):
        rotated = 2 * prepared.size(1)  # channels
        q_rotated = apply_rotary_emb(q[..., :rotated], prepared)
        k_rotated = apply_rotary_emb(k[..., :rotated], prepared)
        k_before = keys_before(k[..., rotated:], past)
        q = torch.cat((q_rotated, q[..., rotated:]), dim=-1)
        k = torch.cat((k_rotated, k_before), dim=-1)
        return q, k


def keys_before(k, past):
    """For each token in k (B, H, T, ·), the key of the token before it; the first token's own."""
    first = past.get("last key", k[:, :, :1])
    past["last key"] = k[:, :, -1:].clone()  # without the clone, the whole k would stay in memory
    return torch.cat((first, k[:, :, :-1]), dim=2)
