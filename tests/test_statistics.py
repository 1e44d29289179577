import numpy as np
import pytest

from evaluation.statistics import paired_bands, wilson


def test_bands_cover_the_truth_at_all_lengths_at_once_in_95_percent_of_draws(monkeypatch):
    """60 documents of unequal size whose effects are shared by their blocks; resampled blocks would cover far less."""
    monkeypatch.setattr("evaluation.statistics.RESAMPLES", 500)
    rng = np.random.default_rng(0)
    truth, hits, naive_hits, draws = np.array([0.3, 0.0, 0.5]), 0, 0, 300
    scale = np.array([0.2, 0.0, 0.4])  # the training length, in the middle, has no difference
    documents = np.repeat(np.arange(60), rng.integers(1, 16, 60))
    for i in range(draws):
        effect = rng.standard_normal((60, 3))[documents] + 0.5 * rng.standard_normal((len(documents), 3))
        mean, width, units, n = paired_bands(truth + scale * effect, documents, seed=i)
        hits += (abs(mean - truth) <= width).all()
        assert (units, n) == ("documents", 60) and width[1] == mean[1] == 0
        mean, width, *_ = paired_bands(truth + scale * effect, np.arange(len(documents)), seed=i)
        naive_hits += (abs(mean - truth) <= width).all()
    assert 0.91 <= hits / draws <= 0.98
    assert naive_hits / draws < 0.6


def test_few_documents_mean_that_blocks_are_resampled():
    differences = np.random.default_rng(0).standard_normal((50, 1))
    assert paired_bands(differences, np.zeros(50, int), 0)[2:] == ("blocks", 50)


def test_wilson_interval_as_published():
    """Newcombe 1998 (Statistics in Medicine 17, 857), method 3: 81 of 263 and 0 of 20."""
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=1e-4)
    assert wilson(0, 20) == pytest.approx((0.0, 0.1611), abs=1e-4) and wilson(0, 20)[0] == 0 and wilson(20, 20)[1] == 1
