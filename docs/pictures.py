"""Draws the pictures of docs/position-encoding.md in results/schemes:  python -m docs.pictures out/*

T5's bias and the mean scores are those of the folders that have the name of a scheme, such as out/t5. The pictures of
docs/evidence.md, `recall`, `seeing` and `settings`, are drawn from benchmark/.
"""

from functools import partial
from pathlib import Path

import numpy as np
import torch

import data
from docs.benchmark import SETTINGS, by_setting, lines, value
from evaluation.attention import attention_scores
from evaluation.pictures import figure_of, label_ends, mark_training_length, scheme_styles, spread, symlog
from evaluation.protocols import doublings
from model import GPT, GPTConfig, scheme_names
from run.checkpoint import load_checkpoint
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
    table = scheme.embed(torch.zeros(1, 1024, 128), torch.arange(1024))[0]
    for axes, values in zip(panels, (table[:50, :64], table), strict=True):
        image = axes.imshow(values.numpy(), aspect="auto", cmap="cividis", interpolation="nearest", vmin=-1, vmax=1)
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
    named = {"q = k, all ones": 2 * turns.real.sum(1) / 32**0.5}  # in each pair of channels, |q|·|k| = 2
    named |= {"q and k random: mean of 2,000": random.mean(0), "q and k random: one of them": random[0]}
    curves(products, named, xlabel="distance", ylabel="q·k / sqrt(D)")
    return figure


def mean_score_by_distance(model, tokens):
    """The mean score at distances 0 to T − 1, over the tokens (B, T), layers and heads. Scores are relative to the
    query's mean over its nearest block_size keys, because the softmax ignores what is added to a whole row. The queries
    in the first half of the training length have few keys and are left out."""
    n, trained = tokens.size(1), model.config.block_size
    layers = (scores for row in tokens[:, None] for scores, _ in attention_scores(model, row))  # by row: less memory
    mean = sum(scores.mean(dim=(0, 1)).double() for scores in layers) / (model.config.n_layer * len(tokens))
    near = torch.ones(n, n).tril().triu(1 - trained)
    mean -= (mean * near).sum(1, keepdim=True) / near.sum(1, keepdim=True)
    return torch.stack([mean[trained // 2 :].diagonal(trained // 2 - d).mean() for d in range(n)])


def draw_by_distance(named, title, ylabel, lengths):
    figure, (axes,) = figure_of(1, title, width=8, height=5)
    axes.set_xscale("log", base=2)
    curves(axes, named, first=1, xlabel="distance + 1 (tokens)", ylabel=f"{ylabel} (nats)")
    axes.set_ylim(bottom=-15)  # ALiBi's line continues downwards
    mark_training_length(axes, *lengths)
    return figure


def draw_recall():
    """The share of right answers by distance, with the range of the seeds."""
    figure, (axes,) = figure_of(1, "How far back does a model find a fact?", width=8, height=5)
    kept, ends = dict(sorted(lines("recall").items())), []
    for i, (style, (name, line)) in enumerate(zip(scheme_styles(kept), kept.items(), strict=True)):
        shares = np.stack([right.mean(axis=1) for right in line.losses.values()], axis=1)  # (seeds, distances)
        distances, mean = 128 * np.array([*line.losses]) * 1.3 ** (i / len(kept) - 0.5), shares.mean(axis=0)
        axes.errorbar(distances, mean, [mean - shares.min(axis=0), shares.max(axis=0) - mean], elinewidth=0.6, **style)
        ends.append((name, style["color"], (distances[-1], mean[-1])))
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks := doublings(4, 1024), ticks)
    axes.set(xlabel="tokens from the fact to the question, at least", ylabel="right answers (range of the seeds)")
    axes.grid(alpha=0.25)
    mark_training_length(axes, 128)
    label_ends(axes, ends)
    return figure


def draw_seeing():
    """A point for each scheme with kept answers: is it flat on text, and does it find what is far?"""
    figure, (axes,) = figure_of(1, "Flat loss against recall, at 16 times the training length", width=7, height=6)
    symlog(axes)
    answers, ends = lines("recall"), []
    styles = dict(zip(sorted(answers), scheme_styles(sorted(answers)), strict=True))
    for name, line in answers.items():
        shares, (delta, width, _) = line.losses[8].mean(axis=1), value(f"Δ{name}@16")
        seeds = [[shares.mean() - shares.min()], [shares.max() - shares.mean()]]
        axes.errorbar(shares.mean(), delta, width, seeds, **styles[name] | {"linestyle": "none"})
        ends.append((delta, shares, name))
    axes.set(xlabel="right answers in recall (and the range of the seeds)", xlim=(-0.22, 1.25), xticks=np.arange(6) / 5)
    axes.set_ylabel("Δ on text (nats, log beyond ±0.1; 95% interval)")
    axes.margins(y=0.08)
    axes.autoscale_view()  # the places of the names depend on the limits
    axes.grid(alpha=0.25)
    ends.sort(key=lambda end: end[0], reverse=True)
    to_axes = axes.transData + axes.transAxes.inverted()
    for is_left in (True, False):
        named = [(name, delta, shares.max()) for delta, shares, name in ends if (shares.mean() < 0.2) == is_left]
        wanted = np.array([to_axes.transform((share, delta))[1] for _, delta, share in named])
        for (name, _, share), place in zip(named, spread(wanted, 0.032), strict=True):
            at, side = (-0.02, "right") if is_left else (share + 0.015, "left")
            text = dict(transform=axes.get_xaxis_transform(), ha=side, va="center", color=styles[name]["color"])
            axes.text(at, place, name, **text)
    return figure


def draw_settings(multiple=16):
    """Δ of each scheme in each setting where it was measured."""
    figure, (axes,) = figure_of(1, f"Δ at {multiple} times the training length (nats)", width=10, height=5)
    names = "alibi fox5 dape transformer_xl rope_nope t5 scale_invariant none rope sinusoidal".split()
    values = np.full((len(SETTINGS), len(names)), np.nan)
    for j, name in enumerate(names):
        for folder, (delta, *_) in by_setting(partial(value, f"Δ{name}@{multiple}")).items():
            i = list(SETTINGS).index(folder)
            values[i, j] = delta
            axes.text(j, i, f"{delta:+.2f}", ha="center", va="center", color="black" if delta > 1 else "white")
    axes.imshow(values, aspect="auto", cmap="cividis", norm="symlog")
    axes.set_xticks(range(len(names)), names, fontsize=8)
    axes.set_yticks(range(len(SETTINGS)), SETTINGS.values())
    return figure


@torch.no_grad()
def main(argv):
    figures, means = {"sinusoidal": draw_sinusoidal(), "rope": draw_rope()}, {}
    figures |= {"recall": draw_recall(), "seeing": draw_seeing(), "settings": draw_settings()}
    runs = {Path(path).name: load_checkpoint(path) for path in argv if Path(path).name in scheme_names()}
    for name, run in runs.items():
        text, model, T = data.load(run.dataset_name()).val, run.model(torch.device("cpu")), run.config.block_size
        n = T if run.config.max_positions else 4 * T
        starts = (len(text.tokens) - n) // 8 * np.arange(8)  # of eight windows, spread over the text
        means[name] = mean_score_by_distance(model, text.windows(starts, n - 1))
        if name == "t5":
            bias = model.pos.prepare(torch.arange(n), torch.arange(n)).T  # (heads, distances)
            heads = {f"head {h}": values for h, values in enumerate(bias, 1)}
            figures["t5"] = draw_by_distance(heads, "T5's learned bias: one step per bucket", "bias", [T])
    if runs:
        title, lengths = "Mean score, over text, layers and heads", {run.config.block_size for run in runs.values()}
        figures["scores"] = draw_by_distance(means, title, "score minus the query's mean", lengths)
    Path("results/schemes").mkdir(parents=True, exist_ok=True)
    for name, figure in figures.items():
        figure.savefig(f"results/schemes/{name}.png")
    print("pictures  results/schemes/*.png")
    return 0


if __name__ == "__main__":
    script(main)
