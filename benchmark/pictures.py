"""Draws the pictures of docs/ from benchmark/:  python -m benchmark.pictures"""

from pathlib import Path

import numpy as np

from benchmark.results import (
    ROOT,
    parts_of,
    read_row,
    read_rows,
    recall_of,
    rise_of,
    task_of,
)
from evaluation.pictures import FAILED, cut_off, draw_curve, figure_of, length_axis, line_styles

MODELS = 5  # trained of each scheme
LEARNERS = ("none", "learnable", "alibi", "rope", "t5", "fox5", "rope_nope")
FINDERS = "t5,rope_nope,transformer_xl,dape,alibi,fox5,window/rope-window128"


def stacked(notes, rows=2, height=4.4):
    """A figure with panels below each other, so that labels can be read on a page, and its axes."""
    return figure_of(1, "", 6.5, height, notes, rows)


def by_length(line):
    """{length of the context: the mean losses of the models}"""
    return {n: loss.mean(axis=1) for n, loss in line.losses.items()}


def label_ends(axes, ends):
    """Names lines beside the axes, with their markers: as high as they end, but far enough apart to read. Lines that
    end in view are joined with their labels. ends: [(label, style, (x, y) of the end)]; y is NaN for a
    line that is not drawn."""
    axes.autoscale_view()  # otherwise matplotlib may compute the limits later
    to_axes = axes.transData + axes.transAxes.inverted()
    places = np.nan_to_num([to_axes.transform(end) for *_, end in ends])
    order = np.argsort(-places[:, 1], kind="stable")
    heights = spread(places[order, 1], min(0.05, 1 / len(ends)))
    for i, height in zip(order, heights, strict=True):
        label, style, _ = ends[i]
        x, y = places[i]
        if not 0 <= y <= 1:
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
        )


def spread(heights, apart):
    """Heights that descend, moved as little as possible so that each lies at least `apart` below the one before: from
    the top of the axes down, and up again from their bottom."""
    steps = apart * np.arange(len(heights))
    spaced = np.minimum.accumulate(np.minimum(heights, 1 - apart / 2) + steps) - steps
    return np.maximum(spaced, steps[::-1])


def draw_curves(axes, curves, remarks, trained, models=MODELS, ticks=None):
    """curves: {name: {x: values of the models}}. Labels are names, with remarks {name: text}, and with how many models
    the curve ends, if they are fewer than `models`. trained: the training lengths to mark. ticks: by default at all x.
    """
    length_axis(axes, ticks or sorted(set().union(*curves.values())), trained)
    names = [Path(name).name for name in curves]
    ends = []
    # these have no style of their own, and take that of a line that is not beside them
    similar = {"rope_sampled": "rope-yarn", "rope_sampled-max_position512": "rope-window128"}
    alike = [similar.get(name, name).replace("window512", "window128") for name in names]
    for style, name, curve in zip(line_styles(zip(alike)), names, curves.values(), strict=True):
        draw_curve(axes, curve, style)
        *_, (x, values) = curve.items()
        label = name + remarks.get(name, "")
        if len(values) < models:
            label += f" ({len(values)} model{'s' * (len(values) > 1)})"
        ends.append((label, style, (x, values.mean())))
    label_ends(axes, ends)


def draw_losses(axes, lines, models=MODELS, unit="character"):
    """The losses of lines of one training length, by length. Those that fail leave the picture, and their labels say
    how far they rise."""
    curves = {}
    remarks = {}
    in_view = []
    for name, line in lines.items():
        curve = by_length(line)
        curves[name] = curve
        if rise_of(line)["mean"] > FAILED:
            last = max(curve)
            remarks[name] = f" rises to {curve[last].mean():.2f} at {last:,}"
        else:
            in_view.extend(np.concatenate([*curve.values()]))
    cut_off(axes, in_view)
    draw_curves(axes, curves, remarks, [line.trained], models)
    axes.set(xlabel=f"{unit}s of context", ylabel=f"loss (nats per {unit})")


def draw_decision():
    """Which schemes fail, which do not, and which of these find facts that stand far back."""
    notes = (
        "five models of each scheme unless a label says otherwise; thin: single models\n"
        "below: other, smaller models; grey: guessing (a model below it answers with a nearer fact)"
    )
    figure, (upper, lower) = stacked(notes)
    draw_losses(upper, read_rows(".", f"rope,sinusoidal,none,{FINDERS}"))
    upper.set_title("Past the training length, three schemes fail")

    curves = {}
    for name in FINDERS.split(","):
        shares, _ = recall_of(name)
        curves[name] = {round(128 * n): 100 * share for n, share in shares.items() if n >= 0.25}
    lower.set_ylim(-2, 103)
    lower.axhspan(10, 12, color="0.88", zorder=0)
    draw_curves(lower, curves, {}, [128])
    lower.set(
        title="Only some of the others find far facts",
        xlabel="characters back to a fact (at least)",
        ylabel="facts found (%)",
    )
    return figure


def draw_alibi():
    """How much of their slopes two heads undo, and the loss, by the context (benchmark.clock)."""
    notes = "one ALiBi model of 17M parameters; above: under a window of 512 tokens"
    figure, (upper, lower) = stacked(notes)
    with np.load(ROOT / "benchmark/clock/arrays/alibi-17M.npz") as arrays:
        shares = arrays["undone"]
    curves = {}
    for head in (4, 5):
        for layer in (4, 5, 6, 7):
            by_end = {128 * n: share for n, share in enumerate(shares[:, layer, [head]], 2)}
            curves[f"layer {layer}, head {head}"] = by_end
    draw_curves(upper, curves, {}, [512], models=1, ticks=[256, 512, 768, 1024, 2048])
    upper.set(
        title="By 1,024 tokens, heads 4 and 5 hardly undo their ALiBi slopes",
        xlabel="tokens of context",
        ylabel="share of the slope undone",
    )
    draw_losses(lower, {"alibi": read_row("tokens/larger/alibi")}, models=1, unit="token")
    lower.set_title("Past 512 tokens, the loss rises")
    return figure


def draw_larger():
    """Models of twenty times the size."""
    title = "With 17M parameters, RoPE fails and ALiBi rises; under a window, RoPE stays level"
    notes = "three models of each scheme unless a label says otherwise; thin: single models"
    figure, (axes,) = figure_of(1, title, 8, 5, notes)
    draw_losses(axes, read_rows("larger"), models=3, unit="token")
    return figure


def draw_models():
    """The positions of well-known models, without windows and with them."""
    notes = (
        "three small models with the layers of each recipe, not the models themselves; thin: single models\n"
        "inkling, gemma3, gemma4, olmo3 and glm4 without their QK-norm"
    )
    figure, panels = stacked(notes)
    recipes = {
        "Where all layers see everything, RoPE fails": "rope,smollm3,glm4,key_offset,alibi_offset",
        "With a window of 32 in some layers, most rise less": "command_a,gemma3,gemma4,olmo3,inkling,gpt_oss,"
        "gpt_oss_without_sinks,granite_swa,mimo_v2",
    }
    for axes, (title, names) in zip(panels, recipes.items(), strict=True):
        draw_losses(axes, read_rows("models", names), models=3)
        axes.set_title(title)
    return figure


def draw_onset():
    """The same characters with slightly more context than the models were trained on: where does the loss leave?"""
    notes = "three models of each scheme, the same characters at every length; thin: single models"
    figure, panels = stacked(notes)
    titles = {
        256: "Sinusoidal positions fail at once, RoPE and none later",
        160: "Enlarged: RoPE loses little up to 160; the others stay level or gain",
    }
    losses = {name: by_length(line) for name, line in read_rows("onset").items()}
    panels[1].set_ylim(0.85, 1.25)
    for axes, (end, title) in zip(panels, titles.items(), strict=True):
        curves = {name: {n: loss for n, loss in curve.items() if n <= end} for name, curve in losses.items()}
        draw_curves(axes, curves, {}, [128], models=3)
        axes.set(title=title, xlabel="characters of context", ylabel="loss (nats per character)")
    return figure


def draw_tasks():
    """How many answers stay exact when the examples are longer than those of training."""
    notes = (
        "examples alone in the window; three models unless a label says otherwise, without those that did not learn\n"
        "_sampled, _half: trained at sampled positions in all or half of the steps; -max_position512: scored there"
    )
    titles = {
        "copy": "Two rope_half and two rope_sampled copy 40 symbols",
        "reverse": "Two of three models of fox5 reverse 40 symbols",
        "sort": "fox5, learnable, none and both _half sort 30 symbols",
    }
    figure, panels = stacked(notes, 3, 3.6)
    for axes, (task, title) in zip(panels, titles.items(), strict=True):
        curves = {}
        for name in (*LEARNERS, "rope_sampled", "rope_sampled-max_position512", "rope_half", "alibi_half"):
            exact, has_learned = task_of(f"{task}/{name}")
            if has_learned.any():
                curves[name] = {n: 100 * answers[has_learned].mean(axis=1) for n, answers in exact.items()}
        draw_curves(axes, curves, {}, [20], models=3, ticks=[5, 10, 20, 40, 80])
        axes.set(title=title, xlabel="symbols of an example", ylabel="exact answers (%)")
    return figure


def draw_tokens():
    """Which tokens gain and lose past the training length."""
    notes = "the change, divided by where a token and the four before it were seen; bars: 95% intervals"
    figure, panels = stacked(notes, 2, 3.6)
    titles = {
        ("tokens", 2): "At 2×, three schemes gain on tokens from farther back",
        ("tokens/larger", 4): "At 4×, ALiBi on BPE tokens loses most on tokens it had seen",
    }
    for axes, (call, title) in zip(panels, titles.items(), strict=True):
        rows = parts_of(*call)
        rows = {name: parts for name, parts in rows.items() if parts["Δ"][0] < FAILED}
        _, *classes = next(iter(rows.values()))
        for i, (words, style) in enumerate(zip(classes, line_styles(zip(classes)), strict=True)):
            means, widths = np.transpose([parts[words] for parts in rows.values()])
            heights = np.arange(len(rows)) + (i - 1) / 5
            axes.errorbar(means, heights, xerr=widths, label=words, **style | {"linestyle": "none"})
        axes.set_yticks(range(len(rows)), rows)
        axes.invert_yaxis()
        axes.axvline(0, color="0.6", linewidth=1, zorder=0)
        axes.set(title=title, xlabel="part of the change of the loss (nats; left of 0: better)")
        axes.legend(frameon=False)
    return figure


if __name__ == "__main__":
    for draw in (draw_alibi, draw_decision, draw_larger, draw_models, draw_onset, draw_tasks, draw_tokens):
        name = draw.__name__.removeprefix("draw_")
        draw().savefig(ROOT / "docs" / f"{name}.png")
