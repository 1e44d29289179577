"""What a person sees of an evaluation: one line per experiment, the table, the picture and the numbers."""

import itertools
import json
from pathlib import Path

import numpy as np

from evaluation.statistics import breakdown
from run import files


def result_of(protocol, checkpoint, rows):
    """One run's result, as plain types."""
    trained = checkpoint.config.block_size
    result = {"pos_scheme": checkpoint.config.pos_scheme, "training_length": trained, "step": checkpoint.step}
    result["seed"] = checkpoint.settings.get("seed")
    if "threshold" in protocol.options:
        result["L_star"] = breakdown(rows, trained, protocol.threshold)
    return result | {"rows": rows}


def pool_seeds(protocol, measured):
    """{name: result}, with the runs of one experiment under several seeds as one: the mean over seeds with the band
    over the text, and the seeds' standard deviation. A run whose seed was there before stands apart. measured:
    {name: (experiment, found, result)}."""
    groups, seen = {}, set()
    for name, (experiment, _, result) in measured.items():
        run = experiment, result["seed"]
        alone = run in seen or not protocol.pools_seeds
        groups.setdefault(name if alone else experiment, []).append(name)
        seen.add(run)
    results = {}
    for names in groups.values():
        shortest = min(names, key=len)
        result = results[shortest] = dict(measured[shortest][-1])
        if len(names) > 1:
            each, seeds = [measured[n][1] for n in names], {n: measured[n][-1]["rows"] for n in names}
            common = set.intersection(*map(set, each)) - {"key", "ends", "documents"}
            mean = {key: np.mean([found[key] for found in each], axis=0) for key in common}
            mean["documents"] = each[0]["documents"]  # the same in all, as the blocks are
            rows, _ = protocol.rows(mean, result["training_length"])
            for n, row in rows.items():
                for key in ("loss", "delta") if row else ():
                    row[f"{key}_seed_sd"] = float(np.std([own[n][key] for own in seeds.values()], ddof=1))
            star = breakdown(rows, result["training_length"], protocol.threshold)
            result |= {"rows": rows, "seeds": seeds, "L_star": star}
    return results


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
    defined = max(length for length, row in result["rows"].items() if row)
    beyond = max(result["rows"]) > T
    return f"> {defined}" if defined > T else "undefined" if beyond else "not looked for"


def report(protocol, results, texts, base):
    """Prints the table; writes the picture, whose path it returns, and the numbers. base: their path without an
    ending."""
    pooled = any("seeds" in result for result in results.values())
    print("", *protocol.heading(texts, pooled), "", table(protocol, results), sep="\n")
    picture, numbers = Path(f"{base}.png"), Path(f"{base}.json")
    summary = {"protocol": protocol.name, "blocks": protocol.blocks, "block_tokens": protocol.block_tokens}
    summary |= {"threshold": protocol.threshold, "datasets": texts, "runs": results}
    files.write(numbers, json.dumps(summary, indent=1, allow_nan=False))
    protocol.draw(results).savefig(picture, dpi=150 if len(protocol.panels) == 1 else 110)
    print(f"picture   {picture}\nnumbers   {numbers}; each block's loss: .npz files in the run folders")
    return picture
