import numpy as np
import pytest

from evaluation.statistics import FEWEST_DOCUMENTS, mean_intervals, t_quantile, text_bands, wilson
from tools import coverage


@pytest.mark.parametrize("tail", coverage.TAILS)
@pytest.mark.parametrize("kind", coverage.KINDS)
@pytest.mark.parametrize("n", [20, 48])
def test_bands_over_text_cover_all_columns_at_once(n, kind, tail, monkeypatch):
    monkeypatch.setattr("evaluation.statistics.RESAMPLES", 500)
    monkeypatch.setattr(coverage, "RESAMPLES", 100)
    by_blocks, _, ours = coverage.text_coverage(kind, tail, n, 400)
    assert ours >= 0.93 > by_blocks
    mean, width = text_bands(
        coverage.one_run(np.arange(40) // 2, tail, np.random.default_rng(0)), np.arange(40) // 2, 0
    )
    assert width[1] == mean[1] == 0


@pytest.mark.parametrize("tail", coverage.TAILS)
@pytest.mark.parametrize(
    "kind, seeds, seed_sd, both_sd",
    [("unlike", 3, 0.2, 0.7), ("unlike", 3, 0.6, 0.2), ("unlike", 9, 0.2, 0.7), ("one large", 3, 0.2, 0.7)],
)
def test_intervals_over_text_and_training_cover_each_column_and_all_pairs(
    kind, seeds, seed_sd, both_sd, tail, monkeypatch
):
    monkeypatch.setattr(coverage, "RESAMPLES", 100)
    (text_alone, _, _, ours), (pairs_by_df, pairs) = coverage.joint_coverage(kind, tail, seeds, seed_sd, both_sd, 150)
    assert 0.93 <= ours <= 0.985 and pairs >= 0.93 and text_alone < 0.93
    if seeds == 3:
        assert pairs_by_df < 0.93


def test_either_part_of_the_error_has_its_own_quantile():
    """First text and its interaction with seeds, which is taken from the text's part; then seeds alone."""
    k, n, rng = 3, 20, np.random.default_rng(0)
    text, both = rng.standard_normal(n), rng.standard_normal((k, n))
    both += both.mean() - both.mean(axis=0) - both.mean(axis=1, keepdims=True)
    by_text = text.var(ddof=1) / n - (both**2).sum() / ((k - 1) * (n - 1)) / (n * k)
    jackknife = (n / (n - 1)) ** 2  # of documents of one length
    seeds = np.repeat([[0.0], [1.0], [5.0]], n, axis=1)  # of variance 7
    for values, df, variance in ((text + both, n - 1, jackknife * by_text), (seeds, k - 1, 7 / k)):
        _, width, more = mean_intervals(values[..., None], np.arange(n))
        assert width == pytest.approx(t_quantile(0.05, df) * variance**0.5)
        assert more["detectable"] == pytest.approx(width + t_quantile(0.4, df) * variance**0.5)


def test_what_seeds_add_is_the_variance_of_their_means_however_unlike_the_documents():
    """One document holds two of three blocks. First all seeds have one mean, then their means are 0, 1 and 5."""
    documents = np.repeat(np.arange(21), [40, *[1] * 20])
    large = np.where(documents == 0, 1.0, -2.0)  # of mean 0
    for means, by_seed in (((0, 0, 0), 0.0), ((0, 1, 5), 7 / 3)):
        values = np.outer((3, 0, -3), large) + np.array(means)[:, None]
        assert mean_intervals(values[..., None], documents)[2]["seed_se"] ** 2 == pytest.approx(by_seed)


@pytest.mark.parametrize("tail", coverage.TAILS)
def test_noise_has_the_variance_that_it_says(tail):
    values = coverage.noise(tail, np.random.default_rng(0), 1_000_000)
    assert abs(values.mean()) < 0.01 and values.std() == pytest.approx(1, abs=0.01)


def test_the_command_prints_its_tables(capsys):
    assert coverage.main(["--draws=2"]) == 0
    out = capsys.readouterr().out
    assert (
        out.count("documents, ") == 12
        and out.count(" seeds of sd ") == 48
        and out.count("%") == 3 + 12 * 3 + 24 * (4 + 2)
    )


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("n", [1, FEWEST_DOCUMENTS - 1])
def test_too_few_documents_have_no_interval(n):
    values = np.random.default_rng(0).standard_normal((3, 50, 1))
    documents = np.arange(50) % n
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
