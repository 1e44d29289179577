"""Draws how the schemes of docs/position-encoding.md work, in results/schemes:  python -m tools.pictures"""

import math
from dataclasses import dataclass
from pathlib import Path

import torch

import config
from evaluation.pictures import COLORS, NAMES, figure_of
from model import GPTConfig, find_scheme
from run.script import script
from run.tracking import save_picture

ROPE = COLORS[NAMES.index("rope")]


@dataclass(frozen=True)
class PicturesConfig:
    # what is drawn: the baseline's schemes, untrained
    folder: config.PathName = "results/schemes"  # where the pictures go


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
    turns = torch.view_as_complex(untrained("rope").prepare(distance, None))  # (48, 16)
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
    axes.pie([start, end - start, 1 - end], colors=[before, ROPE, "1"], wedgeprops={"edgecolor": "0.5"})


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
def main(argv):
    cfg = config.load(PicturesConfig, argv)
    for draw in (draw_matrices, draw_sinusoidal, draw_arrows, draw_dials):
        name = draw.__name__.removeprefix("draw_")
        print(save_picture("picture", Path(cfg.folder, f"{name}.png"), draw))
    return 0


if __name__ == "__main__":
    script(main)
