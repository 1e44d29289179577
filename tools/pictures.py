"""Draws the pictures of docs/position-encoding.md in results/schemes:  python -m tools.pictures out/*

T5's bias and the mean scores are those of the folders that have the name of a scheme, such as out/t5.
"""

import math
from pathlib import Path

import numpy as np
import torch

import data
from evaluation.pictures import figure_of, mark_training_length, scheme_styles
from model import GPT, GPTConfig, scheme_names
from run.checkpoint import load_checkpoint
from run.drawing import save_picture
from run.script import script

BASELINE = dict(block_size=128, n_layer=4, n_head=4, n_embd=128)  # for pictures that need no run


def curves(axes, named, first=0, **labels):
    """Draws {label: y at `first`, `first` + 1, …}."""
    for i, (style, (label, y)) in enumerate(zip(scheme_styles(named), named.items(), strict=True)):
        axes.plot(np.arange(len(y)) + first, y.numpy(), label=label, markevery=0.12 + 0.01 * i, **style)
    axes.set(**labels)
    axes.grid(alpha=0.25)
    axes.legend(fontsize=8, framealpha=0.9)


def draw_sinusoidal():
    figure, panels = figure_of(2, "Sinusoidal table: sines and cosines, from fast to slow")
    scheme = GPT(GPTConfig(**BASELINE, pos_scheme="sinusoidal", sinusoidal_size=0.5**0.5)).pos
    values = scheme.embed(torch.zeros(1, 1024, 128), torch.arange(1024))[0]
    for axes, part in zip(panels, (values[:50, :64], values), strict=True):
        image = axes.imshow(part.numpy(), aspect="auto", cmap="cividis", interpolation="nearest", vmin=-1, vmax=1)
        axes.set(xlabel="channel", ylabel="position")
    figure.colorbar(image, label="value")
    return figure


def draw_rope():
    figure, (angles, products) = figure_of(2, "RoPE: low pairs turn fast; decay depends on what q and k are")
    turns = GPT(GPTConfig(**BASELINE, pos_scheme="rope")).pos.prepare(torch.arange(512), None)  # (512, 16): D is 32
    pairs = {f"pair {j}": turns[:128, j].real for j in (0, 4, 8, 15)}
    curves(angles, pairs, xlabel="position", ylabel="cos(position · θ)")
    q, k = torch.view_as_complex(torch.randn(2, 2000, 16, 2, generator=torch.Generator().manual_seed(0)))
    random = (q * k.conj() @ turns.T).real / 32**0.5  # of each pair of q and k, by distance
    named = {
        "q = k, all ones": 2 * turns.real.sum(1) / 32**0.5,  # in each pair of channels, |q|·|k| = 2
        "q and k random: mean of 2,000": random.mean(0),
        "q and k random: one of them": random[0],
    }
    curves(products, named, xlabel="distance", ylabel="q·k / sqrt(D)")
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
    mean = torch.zeros(n, n, dtype=torch.float64)
    for row in tokens[:, None]:  # one at a time, for less memory
        for scores in attention_scores(model, row):
            mean += scores.mean(dim=(0, 1)).double() / (model.config.n_layer * len(tokens))
    near = torch.ones(n, n).tril().triu(1 - trained)
    mean -= (mean * near).sum(1, keepdim=True) / near.sum(1, keepdim=True)
    return torch.stack([mean[trained // 2 :].diagonal(trained // 2 - d).mean() for d in range(n)])


def draw_by_distance(named, title, ylabel, lengths):
    figure, (axes,) = figure_of(1, title, width=8, height=5)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    curves(axes, named, first=1, xlabel="distance + 1 (tokens)", ylabel=f"{ylabel} (nats)")
    axes.set_ylim(bottom=-15)  # ALiBi's line continues downwards
    mark_training_length(axes, *lengths)
    return figure


@torch.no_grad()
def main(argv):
    figures = {"sinusoidal": [draw_sinusoidal], "rope": [draw_rope]}
    runs = {Path(path).name: load_checkpoint(path) for path in argv if Path(path).name in scheme_names()}
    means = {}
    for name, run in runs.items():
        text = data.load(run.dataset_name()).val
        model = run.model(torch.device("cpu"))
        T = run.config.block_size
        n = T if run.config.max_positions else 4 * T
        starts = (len(text.tokens) - n) // 8 * np.arange(8)  # of eight windows, spread over the text
        means[name] = mean_score_by_distance(model, text.windows(starts, n - 1))
        if name == "t5":
            bias = model.pos.prepare(torch.arange(n), torch.arange(n)).T  # (heads, distances)
            heads = {f"head {h}": values for h, values in enumerate(bias, 1)}
            figures["t5"] = draw_by_distance, heads, "T5's learned bias: one step per bucket", "bias", [T]
    if runs:
        lengths = {run.config.block_size for run in runs.values()}
        title = "Mean score, over text, layers and heads"
        figures["scores"] = draw_by_distance, means, title, "score minus the query's mean", lengths
    for name, figure in figures.items():
        print(save_picture("picture", Path(f"results/schemes/{name}.png"), *figure))
    return 0


if __name__ == "__main__":
    script(main)
