"""What a person sees of an evaluation: the tables, the picture and the numbers."""

import json
import shutil
from pathlib import Path

import numpy as np

from evaluation.pictures import FAILED, cut_off, draw_curve, figure_of, label_ends, length_axis, line_styles
from evaluation.protocols import signed
from evaluation.statistics import FEWEST_DOCUMENTS, FLAT, interval, rise, verdict

VERBS = {  # what the title of the picture says of a verdict
    "flat": "stayed flat",
    "undecided": "may have risen",
    "rises": "rose",
    "fails": "failed",
}


def result_of(protocol, line):
    """What is shown of a line, as plain types, with {key: {length: {"mean", "low", "high", "seeds"}}} as its "values":
    None where the scheme is undefined."""
    values = {}
    for key, by_length in protocol.values(line.arrays, line.trained).items():
        values[key] = dict.fromkeys(protocol.shown)
        for n, array in by_length.items():
            mean, low, high = map(float, protocol.bounds(key, array, line.blocks.documents))
            values[key][n] = {"mean": mean, "low": low, "high": high, "seeds": array.mean(axis=1).tolist()}
    result = {
        "pos_scheme": line.config.pos_scheme,
        "training_length": line.trained,
        "seeds": [run["seed"] for run in line.runs],
        "kept": bool(line.path),
        "note": protocol.note(line.arrays),
        "values": values,
    }
    losses = protocol.losses(line.arrays)
    if protocol.ranked and protocol.shown[-1] in losses:
        best, mean, width = rise(losses, line.trained, line.blocks.documents)
        result["rise"] = {"from": best, "mean": float(mean), "width": float(width), "verdict": verdict(mean, width)}
    return result


# ----------------------------------------------------------------------------------------------------------
# Tables


def aligned(rows):
    """Rows of equally many texts, as lines of text with columns aligned at the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.rjust, row, widths)) for row in rows]


def side_by_side(*parts):
    """Texts of equally many lines, next to each other."""
    return "\n".join("   ".join(lines) for lines in zip(*parts, strict=True))


def table(protocol, results):
    """A row for each length, and beside each other, for each result, the columns of the protocol. If the terminal is
    too narrow, each result has one row of its losses instead or, without losses to rank, a table of its own."""
    lengths = protocol.shown
    first = aligned([[protocol.column], *([f"{n:,}"] for n in lengths)])
    parts = []
    for name, result in results.items():
        rows = [[name + result["note"], *list(protocol.columns.values())[1:]]]
        for n in lengths:
            at_training = n == result["training_length"]
            values = [(key, result["values"][key][n]) for key in protocol.columns]
            cells = [protocol.cell(key, value, at_training) if value else "" for key, value in values]
            cells[0] = cells[0] or "—"  # the scheme is undefined at this length
            rows.append(cells)
        parts.append(rows)
    text = side_by_side(first, *map(aligned, parts))
    if len(parts) == 1 or text.index("\n") <= shutil.get_terminal_size().columns:
        return text
    if not protocol.ranked:
        return "\n\n".join(side_by_side(first, aligned(rows)) for rows in parts)
    losses = [[cells[0] for cells in rows] for rows in parts]
    return "\n".join(aligned([["loss at", *(f"{n:,}" for n in lengths)], *losses]))


def ranking(protocol, lines, results):
    """A row for each line, the lowest loss at the longest length first: its losses at the training length and at the
    longest, both minus those of the first line, and how far the loss rises in between."""
    last = protocol.shown[-1]
    losses = {name: protocol.losses(line.arrays) for name, line in lines.items()}
    order = sorted(lines, key=lambda name: losses[name][last].mean() if last in losses[name] else np.inf)
    first = losses[order[0]]
    lengths = " or ".join(f"{n:,}" for n in protocol.training_lengths)
    rows = [["", "seeds", f"loss at {lengths}", "minus first", f"loss at {last:,}", "minus first", "rise", ""]]
    for name in order:
        line = lines[name]
        row = [name, str(len(line.runs))]
        for n in (line.trained, last):
            loss = losses[name].get(n)
            is_compared = name != order[0] and loss is not None and n in first
            difference = signed(*interval([loss, -first[n]], line.blocks.documents)) if is_compared else ""
            row += ["—" if loss is None else f"{loss.mean():.3f}", difference]
        risen = results[name].get("rise")
        if risen:
            origin = f" from {risen['from']:,}" if risen["verdict"] == "rises" else ""
            row += [signed(risen["mean"], risen["width"]), risen["verdict"] + origin]
        else:
            row += ["—", "undefined"]
        rows.append(row)
    return "\n".join(map(str.rstrip, aligned(rows)))


def print_report(protocol, lines, results):
    """Prints the tables and what they mean."""
    n_documents = len(np.unique(protocol.blocks.documents))
    targets = protocol.targets.format(**vars(protocol))
    print(f"\n{protocol.name}: {targets}; {n_documents} documents of {protocol.dataset.name}")
    if protocol.blocks.crossing:
        print(f"{protocol.blocks.crossing:.0%} of the longest contexts cross documents.")
    print(f"{protocol.legend}. ±: 95%, over the text,\nand over the seeds if a row has several.")
    if n_documents < FEWEST_DOCUMENTS:
        print(f"note: {n_documents} documents are too few for ±, which needs {FEWEST_DOCUMENTS}: choose more --blocks, "
              "shorter --lengths or a --dataset of more documents (--split_on divides a text)")  # fmt: skip
    print(f"\n{table(protocol, results)}\n")
    if protocol.ranked:
        last = f"{protocol.shown[-1]:,}"
        print(f"rise: the loss at {last} minus the lowest from the training length on.")
        print(f"flat: rise + ± < {FLAT:g}; rises: rise − ± > 0; undecided: neither.\n")
        print(f"{ranking(protocol, lines, results)}\n")


def numbers_of(inputs, protocol, results):
    """All results as JSON. Undefined values are null. inputs: the runs and settings, which tell these numbers from
    others."""
    dataset = protocol.dataset
    text = {"name": dataset.name, "hash": dataset.hash, "crossing": protocol.blocks.crossing}
    content = {"inputs": inputs, **protocol.settings(), "text": text, "runs": results}
    no_nan = json.loads(json.dumps(content), parse_constant=lambda name: None)
    return json.dumps(no_nan, indent=1)


# ----------------------------------------------------------------------------------------------------------
# Pictures


def draw(protocol, results, changes, delta):
    """The picture: for each panel, a line per result. Its title says what the lines did past the training length. Kept
    results beside other runs are in the background. delta: draw Δ instead of the loss."""
    kept = {name for name, result in results.items() if result["kept"]}
    background = kept if len(kept) < len(results) else set()
    failing = set()
    panels = protocol.panels
    title = protocol.question
    notes = f"text: {protocol.dataset.name}"
    if any(len(result["seeds"]) > 1 for result in results.values()):
        notes += "; thin lines without markers: single seeds"
    if "loss" in panels:
        failing = {name for name, result in results.items() if "rise" in result and result["rise"]["mean"] > FAILED}
        notes = f"{title}\n{notes}; failed: rose by more than {FAILED:g} nats"
        title = finding(protocol, results, background, failing)
        if delta:
            panels = {"delta": "change of the loss from the training length (nats)"}
    if "loss" not in panels:
        notes += "; shaded: 95%, over the text, and over the seeds if there are several"
    if changes:
        title += f" ({', '.join(changes)})"

    n = len(panels)
    figure, axes_of_panels = figure_of(n, title, 10 if n == 1 else 6, 5, notes, sharey=True)
    for axes, (key, label) in zip(axes_of_panels, panels.items(), strict=True):
        axes.set_ylabel(label)
        ends = draw_panel(axes, protocol, results, key, background, failing)
    label_ends(axes, ends)  # of the last panel, when the limits are known
    return figure


def finding(protocol, results, background, failing):
    """What the lines did past the training length, in words."""
    names = {word: [] for word in VERBS}
    for name, result in results.items():
        if name not in background and "rise" in result and result["training_length"] < protocol.shown[-1]:
            word = "fails" if name in failing else result["rise"]["verdict"]
            names[word].append(name)
    clauses = [f"{', '.join(names[word])} {verb}" for word, verb in VERBS.items() if names[word]]
    return f"Past the training length, {'; '.join(clauses) or 'nothing was measured'}"


def draw_panel(axes, protocol, results, key, background, failing):
    """Draws one value of all results. Returns the labels of the lines, as label_ends takes them."""
    styles = line_styles((Path(name).stem, result["pos_scheme"]) for name, result in results.items())
    longest = protocol.shown[-1]
    in_view = []
    ends = []
    for style, (name, result) in zip(styles, results.items(), strict=True):
        values = {n: value for n, value in result["values"][key].items() if value}
        curve = {n: value["seeds"] for n, value in values.items()}
        if name in background:
            curve = {n: [value["mean"]] for n, value in values.items()}
            style |= {"linewidth": 0.8, "markersize": 3, "alpha": 0.7}
        elif key != "loss":
            low = [value["low"] for value in values.values()]
            high = [value["high"] for value in values.values()]
            axes.fill_between(list(values), low, high, color=style["color"], alpha=0.15, linewidth=0)
        draw_curve(axes, curve, style)
        for n, seeds in curve.items():
            if name not in failing or n <= result["training_length"]:
                in_view.extend(seeds)
        last = max(curve, default=longest)
        height = np.mean(curve[last]) if curve else np.nan
        label = name + result["note"]
        if name in failing:
            label += f" rises to {height:.2f} at {longest:,}"
        elif last < longest:
            label += f": undefined past {last:,}"
        ends.append((label, style, (last, height)))
    length_axis(axes, protocol.shown, protocol.training_lengths)
    if key in ("loss", "delta") and len(failing) < len(results):
        cut_off(axes, in_view)
    axes.set_xlabel(protocol.axis)
    return ends
