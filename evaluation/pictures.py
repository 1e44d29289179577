"""How pictures are drawn: figures that work in grey and for colour-blind readers, with one style for each scheme."""

import itertools

import numpy as np

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#888888")  # Okabe and Ito
MARKERS = "osD^vPX*<"  # one more than colours, so the first 72 lines all differ
FAILED = 0.5  # nats: a loss this far above that at the training length has failed
DASHES = ("-", "--", ":")
NAMES = (  # a row for each of DASHES; where a scheme or a row has its name here, it has its style in every picture
    *("rope_nope", "dape", "fox5", "rope", "alibi", "t5", "transformer_xl", "sinusoidal"),
    *("kerple", "fire", "fox", "rope_window64", "alibi_offset", "cope", "path", "none"),
    *("pope", "ssmax", "inkling", "rope-window128", "scale_invariant", "key_offset", "gemma3", "learnable"),
)


def figure_of(columns, title, width=4.6, height=3.9, **sharing):
    """A figure and its axes, side by side. width and height: of each of the axes, in inches."""
    from matplotlib.figure import Figure  # takes 0.7 s, so it is imported only here

    figure = Figure(figsize=(width * columns, height), dpi=150 if columns == 1 else 110, layout="constrained")
    figure.suptitle(title, wrap=True)
    return figure, figure.subplots(1, columns, squeeze=False, **sharing)[0]


def line_styles(lines):
    """matplotlib's keywords for each line, given as (name, scheme). One that has neither in NAMES, or whose style is
    already there, takes the next style that no name has."""
    unnamed = itertools.count(len(NAMES))
    taken = set()
    styles = []
    for line in lines:
        named = [NAMES.index(name) for name in line if name in NAMES]
        i = next((i for i in named if i not in taken), None)
        if i is None:
            i = next(unnamed)
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
    """A line through {x: values of the seeds}: their mean, and a thin line for each of several."""
    x = list(curve)
    axes.plot(x, [np.mean(seeds) for seeds in curve.values()], **style)
    for seeds in zip(*curve.values(), strict=True):
        axes.plot(x, seeds, color=style["color"], linewidth=0.5, alpha=0.5)


def length_axis(axes, ticks, training_lengths):
    """Makes the x axis logarithmic, and marks the training lengths."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [f"{n:,}" for n in ticks])
    axes.minorticks_off()
    axes.margins(x=0.02)
    axes.grid(alpha=0.25)
    for n in training_lengths:
        axes.axvline(n, color="0.6", linestyle="--", linewidth=1, zorder=0)
        axes.annotate(
            f"training length {n:,}",
            (n, 0),
            xycoords=("data", "axes fraction"),
            xytext=(-4, 6),
            textcoords="offset points",
            ha="right",
            color="0.4",
            fontsize=8,
        )


def failures(curves, trained):
    """Which of the losses `curves`, {name: {length: values of the seeds}}, fail past the training lengths {name:
    length}: {name: the last length before}."""
    failing = {}
    for name, curve in curves.items():
        lengths = [n for n in curve if n >= trained[name]]
        for last, n in itertools.pairwise(lengths):
            if np.mean(curve[n]) > np.mean(curve[trained[name]]) + FAILED:
                failing.setdefault(name, last)
    return failing


def cut_off(axes, curves, failing):
    """Ends the y axis a little above the losses that have not failed, unless all lines fail. It spans at least FAILED,
    so that small differences look small."""
    if len(failing) == len(curves):
        return
    in_view = []
    for name, curve in curves.items():
        in_view += [seeds for n, seeds in curve.items() if n <= failing.get(name, n)]
    low = min(map(min, in_view))
    span = max(FAILED, max(map(max, in_view)) - low)
    axes.set_ylim(low - 0.08 * span, low + 1.1 * span)


def label_ends(axes, ends, bold=()):
    """Names lines beside the axes, with their markers: as high as they end, but far enough apart to read. Lines that
    end at the right, in view, are joined with their labels. ends: [(label, style, (x, y) of the end)]; y is NaN for a
    line that is not drawn."""
    to_axes = axes.transData + axes.transAxes.inverted()
    places = np.nan_to_num([to_axes.transform(end) for *_, end in ends])
    order = np.argsort(-places[:, 1], kind="stable")
    heights = spread(places[order, 1], min(0.05, 1 / len(ends)))
    for i, height in zip(order, heights, strict=True):
        label, style, _ = ends[i]
        x, y = places[i]
        start = (x, y) if x == places[:, 0].max() and 0 <= y <= 1 else (1.03, height)
        line = np.transpose([start, (1.03, height)])
        axes.plot(
            *line,
            transform=axes.transAxes,
            clip_on=False,
            **style | {"linewidth": 0.7, "linestyle": "-", "markevery": [1]},
        )
        axes.annotate(
            label,
            (1.03, height),
            xycoords="axes fraction",
            xytext=(7, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
            weight="bold" if label in bold else "normal",
            color=style["color"],
        )


def spread(heights, apart):
    """Heights that descend, moved as little as possible so that each lies at least `apart` below the one before: from
    the top of the axes down, and up again from their bottom."""
    heights = list(heights)
    ceiling = 1 - apart / 2
    for i in range(len(heights)):
        heights[i] = min(heights[i], ceiling)
        ceiling = heights[i] - apart
    floor = 0.0
    for i in reversed(range(len(heights))):
        heights[i] = max(heights[i], floor)
        floor = heights[i] + apart
    return heights
