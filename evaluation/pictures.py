"""How pictures are drawn: figures that read in grey and with colour-blind eyes, each scheme alike in all of them."""

import torch

from model import SCHEMES

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")  # Okabe and Ito
MARKERS = "osD^vPX*"  # one more than colours, so that no two of the first 56 lines are alike
DASHES = ("-", "--", ":")
GREY_SAFE = "cividis"  # rises evenly in brightness


def figure_of(columns, width=4.6, height=3.9, title=None, **sharing):
    """A figure and its axes, side by side. width and height: of each, in inches."""
    from matplotlib.figure import Figure  # 0.7 s, so only where it is used

    figure = Figure(figsize=(width * columns, height), dpi=150 if columns == 1 else 110, layout="constrained")
    if title:
        figure.suptitle(title)
    return figure, figure.subplots(1, columns, squeeze=False, **sharing)[0]


def line_style(i, repeat=0):
    """matplotlib's keywords for line i of a picture; `repeat` changes the dash and the marker, not the colour."""
    color, marker = COLORS[i % len(COLORS)], MARKERS[(i + repeat) % len(MARKERS)]
    dash = DASHES[(i // len(COLORS) + repeat) % len(DASHES)]
    return {"color": color, "marker": marker, "markersize": 5, "linestyle": dash}


def scheme_styles(schemes):
    """The style of each line, by its scheme. A scheme has one colour and marker in every picture; further lines of the
    same scheme take colours that no scheme in this picture has, as long as there are any."""
    own = [list(SCHEMES).index(scheme) for scheme in schemes]
    free = [color for color in range(len(COLORS)) if color not in {i % len(COLORS) for i in own}]
    styles = []
    for n, i in enumerate(own):
        repeat = own[:n].count(i)
        styles.append(line_style(free.pop(0) if repeat and free else i, repeat))
    return styles


def heat(figure, axes, values, title, x, y, label=None):
    image = axes.imshow(values.numpy(), aspect="auto", cmap=GREY_SAFE, interpolation="nearest")
    axes.set(title=title, xlabel=x, ylabel=y)
    if label:
        figure.colorbar(image, ax=axes, label=label)


def lines(axes, named, title, xlabel, ylabel, logarithmic=False, styles=None):
    """Draws named, {label: y at 0, 1, …}, each in a style of its own. A logarithmic axis begins at 1."""
    for i, (label, y) in enumerate(named.items()):
        x = torch.arange(len(y)) + (1 if logarithmic else 0)
        every = 0.12 + 0.01 * i if logarithmic else (i * len(y) // 40, max(1, len(y) // 8))
        axes.plot(x.numpy(), y.numpy(), label=label, markevery=every, **(styles[i] if styles else line_style(i)))
    if logarithmic:
        axes.set_xscale("log", base=2)
    axes.set(title=title, xlabel=xlabel, ylabel=ylabel)
    axes.grid(alpha=0.25)
    axes.legend(fontsize=8, framealpha=0.9)


def mark_training_length(axes, *lengths):
    for n in sorted(set(lengths)):
        axes.axvline(n, color="0.6", linestyle="--", linewidth=1, zorder=0)
        axes.annotate(f"training length {n}", (n, 0), xycoords=("data", "axes fraction"), xytext=(4, 6),
                      textcoords="offset points", color="0.4", fontsize=8)  # fmt: skip
