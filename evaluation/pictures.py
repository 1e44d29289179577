"""How pictures are drawn: figures that work in grey and for colour-blind readers, with one style for each scheme."""

import itertools
import textwrap
from pathlib import Path

import numpy as np

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#888888")  # Okabe and Ito
MARKERS = "osD^vPX*<"  # one more than colours, so the first 72 lines all differ
DASHES = ("-", "--", ":")
NAMES = (  # a row for each of DASHES; where a scheme or a row has its name here, it has its style in every picture
    *("rope_nope", "dape", "fox5", "rope", "alibi", "t5", "transformer_xl", "sinusoidal"),
    *("kerple", "fire", "fox", "rope-yarn", "alibi_offset", "cope", "none", "path"),
    *("pope", "ssmax", "inkling", "rope-window128", "scale_invariant", "key_offset", "gemma3", "learnable"),
)
FAILED = 0.5  # nats: a loss that rises further has failed


def figure_of(columns, title, width=4.6, height=3.9, notes="", rows=1, **sharing):
    """A figure and its axes, row by row, with notes below them. width and height: of each of the axes, in inches."""
    from matplotlib.figure import Figure  # takes 0.7 s, so it is imported only here

    figure = Figure(figsize=(width * columns, height * rows), dpi=130, layout="constrained")
    figure.suptitle(textwrap.fill(title, int(11 * width * columns)))
    if notes:
        figure.supxlabel(notes, fontsize=8, color="0.4")
    return figure, figure.subplots(rows, columns, squeeze=False, **sharing).ravel()


def line_styles(lines):
    """matplotlib's keywords for each line, given as (name, scheme). One that has neither in NAMES, or whose style is
    taken, has the next style that no name has."""
    unnamed = itertools.count(len(NAMES))
    taken = set()
    styles = []
    for line in lines:
        named = (NAMES.index(name) for name in line if name in NAMES)
        i = next(i for i in itertools.chain(named, unnamed) if i not in taken)
        taken.add(i)
        color = COLORS[i % len(COLORS)]
        marker = MARKERS[i % len(MARKERS)]
        dashes = DASHES[i // len(COLORS) % len(DASHES)]
        styles.append({"color": color, "marker": marker, "markersize": 5, "linestyle": dashes})
    return styles


def draw_curve(axes, curve, style):
    """A line through {x: values of the seeds}: their mean, and a thin line for each seed that all x have."""
    x = list(curve)
    axes.plot(x, [np.mean(seeds) for seeds in curve.values()], **style)
    for seeds in zip(*curve.values(), strict=False):
        axes.plot(x, seeds, color=style["color"], linewidth=0.5, alpha=0.5)


def length_axis(axes, lengths, training_lengths):
    """Makes the x axis logarithmic, with ticks at the lengths that have room, and marks the training lengths."""
    axes.set_xscale("log", base=2)
    apart = (max(lengths) / min(lengths)) ** (1 / 16)
    ticks = []
    for n in [*training_lengths, *lengths]:
        if all(max(n, tick) > apart * min(n, tick) for tick in ticks):
            ticks.append(n)
    labels = [f"{n:,}\ntraining\nlength" if n in training_lengths else f"{n:,}" for n in ticks]
    axes.set_xticks(ticks, labels)
    axes.minorticks_off()
    axes.margins(x=0.02)
    axes.grid(alpha=0.25)
    for n in training_lengths:
        axes.axvline(n, color="0.6", linestyle="--", linewidth=1, zorder=0)


def cut_off(axes, in_view):
    """Ends the y axis a little above these losses. It spans at least FAILED, so that small differences look small."""
    low = min(in_view)
    span = max(FAILED, max(in_view) - low)
    axes.set_ylim(low - 0.05 * span, low + 1.1 * span)


def draw_losses(results, background):
    """The losses of rows against the length, with a thin line for each seed. results: {name: numbers_of(row)} in
    eval_length.py, the lowest at the longest length first. Rows in `background` are thin. The axis ends a little above
    the rows that have not failed; the labels of the others say how high they end."""
    title = "The loss of the same tokens, by the length of their context"
    figure, (axes,) = figure_of(1, title, 10, 5, "thin lines without markers: single seeds")
    named_first = sorted(results, key=lambda name: (Path(name).stem not in NAMES, name not in background))
    styles = line_styles((Path(name).stem, results[name]["scheme"]) for name in named_first)
    styles = dict(zip(named_first, styles, strict=True))
    in_view = []
    lengths = sorted(set().union(*(result["lengths"] for result in results.values())))
    for name, result in results.items():
        style = styles[name]
        curve = {n: numbers["by_seed"] for n, numbers in result["lengths"].items()}
        last = max(curve)
        label = name if last == lengths[-1] else f"{name}: undefined past {last:,}"
        if result["rise"] and result["rise"]["mean"] > FAILED:
            label += f": {np.mean(curve[last]):.2f} at {last:,}"
        else:
            in_view.extend(np.concatenate([*curve.values()]))
        if name in background:
            style |= {"linewidth": 0.8, "markersize": 3, "alpha": 0.7}
        draw_curve(axes, curve, style | {"label": label})
    length_axis(axes, lengths, {result["training_length"] for result in results.values()})
    if in_view:
        cut_off(axes, in_view)
    axes.set(xlabel="context length (tokens)", ylabel="loss (nats per token)")
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False, reverse=True)
    return figure
