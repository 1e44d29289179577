"""Statistics of the length evaluation: numpy in, numbers out."""

import numpy as np

RESAMPLES = 4000  # of the bootstrap
FEWEST_DOCUMENTS = 10  # with fewer, blocks are resampled, and the band covers these documents only


def paired_bands(differences, documents, seed):
    """Means of differences (blocks, columns), and half-widths of a 95% band that holds in all columns at once.

    The band is the bootstrap's max-t. It resamples documents, since neighbouring blocks of one document are alike, or
    blocks where there are too few documents. Also returns the resampling unit and the number of units."""
    distinct, ids = np.unique(documents, return_inverse=True)
    n, units = len(distinct), "documents"
    if n < FEWEST_DOCUMENTS:
        n, units, ids = len(documents), "blocks", np.arange(len(documents))
    sums, counts = np.zeros((n, differences.shape[1])), np.bincount(ids)
    np.add.at(sums, ids, differences)
    draws = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=RESAMPLES)
    means = differences.mean(axis=0)
    resampled = (draws @ sums) / (draws @ counts)[:, None]
    se = resampled.std(axis=0)
    moved = se > 0  # at the training length itself every difference is 0
    t = abs(resampled - means)[:, moved] / se[moved]
    width = np.quantile(t.max(axis=1), 0.95) * se if moved.any() else se
    return means, width, units, n


def breakdown(rows, training_length, threshold):
    """L*: the first length past training_length whose Δ exceeds the threshold, in nats, by more than its band, or None.
    rows: {length: {"delta", "band"} or None where undefined}."""
    past = ((n, row) for n, row in rows.items() if n > training_length and row)
    return next((n for n, row in past if row["delta"] - row["band"] > threshold), None)


def wilson(successes, n, z=1.96):
    """Wilson's 95% interval of a proportion (Wilson 1927): (low, high)."""
    p = successes / n
    middle = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * np.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return max(0.0, float(middle - half)), min(1.0, float(middle + half))
