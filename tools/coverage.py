"""How often the evaluation's 95% intervals hold the truth, in simulations:  python -m tools.coverage

Documents have effects that their blocks share, with normal or lognormal tails, equal or very unlike sizes, or one
document with 40% of the blocks. Bands over the text must hold in three columns at once, intervals over text and
training in each, and those of the differences between eight schemes, one of which differs three times as much from
seed to seed, in all 28 pairs at once. Beside each method that evaluation/statistics.py has stand those that it does not
have.
"""

import itertools
from dataclasses import dataclass

import numpy as np
from tqdm import tqdm

import config
from run.script import script
from evaluation.statistics import by_document, mean_intervals, mean_squares, t_quantile, text_bands

RESAMPLES = 1000  # of the methods for comparison
METHODS = "Satterthwaite", "Howe"  # for text and training together
KINDS, TAILS = ("like", "unlike", "one large"), ("normal", "lognormal")
SCALE = np.array([0.1, 0.0, 0.8])  # of the columns; the training length, in the middle, has no difference
SEED_SPREAD = np.array([1, 1, 1, 1, 1, 1, 1, 3.0])  # how much eight schemes differ from seed to seed


@dataclass(frozen=True)
class CoverageConfig:
    draws: int = 400  # simulated evaluations for each line of the tables

    def __post_init__(self):
        config.at_least(1, self, "draws")


def documents_of(kind, n, rng):
    """The document of each block: n documents of like length, of very unlike ones, or one that holds 40% of all."""
    counts = {
        "like": rng.integers(1, 11, n),
        "unlike": np.maximum(1, 5 * rng.lognormal(0, 0.7, n)).astype(int),
        "one large": np.array([n * 3, *rng.integers(3, 7, n - 1)]),
    }[kind]
    return np.repeat(np.arange(n), counts)


def noise(tail, rng, shape):
    """Of mean 0 and standard deviation 1."""
    z = rng.standard_normal(shape)
    return z if tail == "normal" else (np.exp(0.7 * z) - np.exp(0.245)) / 1.0159


def one_run(documents, tail, rng):
    """Differences (blocks, columns) of which the truth is 0."""
    n = documents[-1] + 1
    shared = 0.7 * noise(tail, rng, (n, 1)) + 0.7 * noise(tail, rng, (n, 3))
    return SCALE * (0.55 * shared[documents] + 0.83 * noise(tail, rng, (len(documents), 3)))


def several_runs(documents, tail, seeds, seed_sd, both_sd, rng):
    """Losses (seeds, blocks, columns) of which the truth is 0: the text's effects, the seeds', and both's on documents
    and on blocks. seed_sd has one value for each column."""
    n, blocks, columns = documents[-1] + 1, len(documents), len(seed_sd)
    text = 0.7 * noise(tail, rng, (n, columns))[documents] + 0.7 * noise(tail, rng, (blocks, columns))
    both = both_sd * noise(tail, rng, (seeds, n, columns))[:, documents]
    both += 0.2 * noise(tail, rng, (seeds, blocks, columns))
    return text + both + seed_sd * rng.standard_normal((seeds, 1, columns))


def plain_band(values, units, seed):
    """The plain bootstrap's max-t over units, documents or blocks: each draw over one and the same standard error."""
    mean, parts = by_document(values, units)
    draws = np.random.default_rng(seed).multinomial(len(parts), np.full(len(parts), 1 / len(parts)), size=RESAMPLES)
    off = draws @ parts / len(parts)
    se = np.maximum(off.std(axis=0), 1e-12)
    return mean, np.quantile(np.abs(off / se).max(axis=1), 0.95) * se


def resampled_interval(values, documents, seed):
    """The plain bootstrap of seeds and documents both, for each column."""
    mean, parts = by_document(values, documents)
    (k, n, _), rng = parts.shape, np.random.default_rng(seed)
    parts = parts + mean[:, None]
    whose = rng.multinomial(k, np.full(k, 1 / k), size=RESAMPLES)[:, :, None] / k
    which = rng.multinomial(n, np.full(n, 1 / n), size=RESAMPLES)[:, None] / n
    drawn = np.einsum("rsd,sdc->rc", whose * which, parts)
    return mean.mean(axis=0), 1.96 * drawn.std(axis=0)


def satterthwaite(values, documents, p=0.05):
    """One standard error for text and seeds, with degrees of freedom as Satterthwaite (1946) estimates them."""
    mean, by_text, by_seed, both, n, k = mean_squares(values, documents)
    more = np.maximum(by_seed - both, 0)
    spread = by_text**2 / (n - 1) + (more > 0) * (by_seed**2 + both**2 / (n - 1)) / (k - 1)
    return mean, t_quantile(p, (by_text + more) ** 2 / spread) * np.sqrt((by_text + more) / (n * k))


def text_coverage(kind, tail, n, draws):
    """Shares of simulated evaluations whose band holds the truth in all columns: by blocks, by documents, ours."""
    documents, rng, hits = documents_of(kind, n, np.random.default_rng(n)), np.random.default_rng(0), []
    for i in range(draws):
        values = one_run(documents, tail, rng)
        bands = plain_band(values, np.arange(len(values)), i), plain_band(values, documents, i)
        bands = *bands, text_bands(values, documents, i)
        hits.append([(abs(mean) <= width + 1e-12).all() for mean, width in bands])
    return np.mean(hits, axis=0)


def joint_coverage(kind, tail, seeds, seed_sd, both_sd, draws):
    """Shares of columns whose interval holds the truth: by the text alone, by resampling both, by Satterthwaite's
    degrees of freedom, ours. Then shares of simulated evaluations in which all pairs of eight schemes hold it, by the
    last two."""
    rng, hits, pairs = np.random.default_rng(1), [], []
    documents = documents_of(kind, 48, rng)
    one, two = map(list, zip(*itertools.combinations(range(len(SEED_SPREAD)), 2), strict=True))
    for i in range(draws):
        values = several_runs(documents, tail, seeds, np.full(3, seed_sd), both_sd, rng)
        mean, width, parts = mean_intervals(values, documents)
        _, resampled = resampled_interval(values, documents, i)
        _, by_df = satterthwaite(values, documents)
        hits.append([(abs(mean) <= w).mean() for w in (1.96 * parts["text_se"], resampled, by_df, width)])
        losses = several_runs(documents, tail, seeds, seed_sd * SEED_SPREAD, both_sd, rng)
        values = losses[..., one] - losses[..., two]
        found = (f(values, documents, 0.05 / len(one)) for f in (satterthwaite, mean_intervals))
        pairs.append([(abs(mean) <= width).all() for mean, width, *_ in found])
    return np.mean(hits, axis=0), np.mean(pairs, axis=0)


def main(argv):
    cfg = config.load(CoverageConfig, argv)
    texts, joints = (
        list(itertools.product((20, 48), KINDS, TAILS)),
        list(itertools.product(KINDS[1:], TAILS, (3, 9), ((0.0, 0.7), (0.2, 0.7), (0.6, 0.2)))),
    )
    bands, intervals, differences = {}, {}, {}
    with tqdm(total=len(texts) + len(joints), desc="simulations", leave=False, disable=None) as bar:
        for n, kind, tail in texts:
            bands[f"{n} documents, {kind}, {tail}"] = text_coverage(kind, tail, n, cfg.draws)
            bar.update()
        for kind, tail, seeds, (seed_sd, both_sd) in joints:
            label = f"{kind}, {tail}, {seeds} seeds of sd {seed_sd:g}, interaction {both_sd:g}"
            intervals[label], differences[label] = joint_coverage(kind, tail, seeds, seed_sd, both_sd, cfg.draws)
            bar.update()
    for title, names, found in (
        ("A 95% band over the text holds", ("by blocks", "by documents", "studentised"), bands),
        ("A 95% interval over text and training holds", ("text alone", "both resampled", *METHODS), intervals),
        ("95% intervals of 28 differences all hold", METHODS, differences),
    ):
        print(f"{title:55}" + "".join(f"{name:>16}" for name in names))
        for name, shares in found.items():
            print(f"{name:55}" + "".join(f"{share:16.1%}" for share in shares))
        print()
    return 0


if __name__ == "__main__":
    script(main)
