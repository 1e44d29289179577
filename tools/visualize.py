"""Pictures of what each position scheme does:  python -m tools.visualize out/*

Fixed schemes need no run. What is learned is drawn from the given runs: if a scheme has several, from the run that is
named like the scheme, else from the first. docs/position-encoding.md explains the pictures.
"""

import functools
import math
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F

import config
import data
from evaluation.attention import attention_scores
from evaluation.pictures import figure_of, heat, line_style, lines, mark_training_length, scheme_styles
from model import SCHEMES, GPTConfig
from run import checkpoint as checkpoints
from run.script import script
from run.device import pick_device
from run.tracking import WANDB_MODES, Wandb, stamp

WINDOWS = 8  # of validation text, for what is averaged over text
SHAPE = GPTConfig(block_size=128, n_layer=4, n_head=4, n_embd=128)  # the baseline's, for what needs no run


@dataclass(frozen=True)
class VisualizeConfig:
    runs: tuple = ()  # run folders: given without a flag
    results_dir: str = "results"
    device: str = "auto"  # auto, cpu, cuda, cuda:1, mps
    wandb_mode: str = "auto"  # online, offline, disabled; auto: online with a login, else offline
    wandb_project: str = "length"

    def __post_init__(self):
        config.one_of(WANDB_MODES, self, "wandb_mode")


def scheme_of(name):
    return SCHEMES[name](replace(SHAPE, pos_scheme=name))


def sinusoidal_table(n):
    scheme = scheme_of("sinusoidal")
    return scheme.embed(torch.zeros(1, n, SHAPE.n_embd), torch.arange(n))[0] / scheme.amplitude


def draw_sinusoidal():
    figure, (first, whole) = figure_of(2, title="Sinusoidal table: sines and cosines, from fast to slow")
    beginning = sinusoidal_table(50)[:, :64]
    heat(figure, first, beginning, "the first 50 positions, channels 0 to 63", "channel", "position", "value")
    heat(figure, whole, sinusoidal_table(1024), "all channels, 1,024 positions", "channel", "position", "value")
    return figure


def draw_similarity(model):
    learned = model.pos.wpe.weight.detach().cpu()
    n = len(learned)
    figure, axes = figure_of(3, title="Cosine similarity of position vectors")
    similar, middle = {"sinusoidal": sinusoidal_table(n), "learnable (trained)": learned}, {}
    for ax, (name, table) in zip(axes, similar.items(), strict=False):
        values = F.normalize(table, dim=-1) @ F.normalize(table, dim=-1).T
        heat(figure, ax, values, name, "position", "position", "cosine similarity")
        middle[name] = values[n // 2]
    styles = scheme_styles(["sinusoidal", "learnable"])
    lines(axes[2], middle, f"position {n // 2} with every other", "position", "cosine similarity", styles=styles)
    return figure


def draw_rope():
    scheme = scheme_of("rope")
    D, n = SHAPE.n_embd // SHAPE.n_head, 512
    turns = scheme.prepare(torch.arange(n), torch.arange(n))
    figure, (angles, norms, products) = figure_of(3, title=f"RoPE, head size {D}, theta 10,000")
    named = {f"pair {j}": turns[:128, j].real for j in (0, 4, 8, D // 2 - 1)}
    lines(angles, named, "cosine of the angle: low pairs turn fast", "position", "cos(position · θ)")

    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(2000, 1, 1, D, generator=generator) for _ in range(2))
    turned, _ = scheme.rotate(q[:3].expand(-1, -1, n, -1), k[:3].expand(-1, -1, n, -1), turns)
    named = {f"random q {i + 1}": turned[i, 0].norm(dim=-1) for i in range(3)}
    lines(norms, named, "a rotation leaves lengths alone", "position", "|q| after rotation")
    norms.set_ylim(0, 8)

    def product(q, k):  # of q at position n−1 with k at all distances, nearest first: (B, n)
        rotated_q, rotated_k = scheme.rotate(q.expand(-1, -1, n, -1), k.expand(-1, -1, n, -1), turns)
        return ((rotated_q[:, :, -1:] * rotated_k).sum(-1)[:, 0] / math.sqrt(D)).flip(-1)

    ones, apart = torch.ones(1, 1, 1, D), product(q, k)
    named = {"q = k, all ones": product(ones, ones)[0]}
    named |= {"q and k random: mean of 2,000": apart.mean(0), "q and k random: one of them": apart[0]}
    lines(products, named, "decay depends on what q and k are", "distance", "q·k / sqrt(D)")
    return figure


def draw_alibi():
    scheme = scheme_of("alibi")
    figure, (slopes, *matrices) = figure_of(3, title=f"ALiBi, {SHAPE.n_head} heads")
    heads = range(1, SHAPE.n_head + 1)
    slopes.plot(heads, scheme.slopes, **line_style(0))
    slopes.set_yscale("log", base=2)
    slopes.set(title="slopes: a geometric sequence", xlabel="head", ylabel="slope m (nats per token)", xticks=heads)
    slopes.grid(alpha=0.25)
    i = torch.arange(32)
    distance = (i[:, None] - i).float().masked_fill(i[:, None] < i, math.nan)
    for ax, h in zip(matrices, (0, SHAPE.n_head - 1), strict=True):
        bias = -scheme.slopes[h] * distance
        heat(figure, ax, bias, f"head {h + 1}: −m·(i−j), the future masked", "key j", "query i", "bias (nats)")
    return figure


def draw_t5(model):
    T = model.config.block_size
    pos = torch.arange(4 * T, device=model.lm_head.weight.device)
    bias = model.pos.prepare(pos, pos).detach().cpu()  # (S, H)
    figure, (ax,) = figure_of(1, width=7)
    named = {f"head {h + 1}": bias[:, h] for h in range(bias.size(1))}
    lines(ax, named, "T5's learned bias: one step per bucket", "distance + 1 (tokens)", "bias (nats)", logarithmic=True)
    mark_training_length(ax, T)
    return figure


def draw_transformer_xl(model):
    scheme, c = model.pos, model.config
    pos = torch.arange(2 * c.block_size, device=model.lm_head.weight.device)
    r = scheme.prepare(pos, pos).flip(-1)  # by distance 0 …
    term = torch.einsum("hd,lhds->lhs", scheme.v, r).detach().cpu() / math.sqrt(c.n_embd // c.n_head)
    title = "Transformer-XL: the position term v·r / sqrt(D), whatever the tokens are"
    figure, axes = figure_of(c.n_layer, width=3.6, title=title, sharey=True)
    for layer, ax in enumerate(axes):
        named = {f"head {h + 1}": term[layer, h] for h in range(c.n_head)}
        lines(ax, named, f"layer {layer + 1}", "distance", "score (nats)" if layer == 0 else "")
        mark_training_length(ax, c.block_size)
    return figure


def draw_window():
    i = torch.arange(16)
    distance = i[:, None] - i
    figure, axes = figure_of(2, title="What a query may see")
    for ax, window, title in zip(axes, (16, 4), ("causal", "causal, window = 4"), strict=True):
        seen = ((distance >= 0) & (distance < window)).float()
        heat(figure, ax, seen, title, "key j", "query i")
        ax.set_xticks(range(0, 16, 2))
    return figure


def mean_score_by_distance(model, tokens):
    """The mean score by distance, (T,), over the tokens (B, T), layers and heads. Each score counts relative to the
    query's mean over as many keys as it was trained on, since the softmax does not see what is added to a whole row.
    Only queries from half the training length on count."""
    n, trained = tokens.size(1), model.config.block_size
    distance = torch.arange(n)[:, None] - torch.arange(n)
    near = (distance >= 0) & (distance < trained)
    total = torch.zeros(n, n, dtype=torch.float64)
    for row in tokens[:, None]:  # one at a time: memory
        for scores, _ in attention_scores(model, row):
            total += scores.mean(dim=(0, 1)).cpu().double() / (model.config.n_layer * len(tokens))
    total -= (total * near).sum(1, keepdim=True) / near.sum(1, keepdim=True)
    total = total[trained // 2 :]
    return torch.stack([total.diagonal(trained // 2 - d).mean() for d in range(n)])


def draw_scores(models, splits):
    """models, splits: a model and its text, both by scheme."""
    named, longest = {}, max(models[name].config.block_size for name in splits)
    for name, split in splits.items():
        model, T = models[name], models[name].config.block_size
        n = min(T if model.config.max_positions else 4 * T, len(split.tokens))
        starts = (len(split.tokens) - n) // WINDOWS * torch.arange(WINDOWS).numpy()  # spread over the text
        tokens = split.windows(starts, n - 1).to(model.lm_head.weight.device)
        named[name + (" (ends)" if n == T else "")] = mean_score_by_distance(model, tokens)
    figure, (axes,) = figure_of(1, width=8, height=5)
    lines(axes, named, "Score against distance: mean over text, layers and heads", "distance + 1 (tokens)",
          "score, relative to the query's mean (nats)", True, scheme_styles(list(splits)))  # fmt: skip
    axes.set_ylim(bottom=-15)  # ALiBi goes on falling
    mark_training_length(axes, longest)
    return figure


PICTURES = {  # name -> the function that draws it, and the schemes whose runs it needs
    "sinusoidal": (draw_sinusoidal, ()),
    "similarity": (draw_similarity, ("learnable",)),
    "rope": (draw_rope, ()),
    "alibi": (draw_alibi, ()),
    "t5": (draw_t5, ("t5",)),
    "transformer_xl": (draw_transformer_xl, ("transformer_xl",)),
    "window": (draw_window, ()),
}


def main(argv):
    cfg = config.load(VisualizeConfig, argv, list_field="runs")
    device, found = pick_device(cfg.device), {}
    for path in cfg.runs:
        checkpoint = checkpoints.load(path)
        scheme = checkpoint.config.pos_scheme
        if scheme not in found or Path(path).name == scheme:  # out/none rather than out/drope
            found[scheme] = checkpoint
    models = {name: found[name].model(device) for name in SCHEMES if name in found}
    print("".join(f"{name}: {found[name].path}\n" for name in models), end="")

    figures = {}
    for name, (draw, needed) in PICTURES.items():
        if missing := [scheme for scheme in needed if scheme not in models]:
            print(f"{name}: left out, it needs a {missing[0]} run: python train.py config/{missing[0]}.py")
        else:
            figures[name] = draw(*(models[scheme] for scheme in needed))
    load_text = functools.cache(data.load)
    texts = {name: found[name].settings.get("dataset") for name in models}  # other people's models have none
    if splits := {name: load_text(text).val for name, text in texts.items() if text}:
        figures["scores"] = draw_scores(models, splits)

    folder = Path(cfg.results_dir) / "schemes"
    folder.mkdir(parents=True, exist_ok=True)
    id, settings = f"pictures-{stamp()}", {"runs": list(cfg.runs)}
    tracker = Wandb(cfg.wandb_mode, cfg.wandb_project, "pictures", id, "pictures", settings, {})
    for name, figure in figures.items():
        path = folder / f"{name}.png"
        figure.savefig(path, dpi=110)
        tracker.image(f"pictures/{name}", path)
        print(f"picture   {path}")
    print("\n".join(tracker.finish()))
    return 0


if __name__ == "__main__":
    script(main)
