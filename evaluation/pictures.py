"""How pictures are drawn: figures that work in grey and for colour-blind readers, with one style for each scheme."""

import itertools

import numpy as np

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#888888")  # Okabe and Ito
MARKERS = "osD^vPX*<"  # one more than colours, so the first 72 lines all differ
DASHES = ("-", "--", ":")
NAMES = (  # a row for each of DASHES; where a scheme or a row has its name here, it has its style in every picture
    *("rope_nope", "dape", "fox5", "rope", "alibi", "t5", "transformer_xl", "sinusoidal"),
    *("kerple", "fire", "fox", "rope_window64", "alibi_offset", "cope", "path", "none"),
    *("pope", "ssmax", "inkling", "key_offset", "scale_invariant", "command_a", "gemma3", "learnable"),
)


def figure_of(columns, title, width=4.6, height=3.9, **sharing):
    """A figure and its axes, side by side. width and height: of each of the axes, in inches."""
    from matplotlib.figure import Figure  # takes 0.7 s, so it is imported only here

    figure = Figure(figsize=(width * columns, height), dpi=150 if columns == 1 else 110, layout="constrained")
    figure.suptitle(title)
    return figure, figure.subplots(1, columns, squeeze=False, **sharing)[0]


def line_styles(lines):
    """matplotlib's keywords for each line, given as (name, scheme). One that has neither in NAMES, or whose style is
    taken, has the next style that no name has."""
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


def mark_training_lengths(axes, lengths):
    for n in lengths:
        axes.axvline(n, color="0.6", linestyle="--", linewidth=1, zorder=0)
        axes.annotate(
            f"training length {n}",
            (n, 0),
            xycoords=("data", "axes fraction"),
            xytext=(4, 6),
            textcoords="offset points",
            color="0.4",
            fontsize=8,
        )


def symlog(axes, linear=0.1):
    """Makes the y axis linear between ±linear and logarithmic beyond, with its ticks written out. Call before plotting:
    the limits depend on it."""
    steps = linear * np.append(0.5, np.outer(10.0 ** np.arange(7), (1, 2, 5)))
    axes.set_yscale("symlog", linthresh=linear)
    axes.set_yticks([*-steps[::-1], 0, *steps])
    axes.axhspan(-linear / 2, linear / 2, alpha=0)  # always in view: small differences must look small
    axes.yaxis.set_major_formatter(lambda y, _: f"{y:+g}".replace("-", "−") if y else "0")


def label_ends(axes, ends, apart=0.05, bold=()):
    """Labels lines at their right ends, far enough apart to read and otherwise as close to the ends as possible. ends:
    [(label, color, (x, y) of the end)]; the end is None for a line that stops earlier, whose label comes last."""
    to_axes = axes.transData + axes.transAxes.inverted()

    def height_of(line):
        *_, end = line
        return to_axes.transform(end)[1] if end else 0.02

    ends = sorted(ends, key=height_of, reverse=True)
    for (label, color, end), height in zip(ends, spread(map(height_of, ends), apart), strict=True):
        arrow = None
        if end:
            arrow = {"arrowstyle": "-", "color": color, "linewidth": 0.7, "shrinkB": 4, "relpos": (0, 0.5)}
        axes.annotate(
            label,
            end or axes.viewLim.p0,
            (1.035, height),
            textcoords="axes fraction",
            va="center",
            fontsize=9,
            weight="bold" if label in bold else "normal",
            color=color,
            arrowprops=arrow,
            annotation_clip=False,
        )


def spread(heights, apart):
    """Heights that descend, moved as little as possible so that each lies at least `apart` below the one before: from
    the top down, and up again from the bottom of the axes."""
    heights = list(heights)
    for i in range(1, len(heights)):
        heights[i] = min(heights[i], heights[i - 1] - apart)
    floor = 0.0
    for i in reversed(range(len(heights))):
        heights[i] = max(heights[i], floor)
        floor = heights[i] + apart
    return heights
