"""What a person sees of an evaluation: one line per experiment, the table, the picture and the numbers."""

import json
from pathlib import Path

import numpy as np

from evaluation.statistics import breakdown, same_but_for_the_seed
from run.files import write_atomically


def result_of(protocol, checkpoint, rows, threshold):
    """One run's result, as plain types."""
    trained = checkpoint.config.block_size
    result = {"pos_scheme": checkpoint.config.pos_scheme, "training_length": trained, "step": checkpoint.step}
    result["seed"] = checkpoint.settings.get("seed")
    if "threshold" in protocol.options:
        result["L_star"] = breakdown(rows, trained, threshold)
    return result | {"rows": rows}


def pool_seeds(protocol, measured, threshold):
    """{name: result}, with the runs of one experiment under several seeds as one: the mean over seeds with the band
    over the text, and the seeds' standard deviation. measured: {name: (experiment, found, result)}."""
    if not protocol.pools_seeds:
        return {name: result for name, (_, _, result) in measured.items()}
    results = {}
    for names in same_but_for_the_seed({n: (experiment, r["seed"]) for n, (experiment, _, r) in measured.items()}):
        name = min(names, key=len)
        *_, result = measured[name]
        if len(names) > 1:
            each, seeds = [measured[n][1] for n in names], {n: measured[n][-1]["rows"] for n in names}
            common = set.intersection(*map(set, each)) - {"key", "ends", "documents"}
            mean = {k: np.mean([f[k] for f in each], axis=0) for k in common} | {"documents": each[0]["documents"]}
            rows, _ = protocol.rows(mean, result["training_length"])
            for n, row in rows.items():
                for key in ("loss", "delta") if row is not None else ():
                    row[f"{key}_seed_sd"] = float(np.std([own[n][key] for own in seeds.values()], ddof=1))
            star = breakdown(rows, result["training_length"], threshold)
            result = result | {"rows": rows, "seeds": seeds, "L_star": star}
        results[name] = result
    return results


def table(protocol, results, width=96):
    """A line for each length, a column for each run, as many beside each other as fit."""

    def cell(result, n):
        row = result["rows"][n]
        return "—" if row is None else protocol.cell(row, n == result["training_length"])

    cells = {name: [cell(result, n) for n in protocol.shown()] for name, result in results.items()}
    labels = [protocol.label(n) for n in protocol.shown()]
    if "threshold" in protocol.options:
        labels.append("")
        for name, result in results.items():
            cells[name].append(f"L* {star(result)}")
    wide = 2 + max(len(text) for name, column in cells.items() for text in (name, *column))
    left = max(7, *map(len, labels), len(protocol.column))
    names, columns, tables = list(cells), max(1, width // wide), []
    for some in (names[i : i + columns] for i in range(0, len(names), columns)):
        rows = [[protocol.column, *some]] + [
            [label, *(cells[name][i] for name in some)] for i, label in enumerate(labels)
        ]
        tables.append("\n".join(f"{first:>{left}}  " + "".join(f"{t:>{wide}}" for t in rest) for first, *rest in rows))
    return "\n\n".join(tables)


def star(result):
    """The breakdown length in words."""
    n, T = result["L_star"], result["training_length"]
    if n is None:
        defined = max(length for length, row in result["rows"].items() if row is not None)
        beyond = max(result["rows"]) > T
        return f"> {defined}" if defined > T else "undefined" if beyond else "not looked for"
    return f"= {n} ({n / T:g}×)"


def report(protocol, results, texts, base, threshold):
    """Prints the table; writes the picture, whose path it returns, and the numbers. base: their path without an
    ending."""
    pooled = any("seeds" in result for result in results.values())
    lines = protocol.heading(texts, pooled)
    if "threshold" in protocol.options:
        lines.append(f"L*: where Δ exceeds {threshold:g} nats by more than its band.")
    print("\n" + "\n".join(lines) + f"\n\n{table(protocol, results)}\n")
    picture, numbers = Path(f"{base}.png"), Path(f"{base}.json")
    summary = {"protocol": protocol.name, "blocks": protocol.blocks, "block_tokens": protocol.block_tokens}
    summary |= {"threshold": threshold, "datasets": texts, "runs": results}
    write_atomically(numbers, json.dumps(summary, indent=1, allow_nan=False))
    protocol.draw(results).savefig(picture, dpi=150 if len(protocol.panels) == 1 else 110)
    print(f"picture   {picture}\nnumbers   {numbers}; each block's loss: .npz files in the run folders")
    return picture
