"""What a person sees of an evaluation: the tables, the picture, the numbers and the charts in wandb."""

import itertools
import json
from pathlib import Path
from typing import NamedTuple

import numpy as np

from evaluation.pictures import figure_of, label_ends, mark_training_length, scheme_styles, symlog
from evaluation.statistics import breakdown

CAPTION = "shaded: 95%, over text and seeds (one run: over text only); thin lines: single seeds"


class Measured(NamedTuple):
    """What is known about one run."""

    experiment: str  # equal for runs that differ only in their seed
    found: dict  # arrays by name
    result: dict  # as result_of returns it


def result_of(protocol, about, found):
    """What is known about a run, as plain types: `about`, the breakdown length and the rows."""
    rows = protocol.rows(found, about["training_length"])
    if "threshold" in protocol.options:
        about = about | {"L_star": breakdown(rows, about["training_length"], protocol.threshold)}
    return about | {"rows": rows}


def pool_seeds(protocol, measured):
    """{name: result}, with the seeds of one experiment pooled into one result, and {name: {seed: found}}. A second run
    with the same seed keeps a line of its own. measured: {name: Measured}."""
    groups = {}  # {experiment: {seed: name}}
    for name, run in measured.items():
        seeds = groups.setdefault(run.experiment, {})
        if run.result["seed"] in seeds:
            seeds = groups.setdefault(name, {})
        seeds[run.result["seed"]] = name
    results, losses = {}, {}
    for seeds in groups.values():
        shortest = min(seeds.values(), key=len)
        results[shortest] = measured[shortest].result
        losses[shortest] = {seed: measured[name].found for seed, name in seeds.items()}
        if len(seeds) > 1:
            pooled = result_of(protocol, measured[shortest].result, stacked(losses[shortest].values()))
            results[shortest] = pooled | {"seeds": {name: measured[name].result["rows"] for name in seeds.values()}}
    return results, losses


def stacked(runs):
    """What is known about several runs that scored the same blocks, with the runs as the first dimension of arrays."""
    first, *others = runs
    arrays = {name: np.stack([run[name] for run in runs]) for name in set(first).intersection(*others)}
    return arrays | {name: first[name] for name in ("documents", "bytes_per_token") if name in first}


def contrasts(protocol, losses, length):
    """{(a, b): how their losses differ at a length} of every pair of lines that share two seeds or more, over these
    seeds and the text. The 95% intervals cover all pairs simultaneously (Bonferroni). `detectable` is the smallest
    difference that is detected in 80% of repetitions."""
    at_length, pairs, found = {}, {}, {}
    for name, runs in losses.items():
        values = {seed: protocol.losses(run).get(length) for seed, run in runs.items()}
        at_length[name] = {seed: each for seed, each in values.items() if each is not None}
    for a, b in itertools.combinations(losses, 2):
        seeds = sorted(at_length[a].keys() & at_length[b].keys(), key=str)
        same_blocks = all(np.array_equal(losses[a][seed]["ends"], losses[b][seed]["ends"]) for seed in seeds)
        if len(seeds) > 1 and same_blocks:
            pairs[a, b] = np.stack([at_length[a][seed] - at_length[b][seed] for seed in seeds]), losses[a][seeds[0]]
    for pair, (differences, run) in pairs.items():
        mean, width, more = protocol.bands({length: differences}, run, 0.05 / len(pairs))[length]
        if not np.isnan(width):
            found[pair] = {"difference": mean, "half_width": width, "detectable": more["detectable"]}
            found[pair]["seeds"] = len(differences)
    return found


def columns(lines):
    """Lines of texts as one text. All columns but the first have the same width."""
    left = max(len(first) for first, *_ in lines)
    wide = 2 + max(len(text) for _, *texts in lines for text in texts)
    return "\n".join(f"{first:>{left}}" + "".join(f"{text:>{wide}}" for text in texts) for first, *texts in lines)


def contrast_table(protocol, found, length):
    """What `contrasts` returned, as a triangle."""
    names = list(dict.fromkeys([a for a, _ in found] + [b for _, b in found]))
    lines = [["", *names[:-1]]]
    for i, row in enumerate(names[1:], start=1):
        lines.append([row])
        for pair in (found.get((column, row)) for column in names[:i]):
            significant = pair and abs(pair["difference"]) > pair["half_width"]
            no_sign = "·" if pair else ""  # "": no seeds in common
            lines[-1].append(f"{-pair['difference']:+.3f}" if significant else no_sign)
    detectable = sorted(pair["detectable"] for pair in found.values())
    return (
        f"{protocol.headline} at {protocol.column} {length}: row − column, shown only where significant\n"
        f"(95%, for all pairs simultaneously; · means not significant).\n{columns(lines)}\n"
        f"Smallest differences detected in 80% of repetitions: {detectable[0]:.2f} to {detectable[-1]:.2f}.\n"
    )


def table(protocol, results, width=96):
    """A line for each length and a column for each run, as many columns side by side as fit."""
    lines = [[protocol.column, *results]]
    for n in protocol.shown():
        rows = [(result["rows"][n], n == result["training_length"]) for result in results.values()]
        lines.append([str(n), *("—" if row is None else protocol.cell(row, is_T) for row, is_T in rows)])
    if "threshold" in protocol.options:
        lines.append(["", *(f"L* {star(result)}" for result in results.values())])
    beside = max(1, width // (2 + max(len(text) for _, *texts in lines for text in texts)))
    parts = [[[line[0], *line[i : i + beside]] for line in lines] for i in range(1, len(lines[0]), beside)]
    return "".join(f"{columns(part)}\n\n" for part in parts)


def star(result):
    """The breakdown length in words."""
    n, T, rows = result["L_star"], result["training_length"], result["rows"]
    past = [length for length, row in rows.items() if row and length > T]
    if n is not None:
        return f"= {n} ({n / T:g}×)"
    if not past:
        return "—"
    return "unknown" if np.isnan(rows[past[0]]["band"]) else f"> {past[-1]}"


def draw(protocol, results):
    """The picture: for each panel a line with a band per result, and a thin line per seed. Undefined is a gap."""
    shown, n = protocol.shown(), len(protocol.panels)
    title = protocol.question[0].upper() + protocol.question[1:]
    figure, all_axes = figure_of(n, width=9 if n == 1 else 6, height=5, title=title)
    styles = scheme_styles([result["pos_scheme"] for result in results.values()])
    for axes, (key, ylabel) in zip(all_axes, protocol.panels.items(), strict=True):
        if key == "delta":
            symlog(axes)
        ends = []
        for i, (name, result) in enumerate(results.items()):
            rows, color = result["rows"], styles[i]["color"]
            last = max((n for n, row in rows.items() if row), default=0)
            defined = [n for n in shown if key in (rows[n] or {})]
            x = np.array(defined) * protocol.apart ** (i - (len(results) - 1) / 2)
            axes.plot(x, [rows[n][key] for n in defined], **styles[i])
            is_whole = defined and defined[-1] == shown[-1]
            label = name if is_whole else f"{name} (undefined past {last:,})"
            ends.append((label, color, (x[-1], rows[last][key]) if is_whole else None))
            low, high = np.reshape([protocol.interval(rows[n], key) for n in defined], (-1, 2)).T
            axes.fill_between(x, low, high, color=color, alpha=0.15, linewidth=0)
            for own in result.get("seeds", {}).values():
                axes.plot(defined, [own[n][key] for n in defined], color=color, lw=0.5, alpha=0.5)
        axes.set_xscale("log", base=2)
        axes.set_xticks(shown, [f"{n:,}" for n in shown])
        axes.minorticks_off()
        axes.margins(x=0.02)
        axes.grid(alpha=0.25)
        mark_training_length(axes, *protocol.training_lengths)
        axes.set(xlabel=protocol.axis, ylabel=ylabel)
        label_ends(axes, ends)
    figure.supxlabel(CAPTION, fontsize=8, color="0.4")
    return figure


def json_text(value):
    """Plain types as JSON, with null for NaN."""
    return json.dumps(json.loads(json.dumps(value), parse_constant=lambda name: None), indent=1)


def report(protocol, results, losses, texts, base):
    """Prints the tables, and writes the numbers and the picture, whose path it returns. base: their path without an
    ending. texts: {dataset: what `about_text` returned}."""
    seeded = any("seeds" in result for result in results.values())
    print(f"\n{protocol.name}: {protocol.targets.format(**vars(protocol))}")
    print(*(f"{name}: {protocol.in_words(text)}" for name, text in texts.items()), sep="\n")
    print(f"Each cell: {protocol.cells}.\n{protocol.one_run}")
    if seeded:
        print(protocol.several_seeds)
    if "threshold" in protocol.options:
        print(f"L*: the first length at which Δ exceeds {protocol.threshold:g} nats by more than its ±.")
    print(f"\n{table(protocol, results)}", end="")
    summary = {"protocol": protocol.name, "blocks": protocol.blocks, "block_tokens": protocol.block_tokens}
    summary |= {"threshold": protocol.threshold, "datasets": texts, "runs": results, "contrasts": {}}
    for length in dict.fromkeys([*protocol.training_lengths, protocol.shown()[-1]]) if seeded else ():
        if found := contrasts(protocol, losses, length):
            print(contrast_table(protocol, found, length))
            summary["contrasts"][length] = {f"{a} - {b}": pair for (a, b), pair in found.items()}
    picture, numbers = Path(f"{base}.png"), Path(f"{base}.json")
    numbers.write_text(json_text(summary))
    draw(protocol, results).savefig(picture)
    print(f"picture   {picture}\nnumbers   {numbers}; the values of each block: .npz files in the run folders")
    return picture


def chart_rows(protocol, results, picture, key, x):
    """What wandb shows, as tracking.publish takes it: for each length x one value per line, L* in the summary, and the
    picture."""
    rows = []
    for n in protocol.shown():
        defined = {name: result["rows"][n] for name, result in results.items() if result["rows"][n]}
        rows.append({x: n} | {f"{key}/{name}": row[key] for name, row in defined.items()})
    rows.append({f"L_star/{name}": result["L_star"] for name, result in results.items() if "L_star" in result})
    return [*rows, {"image": {f"{key}/picture": str(picture)}}]
