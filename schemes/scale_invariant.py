import math

import torch

from model import RoPE, frequencies, precompute_freqs_cis


class ScaleInvariant(RoPE, name="scale_invariant"):
    """Anson et al. 2025 (arXiv 2505.17083): a·s + m, where s are the scores of RoPE on its fast pairs, a² = 1 + 2L,
    m = −2L and L = log(1 + (i−j)/τ). For normally distributed s, this gives each octave of distances the same expected
    attention, and keeps it as sparse at every distance. τ is the option tau. Nothing is learned.

    Deviations: the pairs that turn are those that complete a turn within block_size, not half of them; the other pairs
    would reach angles past the training length that were never trained.

    Cost: a training step takes 1.18 × RoPE's time on one core of an Intel Xeon, with a mask. Training's memory
    grows with the square of the length (a step on 2,048 tokens: 0.26 GB, RoPE 0.08), evaluation's with the length
    (one layer on 16,384 tokens: 0.18 GB, RoPE 0.10).

    Seen (docs/evidence.md, five seeds): loss 1.105 at the training length (RoPE 1.141), Δ at 16 times +0.214 ±0.062.
    """

    reads, options = (), {"tau": 10.0}

    @classmethod
    def check(cls, config):
        super().check(config)
        if (tau := cls.own_options(config)["tau"]) <= 0:
            raise ValueError(f"pos_options: tau={tau} must be above 0")

    def __init__(self, config):
        super().__init__(config)
        self.tau, self.head_size = self.own_options(config)["tau"], config.n_embd // config.n_head

    def prepare(self, q_pos, k_pos):
        freqs = frequencies(self.head_size, q_pos.device)
        return precompute_freqs_cis(q_pos, freqs.where(freqs * self.config.block_size >= 2 * math.pi, 0.0))

    def bias(self, q, k, q_pos, k_pos, prepared, layer):
        L = torch.log1p((q_pos[:, None] - k_pos).clamp(min=0) / self.tau)
        scores = q @ k.mT / math.sqrt(self.head_size)
        return ((1 + 2 * L).sqrt() - 1) * scores - 2 * L
