"""What a person sees of an evaluation: the tables, the picture, the numbers and the charts in wandb."""

import json
import shutil
import textwrap
from pathlib import Path

import numpy as np

from evaluation.pictures import figure_of, label_ends, line_styles, mark_training_lengths, symlog
from evaluation.protocols import signed
from evaluation.statistics import FEWEST_DOCUMENTS, FLAT, interval, rise, verdict


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
        words = verdict(mean, width)
        result["rise"] = {"from": best, "mean": float(mean), "width": float(width), "verdict": words}
    return result


# ----------------------------------------------------------------------------------------------------------
# Tables


def aligned(rows):
    """Rows of equally many texts, as lines of text with columns aligned at the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.rjust, row, widths)) for row in rows]


def side_by_side(first, parts, width):
    """Parts, each of equally many lines, next to each other behind the lines `first`. What does not fit the width goes
    below, again behind `first`."""
    texts = [first]
    for part in parts:
        wider = len(texts[-1][0]) + 3 + len(part[0])
        if wider > width and texts[-1] is not first:
            texts.append(first)
        texts[-1] = [f"{left}   {right}" for left, right in zip(texts[-1], part, strict=True)]
    return "\n\n".join("\n".join(lines) for lines in texts)


def table(protocol, results):
    """A row for each length, and beside each other, for each result, the columns of the protocol. If a ranking follows
    and the terminal is too narrow, each result has one row instead, of its losses."""
    lengths = protocol.shown
    first = aligned([[protocol.column], *([f"{n:,}"] for n in lengths)])
    parts = []
    for name, result in results.items():
        rows = [[name + result["note"], *list(protocol.columns.values())[1:]]]
        for n in lengths:
            at_training = n == result["training_length"]
            values = [(key, result["values"][key][n]) for key in protocol.columns]
            cells = [protocol.cell(key, value, at_training) if value else "" for key, value in values]
            rows.append(cells if any(cells) else ["—", *cells[1:]])  # —: the scheme is undefined at this length
        parts.append(rows)
    width = shutil.get_terminal_size().columns
    text = side_by_side(first, map(aligned, parts), width)
    if not protocol.ranked or text.count("\n") == len(lengths):
        return text
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
# Pictures and charts


def draw(protocol, results, words):
    """The picture: for each panel a line with its interval per result, and a thin line per seed. Its title has the
    words. Kept results beside other runs are in the background: thin, with neither."""
    n = len(protocol.panels)
    question = protocol.question[0].upper() + protocol.question[1:]
    title = f"{textwrap.fill(question, 100)}\n{'; '.join(words)}"
    figure, panels = figure_of(n, title, width=9 if n == 1 else 6, height=5, sharey=True)
    kept = {name for name, result in results.items() if result["kept"]}
    background = kept if len(kept) < len(results) else set()
    ends_of_panels = [
        draw_panel(axes, protocol, results, key, background) for axes, key in zip(panels, protocol.panels, strict=True)
    ]
    for axes, ends in zip(panels, ends_of_panels, strict=True):  # last, when the panels' shared limits are known
        label_ends(axes, ends, bold={*results} - background if background else ())
    caption = "shaded: 95%, over the text, and over the seeds if there are several; thin lines: single seeds"
    if background:
        caption += "; thin with markers: kept results"
    figure.supxlabel(caption, fontsize=8, color="0.4")
    return figure


def draw_panel(axes, protocol, results, key, background):
    """Draws one value of all results. Returns the labels of the lines, as label_ends takes them."""
    shown = protocol.shown
    styles = line_styles((Path(name).name, result["pos_scheme"]) for name, result in results.items())
    if key == "delta":
        symlog(axes)
    labels = []
    for style, (name, result) in zip(styles, results.items(), strict=True):
        values = {n: value for n, value in result["values"][key].items() if value}
        lengths = list(values)
        mean, low, high, seeds = (
            [value[part] for value in values.values()] for part in ("mean", "low", "high", "seeds")
        )
        longest = max((n for n, value in result["values"]["loss"].items() if value), default=0)
        label = name + result["note"]
        if longest < shown[-1]:
            label += f" (undefined past {longest:,})"
        labels.append((label, style["color"], (longest, mean[-1]) if shown[-1] in values else None))
        if name in background:
            axes.plot(lengths, mean, **style | {"lw": 0.8, "markersize": 3, "alpha": 0.7})
            continue
        axes.plot(lengths, mean, **style)
        axes.fill_between(lengths, low, high, color=style["color"], alpha=0.15, linewidth=0)
        if len(result["seeds"]) > 1:
            axes.plot(lengths, seeds, color=style["color"], lw=0.5, alpha=0.5)
    axes.set_xscale("log", base=2)
    axes.set_xticks(shown, [f"{n:,}" for n in shown])
    axes.minorticks_off()
    axes.margins(x=0.02)
    axes.grid(alpha=0.25)
    mark_training_lengths(axes, protocol.training_lengths)
    axes.set(xlabel=protocol.axis, ylabel=protocol.panels[key])
    return labels


def charts(protocol, results, x):
    """What wandb shows, as tracking.publish takes it: a run for each result, so that they share charts against x."""
    runs = {}
    for name, result in results.items():
        about = {key: value for key, value in result.items() if key != "values"}
        rows = []
        for key, by_length in result["values"].items():
            for n, value in by_length.items():
                if value:
                    rows.append({x: n, f"{protocol.stem}/{key}": value["mean"]})
        runs[name] = about, rows
    return runs
