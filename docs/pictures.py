"""Draws what each position scheme does:  python -m docs.pictures out/*

Fixed schemes need no run. What a scheme learns is drawn from the given runs: if several runs share a scheme, from the
one whose folder has the scheme's name, otherwise from the first. docs/position-encoding.md explains the pictures.
"""

import math
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F

import config
import data
from evaluation.attention import attention_scores
from evaluation.pictures import figure_of, heat, lines, mark_training_length, scheme_styles
from model import GPTConfig, find_scheme, scheme_names
from run import checkpoint as checkpoints
from run.script import script

WINDOWS = 8  # windows of validation text that the mean scores are taken over
SHAPE = GPTConfig(block_size=128, n_layer=4, n_head=4, n_embd=128)  # the baseline's, for pictures that need no run


@dataclass(frozen=True)
class PicturesConfig:
    runs: tuple = ()  # run folders, given without a flag; anything else is skipped with a note
    results_dir: str = "results"  # the pictures go to its folder schemes


def scheme_of(name):
    return find_scheme(name)(replace(SHAPE, pos_scheme=name))


def sinusoidal_table(n):
    scheme = scheme_of("sinusoidal")
    return scheme.embed(torch.zeros(1, n, SHAPE.n_embd), torch.arange(n))[0] / scheme.amplitude


def draw_sinusoidal():
    figure, (first, whole) = figure_of(2, title="Sinusoidal table: sines and cosines, from fast to slow")
    corner = sinusoidal_table(50)[:, :64]
    heat(figure, first, corner, "the first 50 positions, channels 0 to 63", "channel", "position", "value")
    heat(figure, whole, sinusoidal_table(1024), "all channels, 1,024 positions", "channel", "position", "value")
    return figure


def draw_learnable(model):
    learned = model.pos.wpe.weight
    n = len(learned)
    figure, (*maps, curves) = figure_of(3, title="Cosine similarity of position vectors")
    tables, middle = {"sinusoidal": sinusoidal_table(n), "learnable (trained)": learned}, {}
    for ax, (name, table) in zip(maps, tables.items(), strict=True):
        similar = F.normalize(table, dim=-1) @ F.normalize(table, dim=-1).T
        heat(figure, ax, similar, name, "position", "position", "cosine similarity")
        middle[name] = similar[n // 2]
    styles = scheme_styles(["sinusoidal", "learnable"])
    lines(curves, middle, f"position {n // 2} with every other", "position", "cosine similarity", styles=styles)
    return figure


def draw_rope():
    scheme, D, n = scheme_of("rope"), SHAPE.n_embd // SHAPE.n_head, 512
    turns = scheme.prepare(torch.arange(n), torch.arange(n))
    figure, (angles, products) = figure_of(2, title=f"RoPE, head size {D}, theta 10,000")
    named = {f"pair {j}": turns[:128, j].real for j in (0, 4, 8, D // 2 - 1)}
    lines(angles, named, "cosine of the angle: low pairs turn fast", "position", "cos(position · θ)")

    def scores(q, k):  # of q at the last position with k at distance 0, 1, …: (B, n)
        q, k = scheme.rotate(q.expand(-1, -1, n, -1), k.expand(-1, -1, n, -1), turns)
        return ((q[:, :, -1:] * k).sum(-1)[:, 0] / math.sqrt(D)).flip(-1)

    ones = torch.ones(1, 1, 1, D)
    random = scores(*torch.randn(2, 2000, 1, 1, D, generator=torch.Generator().manual_seed(0)))
    named = {"q = k, all ones": scores(ones, ones)[0]}
    named |= {"q and k random: mean of 2,000": random.mean(0), "q and k random: one of them": random[0]}
    lines(products, named, "decay depends on what q and k are", "distance", "q·k / sqrt(D)")
    return figure


def draw_biases(layers, trained, title, ylabel="bias (nats)", xlabel="distance", **options):
    """What is added to each head's score, by distance: one panel for each (heads, distances) in layers."""
    figure, panels = figure_of(len(layers), width=7 if len(layers) == 1 else 3.6, title=title, sharey=True)
    for i, (heads, axes) in enumerate(zip(layers, panels, strict=True)):
        named = {f"head {h + 1}": bias for h, bias in enumerate(heads)}
        lines(axes, named, f"layer {i + 1}" * (len(layers) > 1), xlabel, ylabel * (i == 0), **options)
        mark_training_length(axes, trained)
    return figure


def draw_alibi():
    slopes, T = torch.tensor(scheme_of("alibi").slopes), SHAPE.block_size
    return draw_biases([-slopes[:, None] * torch.arange(2 * T)], T, "ALiBi's fixed bias: −m·distance")


def draw_t5(model):
    T = model.config.block_size
    bias = model.pos.prepare(torch.arange(4 * T), torch.arange(4 * T)).T  # (H, distances)
    title = "T5's learned bias: one step per bucket"
    return draw_biases([bias], T, title, xlabel="distance + 1 (tokens)", logarithmic=True)


def draw_transformer_xl(model):
    scheme, T, D = model.pos, model.config.block_size, model.config.n_embd // model.config.n_head
    r = scheme.prepare(torch.arange(2 * T), torch.arange(2 * T)).flip(-1)  # from distance 0 on
    term = torch.einsum("hd,lhds->lhs", scheme.v, r) / math.sqrt(D)
    title = "Transformer-XL: the position term v·r / sqrt(D), whatever the tokens are"
    return draw_biases(term, T, title, "score (nats)")


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


def draw_scores(models, splits):
    """Score against distance for every scheme that has both a model and a text; both dicts have schemes as keys."""
    named, longest = {}, max(models[name].config.block_size for name in splits)
    for name, split in splits.items():
        model, T = models[name], models[name].config.block_size
        n = min(T if model.config.max_positions else 4 * T, len(split.tokens))
        starts = (len(split.tokens) - n) // WINDOWS * torch.arange(WINDOWS).numpy()  # spread over the text
        named[name + " (ends)" * (n == T)] = mean_score_by_distance(model, split.windows(starts, n - 1))
    figure, (axes,) = figure_of(1, width=8, height=5)
    lines(axes, named, "Score against distance: mean over text, layers and heads", "distance + 1 (tokens)",
          "score, relative to the query's mean (nats)", True, scheme_styles(list(splits)))  # fmt: skip
    axes.set_ylim(bottom=-15)  # ALiBi's line continues downwards
    mark_training_length(axes, longest)
    return figure


# Name -> the function that draws it. What is learned is drawn from the model of a run.
FIXED = {"sinusoidal": draw_sinusoidal, "rope": draw_rope, "alibi": draw_alibi}
LEARNED = {"learnable": draw_learnable, "t5": draw_t5, "transformer_xl": draw_transformer_xl}


def runs_by_scheme(paths):
    """{scheme: Checkpoint} of the run folders among the paths."""
    found = {}
    for path in paths:
        try:
            checkpoint = checkpoints.load(path)
        except ValueError as error:
            print(f"note: {path} is skipped: {error}")
            continue
        scheme = checkpoint.config.pos_scheme
        if scheme not in found or Path(path).name == scheme:  # out/none rather than out/drope
            found[scheme] = checkpoint
    runs = {name: found[name] for name in scheme_names() if name in found}
    print("".join(f"{name}: {run.path}\n" for name, run in runs.items()), end="")
    return runs


@torch.no_grad()
def main(argv):
    cfg = config.load(PicturesConfig, argv, list_field="runs")
    runs = runs_by_scheme(cfg.runs)
    models = {name: run.model(torch.device("cpu")) for name, run in runs.items()}
    figures = {name: draw() for name, draw in FIXED.items()}
    for name, draw in LEARNED.items():
        if name in models:
            figures[name] = draw(models[name])
        else:
            print(f"{name}: not drawn, because it needs a {name} run: python train.py config/{name}.py")
    trained = {name: run for name, run in runs.items() if run.settings}  # an imported model names no text
    if splits := {name: data.load(run.settings["dataset"]).val for name, run in trained.items()}:
        figures["scores"] = draw_scores(models, splits)

    folder = Path(cfg.results_dir) / "schemes"
    folder.mkdir(parents=True, exist_ok=True)
    for name, figure in figures.items():
        figure.savefig(folder / f"{name}.png", dpi=110)
        print(folder / f"{name}.png")
    return 0


if __name__ == "__main__":
    script(main)
