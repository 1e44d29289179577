"""Statistics of the length evaluation: numpy in, numbers out."""

import itertools
import math

import numpy as np

RESAMPLES = 4000  # of the bootstrap
KINDS = ("cut", "foreign", "shuffled")  # of a context beyond the training length, under --protocol=context
FEWEST_DOCUMENTS = 10  # to resample documents; below it blocks, and the band speaks of these documents only


def paired_bands(differences, documents, seed):
    """Means of differences (blocks, columns) and half-widths of a 95% band that holds in all columns at once.

    Documents are resampled, since neighbouring blocks of one document are alike (blocks, where there are too few
    documents); the band is the bootstrap's max-t. Also returns what was resampled and how many there were."""
    units = "documents" if len(np.unique(documents)) >= FEWEST_DOCUMENTS else "blocks"
    ids = np.unique(documents, return_inverse=True)[1] if units == "documents" else np.arange(len(documents))
    n = ids.max() + 1
    sums, counts = np.zeros((n, differences.shape[1])), np.bincount(ids)
    np.add.at(sums, ids, differences)
    draws = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=RESAMPLES)
    means = differences.mean(axis=0)
    resampled = (draws @ sums) / (draws @ counts)[:, None]
    se = resampled.std(axis=0)
    moved = se > 0  # at the training length itself every difference is 0
    t = abs(resampled - means)[:, moved] / se[moved]
    width = np.quantile(t.max(axis=1), 0.95) * se if moved.any() else se
    return means, width, units, int(n)


def breakdown(rows, training_length, threshold):
    """L*: the first length past training_length whose Δ exceeds the threshold, in nats, by more than its band; None if
    there is none. rows: {length: {"delta", "band"} or None where undefined}."""
    for n, row in rows.items():
        if n > training_length and row is not None and row["delta"] - row["band"] > threshold:
            return n
    return None


def wilson(successes, n, z=1.96):
    """Wilson's 95% interval of a proportion (Wilson 1927): (low, high)."""
    p = successes / n
    middle = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * np.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return max(0.0, float(middle - half)), min(1.0, float(middle + half))


def summarise(cfg, found, lengths, trained):
    """{length: what is known of it, None where undefined}, what was resampled, and how many there were."""
    if cfg.protocol == "position":  # a row for the positions between one length and the next
        positions = found["positions"]
        edges = [0, *(n for n in lengths if n <= positions.shape[1])]
        losses = {n: positions[:, low:n].mean(axis=1) for low, n in itertools.pairwise(edges)}
    else:
        losses = {n: found[str(n)] for n in lengths if str(n) in found}
    rows, defined = dict.fromkeys(lengths), list(losses)

    def bands(differences):
        means, widths, *resampled = paired_bands(np.stack(differences, axis=1), found["documents"], cfg.seed)
        return list(zip(map(float, means), map(float, widths), strict=True)), resampled

    pairs, resampled = bands([losses[n] - losses[trained] for n in defined])
    for n, (delta, width) in zip(defined, pairs, strict=True):
        rows[n] = {"loss": float(losses[n].mean()), "delta": delta, "band": width}
        if cfg.protocol != "position":  # whose rows are not all of the targets
            rows[n]["bits_per_byte"] = rows[n]["loss"] / math.log(2) / float(found["bytes_per_token"])
        if f"entropy-{n}" in found:
            rows[n]["entropy"] = float(found[f"entropy-{n}"])
    further = [n for n in defined if n > trained]
    if cfg.protocol == "nonoverlapping" and further:  # what longer windows change without any change of f
        dilution = {n: (1 - trained / n) * (found["edge"] - losses[trained]) for n in further}
        pairs, _ = bands([losses[n] - losses[trained] - dilution[n] for n in further])
        for n, (real, width) in zip(further, pairs, strict=True):
            rows[n] |= {"dilution": float(dilution[n].mean()), "real": real, "real_band": width}
    if cfg.protocol == "context" and further:  # nats gained over a context that is not the text's own
        without = {(k, n): losses[trained] if k == "cut" else found[f"{k}-{n}"] for k in KINDS for n in further}
        pairs, _ = bands([without[k, n] - losses[n] for k in KINDS for n in further])
        for (k, n), (gain, width) in zip(itertools.product(KINDS, further), pairs, strict=True):
            rows[n] |= {f"gain_over_{k}": gain, f"gain_over_{k}_band": width}
    return rows, resampled


def same_but_for_the_seed(runs):
    """[names] of each experiment. runs: {name: (experiment, seed)}; a seed that comes again is apart."""
    groups, seen = {}, set()
    for name, run in runs.items():
        groups.setdefault(run[0] if run not in seen else name, []).append(name)
        seen.add(run)
    return list(groups.values())


def group_seeds(cfg, measured, lengths):
    """{name: result} with the runs of one experiment under several seeds as one: the mean over seeds with the band of
    the text, and the seeds' standard deviation. measured: {name: (experiment, losses, result)}."""
    results = {}
    for names in same_but_for_the_seed({n: (experiment, r["seed"]) for n, (experiment, _, r) in measured.items()}):
        name = min(names, key=len)
        *_, result = measured[name]
        if len(names) > 1:
            each, seeds = [measured[n][1] for n in names], {n: measured[n][-1]["rows"] for n in names}
            common = set.intersection(*map(set, each)) - {"key", "ends", "documents"}
            mean = {k: np.mean([f[k] for f in each], axis=0) for k in common} | {"documents": each[0]["documents"]}
            rows, _ = summarise(cfg, mean, lengths, result["training_length"])
            for n, row in rows.items():
                for key in ("loss", "delta") if row is not None else ():
                    row[f"{key}_seed_sd"] = float(np.std([own[n][key] for own in seeds.values()], ddof=1))
            star = breakdown(rows, result["training_length"], cfg.threshold)
            result = result | {"rows": rows, "seeds": seeds, "L_star": star}
        results[name] = result
    return results
