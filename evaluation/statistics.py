"""Statistics of the length evaluation: numpy in, numbers out.

A *band* is for one run. It covers the choice of text, in all columns (context lengths) simultaneously, with 95%
probability. An *interval* is for the mean of several seeds. It covers the choice of text and of seeds, for each column
separately, with 95% probability.
"""

import itertools

import numpy as np

RESAMPLES = 4000  # of the bootstrap
FEWEST_DOCUMENTS = 20  # with fewer documents no method that we know of covers 95%, so there is no band and no interval


def t_quantile(p, df):
    """The value that Student's |t| with df degrees of freedom exceeds with probability p."""
    df = min(df, 1000.0)  # beyond, the quantiles hardly change
    angles, step = np.linspace(0, np.pi / 2, 20_001, retstep=True)
    below = np.cumsum(np.cos(angles[1:] - step / 2) ** (df - 1))  # t = sqrt(df)·tan(angle): the angle's density
    return np.sqrt(df) * np.tan(np.interp(1 - p, np.append(0, below / below[-1]), angles))


def by_document(values, documents):
    """Mean of values (…, blocks, columns) over blocks, and the contribution of each document to the error of that mean,
    (…, documents, columns). As in the jackknife, contributions are scaled up, those of large documents most, so that
    one very large document makes the error large."""
    distinct, ids = np.unique(documents, return_inverse=True)
    sums = np.zeros((*values.shape[:-2], len(distinct), values.shape[-1]))
    np.add.at(np.moveaxis(sums, -2, 0), ids, np.moveaxis(values, -2, 0))
    counts = np.bincount(ids)[:, None]
    mean = values.mean(axis=-2)
    return mean, (sums - counts * mean[..., None, :]) / counts.mean() / (1 - counts / counts.sum())


def text_bands(values, documents, seed, p=0.05):
    """Means of values (blocks, columns) of one run, and half-widths of a band that covers all columns simultaneously
    with probability 1 − p: the bootstrap's max-t over documents, studentised, which means that each draw is divided by
    its own standard error (Hall 1992). With too few documents the widths are NaN."""
    if len(np.unique(documents)) < FEWEST_DOCUMENTS:
        return values.mean(axis=0), np.full(values.shape[-1], np.nan)
    mean, parts = by_document(values, documents)
    n = len(parts)
    se = np.sqrt((parts**2).sum(axis=0) / (n * (n - 1)))
    moved = se > 0  # at the training length every difference is 0
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


def mean_intervals(groups, documents, p=0.05):
    """The sum of the means of `groups`, each (seeds, blocks, columns) on the same blocks, and half-widths of 1 − p
    intervals for each column separately: [a] is the mean of a, [a, -b] the difference between a and b.

    The text is paired, since all groups score the same blocks. The seeds of different groups are independent, with
    Welch's degrees of freedom (1947). Text and seeds each have their own quantile of Student's t, and the widths add as
    squares (after Howe 1974). An interval is never narrower than that of the text alone. Also returns, by name, the
    standard errors from the text alone and from the seeds alone, and the smallest mean for which an interval of this
    width excludes 0 in 80% of repetitions. With too few documents everything but the means is NaN."""
    if len(np.unique(documents)) < FEWEST_DOCUMENTS:
        unknown = np.full(groups[0].shape[-1], np.nan)
        total = sum(values.mean(axis=(0, 1)) for values in groups)
        return total, unknown, dict.fromkeys(("text_se", "seed_se", "detectable"), unknown)
    total, texts, interaction, by_seed = 0.0, 0.0, 0.0, []
    for values in groups:  # each is a two-way layout of seeds and documents
        mean, parts = by_document(values, documents)
        k, n, _ = parts.shape
        total, texts = total + mean.mean(axis=0), texts + parts.mean(axis=0)
        by_seed.append((mean.var(axis=0, ddof=1) / k, k - 1))
        rest = parts - parts.mean(axis=0) - parts.mean(axis=1, keepdims=True) + parts.mean(axis=(0, 1))
        interaction = interaction + (rest**2).sum(axis=(0, 1)) / ((k - 1) * (n - 1) * n * k)
    text, seed = texts.var(axis=0, ddof=1) / n, sum(variance for variance, _ in by_seed)
    df = seed**2 / np.maximum(sum(variance**2 / df for variance, df in by_seed), 1e-300)
    # The interaction counts as part of the seeds, because they are fewer, unless these look alike by chance.
    alone = np.sqrt(np.maximum(text - interaction, 0))

    def half_width(q):
        of_text, of_seeds = t_quantile(q, n - 1), [t_quantile(q, max(1, own)) for own in df]
        return np.maximum(of_text * np.sqrt(text), np.hypot(of_text * alone, of_seeds * np.sqrt(seed)))

    width, power = half_width(p), half_width(0.4)
    return total, width, {"text_se": np.sqrt(text), "seed_se": np.sqrt(seed), "detectable": width + power}


def estimate(groups, documents, seed, p=0.05):
    """What mean_intervals returns if all groups have several seeds; otherwise, the band of text_bands for the means
    over seeds, without standard errors."""
    if min(map(len, groups)) > 1:
        return mean_intervals(groups, documents, p)
    return *text_bands(sum(values.mean(axis=0) for values in groups), documents, seed, p), {}


def breakdown(rows, training_length, threshold):
    """L*: the first length past training_length whose Δ exceeds the threshold by more than its band (NaN: never), or
    None. rows: {length: {"delta", "band"}, or None if the scheme is undefined}."""
    past = ((n, row) for n, row in rows.items() if n > training_length and row)
    return next((n for n, row in past if row["delta"] - row["band"] > threshold), None)


def flatness(delta, band, threshold):
    """'flat' if Δ lies below half the threshold with its whole band, 'nearly flat' if only Δ itself does, else ''."""
    if delta < threshold / 2:
        return "flat" if delta + band < threshold / 2 else "nearly flat"
    return ""


def wilson(successes, n, z=1.96):
    """Wilson's 95% interval of a proportion (Wilson 1927): (low, high)."""
    p = successes / n
    middle = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * np.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return max(0.0, float(middle - half)), min(1.0, float(middle + half))


def contrasts(values, documents, seed, kept=()):
    """{(a, b): how a differs from b} for each pair in values, {name: (seeds, blocks)}, of two seeds or more each. Pairs
    of two `kept` names are left out, so that they do not count among the others.
    half_width is that of the 95% interval of this pair alone; `significant` holds for all pairs together, at 95% (Holm
    1979); `detectable` is the smallest difference that the strictest of these tests detects in 80% of repetitions.
    Empty with too few documents."""
    pairs, found = [pair for pair in itertools.combinations(values, 2) if not {*pair} <= {*kept}], {}

    def difference(pair, p):
        a, b = (values[name][..., None] for name in pair)
        mean, width, errors = estimate([a, -b], documents, seed, p)
        return mean[0], width[0], errors["detectable"][0]

    for pair in pairs:
        (mean, width, _), (*_, detectable) = difference(pair, 0.05), difference(pair, 0.05 / len(pairs))
        if np.isnan(width):
            return {}
        found[pair] = {"difference": mean, "half_width": width, "detectable": detectable}
    still = True
    clearest_first = sorted(pairs, key=lambda p: -abs(found[p]["difference"]) / (found[p]["half_width"] or 1))
    for i, pair in enumerate(clearest_first):
        mean, width, _ = difference(pair, 0.05 / (len(pairs) - i))
        still = bool(still and abs(mean) > width)  # Holm stops at the first that is not significant
        found[pair]["significant"] = still
    return found
