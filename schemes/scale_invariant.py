import math

import torch

from model import RoPE, frequencies, precompute_freqs_cis


class ScaleInvariant(RoPE, name="scale_invariant"):
    """Anson et al. 2025 (arXiv 2505.17083): a·s + m, where s are the scores of RoPE on its fast pairs, a² = 1 + 2L,
    m = −2L and L = log(1 + (i−j)/τ). For normally distributed s, this gives each octave of distances the same expected
    attention, and keeps it as sparse at every distance. τ is the option tau. Nothing is learned.

    Deviations: the pairs that turn are those that complete a turn within the first training length, not half of them;
    the other pairs would reach angles past the training length that were never trained.
    """

    reads = ()
    options = {"tau": 10.0}

    def prepare(self, q_pos, k_pos):
        freqs = frequencies(self.config.head_size, q_pos.device)
        is_fast = freqs * self.config.first_length >= 2 * math.pi
        return precompute_freqs_cis(q_pos, freqs.where(is_fast, 0.0))

    def bias(self, q, k, q_pos, k_pos, prepared, layer):
        distance = (q_pos[:, None] - k_pos).clamp(min=0)
        L = torch.log1p(distance / self.config.options.tau)
        scores = q @ k.mT / math.sqrt(q.size(-1))
        return ((1 + 2 * L).sqrt() - 1) * scores - 2 * L
