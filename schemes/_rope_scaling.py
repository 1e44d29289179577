"""How RoPE extends past its training length L: --rope_scaling=NAME calls the function of that name.

A function takes a layer's config and the frequencies of the pairs that turn, and returns the scaled frequencies and a
factor on q and on k. s = rope_factor.
"""

import math

import torch


def none(config, freqs):
    return freqs, 1.0


def linear(config, freqs):
    """p → p/s, position interpolation. Chen et al. 2023 (arXiv 2306.15595)."""
    return freqs / config.rope_factor, 1.0


def ntk(config, freqs):
    """A base of theta·s^(D/(D−2)), which slows the slowest pair by s and leaves the fastest unchanged. bloc97 2023."""
    D = config.rotated
    power = 1 + D / max(1, D - 2) * math.log(config.rope_factor, config.rope_theta)
    return freqs**power, 1.0


def llama3(config, freqs):
    """Keeps pairs that turn more than 4 times within L, slows pairs that turn less than once by s, and interpolates
    between them, linearly in the number of turns. Llama 3.1 2024 (arXiv 2407.21783)."""
    turns = freqs * (config.rope_block_size or config.block_size) / (2 * math.pi)
    share = (4 - turns) / (4 - 1)
    return slowed(config, freqs, share), 1.0


def yarn(config, freqs):
    """Keeps pairs that turn more than 32 times within L, slows pairs that turn less than once by s, and interpolates
    between them with a ramp that is linear in the pair index, as in the authors' code (the paper's text: linear in the
    number of turns). q and k grow by 0.1·ln(s) + 1. Peng et al. 2023 (arXiv 2309.00071)."""
    D = config.rotated
    L = config.rope_block_size or config.block_size

    def pair_with(turns):  # the index of the pair that turns so many times within L
        return D * math.log(L / (2 * math.pi * turns)) / (2 * math.log(config.rope_theta))

    low = pair_with(32)
    high = pair_with(1)
    if config.rope_truncate:
        low = math.floor(low)
        high = math.ceil(high)
    low = max(0, low)
    high = min(D - 1, high)
    pair = torch.ones_like(freqs).cumsum(0) - 1
    share = (pair - low) / max(high - low, 0.001)
    size = config.rope_size or 0.1 * math.log(config.rope_factor) + 1
    return slowed(config, freqs, share), size


def slowed(config, freqs, share):
    """The frequencies, each slowed by s as far as its share says: not at all at 0, completely at 1."""
    share = share.clamp(0, 1)
    return freqs * (1 - share) + freqs / config.rope_factor * share
