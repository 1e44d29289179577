"""Statistics of the length evaluation: numpy in, numbers out.

± is a 95% interval for each context length: over the choice of text always, and over seeds if there are several.
"""

import numpy as np

FEWEST_DOCUMENTS = 20  # with fewer documents, no method that we know of covers 95%, so there is no ±
FLAT = 0.05  # nats: a rise that is surely smaller is called flat


def t_quantile(df):
    """The value that Student's |t| with df degrees of freedom exceeds with probability 5%, by numerical integration."""
    df = min(df, 1000.0)  # beyond, the quantiles hardly change
    angles, step = np.linspace(0, np.pi / 2, 20_001, retstep=True)
    density = np.cos(angles[1:] - step / 2) ** (df - 1)  # the density of the angle, if t = sqrt(df)·tan(angle)
    below = np.append(0, np.cumsum(density))
    return np.sqrt(df) * np.tan(np.interp(0.95, below / below[-1], angles))


def residuals(values, documents):
    """How far each document moves the mean of values (seeds, blocks): (seeds, documents). Divided by 1 − its share of
    the blocks, as in the jackknife: a document with half of them counts double. documents: 0, 1, … of each block."""
    counts = np.bincount(documents)
    sums = np.stack([np.bincount(documents, row) for row in values])
    deviations = sums - counts * values.mean(axis=1, keepdims=True)
    share = counts / counts.sum()
    return deviations / counts.mean() / (1 - share)


def interaction_variance(parts):
    """The part of the variance of a mean over (seeds, blocks) that comes from text and seed together. parts: its
    residuals (seeds, documents)."""
    k, n = parts.shape
    rest = parts - parts.mean(axis=0) - parts.mean(axis=1, keepdims=True) + parts.mean()
    return (rest**2).sum() / ((k - 1) * (n - 1) * n * k)


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

    # the text
    parts = [residuals(values, ids) for values in groups]
    moves = sum(part.mean(axis=0) for part in parts)  # of each document
    text_variance = moves.var(ddof=1) / n
    text_quantile = t_quantile(n - 1)
    text_width = text_quantile * np.sqrt(text_variance)

    # the seeds, where there are several
    repeated = [values.mean(axis=1) for values in groups if len(values) > 1]
    variances = [means.var(ddof=1) / len(means) for means in repeated]
    seed_variance = sum(variances)
    if seed_variance == 0:
        return total, text_width
    df = seed_variance**2 / sum(v**2 / (len(means) - 1) for v, means in zip(variances, repeated, strict=True))
    seed_width = t_quantile(df) * np.sqrt(seed_variance)

    # both; what text and seeds do together is in both variances, and counts once
    text_only = text_variance - sum(interaction_variance(part) for part in parts if len(part) > 1)
    width = np.hypot(text_quantile * np.sqrt(max(text_only, 0)), seed_width)
    return total, max(text_width, width)


def pair(terms):
    """The `groups` of an interval from (models, values) each. Values of the same models, such as with and without a
    window, are one group, in which each seed is paired with itself."""
    groups = {}
    for models, values in terms:
        groups[models] = groups.get(models, 0) + values
    return [*groups.values()]


def rise(losses, trained, documents):
    """How far the loss at the longest length of `losses`, {length: (seeds, blocks)}, lies above the lowest mean at a
    shorter length from the training length on: {"from", "mean", "width", "verdict"}. None if there is no shorter one.
    The longest is left out, because a rise from it would always be 0.

    flat: the whole interval lies below FLAT. rises: the whole interval lies above 0. undecided: neither."""
    *shorter, longest = sorted(n for n in losses if n >= trained)
    if not shorter:
        return None
    best = min(shorter, key=lambda n: losses[n].mean())
    mean, width = interval([losses[longest] - losses[best]], documents)
    return {"from": best, "mean": mean, "width": width, "verdict": verdict(mean, width)}


def verdict(mean, width, flat=FLAT):
    """The verdict on a rise with this ±."""
    if np.isnan(width):
        return "no verdict without ±"
    if mean + width < flat:
        return "flat"
    return "rises" if mean - width > 0 else "undecided"
