"""What a person sees of an evaluation: the tables, the picture, the numbers and the charts in wandb."""

import dataclasses
import itertools
import json
import math
from pathlib import Path
from typing import NamedTuple

import numpy as np

from evaluation.pictures import figure_of, label_ends, mark_training_length, scheme_styles, symlog
from evaluation.statistics import breakdown
from run import tracking

TARGETS = ("ends", "documents", "bytes_per_token", "crossing")  # equal for all runs on the same text


def result_of(protocol, checkpoint, rows):
    """One run's result, as plain types."""
    trained = checkpoint.config.block_size
    result = {"pos_scheme": checkpoint.config.pos_scheme, "training_length": trained, "step": checkpoint.step}
    result["seed"] = checkpoint.settings.get("seed")
    if "threshold" in protocol.options:
        result["L_star"] = breakdown(rows, trained, protocol.threshold)
    return result | {"rows": rows}


def pool_seeds(protocol, measured):
    """{name: result}, in which the seeds of one experiment are one, and {name: {seed: found}}. A second run with the
    same seed stays a line of its own. measured: {name: (experiment, found, result)}."""
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
            result |= {"rows": rows, "seeds": {n: measured[n][-1]["rows"] for n in names}}
    return results, losses


def pooled(each):
    """What is known about several runs on the same text, with the runs as the first dimension of their arrays.
    ValueError unless all of them scored the same blocks."""
    first, *others = each
    if not all(np.array_equal(first.get("ends"), other.get("ends")) for other in others):
        raise ValueError("the seeds of one experiment did not score the same blocks: evaluate them together")
    common = set(first).intersection(*others) - {*TARGETS}
    return {key: np.stack([found[key] for found in each]) for key in common} | {
        key: first[key] for key in TARGETS if key in first
    }


class Contrast(NamedTuple):
    """The difference between two lines."""

    difference: float
    half_width: float  # of its interval
    detectable: float  # the smallest difference that is detected in 80% of repetitions
    seeds: int  # that both lines have


def contrasts(protocol, losses, length):
    """{(a, b): Contrast of their losses at a length} of every pair of lines that share two seeds or more, over these
    seeds and the text. The 95% intervals cover all pairs simultaneously (Bonferroni)."""

    def defined(runs):
        values = {seed: protocol.losses(run).get(length) for seed, run in runs.items()}
        return {seed: each for seed, each in values.items() if each is not None}

    at_length, pairs, found = {name: defined(runs) for name, runs in losses.items()}, {}, {}
    for a, b in itertools.combinations(losses, 2):
        seeds = sorted(at_length[a].keys() & at_length[b].keys(), key=str)
        same_blocks = all(np.array_equal(losses[a][seed]["ends"], losses[b][seed]["ends"]) for seed in seeds)
        if len(seeds) > 1 and same_blocks:
            pairs[a, b] = np.stack([at_length[a][seed] - at_length[b][seed] for seed in seeds]), losses[a][seeds[0]]
    for pair, (differences, run) in pairs.items():
        mean, width, more = protocol.bands({length: differences}, run, 0.05 / len(pairs))[length]
        if width is not None:
            found[pair] = Contrast(mean, width, more["detectable"], len(differences))
    return found


def contrast_table(protocol, found, length):
    """The lines of a triangle of what `contrasts` returned."""
    names = list(dict.fromkeys([a for a, _ in found] + [b for _, b in found]))
    wide = 2 + max(map(len, names))
    yield f"{protocol.scored} at {protocol.column} {protocol.label(length)}: row − column, shown only where significant"
    yield "(95%, for all pairs simultaneously; · means not significant)."
    yield " " * wide + "".join(f"{name:>{wide}}" for name in names[:-1])
    for i, row in enumerate(names[1:], start=1):
        cells = []
        for pair in (found.get((column, row)) for column in names[:i]):
            significant = pair and abs(pair.difference) > pair.half_width
            cells.append(f"{-pair.difference:+.3f}" if significant else "·" if pair else "")  # "": no seeds in common
        yield f"{row:>{wide}}" + "".join(f"{cell:>{wide}}" for cell in cells)
    parts = []
    for n in sorted({pair.seeds for pair in found.values()}):
        each = [pair.detectable for pair in found.values() if pair.seeds == n]
        least, most = f"{min(each):.2f}", f"{max(each):.2f}"
        parts.append(f"{least if least == most else f'{least} to {most}'} with {n} seeds")
    yield f"Smallest differences detected in 80% of repetitions: {', '.join(parts)}."
    yield ""


def table(protocol, results, width=96):
    """A line for each length and a column for each run, as many columns side by side as fit."""
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
    n, T, rows = result["L_star"], result["training_length"], result["rows"]
    if n is not None:
        return f"= {n} ({n / T:g}×)"
    if any(row and row["band"] is None for row in rows.values()):
        return "unknown"
    defined = max(n for n, row in rows.items() if row)
    return f"> {defined}" if defined > T else "undefined" if max(rows) > T else "not measured"


def draw(protocol, results):
    """The picture: for each panel a line with a band per result, and a thin line per seed. Undefined is a gap."""
    shown, panels = np.array(protocol.shown()), protocol.panels
    title = protocol.title.format(**vars(protocol))
    figure, all_axes = figure_of(len(panels), width=9 if len(panels) == 1 else 7, height=5, title=title)
    styles = scheme_styles([result["pos_scheme"] for result in results.values()])
    for axes, panel in zip(all_axes, panels, strict=True):
        ends = []
        if panel.linear:
            symlog(axes, panel.linear)
        for i, (name, result) in enumerate(results.items()):
            x, color = shown * protocol.apart ** (i - (len(results) - 1) / 2), styles[i]["color"]
            rows = [result["rows"][n] or {} for n in shown]
            y = [row.get(panel.key, math.nan) for row in rows]
            axes.plot(x, y, **styles[i])
            reach = np.transpose([protocol.interval(row, panel.key) for row in rows])
            axes.fill_between(x, *reach, color=color, alpha=0.15, linewidth=0)
            for own in result.get("seeds", {}).values():
                axes.plot(x, [(own[n] or {}).get(panel.key, math.nan) for n in shown], color=color, lw=0.5, alpha=0.5)
            last = max((n for n, row in result["rows"].items() if row), default=0)
            if last < max(result["rows"]):
                ends.append((f"{name} (undefined past {last:,})", color, None))
            else:
                ends.append((name, color, (x[-1], y[-1])))
        axes.set_xscale("log", base=2)
        axes.set_xticks(shown, [f"{n:,}" for n in shown])
        axes.minorticks_off()
        axes.margins(x=0.02)
        axes.grid(alpha=0.25)
        mark_training_length(axes, *protocol.training_lengths)
        axes.set(xlabel=protocol.axis, ylabel=panel.label)
        label_ends(axes, ends)
    figure.supxlabel(protocol.caption, fontsize=8, color="0.4")
    return figure


def report(protocol, results, losses, texts, base):
    """Prints the tables, and writes the numbers and the picture, whose path it returns. base: their path without an
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
    numbers.write_text(json.dumps(summary, indent=1, allow_nan=False))
    draw(protocol, results).savefig(picture)
    print(f"picture   {picture}\nnumbers   {numbers}; the values of each block: .npz files in the run folders")
    return picture


def publish(cfg, run, id, job_type, rows, axes, settings):
    """Logs rows to wandb, in the group of the training run."""
    group = run.checkpoint.settings.get("wandb_group") or Path(run.dataset.name).name
    settings = settings | dataclasses.asdict(cfg) | {"runs": list(cfg.runs)}
    id = f"{id}-{tracking.stamp()}"
    tracking.publish(rows, cfg.wandb_mode, cfg.wandb_project, group, id, job_type, settings, axes)


def publish_run(cfg, protocol, run, stem, result):
    """Logs a run's rows against the context length, and summary values to sort runs by."""
    name, prefix = run.checkpoint.folder.resolve().name, protocol.stem.split("-")[0]
    x, defined = f"{prefix}/{protocol.column}", {n: row for n, row in result["rows"].items() if row}
    rows = [{x: n} | {f"{prefix}/{key}": value for key, value in row.items()} for n, row in defined.items()]
    deltas = {n / run.trained: row["delta"] for n, row in defined.items() if n > run.trained and "delta" in row}
    summary = {f"delta_{factor:g}x": delta for factor, delta in deltas.items()}
    summary |= {key: result[key] for key in ("L_star",) if key in result}
    settings = run.checkpoint.settings | {"run": name, "step": run.checkpoint.step}
    publish(cfg, run, f"{name}-{stem}", "eval_length", [*rows, summary], {prefix: x}, settings)


def publish_comparison(cfg, protocol, run, stem, results, picture):
    """Logs a curve for every line of the picture, and the picture, in the group of `run`."""
    headline, x, rows = protocol.headline, f"x/{protocol.column}", []  # wandb sorts charts by name, so x comes last
    for n in protocol.shown():
        defined = {name: result["rows"][n] for name, result in results.items() if result["rows"][n]}
        rows.append({x: n} | {f"{headline}/{name}": row[headline] for name, row in defined.items()})
    rows.append({"image": {f"{protocol.stem.split('-')[0]}/picture": str(picture)}})
    publish(cfg, run, f"compare-{stem}", "comparison", rows, {headline: x}, {})
