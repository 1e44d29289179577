"""Statistics of the length evaluation: numpy in, numbers out.

± is a 95% interval for each context length: over the choice of text always, and over seeds if there are several.
"""

import numpy as np

FEWEST_DOCUMENTS = 20  # with fewer documents, no method that we know of covers 95%, so there is no ±
FLAT = 0.05  # nats: a rise that is surely smaller is called flat


def t_quantile(df):
    """The value that Student's |t| with df degrees of freedom exceeds with probability 5%."""
    df = min(df, 1000.0)  # beyond, the quantiles hardly change
    angles, step = np.linspace(0, np.pi / 2, 20_001, retstep=True)
    density = np.cos(angles[1:] - step / 2) ** (df - 1)  # of the angle, where t = sqrt(df)·tan(angle)
    below = np.append(0, np.cumsum(density))
    return np.sqrt(df) * np.tan(np.interp(0.95, below / below[-1], angles))


def residuals(values, documents):
    """How far each document moves the mean of values (seeds, blocks): (seeds, documents). They have the jackknife's
    weights 1/(1 − share): a document with half of the blocks doubles its residual. documents: 0, 1, … of each block."""
    counts = np.bincount(documents)
    sums = np.stack([np.bincount(documents, row) for row in values])
    deviations = sums - counts * values.mean(axis=1, keepdims=True)
    return deviations / counts.mean() / (1 - counts / counts.sum())


def interval(groups, documents):
    """The sum of the means of `groups`, each (seeds, blocks) on the same blocks, and the half-width of its interval:
    [a] for the mean of a, [a, -b] for the difference between a and b. NaN with fewer than FEWEST_DOCUMENTS.

    The text is paired, since all groups score the same blocks; seeds of different groups are independent, with Welch's
    degrees of freedom (1947). Text and seeds each have their own quantile of Student's t, and their widths add as
    squares (after Howe 1974). The interaction of text and seeds counts once, with the seeds. An interval is never
    narrower than that of the text, which is all that a single seed has."""
    total = sum(values.mean() for values in groups)
    distinct, ids = np.unique(documents, return_inverse=True)
    n = len(distinct)
    if n < FEWEST_DOCUMENTS:
        return total, np.nan
    text = 0.0  # the residual of each document, (documents,)
    interaction = 0.0  # variances of the mean, from here on
    seed_parts = []  # (variance, degrees of freedom)
    for values in groups:
        parts = residuals(values, ids)
        k = len(parts)
        text = text + parts.mean(axis=0)
        if k > 1:
            seed_parts.append((values.mean(axis=1).var(ddof=1) / k, k - 1))
            rest = parts - parts.mean(axis=0) - parts.mean(axis=1, keepdims=True) + parts.mean()
            interaction += (rest**2).sum() / ((k - 1) * (n - 1) * n * k)
    text = text.var(ddof=1) / n
    text_width = t_quantile(n - 1) * np.sqrt(text)
    seeds = sum(variance for variance, _ in seed_parts)
    if seeds == 0:
        return total, text_width
    df = seeds**2 / sum(variance**2 / df for variance, df in seed_parts)
    seed_width = t_quantile(df) * np.sqrt(seeds)
    text_only = t_quantile(n - 1) * np.sqrt(max(text - interaction, 0))
    return total, max(text_width, np.hypot(text_only, seed_width))


def rise(losses, documents):
    """How far the loss has risen at the longest length of `losses`, {length: (seeds, blocks)} from the training length
    on, above its lowest mean: that length, the rise, its ±, and the verdict on it."""
    best = min(losses, key=lambda n: losses[n].mean())
    mean, width = interval([losses[max(losses)] - losses[best]], documents)
    return best, mean, width, verdict(mean, width)


def verdict(rise, width, flat=FLAT):
    """flat: the whole interval of the rise lies below `flat`. rises: the whole interval lies above 0."""
    if rise + width < flat:
        return "flat"
    return "rises" if rise - width > 0 else "undecided"


def wilson(successes, n, z=1.96):
    """Wilson's 95% interval of a proportion (Wilson 1927): (low, high)."""
    p = successes / n
    middle = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * np.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return max(0.0, float(middle - half)), min(1.0, float(middle + half))
