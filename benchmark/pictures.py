"""Draws docs/decision.png and docs/seeing.png from benchmark/:  python -m benchmark.pictures"""

import numpy as np

from benchmark.results import ROOT, losses_of, read_lines, recall_by_distance, recall_of, rise_of
from evaluation.pictures import figure_of, label_ends, line_styles, symlog

MODELS = 5  # trained of each scheme
BREAK = "rope,sinusoidal,none"
STAY = "dape,fox5,alibi,rope_nope,transformer_xl,t5,window/rope-window128"


def style_of(name):
    """Color and dashes; RoPE under a window is RoPE's line, dashed."""
    if name.startswith("window/"):
        return style_of("rope") | {"linestyle": "--"}
    [style] = line_styles([(name,)])
    return {key: style[key] for key in ("color", "linestyle")}


def draw_curves(axes, curves, ticks, low, high):
    """{name: (x, y (seeds, x))}: a thick line for the mean, and a thin one for each seed."""
    axes.set_ylim(low, high)
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.axvline(128, color="0.75", linestyle=":", linewidth=1)
    axes.spines[["top", "right"]].set_visible(False)
    for name, (x, y) in curves.items():
        style = style_of(name)
        axes.plot(x, y.T, color=style["color"], linewidth=0.5, alpha=0.45)
        axes.plot(x, y.mean(0), linewidth=2, **style)


def label_curves(axes, curves):
    """Names at the ends, and how many models the curve is of, if they are fewer than MODELS."""
    ends = []
    for name, (x, y) in curves.items():
        label = "rope, window of 128" if name.startswith("window/") else name
        if len(y) < MODELS:
            label += f" ({len(y)} models)"
        ends.append((label, style_of(name)["color"], (x[-1], y[:, -1].mean())))
    label_ends(axes, ends)


def loss_curves(names, first=0):
    """{name: (lengths, the loss of each seed at each)}, from the length `first` on."""
    curves = {}
    for name, line in read_lines(".", names).items():
        losses = {n * line.trained: loss.mean(1) for n, loss in losses_of(line).items() if n * line.trained >= first}
        curves[name] = np.array([*losses]), np.stack([*losses.values()], axis=1)
    return curves


def recall_curves(names):
    """{name: (distances, the share of facts that each model found there)} of the models that learned the task."""
    curves = {}
    for name in names.split(","):
        right, _ = recall_by_distance(name)
        x = np.array([n * 128 for n in right if n >= 0.25])
        y = np.stack([share for n, share in right.items() if n >= 0.25], axis=1)
        curves[name] = x, 100 * y
    return curves


def draw_decision():
    """Which schemes break, which do not, and which of these find facts that stand far back."""
    title = "Models trained on 128 characters (dotted), five of each scheme: single ones (thin) and their mean"
    figure, (left, middle, right) = figure_of(3, title, width=5, height=4.3)
    curves = loss_curves(f"{BREAK},{STAY}")
    draw_curves(left, curves, [32, 128, 512, 2048], 0.9, 4.1)
    label_curves(left, {name: curves[name] for name in BREAK.split(",")})
    left.set_title("Past the training length, three break …", loc="left")
    left.set(xlabel="characters of context", ylabel="loss (nats per character)")
    left.annotate("all others", (600, 1.15), (500, 1.7), color="0.3", arrowprops={"arrowstyle": "-", "color": "0.6"})

    curves = loss_curves(STAY, first=128)
    draw_curves(middle, curves, [128, 512, 2048], 0.96, 1.3)
    label_curves(middle, curves)
    middle.set_title("… the others do not. DAPE is lowest.", loc="left")
    middle.set_xlabel("characters of context")

    curves = recall_curves("t5,rope_nope,transformer_xl,dape,alibi,fox5,window/rope-window128")
    draw_curves(right, curves, [32, 128, 512, 1024], -2, 103)
    right.axhspan(10, 12, color="0.88", zorder=0)
    right.annotate("guessing", (34, 13), color="0.45", fontsize=8)
    label_curves(right, curves)
    right.set_title("But only some find what stands far back (recall)", loc="left")
    right.set(xlabel="characters back to a fact (at least)", ylabel="facts found (%)")
    return figure


def draw_seeing():
    """A point for each scheme with kept answers: does its loss rise on text, and does it find what is far?"""
    figure, (axes,) = figure_of(1, "Rise of the loss on text against recall, at 16 times the training length", 8, 6)
    symlog(axes)
    lines = read_lines(".")
    names = [name for name in sorted(read_lines("recall")) if len(recall_of(name)[0])]
    ends = []
    for style, name in zip(line_styles(zip(names)), names, strict=True):
        found, n_models = recall_of(name)
        _, rise, width = rise_of(lines[name])
        share = found.mean()
        spread = [[share - found.min()], [found.max() - share]]
        axes.errorbar(share, rise, width, spread, elinewidth=0.8, **style | {"linestyle": "none"})
        label = name if len(found) == n_models else f"{name} ({len(found)} of {n_models})"
        ends.append((label, style["color"], (found.max(), rise)))
    axes.set_xlabel("far facts found, by the models that learned the task (and their range)")
    axes.set_xticks(np.arange(6) / 5, [f"{share:.0%}" for share in np.arange(6) / 5])
    axes.set_ylabel("rise of the loss from its best length (nats, log beyond 0.1; ±: 95%)")
    axes.grid(alpha=0.25)
    label_ends(axes, ends, apart=0.04)
    return figure


if __name__ == "__main__":
    draw_decision().savefig(ROOT / "docs" / "decision.png")
    draw_seeing().savefig(ROOT / "docs" / "seeing.png")
