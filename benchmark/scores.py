"""Draws the mean scores of trained models by distance and, of one whose folder is called t5, the bias, in
results/schemes:

python -m benchmark.scores out/{rope,alibi,none,t5}
"""

import math
from pathlib import Path

import numpy as np
import torch

import data
from evaluation.pictures import figure_of, line_styles
from run.checkpoint import load_checkpoint
from run.script import script
from run.tracking import save_picture


@torch.no_grad()
def attention_scores(model, idx):
    """Yields, layer by layer, the scores of the tokens idx (B, T) before the mask and the softmax, (B, H, T, T)."""
    x, contexts = model.enter(idx)
    for block, context in zip(model.transformer.h, contexts, strict=True):
        q, k, _ = block.attn.project(block.ln_1(x), context, {})
        scores = q @ k.mT / math.sqrt(model.config.head_size)
        if context.scheme.biases:
            scores = scores + context.bias(q, k)
        yield scores
        x = block(x, context)


def mean_score_by_distance(model, tokens):
    """The mean score at distances 0 to T − 1, over the tokens (B, T), layers and heads. Scores are relative to the
    query's mean over its nearest block_size keys, because the softmax ignores what is added to a whole row. The queries
    in the first half of the training length have few keys and are left out."""
    n = tokens.size(1)
    trained = model.config.block_size
    mean = torch.stack([scores.mean((0, 1)).double() for scores in attention_scores(model, tokens)]).mean(0)
    near = torch.ones(n, n).tril().triu(1 - trained)
    mean -= (mean * near).sum(1, keepdim=True) / near.sum(1, keepdim=True)
    return torch.stack([mean[trained // 2 :].diagonal(trained // 2 - d).mean() for d in range(n)])


def smooth(y):
    """y by distance, averaged over a quarter of an octave of distance + 1."""
    bins = (4 * torch.arange(1, len(y) + 1).log2()).long()
    means = torch.bincount(bins, y) / torch.bincount(bins)
    return means[bins]


def draw_by_distance(curves, title, ylabel):
    """curves: {label: y by distance}, over four training lengths. A label begins with a scheme."""
    figure, panels = figure_of(len(curves), title, width=2.5, height=3.2, sharey=True)
    for axes, (label, y) in zip(panels, curves.items(), strict=True):
        n = len(y)
        axes.plot(y.numpy(), color=line_styles([(label.split(",")[0],)])[0]["color"], drawstyle="steps-mid")
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
    heads = {f"t5, head {h}": values for h, values in enumerate(bias, 1)}
    return draw_by_distance(heads, "T5's learned bias is level from distance 113 on", "bias")


@torch.no_grad()
def main(argv):
    runs = {Path(path).name: load_checkpoint(path) for path in argv}
    print(save_picture("picture", Path("results/schemes/scores.png"), draw_scores, runs))
    if "t5" in runs:
        print(save_picture("picture", Path("results/schemes/t5.png"), draw_t5, runs["t5"]))
    return 0


if __name__ == "__main__":
    script(main)
