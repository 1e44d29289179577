"""What the pictures of eval_length.py and visualize.py share: figures that read in grey and with colour-blind eyes."""

import torch

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")  # Okabe and Ito
MARKERS = "osD^vPX*"  # one more than colours, so that no two of the first 56 lines are alike
DASHES = ("-", "--", ":")
GREY_SAFE = "cividis"  # rises evenly in brightness


def figure_of(columns, rows=1, width=4.6, height=3.9, title=None, **sharing):
    """A figure and the flat list of its axes."""
    from matplotlib.figure import Figure  # 0.7 s, so only where it is used

    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    if title:
        figure.suptitle(title)
    return figure, figure.subplots(rows, columns, squeeze=False, **sharing).flatten()


def line_style(i):
    """matplotlib's, for the i-th line of a picture."""
    color, marker = COLORS[i % len(COLORS)], MARKERS[i % len(MARKERS)]
    return {"color": color, "marker": marker, "markersize": 5, "linestyle": DASHES[i // len(COLORS) % len(DASHES)]}


def heat(figure, axes, values, title, x, y, label=None):
    image = axes.imshow(values.numpy(), aspect="auto", cmap=GREY_SAFE, interpolation="nearest")
    axes.set(title=title, xlabel=x, ylabel=y)
    if label:
        figure.colorbar(image, ax=axes, label=label)


def lines(axes, named, title, xlabel, ylabel, logarithmic=False):
    """Each of named, {label: y at 0, 1, …}, in a colour, dash and marker of its own; a logarithmic axis begins at 1."""
    for i, (label, y) in enumerate(named.items()):
        x = torch.arange(len(y)) + (1 if logarithmic else 0)
        every = 0.12 + 0.01 * i if logarithmic else (i * len(y) // 40, max(1, len(y) // 8))
        axes.plot(x.numpy(), y.numpy(), label=label, markevery=every, **line_style(i))
    if logarithmic:
        axes.set_xscale("log", base=2)
    axes.set(title=title, xlabel=xlabel, ylabel=ylabel)
    axes.grid(alpha=0.25)
    axes.legend(fontsize=8, framealpha=0.9)


def length_axis(axes, lengths, xlabel):
    """A logarithmic axis with a tick at each of `lengths`."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, [f"{n:,}" for n in lengths])
    axes.minorticks_off()
    axes.set_xlabel(xlabel)
    axes.grid(alpha=0.25)


def mark_training_length(axes, n):
    axes.axvline(n, color="0.6", linestyle="--", linewidth=1, zorder=0)
    axes.annotate(f"training length {n}", (n, 0), xycoords=("data", "axes fraction"), xytext=(4, 6),
                  textcoords="offset points", color="0.4", fontsize=8)  # fmt: skip
