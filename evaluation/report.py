"""What a person sees of an evaluation: one line per experiment, the table, the picture and the numbers."""

import itertools
import json
import math
from pathlib import Path
from typing import NamedTuple

import numpy as np

from evaluation.statistics import breakdown
from run import files

TARGETS = ("ends", "documents", "bytes_per_token", "crossing")  # what runs on the same text have in common


def result_of(protocol, checkpoint, rows):
    """One run's result, as plain types."""
    trained = checkpoint.config.block_size
    result = {"pos_scheme": checkpoint.config.pos_scheme, "training_length": trained, "step": checkpoint.step}
    result["seed"] = checkpoint.settings.get("seed")
    if "threshold" in protocol.options:
        result["L_star"] = breakdown(rows, trained, protocol.threshold)
    return result | {"rows": rows}


def pool_seeds(protocol, measured):
    """{name: result}, with the runs of one experiment under several seeds as one, and {name: {seed: found}}. A run
    whose seed was there before stands apart. measured: {name: (experiment, found, result)}."""
    groups, seen = {}, set()
    for name, (experiment, _, result) in measured.items():
        run = experiment, result["seed"]
        groups.setdefault(name if run in seen else experiment, []).append(name)
        seen.add(run)
    results, losses = {}, {}
    for names in groups.values():
        shortest = min(names, key=len)
        result = results[shortest] = dict(measured[shortest][-1])
        each = losses[shortest] = {measured[n][-1]["seed"]: measured[n][1] for n in names}
        if len(names) > 1:
            rows = protocol.rows(pooled(each.values()), result["training_length"])
            if "L_star" in result:
                result["L_star"] = breakdown(rows, result["training_length"], protocol.threshold)
            seeds = {n: measured[n][-1]["rows"] for n in names}
            result |= {"rows": rows, "seeds": seeds}
    return results, losses


def pooled(each):
    """What is known about several runs on the same text, with the runs as the first dimension of their losses.
    ValueError unless all scored the same blocks."""
    first, *others = each
    if not all(np.array_equal(first.get("ends"), other.get("ends")) for other in others):
        raise ValueError("seeds of one experiment did not score the same blocks: evaluate them together")
    common = set(first).intersection(*others) - {"key", "lengths", *TARGETS}
    return {key: np.stack([found[key] for found in each]) for key in common} | {
        key: first[key] for key in TARGETS if key in first
    }


class Contrast(NamedTuple):
    """What is known of the difference between two lines."""

    difference: float
    half_width: float  # of its interval
    detectable: float  # what would be found in 80% of repetitions
    seeds: int  # that both have


def contrasts(protocol, losses, length):
    """{(a, b): Contrast of their losses} of all pairs of lines at a length, over the text and the seeds that both have.
    The 95% intervals hold for all pairs at once (Bonferroni)."""
    pairs, found = [], {}
    for a, b in itertools.combinations(losses, 2):
        seeds = sorted(set(losses[a]) & set(losses[b]), key=str)
        one, two = ([protocol.losses(losses[name][seed]).get(length) for seed in seeds] for name in (a, b))
        same = all(np.array_equal(losses[a][s]["ends"], losses[b][s]["ends"]) for s in seeds)
        if len(seeds) > 1 and same and not any(values is None for values in (*one, *two)):
            pairs.append((a, b, np.stack(one) - np.stack(two), losses[a][seeds[0]]))
    for a, b, values, run in pairs:
        mean, width, more = protocol.bands({length: values}, run, 0.05 / len(pairs))[length]
        if width is not None:
            found[a, b] = Contrast(mean, width, more["detectable"], len(values))
    return found


def triangle(found):
    """(names, [(name, its difference to each name before it)]) of what `contrasts` returned. A difference is (row −
    column, half-width); nothing is known, half-width inf, of a pair without common seeds."""
    names, rows = list(dict.fromkeys([a for a, _ in found] + [b for _, b in found])), []
    unknown = Contrast(0.0, math.inf, math.inf, 0)
    for i, row in enumerate(names[1:], start=1):
        pairs = (found.get((column, row), unknown) for column in names[:i])
        rows.append((row, [(-pair.difference, pair.half_width) for pair in pairs]))
    return names, rows


def power(found):
    """A sentence on what would be found, by the number of seeds, of what `contrasts` returned."""
    parts = []
    for n in sorted({pair.seeds for pair in found.values()}):
        each = [pair.detectable for pair in found.values() if pair.seeds == n]
        least, most = f"{min(each):.2f}", f"{max(each):.2f}"
        parts.append(f"{least if least == most else f'{least} to {most}'} with {n} seeds")
    return f"Differences that would be found in 80% of repetitions: {', '.join(parts)}."


def contrast_table(protocol, found, length):
    """Lines that show the contrasts at a length as a triangle: row − column, where that is decided."""
    names, rows = triangle(found)
    wide, what = 2 + max(map(len, names)), f"{protocol.scored} at {length:,}"
    yield f"{what} of the row less that of the column, where its sign is sure for all pairs at once (95%):"
    yield " " * wide + "".join(f"{name:>{wide}}" for name in names[:-1])
    for row, differences in rows:
        cells = (f"{mean:+.3f}" if abs(mean) > width else "·" for mean, width in differences)
        yield f"{row:>{wide}}" + "".join(f"{cell:>{wide}}" for cell in cells)
    yield from (power(found), "")


def table(protocol, results, width=96):
    """A line for each length, a column for each run, as many beside each other as fit."""
    labels, columns = [protocol.column, *map(protocol.label, protocol.shown())], []
    for name, result in results.items():
        rows, trained = result["rows"], result["training_length"]
        cells = ["—" if rows[n] is None else protocol.cell(rows[n], n == trained) for n in protocol.shown()]
        columns.append([name, *cells, *([f"L* {star(result)}"] if "L_star" in result else [])])
    wide = 2 + max(len(text) for column in columns for text in column)
    left, beside, lines = max(7, *map(len, labels)), max(1, width // wide), []
    for i in range(0, len(columns), beside):
        for label, *texts in itertools.zip_longest(labels, *columns[i : i + beside], fillvalue=""):
            lines.append(f"{label:>{left}}  " + "".join(f"{text:>{wide}}" for text in texts))
        lines.append("")
    return "\n".join(lines)


def star(result):
    """The breakdown length in words."""
    n, T = result["L_star"], result["training_length"]
    if n is not None:
        return f"= {n} ({n / T:g}×)"
    if any(row and row["band"] is None for row in result["rows"].values()):
        return "unknown"
    defined = max(length for length, row in result["rows"].items() if row)
    beyond = max(result["rows"]) > T
    return f"> {defined}" if defined > T else "undefined" if beyond else "not looked for"


def report(protocol, results, losses, texts, base):
    """Prints the tables; writes the picture, whose path it returns, and the numbers. base: their path without an
    ending."""
    seeded = any("seeds" in result for result in results.values())
    print("", *protocol.heading(texts, seeded), "", table(protocol, results), sep="\n")
    summary = {"protocol": protocol.name, "blocks": protocol.blocks, "block_tokens": protocol.block_tokens}
    summary |= {"threshold": protocol.threshold, "datasets": texts, "runs": results, "contrasts": {}}
    for length in dict.fromkeys([*protocol.training_lengths, protocol.shown()[-1]]) if seeded else ():
        if found := contrasts(protocol, losses, length):
            print(*contrast_table(protocol, found, length), sep="\n")
            summary["contrasts"][length] = {f"{a} - {b}": pair._asdict() for (a, b), pair in found.items()}
    picture, numbers = Path(f"{base}.png"), Path(f"{base}.json")
    files.write(numbers, json.dumps(summary, indent=1, allow_nan=False))
    protocol.draw(results).savefig(picture)
    print(f"picture   {picture}\nnumbers   {numbers}; each block's loss: .npz files in the run folders")
    return picture
