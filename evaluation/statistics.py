"""Statistics of the length evaluation: numpy in, numbers out."""

import numpy as np

RESAMPLES = 4000  # of the bootstrap
FEWEST_DOCUMENTS = 20  # with fewer there is no interval: none that we know of covers as often as it says


def t_quantile(p, df):
    """What Student's |t| with df degrees of freedom exceeds with probability p; p and df may be arrays of one shape."""
    step = np.pi / 2 / 20_000  # t = sqrt(df)·tan(angle), where the angle's density is cos^(df − 1)
    edges = step * np.arange(20_001)
    p, df = np.broadcast_arrays(p, np.minimum(df, 1000.0))
    found = []
    for tail, n in zip(p.flat, df.flat, strict=True):
        below = np.cumsum(np.cos(edges[1:] - step / 2) ** (n - 1))
        found.append(np.sqrt(n) * np.tan(np.interp(1 - tail, np.append(0, below / below[-1]), edges)))
    return np.reshape(found, p.shape)


def by_document(values, documents):
    """Mean of values (…, blocks, columns) over blocks, and each document's part in its error, (…, documents, columns),
    as if there were as many documents without it: what one large document decides alone is seen, as by the jackknife,
    whose standard error is (n − 1)/n of that of these parts."""
    distinct, ids = np.unique(documents, return_inverse=True)
    sums = np.zeros((*values.shape[:-2], len(distinct), values.shape[-1]))
    np.add.at(np.moveaxis(sums, -2, 0), ids, np.moveaxis(values, -2, 0))
    counts = np.bincount(ids)[:, None]
    mean = values.mean(axis=-2)
    return mean, (sums - counts * mean[..., None, :]) / counts.mean() / (1 - counts / counts.sum())


def text_bands(values, documents, seed, p=0.05):
    """Means of values (blocks, columns), and half-widths of a 1 − p band that holds in all columns at once, over the
    choice of text: the bootstrap's max-t over documents, each draw over its own standard error (Hall 1992). The widths
    are NaN where there are too few documents."""
    if len(np.unique(documents)) < FEWEST_DOCUMENTS:
        return values.mean(axis=0), np.full(values.shape[-1], np.nan)
    mean, parts = by_document(values, documents)
    n = len(parts)
    se = np.sqrt((parts**2).sum(axis=0) / (n * (n - 1)))
    moved = se > 0  # at the training length itself every difference is 0
    if not moved.any():
        return mean, se
    parts, counts = parts[:, moved], np.unique(documents, return_counts=True)[1]
    draws = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=RESAMPLES)
    size = (draws @ counts)[:, None] / counts.mean()  # of a draw, in documents of mean length
    off = draws @ parts / size
    share = (counts / counts.mean())[:, None]
    squares = draws @ parts**2 - 2 * off * (draws @ (parts * share)) + off**2 * (draws @ share**2)
    own_se = np.sqrt(np.maximum(squares, 1e-300) * n / (n - 1)) / size
    width = np.quantile(np.abs(off / own_se).max(axis=1), 1 - p) * se
    return mean, width


def mean_squares(values, documents):
    """Of values (seeds, blocks, columns), in a two-way layout of seeds and documents: the mean and the mean squares by
    document, by seed and by both, (columns,) each, and the numbers of documents and of seeds."""
    mean, parts = by_document(values, documents)
    k, n, _ = parts.shape
    total, seeds, texts = parts.mean(axis=(0, 1)), parts.mean(axis=1), parts.mean(axis=0)
    by_text = k * ((texts - total) ** 2).sum(axis=0) / (n - 1)
    by_seed = n * mean.var(axis=0, ddof=1)  # not that of `seeds`, whose documents do not count by their sizes
    both = ((parts - seeds[:, None] - texts + total) ** 2).sum(axis=(0, 1)) / ((k - 1) * (n - 1))
    return mean.mean(axis=0), by_text, by_seed, both, n, k


def mean_intervals(values, documents, p=0.05):
    """Means of values (seeds, blocks, columns), and half-widths of 1 − p intervals, one for each column by itself, over
    the choice of text and over training: either part of the error has its own quantile of Student's t, and the widths
    add as squares (after Howe 1974). Also returns the standard errors by the text alone and by the seeds alone, and the
    mean that an interval of that width would tell from 0 in 80% of cases. NaN where there are too few documents."""
    if len(np.unique(documents)) < FEWEST_DOCUMENTS:
        none = np.full(values.shape[-1], np.nan)
        return values.mean(axis=(0, 1)), none, dict.fromkeys(("text_se", "seed_se", "detectable"), none)
    mean, by_text, by_seed, both, n, k = mean_squares(values, documents)
    # the interaction stays with the seeds, who are fewer: if they look alike by chance, the interval is not narrower
    text, seed = np.sqrt(np.maximum(by_text - both, 0) / (n * k)), np.sqrt(by_seed / (n * k))
    width, power = (np.hypot(t_quantile(q, n - 1) * text, t_quantile(q, k - 1) * seed) for q in (p, 0.4))
    return mean, width, {"text_se": np.sqrt(by_text / (n * k)), "seed_se": seed, "detectable": width + power}


def breakdown(rows, training_length, threshold):
    """L*: the first length past training_length whose Δ exceeds the threshold, in nats, by more than its band, or None.
    rows: {length: {"delta", "band"} or None where undefined}. A band that is None is none: L* is not known."""
    past = ((n, row) for n, row in rows.items() if n > training_length and row and row["band"] is not None)
    return next((n for n, row in past if row["delta"] - row["band"] > threshold), None)


def wilson(successes, n, z=1.96):
    """Wilson's 95% interval of a proportion (Wilson 1927): (low, high)."""
    p = successes / n
    middle = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * np.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return max(0.0, float(middle - half)), min(1.0, float(middle + half))
