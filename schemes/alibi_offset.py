import torch

from model import ALiBi
from schemes.key_offset import keys_before


class ALiBiOffset(ALiBi, name="alibi_offset"):
    """Our combination of partial key offset (key_offset) with ALiBi: scores (q_i·k_j + q'_i·k'_{j−1}) / sqrt(D) −
    m_h·(i−j), where k' is the second half of the key's channels, the smaller one if D is odd. The first token keeps its
    own k'. Nothing is learned.
    """

    def rotate(self, q, k, x, prepared, layer, past):
        fixed = (k.size(-1) + 1) // 2  # channels
        k_before = keys_before(k[..., fixed:], past)
        k = torch.cat((k[..., :fixed], k_before), dim=-1)
        return super().rotate(q, k, x, prepared, layer, past)
