"""How pictures are drawn: figures that work in grey and for colour-blind readers, with one style for each scheme."""

import itertools
import textwrap

import numpy as np

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#888888")  # Okabe and Ito
MARKERS = "osD^vPX*<"  # one more than colours, so the first 72 lines all differ
DASHES = ("-", "--", ":")
NAMES = (  # a row for each of DASHES; where a scheme or a row has its name here, it has its style in every picture
    *("rope_nope", "dape", "fox5", "rope", "alibi", "t5", "transformer_xl", "sinusoidal"),
    *("kerple", "fire", "fox", "rope-yarn", "alibi_offset", "cope", "path", "none"),
    *("pope", "ssmax", "inkling", "rope-window128", "scale_invariant", "key_offset", "gemma3", "learnable"),
)
FAILED = 0.5  # nats: a loss that rises further has failed


def figure_of(columns, title, width=4.6, height=3.9, notes="", **sharing):
    """A figure and its axes, side by side, with notes below them. width and height: of each of the axes, in inches."""
    from matplotlib.figure import Figure  # takes 0.7 s, so it is imported only here

    figure = Figure(figsize=(width * columns, height), dpi=130, layout="constrained")
    figure.suptitle(textwrap.fill(title, int(11 * width * columns)))
    if notes:
        figure.supxlabel(notes, fontsize=8, color="0.4")
    return figure, figure.subplots(1, columns, squeeze=False, **sharing)[0]


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
        style = {
            "color": COLORS[i % len(COLORS)],
            "marker": MARKERS[i % len(MARKERS)],
            "markersize": 5,
            "linestyle": DASHES[i // len(COLORS) % len(DASHES)],
        }
        styles.append(style)
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


def label_ends(axes, ends):
    """Names lines beside the axes, with their markers: as high as they end, but far enough apart to read. Lines that
    end at the right, in view, are joined with their labels. ends: [(label, style, (x, y) of the end)]; y is NaN for a
    line that is not drawn."""
    axes.autoscale_view()  # otherwise matplotlib may compute the limits later
    to_axes = axes.transData + axes.transAxes.inverted()
    places = np.nan_to_num([to_axes.transform(end) for *_, end in ends])
    order = np.argsort(-places[:, 1], kind="stable")
    heights = spread(places[order, 1], min(0.05, 1 / len(ends)))
    for i, height in zip(order, heights, strict=True):
        label, style, _ = ends[i]
        x, y = places[i]
        if x <= 0.9 or not 0 <= y <= 1:
            x, y = 1.03, height
        leader = style | {"linewidth": 0.7, "linestyle": "-", "markevery": [1]}
        axes.plot([x, 1.03], [y, height], transform=axes.transAxes, clip_on=False, **leader)
        axes.text(
            1.03,
            height,
            f"   {label}",
            transform=axes.transAxes,
            va="center",
            fontsize=9,
            color=style["color"],
            alpha=style.get("alpha"),
        )


def spread(heights, apart):
    """Heights that descend, moved as little as possible so that each lies at least `apart` below the one before: from
    the top of the axes down, and up again from their bottom."""
    steps = apart * np.arange(len(heights))
    spaced = np.minimum.accumulate(np.minimum(heights, 1 - apart / 2) + steps) - steps
    return np.maximum(spaced, steps[::-1])
