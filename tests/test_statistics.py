"""Formulas against published values, and how often intervals cover the truth in simulations."""

import numpy as np
import pytest

from evaluation.statistics import interval, rise, t_quantile, verdict


def documents_of(n, rng):
    """The document of each block: the first of n documents has 40% of all blocks."""
    n_blocks = [3 * n, *rng.integers(3, 7, n - 1)]
    return np.repeat(np.arange(n), n_blocks)


def noise(rng, *shape):
    """Mean 0, standard deviation 1 and a heavy tail."""
    return (rng.lognormal(0, 0.7, shape) - np.exp(0.245)) / 1.0159


def losses(documents, rng, seeds, seed_sd, both_sd):
    """Losses (seeds, blocks) whose true mean is 0: effects of the text, of the seeds, and of both together, on
    documents and on blocks."""
    n = documents[-1] + 1
    blocks = len(documents)
    text = 0.7 * noise(rng, n)[documents]
    text += 0.7 * noise(rng, blocks)
    both = both_sd * noise(rng, seeds, n)[:, documents]
    both += 0.2 * noise(rng, seeds, blocks)
    return text + both + seed_sd * rng.standard_normal((seeds, 1))


def coverage(documents, draw):
    """How often an interval of what is drawn contains the true mean, 0."""
    covered = []
    for _ in range(400):
        mean, width = interval(draw(), documents)
        covered.append(abs(mean) <= width)
    return np.mean(covered)


@pytest.mark.parametrize(
    "n, seeds, seed_sd, both_sd",
    [
        (20, 1, 0, 0),
        (48, 3, 0.6, 0.2),
        (48, 3, 0.2, 0.7),
    ],
)
def test_intervals_cover_the_mean_of_one_run_and_of_several(n, seeds, seed_sd, both_sd):
    rng = np.random.default_rng(1)
    documents = documents_of(n, rng)
    assert 0.9 <= coverage(documents, lambda: [losses(documents, rng, seeds, seed_sd, both_sd)]) <= 0.995


def test_intervals_cover_differences_of_schemes_whose_seeds_vary_unequally():
    rng = np.random.default_rng(2)
    documents = documents_of(48, rng)

    def draw():
        text = losses(documents, rng, 1, 0, 0)
        a = text + losses(documents, rng, 3, 0.2, 0.3)
        b = text + losses(documents, rng, 3, 0.6, 0.3)
        return a, -b

    assert 0.93 <= coverage(documents, draw) <= 0.99


def test_each_part_of_the_error_has_its_own_quantile():
    """With seeds of equal means, the interval is that of the text. With others, the interaction of both, which is part
    of the seeds' variance, is subtracted from the text's."""
    k, n = 3, 20
    rng = np.random.default_rng(0)
    text = rng.standard_normal(n)
    both = rng.standard_normal((k, n))
    both += both.mean() - both.mean(axis=0) - both.mean(axis=1, keepdims=True)
    jackknife = (n / (n - 1)) ** 2  # of documents of equal size
    by_text = jackknife * text.var(ddof=1) / n
    both_variance = (both**2).sum() / ((k - 1) * (n - 1))
    by_both = jackknife * both_variance / (n * k)
    seeds = np.array([[0.0], [1.0], [5.0]])  # the variance of their mean is 7/3
    _, width = interval([text + both], np.arange(n))
    assert width == pytest.approx(t_quantile(n - 1) * by_text**0.5)
    _, width = interval([text + both + seeds], np.arange(n))
    text_part = t_quantile(n - 1) ** 2 * (by_text - by_both)
    assert width**2 == pytest.approx(text_part + t_quantile(2) ** 2 * 7 / 3)


def test_quantiles_of_t_as_published():
    """Student's table, two-sided, 5%."""
    published = {
        1: 12.706,
        2: 4.303,
        10: 2.228,
        30: 2.042,
        1e5: 1.96,
    }
    for df, quantile in published.items():
        assert t_quantile(df) == pytest.approx(quantile, rel=1.5e-3)


def test_a_verdict_needs_the_whole_interval():
    assert verdict(0.03, 0.01) == "flat"
    assert verdict(0.03, 0.02) == "rises"
    assert verdict(0.03, 0.03) == "undecided"
    assert "no verdict" in verdict(0.0, np.nan)


def test_a_rise_is_measured_from_the_best_shorter_length_on():
    documents = np.arange(60)
    text = np.random.default_rng(0).standard_normal((1, 60))
    losses = {16: text + 1.0, 32: text + 0.9, 64: text + 0.95, 128: text + 0.96}
    risen = rise(losses, 16, documents)
    assert risen["from"] == 32
    assert risen["mean"] == pytest.approx(0.06)
    assert risen["verdict"] == "rises"
    assert rise(losses, 64, documents)["from"] == 64
    assert rise(losses, 128, documents) is None


@pytest.mark.parametrize("noise, word", [(0.01, "flat"), (1.0, "undecided")])
def test_a_row_that_is_best_at_the_longest_length_need_not_be_flat(noise, word):
    change = noise * np.random.default_rng(0).standard_normal((1, 60))
    losses = {16: 0 * change, 32: change - change.mean() - 0.02}
    risen = rise(losses, 16, np.arange(60))
    assert risen["mean"] == pytest.approx(-0.02)
    assert risen["verdict"] == word
