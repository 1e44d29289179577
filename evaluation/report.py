"""What a person sees of an evaluation: the tables, the picture, the numbers and the charts in wandb."""

import itertools
import json
import shutil

import numpy as np

from evaluation.kept import KeptRun
from evaluation.pictures import figure_of, label_ends, mark_training_length, scheme_styles, symlog
from evaluation.protocols import within
from evaluation.statistics import FEWEST_DOCUMENTS, breakdown, contrasts, estimate, flatness


def result_of(protocol, run, found):
    """What is known about a run, as plain types: its settings in short, the breakdown length and the rows."""
    trained, rows = run.config.block_size, protocol.rows(found, run.config.block_size)
    about = {"pos_scheme": run.config.pos_scheme, "training_length": trained, "step": run.step}
    about |= {"seed": run.settings.get("seed"), "kept": isinstance(run, KeptRun)}
    if "threshold" in protocol.options:
        about["L_star"] = breakdown(rows, trained, protocol.threshold)
    return about | {"rows": rows}


def pool_seeds(protocol, runs, found):
    """{name: result}, with the seeds of one experiment pooled into one result, named by a run without its seed, and
    {name: {length: (seeds, blocks)}}. A second run with the same seed keeps a line of its own. found: {name: arrays by
    name} of the runs."""
    groups = {}  # {experiment: {seed: name}}
    for name, run in runs.items():
        names, seed = groups.setdefault(run.experiment, {}), run.settings.get("seed")
        (groups.setdefault(name, {}) if seed in names else names)[seed] = name
    results, losses = {}, {}
    for names in groups.values():
        line = min(names.values(), key=len)
        own = {name: result_of(protocol, runs[name], found[name]) for name in names.values()}
        result, common = own[line], set.intersection(*(set(found[name]) for name in own)) - {"documents"}
        stacked = {key: np.stack([found[name][key] for name in own]) for key in common}
        if len(names) > 1:
            result = result_of(protocol, runs[line], stacked | {"documents": found[line]["documents"]})
            result["seeds"] = {name: one["rows"] for name, one in own.items()}
            if (short := runs[line].without_seed(line)) not in {*runs, *results}:
                line = short
        results[line], losses[line] = result, protocol.losses(stacked)
    return results, losses


def difference(a, b, documents, seed):
    """(mean, half-width) of losses (seeds, blocks) minus others. If both have two seeds or more, the half-width is that
    of an interval, if both have one, that of a band over text only, and NaN otherwise: how far a single run is from its
    mean is not known."""
    mean, width, _ = estimate([a[..., None], -b[..., None]], documents, seed)
    return mean[0], width[0] if (len(a) > 1) == (len(b) > 1) else np.nan


def columns(lines):
    """Lines of equally many texts as one text."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(f"{text:>{w}}" for text, w in zip(line, widths, strict=True)) for line in lines)


def side_by_side(lines):
    """Lines of texts as one text, in parts of as many columns as the terminal has room for."""
    wide = 2 + max(len(text) for _, *texts in lines for text in texts)
    room = max(1, (shutil.get_terminal_size().columns - max(len(first) for first, *_ in lines)) // wide)
    parts = [[[line[0], *line[i : i + room]] for line in lines if len(line) > i] for i in range(1, len(lines[0]), room)]
    return "\n\n".join(columns(part) for part in parts)


def contrast_table(protocol, found, length):
    """What `contrasts` returned, as a triangle whose columns have the numbers of its rows."""
    names, heads = list(dict.fromkeys(itertools.chain(*found))), list(dict.fromkeys(one for one, _ in found))
    lines = [["", *(str(i) for i in range(1, len(heads) + 1))]]
    for i, row in enumerate(names):
        pairs = [found[column, row] for column in heads[:i]]
        cells = [f"{-pair['difference']:+.3f}" if pair["significant"] else "·" for pair in pairs]
        lines.append([f"{row} {i + 1:2}", *cells, *[""] * (len(heads) - len(cells))])
    detectable = [pair["detectable"] for pair in found.values()]
    least, most = f"{min(detectable):.2f}", f"{max(detectable):.2f}"
    power = f"from {least} on" + f", in some pairs from {most} on" * (least != most)
    return (
        f"{protocol.headline} at {protocol.column} {length}: row − column, shown only where significant\n"
        f"(95%, for all pairs together, here {len(found)}; · means not significant).\n{side_by_side(lines)}\n"
        f"True differences that are found in 80% of repetitions: {power}.\n"
    )


def table(protocol, results):
    """A line for each length and a column for each run."""
    lines = [[protocol.column, *results]]
    for n in protocol.shown():
        rows = [(result["rows"][n], n == result["training_length"]) for result in results.values()]
        lines.append([str(n), *("—" if row is None else protocol.cell(row, is_T) for row, is_T in rows)])
    return f"{side_by_side(lines)}\n\n"


def verdict(protocol, result):
    """How the loss behaves past the training length, in words."""
    row = result["rows"][protocol.shown()[-1]]
    if not row or np.isnan(row["band"]):
        return "unknown" if row else "undefined"
    if result["L_star"]:
        return f"climbs: L* {result['L_star']:,}"
    flat = flatness(row["delta"], row["band"], protocol.threshold)
    return flat or ("rises" if row["delta"] > row["band"] else "undecided")


def answer(protocol, results, losses, documents):
    """The table that sums up: a line for each run, the lowest loss at the longest length first."""
    last, (first, *others) = protocol.shown()[-1], protocol.training_lengths
    order = sorted(results, key=lambda name: (results[name]["rows"][last] or {"loss": np.inf})["loss"])
    top, several, mixed = order[0], len(results) > 1, len({"seeds" in result for result in results.values()}) > 1

    def beside(name, n):
        """The loss at a length, and if there are several runs, that loss minus the first line's."""
        row, minus = results[name]["rows"][n], ""
        if row and name != top and n in losses[top]:
            mean, width = difference(losses[name][n], losses[top][n], documents, protocol.seed)
            minus = f"{mean:+.3f} {within(width)}"
        return f"{row['loss']:.3f}" if row else "—", *[minus] * several

    heads = "loss at training length" if others else f"loss at {first:,}", f"loss at {last:,}"
    minus = ["minus first"] * several
    lines = [["", heads[0], *minus, heads[1], *minus, f"Δ at {last:,}", "past training"]]
    for name in order:
        row, seeds = results[name]["rows"][last], len(results[name].get("seeds", ()))
        start, end = beside(name, results[name]["training_length"]), beside(name, last)
        delta = f"{row['delta']:+.3f} {within(row['band'])}" if row else "—"
        lines.append([name + f" ({seeds} seeds)" * (seeds > 0), *start, *end, delta, verdict(protocol, results[name])])
    compared = (
        f"The lowest loss at {last:,} comes first; minus first: the loss to the left, minus that of the first line.\n"
        f"Each ± stands alone, not corrected for the number of runs.\n"
        + "A difference between several seeds and a single run has no ±.\n"
        * mixed
    )
    climb = protocol.threshold
    defined = (
        f"Past training, a loss climbs if its Δ exceeds {climb:g} by more than ±, first at length L*.\n"
        f"Others, at {last:,}, are flat if the whole ± of Δ lies below {climb / 2:g}, nearly flat if only its mean\n"
        f"does; otherwise they rise if the whole ± lies above 0, and are undecided if not.\n"
    )
    return f"{compared * several}{defined}\n{columns(lines)}\n"


def kept_beside(results):
    """The names of kept lines if other runs are among the results, otherwise none."""
    kept = {name for name, result in results.items() if result["kept"]}
    return kept if len(kept) < len(results) else set()


def draw(protocol, results, words):
    """The picture: for each panel a line with a band per result, and a thin line per seed. Its title has `words`. Kept
    lines beside other runs are thin and have neither."""
    shown, n = protocol.shown(), len(protocol.panels)
    title = f"{protocol.question[0].upper()}{protocol.question[1:]}\n{words}"
    figure, panels = figure_of(n, title, width=9 if n == 1 else 6, height=5, sharey=True)
    styles = dict(zip(results, scheme_styles([result["pos_scheme"] for result in results.values()]), strict=True))
    labels, thin = [], kept_beside(results)
    for axes, (key, ylabel) in zip(panels, protocol.panels.items(), strict=True):
        if key == "delta":
            symlog(axes)
        ends = []
        for i, (name, result) in enumerate(results.items()):
            style = styles[name] | ({"lw": 0.8, "markersize": 3, "alpha": 0.7} if name in thin else {})
            rows = {n: row for n, row in result["rows"].items() if n in shown and key in (row or {})}
            x = np.array(list(rows)) * protocol.apart ** (i - (len(results) - 1) / 2)
            is_whole = shown[-1] in rows
            label = name if is_whole else f"{name} (undefined past {max(rows, default=0):,})"
            ends.append((label, style["color"], (x[-1], rows[shown[-1]][key]) if is_whole else None))
            axes.plot(x, [row[key] for row in rows.values()], **style)
            if name in thin:
                continue
            low, high = np.reshape([protocol.interval(row, key) for row in rows.values()], (-1, 2)).T
            axes.fill_between(x, low, high, color=style["color"], alpha=0.15, linewidth=0)
            for own in result.get("seeds", {}).values():
                axes.plot([*rows], [own[n][key] for n in rows], color=style["color"], lw=0.5, alpha=0.5)
        axes.set_xscale("log", base=2)
        axes.set_xticks(shown, [f"{n:,}" for n in shown])
        axes.minorticks_off()
        axes.margins(x=0.02)
        axes.grid(alpha=0.25)
        mark_training_length(axes, *protocol.training_lengths)
        axes.set(xlabel=protocol.axis, ylabel=ylabel)
        labels.append((axes, ends))
    for axes, ends in labels:  # last, when the panels' shared limits are known
        label_ends(axes, ends, bold={*results} - thin if thin else ())
    caption = "shaded: 95%, over text and seeds (one run: over text only); thin lines: single seeds"
    if thin:
        caption += "; thin with markers: kept lines"
    figure.supxlabel(caption, fontsize=8, color="0.4")
    return figure


def report(protocol, results, losses, dataset, targets, base, changed, of):
    """Prints the tables, and writes the numbers and the picture, whose path it returns. base: their path without an
    ending. changed: what the evaluation changes in the models, in words. of: the runs and settings, which tell these
    numbers from others."""
    n, crossing, per_token = len(np.unique(targets["documents"])), targets["crossing"], targets["bytes_per_token"]
    text = {"hash": dataset.hash, "documents": n, "crossing": float(crossing), "bytes_per_token": float(per_token)}
    print(f"\n{protocol.name}: {protocol.targets.format(**vars(protocol))}")
    print(f"{dataset.name}: blocks from {n} documents; {crossing:.0%} of the longest contexts cross documents; "
          f"bytes per token: {per_token:.3g}")  # fmt: skip
    if n < FEWEST_DOCUMENTS:
        print(f"note: blocks from {n} documents are too few for ±: at least {FEWEST_DOCUMENTS} are needed.")
        print("Choose more --blocks, shorter --lengths or a --dataset of more documents (see --split_on)")
    print(f"Each cell: {protocol.cells}.\n{protocol.uncertainty}")
    print(f"\n{table(protocol, results)}", end="")
    summary = {"of": of, "protocol": protocol.name, "blocks": protocol.blocks, "block_tokens": protocol.block_tokens}
    summary |= {"threshold": protocol.threshold, "datasets": {dataset.name: text}, "runs": results, "contrasts": {}}
    kept = kept_beside(results)
    for length in dict.fromkeys([*protocol.training_lengths, protocol.shown()[-1]]):
        several = {name: own[length] for name, own in losses.items() if length in own and len(own[length]) > 1}
        several = dict(sorted(several.items(), key=lambda item: results[item[0]]["kept"]))
        if len(several) > 1 and kept >= set(several):
            print(f"No pairs at {protocol.column} {length}: they need two runs of your own that differ in --seed.\n")
        if found := contrasts(several, targets["documents"], protocol.seed, kept):
            print(contrast_table(protocol, found, length))
            summary["contrasts"][length] = {f"{a} - {b}": pair for (a, b), pair in found.items()}
    if "threshold" in protocol.options:
        print(answer(protocol, results, losses, targets["documents"]))
    picture, numbers = base.with_suffix(".png"), base.with_suffix(".json")
    plain_types = json.loads(json.dumps(summary), parse_constant=lambda name: None)  # null for NaN
    numbers.write_text(json.dumps(plain_types, indent=1))
    draw(protocol, results, "; ".join([f"text: {dataset.name}", *changed])).savefig(picture)
    print(f"picture   {picture}\nnumbers   {numbers}; the values of each block: .npz files in the run folders")
    return picture


def charts(protocol, results, picture, x):
    """What wandb shows, as tracking.publish takes it: a run for each result, so that they share their charts against x,
    and the picture in the first of them."""
    runs, keys = {}, {*protocol.panels, protocol.headline}
    for name, result in results.items():
        about = {key: value for key, value in result.items() if key not in ("rows", "seeds")}
        defined = [(n, row) for n, row in result["rows"].items() if row]
        rows = [{x: n} | {f"{protocol.stem}/{key}": row[key] for key in row if key in keys} for n, row in defined]
        runs[name] = about, rows
    next(iter(runs.values()))[1].append({"image": {f"{protocol.stem}/picture": str(picture)}})
    return runs
