"""Draws docs/decision.png and docs/seeing.png from benchmark/:  python -m benchmark.pictures"""

from pathlib import Path

import numpy as np

from benchmark.results import ROOT, losses_of, read_lines, recall_by_distance, recall_of, rise_of
from evaluation.pictures import cut_off, draw_curve, failures, figure_of, label_ends, length_axis, line_styles

MODELS = 5  # trained of each scheme
FINDERS = "t5,rope_nope,transformer_xl,dape,alibi,fox5,window/rope-window128"


def draw_curves(axes, curves, ticks, remarks):
    """curves: {name: {x: values of the models}}. Labels are names, with remarks {name: text}, and with how many models
    the curve is of, if they are fewer than MODELS."""
    names = [Path(name).name for name in curves]
    length_axis(axes, ticks, [128])
    ends = []
    for style, name, curve in zip(line_styles(zip(names)), names, curves.values(), strict=True):
        draw_curve(axes, curve, style)
        *_, (x, values) = curve.items()
        label = name + remarks.get(name, "")
        if len(values) < MODELS:
            label += f" ({len(values)} models)"
        ends.append((label, style, (x, values.mean())))
    label_ends(axes, ends)


def draw_decision():
    """Which schemes fail, which do not, and which of these find facts that stand far back."""
    figure, (left, right) = figure_of(2, "", width=7, height=5)
    curves = {}
    for name, line in read_lines(".", f"rope,sinusoidal,none,{FINDERS}").items():
        curves[name] = {round(128 * n): loss.mean(1) for n, loss in losses_of(line).items()}
    failing = failures(curves, dict.fromkeys(curves, 128))
    cut_off(left, curves, failing)
    remarks = {name: f": fails ({curves[name][2048].mean():.2f} at 2,048)" for name in failing}
    draw_curves(left, curves, [32, 64, 128, 256, 512, 1024, 2048], remarks)
    left.set_title("Past the training length, three fail; DAPE is lowest", loc="left")
    left.set(xlabel="characters of context", ylabel="loss (nats per character)")

    curves = {}
    for name in FINDERS.split(","):
        right_answers, _ = recall_by_distance(name)
        curves[name] = {round(128 * n): 100 * share for n, share in right_answers.items() if n >= 0.25}
    right.axhspan(10, 12, color="0.88", zorder=0)
    right.annotate("guessing", (34, 13), color="0.45", fontsize=8)
    right.set_ylim(-2, 103)
    draw_curves(right, curves, [32, 64, 128, 256, 512, 1024], {})
    right.set_title("But only some find what stands far back", loc="left")
    right.set(xlabel="characters back to a fact (at least)", ylabel="facts found (%)")
    about = "five models of each scheme, trained on 128 characters; thin lines: single models"
    figure.supxlabel(about, fontsize=8, color="0.4")
    return figure


def draw_seeing():
    """A point for each scheme with kept answers: does its loss rise on text, and does it find what is far?"""
    figure, (axes,) = figure_of(1, "No scheme is both flat (bottom) and finds nearly all far facts (right)", 8, 5)
    lines = read_lines(".")
    names = [name for name in sorted(read_lines("recall")) if len(recall_of(name)[0])]
    top = 0.3
    axes.set_ylim(-0.03, top)
    ends = []
    for style, name in zip(line_styles(zip(names)), names, strict=True):
        found, n_models = recall_of(name)
        _, rise, width = rise_of(lines[name])
        share = found.mean()
        spread = [[share - found.min()], [found.max() - share]]
        label = name
        y = rise
        if rise > top:  # at the upper edge, without its ±
            label = f"{name}: rises by {rise:.2f}"
            y = top
            width = None
        axes.errorbar(share, y, width, spread, elinewidth=0.8, clip_on=False, **style | {"linestyle": "none"})
        if len(found) < n_models:
            label += f" ({len(found)} of {n_models} models)"
        ends.append((label, style, (share, rise)))
    axes.set_xlabel("far facts found, by the models that learned the task (and their range)")
    axes.set_xticks(np.arange(6) / 5, [f"{share:.0%}" for share in np.arange(6) / 5])
    axes.set_ylabel("rise of the loss from its best length (nats; ±: 95%)")
    axes.grid(alpha=0.25)
    label_ends(axes, ends)
    return figure


if __name__ == "__main__":
    draw_decision().savefig(ROOT / "docs" / "decision.png")
    draw_seeing().savefig(ROOT / "docs" / "seeing.png")
