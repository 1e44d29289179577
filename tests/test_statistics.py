"""Formulas against published values, and how often bands and intervals cover the truth in simulations."""

import itertools

import numpy as np
import pytest

from evaluation.statistics import FEWEST_DOCUMENTS, by_document, mean_intervals, t_quantile, text_bands, wilson


def documents_of(kind, n, rng):
    """The document of each block: n documents of similar size, of very different sizes, or one with 40% of all."""
    counts = {
        "similar": rng.integers(1, 11, n),
        "different": np.maximum(1, 5 * rng.lognormal(0, 0.7, n)).astype(int),
        "one large": np.array([n * 3, *rng.integers(3, 7, n - 1)]),
    }[kind]
    return np.repeat(np.arange(n), counts)


def noise(tail, rng, shape):
    """Mean 0 and standard deviation 1."""
    z = rng.standard_normal(shape)
    return z if tail == "normal" else (np.exp(0.7 * z) - np.exp(0.245)) / 1.0159


def one_run(documents, tail, rng):
    """Differences (blocks, columns) whose true mean is 0. The middle column is the training length: always 0."""
    n = documents[-1] + 1
    shared = 0.7 * noise(tail, rng, (n, 1)) + 0.7 * noise(tail, rng, (n, 3))
    return (0.1, 0.0, 0.8) * (0.55 * shared[documents] + 0.83 * noise(tail, rng, (len(documents), 3)))


def band_by_blocks(values, seed):
    """The plain bootstrap's max-t, as if blocks were independent."""
    mean, parts = by_document(values, np.arange(len(values)))
    draws = np.random.default_rng(seed).multinomial(len(parts), np.full(len(parts), 1 / len(parts)), size=100)
    off = draws @ parts / len(parts)
    se = np.maximum(off.std(axis=0), 1e-12)
    return mean, np.quantile(np.abs(off / se).max(axis=1), 0.95) * se


@pytest.mark.parametrize("tail", ["normal", "lognormal"])
@pytest.mark.parametrize("kind", ["similar", "different", "one large"])
@pytest.mark.parametrize("n", [20, 48])
def test_bands_cover_all_columns_simultaneously(n, kind, tail, monkeypatch):
    monkeypatch.setattr("evaluation.statistics.RESAMPLES", 500)
    documents, rng, covered = documents_of(kind, n, np.random.default_rng(n)), np.random.default_rng(0), []
    for i in range(400):
        values = one_run(documents, tail, rng)
        bands = band_by_blocks(values, i), text_bands(values, documents, i)
        covered.append([(abs(mean) <= width + 1e-12).all() for mean, width in bands])
    by_blocks, ours = np.mean(covered, axis=0)
    assert ours >= 0.93 > by_blocks and bands[1][0][1] == bands[1][1][1] == 0


def several_runs(documents, tail, seeds, seed_sd, both_sd, rng):
    """Losses (seeds, blocks, columns) whose true mean is 0: effects of the text, of the seeds, and of both together on
    documents and on blocks. seed_sd has one value for each column."""
    n, blocks, columns = documents[-1] + 1, len(documents), len(seed_sd)
    text = 0.7 * noise(tail, rng, (n, columns))[documents] + 0.7 * noise(tail, rng, (blocks, columns))
    both = both_sd * noise(tail, rng, (seeds, n, columns))[:, documents]
    both += 0.2 * noise(tail, rng, (seeds, blocks, columns))
    return text + both + seed_sd * rng.standard_normal((seeds, 1, columns))


@pytest.mark.parametrize("tail", ["normal", "lognormal"])
@pytest.mark.parametrize(
    "kind, seeds, seed_sd, both_sd",
    [("different", 3, 0.2, 0.7), ("different", 3, 0.6, 0.2), ("different", 9, 0.2, 0.7), ("one large", 3, 0.2, 0.7)],
)
def test_intervals_cover_each_column_and_all_pairs_of_eight_schemes(kind, seeds, seed_sd, both_sd, tail):
    """One of the schemes varies three times as much from seed to seed as the others."""
    rng, covered = np.random.default_rng(1), []
    documents = documents_of(kind, 48, rng)
    one, two = map(list, zip(*itertools.combinations(range(8), 2), strict=True))
    for _ in range(150):
        values = several_runs(documents, tail, seeds, np.full(3, seed_sd), both_sd, rng)
        mean, width, more = mean_intervals([values], documents)
        losses = several_runs(documents, tail, seeds, seed_sd * np.array([1, 1, 1, 1, 1, 1, 1, 3]), both_sd, rng)
        differences, widths, _ = mean_intervals([losses[..., one], -losses[..., two]], documents, 0.05 / len(one))
        text_alone, ours = ((abs(mean) <= w).mean() for w in (1.96 * more["text_se"], width))
        covered.append((text_alone, ours, (abs(differences) <= widths).all()))
    text_alone, ours, pairs = np.mean(covered, axis=0)
    assert 0.93 <= ours <= 0.985 and pairs >= 0.93 and text_alone < 0.93


def test_each_part_of_the_error_has_its_own_quantile():
    """With seeds of equal means, the interval is that of the text alone. With others, the interaction of both, which is
    part of the seeds' variance, is subtracted from the text's."""
    k, n, rng = 3, 20, np.random.default_rng(0)
    text, both = rng.standard_normal(n), rng.standard_normal((k, n))
    both += both.mean() - both.mean(axis=0) - both.mean(axis=1, keepdims=True)
    jackknife = (n / (n - 1)) ** 2  # of documents of equal size
    by_text, by_both = jackknife * text.var(ddof=1) / n, jackknife * (both**2).sum() / ((k - 1) * (n - 1)) / (n * k)
    seeds, by_seed = np.array([[0.0], [1.0], [5.0]]), 7 / k
    for values, text_part, seed_part in ((text + both, by_text, 0), (text + both + seeds, by_text - by_both, by_seed)):
        _, width, more = mean_intervals([values[..., None]], np.arange(n))
        of_each = [
            np.hypot(t_quantile(p, n - 1) * text_part**0.5, t_quantile(p, 2) * seed_part**0.5) for p in (0.05, 0.4)
        ]
        assert (width, more["detectable"]) == (pytest.approx(of_each[0]), pytest.approx(sum(of_each)))


def test_seeds_contribute_the_variance_of_their_means_however_different_the_documents():
    """One document has two of three blocks. First all seeds have the same mean, then their means are 0, 1 and 5."""
    documents = np.repeat(np.arange(21), [40, *[1] * 20])
    large = np.where(documents == 0, 1.0, -2.0)  # of mean 0
    for means, by_seed in (((0, 0, 0), 0.0), ((0, 1, 5), 7 / 3)):
        values = np.outer((3, 0, -3), large) + np.array(means)[:, None]
        assert mean_intervals([values[..., None]], documents)[2]["seed_se"] ** 2 == pytest.approx(by_seed)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("n", [1, FEWEST_DOCUMENTS - 1])
def test_too_few_documents_have_no_band_and_no_interval(n):
    values = np.random.default_rng(0).standard_normal((3, 50, 1))
    documents = np.arange(50) % n
    assert np.isnan(text_bands(values[0], documents, 0)[1]).all()
    assert np.isnan(mean_intervals([values], documents)[1]).all()


def test_quantiles_of_t_as_published():
    """Student's table, two-sided."""
    found = [t_quantile(p, df) for p, df in ((0.05, 1), (0.05, 2), (0.01, 10), (0.1, 30))]
    assert found == pytest.approx([12.706, 4.303, 3.169, 1.697], rel=1e-3)
    assert t_quantile(0.05, 1e5) == pytest.approx(1.96, abs=3e-3)


def test_wilson_interval_as_published():
    """Newcombe 1998 (Statistics in Medicine 17, 857), method 3: 81 of 263 and 0 of 20."""
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=1e-4)
    assert wilson(0, 20) == pytest.approx((0.0, 0.1611), abs=1e-4) and wilson(0, 20)[0] == 0 and wilson(20, 20)[1] == 1
