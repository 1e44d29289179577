import numpy as np
import pytest

from evaluation.statistics import FEWEST_DOCUMENTS, mean_intervals, t_quantile, text_bands, wilson


def documents_of(kind, n, rng):
    """The document of each block: documents of like length, of very unlike ones, or one that holds 40% of all."""
    counts = {
        "like": rng.integers(1, 11, n),
        "unlike": np.maximum(1, 5 * rng.lognormal(0, 0.7, n)).astype(int),
        "one large": np.array([n * 3, *rng.integers(3, 7, n - 1)]),
    }[kind]
    return np.repeat(np.arange(n), counts)


def noise(tail, rng, shape):
    """Of mean 0 and standard deviation 1."""
    z = rng.standard_normal(shape)
    return z if tail == "normal" else (np.exp(0.7 * z) - np.exp(0.245)) / 0.9724


@pytest.mark.parametrize("tail", ["normal", "lognormal"])
@pytest.mark.parametrize("kind", ["like", "unlike", "one large"])
@pytest.mark.parametrize("n", [20, 48])
def test_bands_over_text_cover_all_columns_at_once(n, kind, tail, monkeypatch):
    """Documents have effects that their blocks share; the columns' are correlated and of unlike size."""
    monkeypatch.setattr("evaluation.statistics.RESAMPLES", 500)
    documents, rng = documents_of(kind, n, np.random.default_rng(n)), np.random.default_rng(0)
    scale, hits, draws = np.array([0.1, 0.0, 0.8]), 0, 400  # the training length, in the middle, has no difference
    for i in range(draws):
        shared = 0.7 * noise(tail, rng, (n, 1)) + 0.7 * noise(tail, rng, (n, 3))
        own = noise(tail, rng, (len(documents), 3))
        mean, width = text_bands(scale * (0.55 * shared[documents] + 0.83 * own), documents, seed=i)
        hits += (abs(mean) <= width).all()
        assert width[1] == mean[1] == 0
    assert hits / draws >= 0.93


@pytest.mark.parametrize("tail", ["normal", "lognormal"])
@pytest.mark.parametrize("seeds, seed_sd", [(3, 0.0), (3, 0.3), (9, 0.1)])
def test_intervals_over_text_and_training_cover_each_column(seeds, seed_sd, tail):
    n, rng, hits, naive, draws = 48, np.random.default_rng(1), [], [], 400
    documents = documents_of("like", n, rng)
    for _ in range(draws):
        text = 0.7 * noise(tail, rng, (n, 2))[documents] + 0.7 * noise(tail, rng, (len(documents), 2))
        training = seed_sd * rng.standard_normal((seeds, 1, 2)) + 0.2 * noise(tail, rng, (seeds, len(documents), 2))
        values = np.array([0.1, 1.0]) * (text + training)
        mean, width, parts = mean_intervals(values, documents)
        hits.append(abs(mean) <= width)
        naive.append(abs(mean) <= 1.96 * parts["text_se"])
    assert 0.92 <= np.mean(hits) <= 0.985
    if seed_sd == 0.3:  # the text alone covers far less
        assert np.mean(naive) < 0.8


def test_too_few_documents_have_no_interval():
    values = np.random.default_rng(0).standard_normal((3, 50, 1))
    documents = np.arange(50) % (FEWEST_DOCUMENTS - 1)
    assert np.isnan(text_bands(values[0], documents, 0)[1]).all()
    assert np.isnan(mean_intervals(values, documents)[1]).all()


def test_quantiles_of_t_as_published():
    """Student's table, two-sided."""
    found = t_quantile(np.array([0.05, 0.05, 0.01, 0.1]), np.array([1, 2, 10, 30]))
    assert found == pytest.approx([12.706, 4.303, 3.169, 1.697], rel=1e-3)
    assert t_quantile(0.05, 1e5) == pytest.approx(1.96, abs=3e-3)


def test_wilson_interval_as_published():
    """Newcombe 1998 (Statistics in Medicine 17, 857), method 3: 81 of 263 and 0 of 20."""
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=1e-4)
    assert wilson(0, 20) == pytest.approx((0.0, 0.1611), abs=1e-4) and wilson(0, 20)[0] == 0 and wilson(20, 20)[1] == 1
