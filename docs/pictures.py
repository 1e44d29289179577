"""Draws what each position scheme does:  python -m docs.pictures out/*

Fixed schemes need no run. What a scheme learns is drawn from the given runs: if several runs share a scheme, from the
one whose folder has the scheme's name, otherwise from the first. docs/position-encoding.md explains the pictures.
"""

import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

import config
import data
from evaluation.attention import attention_scores
from evaluation.pictures import figure_of, line_style, mark_training_length, scheme_styles
from model import GPT, GPTConfig, scheme_names
from run.checkpoint import load_checkpoint
from run.script import script

WINDOWS = 8  # windows of validation text that the mean scores are taken over
SHAPE = GPTConfig(block_size=128, n_layer=4, n_head=4, n_embd=128)  # the baseline's, for pictures that need no run


@dataclass(frozen=True)
class PicturesConfig:
    # what is drawn
    runs: tuple = ()  # run folders, given without a flag; anything else is skipped with a note
    results_dir: str = "results"  # the pictures go to its folder schemes


def heat(axes, values, title, xlabel, ylabel, label):
    """Draws a table (rows, columns) of values from −1 to 1. The brightness of cividis rises evenly, so it can be read
    in grey."""
    image = axes.imshow(values.numpy(), aspect="auto", cmap="cividis", interpolation="nearest", vmin=-1, vmax=1)
    axes.set(title=title, xlabel=xlabel, ylabel=ylabel)
    axes.figure.colorbar(image, ax=axes, label=label)


def curves(axes, named, title="", xlabel="distance", ylabel="bias (nats)", logarithmic=False):
    """Draws {label: y at 0, 1, …}. A logarithmic axis starts at 1. A line labelled with a scheme has its style."""
    of_schemes = set(named) <= set(scheme_names())
    styles = scheme_styles(named) if of_schemes else map(line_style, range(len(named)))
    for i, ((label, y), style) in enumerate(zip(named.items(), styles, strict=True)):
        every = 0.12 + 0.01 * i if logarithmic else (i * len(y) // 40, len(y) // 8 + 1)
        axes.plot(np.arange(len(y)) + logarithmic, y.numpy(), label=label, markevery=every, **style)
    if logarithmic:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set(title=title, xlabel=xlabel, ylabel=ylabel)
    axes.grid(alpha=0.25)
    axes.legend(fontsize=8, framealpha=0.9)


def sinusoidal_table(n):
    scheme = GPT(replace(SHAPE, pos_scheme="sinusoidal")).pos
    return scheme.embed(torch.zeros(1, n, SHAPE.n_embd), torch.arange(n))[0] / scheme.amplitude


def draw_sinusoidal():
    figure, (first, whole) = figure_of(2, "Sinusoidal table: sines and cosines, from fast to slow")
    table, labels = sinusoidal_table(1024), ("channel", "position", "value")
    heat(first, table[:50, :64], "the first 50 positions, channels 0 to 63", *labels)
    heat(whole, table, "all channels, 1,024 positions", *labels)
    return figure


def draw_learnable(model):
    learned = model.pos.wpe.weight
    figure, panels = figure_of(2, "Cosine similarity of position vectors")
    tables = ("sinusoidal", sinusoidal_table(len(learned))), ("learnable", learned)
    for axes, (name, table) in zip(panels, tables, strict=True):
        directions = F.normalize(table, dim=-1)
        heat(axes, directions @ directions.T, name, "position", "position", "cosine similarity")
    return figure


def draw_rope():
    D = SHAPE.n_embd // SHAPE.n_head
    turns = GPT(replace(SHAPE, pos_scheme="rope")).pos.prepare(torch.arange(512), None)  # (512, D/2)
    figure, (angles, products) = figure_of(2, f"RoPE, head size {D}, theta 10,000")
    named = {f"pair {j}": turns[:128, j].real for j in (0, 4, 8, D // 2 - 1)}
    curves(angles, named, "cosine of the angle: low pairs turn fast", "position", "cos(position · θ)")

    q, k = torch.view_as_complex(torch.randn(2, 2000, D // 2, 2, generator=torch.Generator().manual_seed(0)))
    random = (q * k.conj() @ turns.T).real / math.sqrt(D)  # of each pair of q and k, by distance
    alike = 2 * turns.real.sum(1) / math.sqrt(D)  # in each pair of channels, |q|·|k| = 2
    named = {"q = k, all ones": alike}
    named |= {"q and k random: mean of 2,000": random.mean(0), "q and k random: one of them": random[0]}
    curves(products, named, "decay depends on what q and k are", ylabel="q·k / sqrt(D)")
    return figure


def draw_biases(layers, trained, title, **labels):
    """What is added to each head's score, by distance: one panel for each (heads, distances) in layers."""
    width = 7 if len(layers) == 1 else 3.6
    figure, panels = figure_of(len(layers), title, width, sharey=True)
    for axes, heads in zip(panels, layers, strict=True):
        curves(axes, {f"head {h}": bias for h, bias in enumerate(heads, 1)}, **labels)
        mark_training_length(axes, trained)
        axes.label_outer()  # the vertical axis is labelled on the left only
    return figure


def draw_t5(model):
    T = model.config.block_size
    bias = model.pos.prepare(torch.arange(4 * T), torch.arange(4 * T)).T  # (H, distances)
    title = "T5's learned bias: one step per bucket"
    return draw_biases([bias], T, title, xlabel="distance + 1 (tokens)", logarithmic=True)


def draw_transformer_xl(model):
    scheme, T, D = model.pos, model.config.block_size, model.config.n_embd // model.config.n_head
    r = scheme.prepare(torch.arange(2 * T), torch.arange(2 * T)).flip(-1)  # from distance 0 on
    term = torch.einsum("hd,lhds->lhs", scheme.v, r) / math.sqrt(D)
    title = "Transformer-XL: the position term v·r / sqrt(D) of each layer, whatever the tokens are"
    return draw_biases(term, T, title, ylabel="score (nats)")


def mean_score_by_distance(model, tokens):
    """The mean score at distances 0 to T − 1, over the tokens (B, T), layers and heads. Scores are relative to the
    query's mean over its nearest block_size keys, because the softmax ignores what is added to a whole row. The queries
    in the first half of the training length have few keys and are left out."""
    n, trained = tokens.size(1), model.config.block_size
    distance = torch.arange(n)[:, None] - torch.arange(n)
    near = (distance >= 0) & (distance < trained)
    total = torch.zeros(n, n, dtype=torch.float64)
    for row in tokens[:, None]:  # one window at a time saves memory
        for scores, _ in attention_scores(model, row):
            total += scores.mean(dim=(0, 1)).double() / (model.config.n_layer * len(tokens))
    total -= (total * near).sum(1, keepdim=True) / near.sum(1, keepdim=True)
    total = total[trained // 2 :]
    return torch.stack([total.diagonal(trained // 2 - d).mean() for d in range(n)])


def draw_scores(runs):
    """Score against distance for every scheme whose run has a text."""
    named = {}
    for scheme, (model, text) in runs.items():
        T = model.config.block_size
        n = min(T if model.config.max_positions else 4 * T, len(text.tokens))
        starts = (len(text.tokens) - n) // WINDOWS * np.arange(WINDOWS)  # spread over the text
        named[scheme] = mean_score_by_distance(model, text.windows(starts, n - 1))
    figure, (axes,) = figure_of(1, "Score against distance: mean over text, layers and heads", width=8, height=5)
    ylabel = "score, relative to the query's mean (nats)"
    curves(axes, named, "", "distance + 1 (tokens)", ylabel, logarithmic=True)
    axes.set_ylim(bottom=-15)  # ALiBi's line continues downwards
    mark_training_length(axes, *{model.config.block_size for model, _ in runs.values()})
    return figure


# Name -> the function that draws it. What is learned is drawn from the model of a run.
FIXED = {"sinusoidal": draw_sinusoidal, "rope": draw_rope}
LEARNED = {"learnable": draw_learnable, "t5": draw_t5, "transformer_xl": draw_transformer_xl}


def runs_by_scheme(paths):
    """{scheme: (model, the validation text that it was trained with)}; an imported model has no text."""
    runs = {}
    for path in paths:
        try:
            run = load_checkpoint(path)
            dataset = data.load(run.settings["dataset"]) if run.settings else None
            if dataset and dataset.hash != run.dataset_hash:
                raise ValueError(f"dataset {dataset.name!r} is no longer the text that it was trained on")
        except ValueError as error:
            print(f"note: {path} is skipped: {error}")
            continue
        scheme = run.config.pos_scheme
        if scheme not in runs or Path(path).name == scheme:  # out/none rather than out/drope
            runs[scheme] = run.model(torch.device("cpu")), dataset and dataset.val
    return {scheme: runs[scheme] for scheme in scheme_names() if scheme in runs}


@torch.no_grad()
def main(argv):
    cfg = config.load(PicturesConfig, argv, bare_field="runs")
    runs = runs_by_scheme(cfg.runs)
    figures = {name: draw() for name, draw in FIXED.items()}
    for name, draw in LEARNED.items():
        if name in runs:
            figures[name] = draw(runs[name][0])
        else:
            print(f"{name}: not drawn, because it needs a {name} run: python train.py config/{name}.py")
    if trained := {scheme: run for scheme, run in runs.items() if run[1]}:
        figures["scores"] = draw_scores(trained)

    folder = Path(cfg.results_dir) / "schemes"
    folder.mkdir(parents=True, exist_ok=True)
    for name, figure in figures.items():
        figure.savefig(folder / f"{name}.png", dpi=110)
        print(folder / f"{name}.png")
    return 0


if __name__ == "__main__":
    script(main)
