"""Draws the pictures of docs/ from benchmark/:  python -m benchmark.pictures"""

from pathlib import Path

import numpy as np

from benchmark.results import BENCHMARK, FAR, ROOT, losses_of, read_lines, recall_of, rise_of, task_of
from evaluation.lines import Line, is_line
from evaluation.pictures import FAILED, cut_off, draw_curve, figure_of, label_ends, length_axis, line_styles

MODELS = 5  # trained of each scheme
STEPS = {850: "", 1725: "time", 3400: "steps", 6900: "steps6900/baseline"}  # the folder of each number of steps
FINDERS = "t5,rope_nope,transformer_xl,dape,alibi,fox5,window/rope-window128"


def by_length(line):
    """{length of the context: the mean losses of the models}"""
    return {round(line.trained * n): loss.mean(axis=1) for n, loss in losses_of(line).items()}


def draw_curves(axes, curves, remarks, trained, models=MODELS, ticks=None):
    """curves: {name: {x: values of the models}}. Labels are names, with remarks {name: text}, and with how many models
    the curve ends, if they are fewer than `models`. trained: the training lengths to mark. ticks: by default at all x.
    """
    length_axis(axes, ticks or sorted(set().union(*curves.values())), trained)
    names = [Path(name).name for name in curves]
    ends = []
    # these have no style of their own, and take that of a line that is not beside them
    alike = [name.replace("window512", "window128").replace("rope_sampled", "rope-yarn") for name in names]
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
        _, rise, _ = rise_of(line)
        if rise > FAILED:
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
        "five models of each scheme unless a label says otherwise; right: other, smaller models; thin: single models"
    )
    figure, (left, right) = figure_of(2, "", 7, 5, notes)
    draw_losses(left, read_lines(".", f"rope,sinusoidal,none,{FINDERS}"))
    left.set_title("Past the training length, three schemes fail; DAPE is lowest")

    curves = {}
    for name in FINDERS.split(","):
        shares, _ = recall_of(name)
        curves[name] = {round(128 * n): 100 * share for n, share in shares.items() if n >= 0.25}
    right.set_ylim(-2, 103)
    right.axhspan(10, 12, color="0.88", zorder=0)
    draw_curves(right, curves, {}, [128])
    right.set(
        title="But only some of the others find far facts (grey: guessing)",
        xlabel="characters back to a fact (at least)",
        ylabel="facts found (%)",
    )
    return figure


def draw_alibi():
    """How much of their slopes the heads that copy undo, and the loss, by the context (benchmark.clock)."""
    notes = "one ALiBi model of 17M parameters; left: under a window of 512 tokens"
    figure, (left, right) = figure_of(2, "", 7, 5, notes)
    with np.load(BENCHMARK / "clock/alibi-17M.npz") as arrays:
        shares = arrays["undone"]
    curves = {}
    for head in (4, 5):
        for layer in (4, 5, 6, 7):
            by_end = {128 * n: share for n, share in enumerate(shares[:, layer, [head]], 2)}
            curves[f"layer {layer}, head {head}"] = by_end
    draw_curves(left, curves, {}, [512], models=1, ticks=[256, 512, 768, 1024, 2048])
    left.set(
        title="Beyond 512 tokens, the heads that copy no longer undo their slopes",
        xlabel="tokens of context",
        ylabel="share of the slope undone",
    )
    draw_losses(right, {"alibi": Line.read(BENCHMARK / "clock/alibi")}, models=1, unit="token")
    right.set_title("Where they stop, the loss rises")
    return figure


def draw_larger():
    """Models of twenty times the size."""
    title = "With 17M parameters, ALiBi rises; FoX, rope_nope and YaRN gain up to 2,048 tokens"
    notes = "three models of each scheme unless a label says otherwise; thin: single models"
    figure, (axes,) = figure_of(1, title, 8, 5, notes)
    draw_losses(axes, read_lines("larger"), models=3, unit="token")
    return figure


def draw_models():
    """The positions of well-known models, without windows and with them."""
    figure, panels = figure_of(2, "", 7, 5, "three models of each recipe; thin: single models")
    recipes = {
        "All layers see everything": "rope,smollm3,glm4,key_offset,alibi_offset",
        "Some layers have a window of 32": "command_a,gemma3,gemma4,olmo3,inkling,gpt_oss,gpt_oss_without_sinks,"
        "granite_swa,mimo_v2",
    }
    for axes, (title, names) in zip(panels, recipes.items(), strict=True):
        draw_losses(axes, read_lines("models", names), models=3)
        axes.set_title(title)
    return figure


def draw_onset():
    """The same characters with slightly more context than the models were trained on: where does the loss leave?"""
    notes = "three models of each scheme, the same characters at every length; thin: single models"
    figure, panels = figure_of(2, "", 7, 5, notes)
    titles = {
        256: "Sinusoidal positions fail at once, RoPE and none later",
        160: "Enlarged: the others stay level or gain",
    }
    losses = {name: by_length(line) for name, line in read_lines("onset").items()}
    panels[1].set_ylim(0.85, 1.25)
    for axes, (end, title) in zip(panels, titles.items(), strict=True):
        curves = {name: {n: loss for n, loss in curve.items() if n <= end} for name, curve in losses.items()}
        draw_curves(axes, curves, {}, [128], models=3)
        axes.set(title=title, xlabel="characters of context", ylabel="loss (nats per character)")
    return figure


def draw_seeing():
    """A point for each scheme with kept answers: does its loss rise on text, and does it find what is far?"""
    figure, (axes,) = figure_of(1, "No scheme is both flat (bottom) and finds nearly all far facts (right)", 8, 5)
    points = []
    for name in [*read_lines("recall"), "window/rope-window128"]:
        by_distance, n_models = recall_of(name)
        found = 100 * by_distance[FAR]  # by each model that learned the task
        if len(found):
            points.append((found.mean(), name, found, n_models))
    points.sort()
    axes.set_ylim(-0.03, 0.3)
    ends = []  # of those above the picture
    before = (0, 0)
    height = 5
    styles = line_styles((Path(name).name,) for _, name, *_ in points)
    for style, (mean, name, found, n_models) in zip(styles, points, strict=True):
        _, rise, width = rise_of(Line.read(BENCHMARK / name))
        spread = [[mean - found.min()], [found.max() - mean]]
        axes.errorbar(mean, rise, width, spread, elinewidth=0.8, **style | {"linestyle": "none"})
        label = Path(name).name
        if len(found) < n_models:
            label += f" ({len(found)} of {n_models} models)"
        if rise > 0.3:
            ends.append((f"{label} rises by {rise:.2f} and finds {mean:.0f}%", style, (mean, rise)))
            continue
        is_near = np.allclose(before, (mean, rise), atol=(5, 0.02))
        height = height + 12 if is_near else 5
        side = {"xytext": (5, height), "ha": "left"} if mean < 75 else {"xytext": (-5, height), "ha": "right"}
        axes.annotate(label, (mean, rise), textcoords="offset points", fontsize=9, color=style["color"], **side)
        before = (mean, rise)
    axes.set(
        xlabel="far facts found by the models that learned the task, and their range (%)",
        ylabel="rise of the loss from its best length (nats; ±: 95%)",
    )
    axes.grid(alpha=0.25)
    label_ends(axes, ends)
    return figure


def draw_steps():
    """The losses at 1× and at 16× against the steps of training."""
    notes = "thin lines: single models; 850 steps: five models of each scheme"
    figure, panels = figure_of(2, "", 7, 5, notes)
    titles = {
        1: "At the training length, the schemes come closer",
        16: "At 16 times the length, fox5 and dape are lowest",
    }
    for axes, (multiple, title) in zip(panels, titles.items(), strict=True):
        curves = {}
        for name in ("dape", "fox5", "alibi", "rope_nope", "window/rope-window128"):
            curves[name] = {}
            for steps, folder in STEPS.items():
                path = BENCHMARK / folder / (name if steps == 850 else Path(name).name)
                if is_line(path):
                    curves[name][steps] = losses_of(Line.read(path))[multiple].mean(axis=1)
        draw_curves(axes, curves, {}, [])
        axes.set(title=title, xlabel="steps of training", ylabel="loss (nats per character)")
    return figure


def draw_tasks():
    """How many answers stay exact when the examples are longer than those of training."""
    notes = "three models of each scheme unless a label says otherwise, without those that did not learn the task"
    titles = {
        "copy": "copy: RoPE at sampled positions",
        "reverse": "reverse: fox5, two models of three",
        "sort": "sort: fox5, learned positions and none",
    }
    figure, panels = figure_of(3, "", 5, 4.5, notes)
    for axes, (task, title) in zip(panels, titles.items(), strict=True):
        curves = {}
        for name in ("none", "learnable", "alibi", "rope", "rope_sampled", "t5", "fox5", "rope_nope"):
            exact, has_learned = task_of(f"{task}/{name}")
            if has_learned.any():
                curves[name] = {n: 100 * answers[has_learned].mean(axis=1) for n, answers in exact.items()}
        draw_curves(axes, curves, {}, [20], models=3, ticks=[5, 10, 20, 40, 80])
        axes.set(title=title, xlabel="symbols of an example", ylabel="exact answers (%)")
    return figure


if __name__ == "__main__":
    for draw in (draw_alibi, draw_decision, draw_larger, draw_models, draw_onset, draw_seeing, draw_steps, draw_tasks):
        name = draw.__name__.removeprefix("draw_")
        draw().savefig(ROOT / "docs" / f"{name}.png")
