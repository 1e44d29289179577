"""Draws how schemes change the scores, in results/schemes:  python -m tools.pictures out/rope out/mine

scores.png shows the mean score by distance of the runs that are named. The others are the pictures of
docs/position-encoding.md, with T5's bias if a run is called t5.
"""

import math
from pathlib import Path

import numpy as np
import torch

import data
from evaluation.pictures import figure_of, line_styles
from model import GPTConfig, find_scheme
from run.checkpoint import load_checkpoint
from run.drawing import save_picture
from run.script import script


def color_of(scheme):
    return line_styles([(scheme,)])[0]["color"]


def untrained(scheme, **settings):
    """The scheme of a model of the baseline's size."""
    return find_scheme(scheme)(GPTConfig(block_size=128, n_head=4, n_embd=128, pos_scheme=scheme, **settings))


def sinusoidal_table(n):
    scheme = untrained("sinusoidal", sinusoidal_size=0.5**0.5)  # amplitude 1
    return scheme.embed(torch.zeros(1, n, 128), torch.arange(n))[0]


def draw_sinusoidal():
    figure, panels = figure_of(
        3, "As in a counter, the first columns change fast, the last ones slowly (purple: 1)", 3.2
    )
    table = sinusoidal_table(128)
    bits = torch.arange(128)[:, None] >> torch.arange(7) & 1
    parts = {"bit": 2 * bits - 1, "sine": table[:, 0::2], "cosine": table[:, 1::2]}
    for axes, (name, part) in zip(panels, parts.items(), strict=True):
        axes.pcolormesh(part.numpy(), cmap="PuOr")
        axes.set(title=f"{name}s", xlabel=f"{name}, the fastest first", ylabel="position")
    return figure


def draw_matrices():
    figure, panels = figure_of(7, "How each scheme changes the scores: near keys are on the diagonal", 1.8, 2.4)
    distance = torch.arange(48)
    table = sinusoidal_table(48)
    turns = untrained("rope").prepare(distance, None)  # (48, 16)
    curves = {  # by distance
        "none\nnothing": torch.zeros(48),
        "sinusoidal\np·p′": table @ table[0] / 128**0.5,
        "rope\nif q = k": 2 * turns.real.sum(1) / 32**0.5,
        "rope\nq looks 20 back": 2 * (turns / turns[20]).real.sum(1) / 32**0.5,
        "alibi\n−distance / 4": -distance / 4,
        "t5\na made-up table": -untrained("t5").bucket(distance) / 3,
        "window\n16 keys": torch.where(distance < 16, 0, -torch.inf),
    }
    distances = distance[:, None] - distance
    for axes, (name, curve) in zip(panels, curves.items(), strict=True):
        scores = (curve - curve.max())[distances].masked_fill(distances < 0, -torch.inf)
        image = axes.imshow(scores.numpy(), cmap="cividis", vmin=-12, vmax=0)
        axes.set(title=name, xlabel="key", ylabel="query", xticks=[], yticks=[], facecolor="0.92")
    figure.colorbar(image, ax=panels, label="nats")
    return figure


def dial(axes, start, end, before):
    """A circle in RoPE's colour from `start` to `end` (shares of a turn), and in another colour before `start`."""
    colors = [before, color_of("rope"), "1"]
    axes.pie([start, end - start, 1 - end], colors=colors, wedgeprops={"edgecolor": "0.5"})


def draw_arrows():
    figure, panels = figure_of(3, "The angle between q and k depends on their distance alone", 2.5, 2.8)
    for axes, (i, j) in zip(panels, ((3, 1), (6, 4), (6, 1)), strict=True):
        dial(axes, j / 13, i / 13, "1")
        axes.set(title=f"query at {i}, key at {j}", xlabel=f"distance {i - j}")
        for name, position in ("q", i), ("k", j):
            angle = 2 * math.pi * position / 13
            tip = 1.2 * math.cos(angle), 1.2 * math.sin(angle)
            axes.annotate(name, (0, 0), tip, ha="center", va="center", arrowprops={"arrowstyle": "<-"})
    return figure


def draw_dials():
    figure, panels = figure_of(
        6, "At twice the training length, many of RoPE's pairs reach new angles (pink; grey: trained)", 1.9, 2.6
    )
    for axes, pair in zip(panels, (0, 5, 6, 8, 10, 15), strict=True):
        turn = 10000 ** (-pair / 16) / (2 * math.pi)  # per token
        dial(axes, min(1, 127 * turn), min(1, 255 * turn), "0.8")
        axes.set(title=f"pair {pair}", xlabel=f"trained to {127 * 360 * turn:,.0f}°")
    return figure


@torch.no_grad()
def attention_scores(model, idx):
    """Yields, layer by layer, the scores of the tokens idx (B, T) before the mask and the softmax, (B, H, T, T)."""
    x, layers = model.enter(idx)
    for block, positions in zip(model.transformer.h, layers, strict=True):
        q, k, _ = block.attn.project(block.ln_1(x), positions, {})
        scores = q @ k.mT / math.sqrt(model.config.head_size)
        if positions.biased:
            scores = scores + positions.bias(q, k)
        yield scores
        x = block(x, positions)


def mean_score_by_distance(model, tokens):
    """The mean score at distances 0 to T − 1, over the tokens (B, T), layers and heads. Scores are relative to the
    query's mean over its nearest block_size keys, because the softmax ignores what is added to a whole row. The queries
    in the first half of the training length have few keys and are left out."""
    n = tokens.size(1)
    trained = model.config.block_size
    layers = [scores.mean(dim=(0, 1)).double() for scores in attention_scores(model, tokens)]
    mean = torch.stack(layers).mean(0)
    near = torch.ones(n, n, dtype=torch.bool).tril().triu(1 - trained)
    mean -= mean.where(near, torch.nan).nanmean(1, keepdim=True)
    return torch.stack([mean[trained // 2 :].diagonal(trained // 2 - d).mean() for d in range(n)])


def smooth(y):
    """y by distance, averaged over a quarter of an octave of distance + 1."""
    bins = (4 * torch.arange(1, len(y) + 1).log2()).long()
    means = torch.bincount(bins, y) / torch.bincount(bins)
    return means[bins]


def draw_by_distance(curves, title, ylabel, scheme=""):
    """curves: {label: y by distance}, over four training lengths. A label is a scheme, unless that is named."""
    figure, panels = figure_of(len(curves), title, width=2.5, height=3.2, sharey=True)
    for axes, (label, y) in zip(panels, curves.items(), strict=True):
        n = len(y)
        axes.plot(y.numpy(), color=color_of(scheme or label), drawstyle="steps-mid")
        axes.axvspan(n / 4, n, color="0.92", zorder=0)
        axes.set_xscale("symlog", base=4, linthresh=1)
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.set(title=label, xlabel="distance (tokens)", xlim=(0, n), ylim=(-15, 9))
    panels[0].set_ylabel(f"{ylabel} (nats)")
    return figure


def rising(curves):
    """A title that says which of the curves are higher past the training length than in its second half."""
    names = []
    for name, y in curves.items():
        trained = len(y) // 4
        if y[trained:].max() > y[trained // 2 : trained].max():
            names.append(name)
    words = f"the scores of {', '.join(names)} rise again" if names else "no scores rise again"
    return f"Past the training length (grey), {words}"


def draw_scores(runs):
    curves = {}
    for name, run in runs.items():
        text = data.load(run.dataset_name()).val
        n = 4 * run.config.block_size
        starts = (len(text.tokens) - n) // 8 * np.arange(8)  # of eight windows, spread over the text
        curves[name] = smooth(mean_score_by_distance(run.model("cpu"), text.windows(starts, n - 1)))
    return draw_by_distance(curves, rising(curves), "mean score")


def draw_t5(run):
    distances = torch.arange(4 * run.config.block_size)
    bias = run.model("cpu").pos.prepare(distances, distances).T  # (heads, distances)
    heads = {f"head {h}": values for h, values in enumerate(bias, 1)}
    return draw_by_distance(heads, "T5's learned bias is level from distance 113 on", "bias", "t5")


@torch.no_grad()
def main(argv):
    if "--help" in argv:
        print(__doc__)
        return 0
    figures = {
        "matrices": [draw_matrices],
        "sinusoidal": [draw_sinusoidal],
        "arrows": [draw_arrows],
        "dials": [draw_dials],
    }
    runs = {Path(path).name: load_checkpoint(path) for path in argv}
    if runs:
        figures["scores"] = [draw_scores, runs]
    if "t5" in runs:
        figures["t5"] = [draw_t5, runs["t5"]]
    for name, figure in figures.items():
        print(save_picture("picture", Path(f"results/schemes/{name}.png"), *figure))
    return 0


if __name__ == "__main__":
    script(main)
