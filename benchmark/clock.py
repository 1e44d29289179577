"""How a model undoes ALiBi:  python -m benchmark.clock RUN FILE.npz

benchmark/README.md names the arrays of FILE, and docs/alibi.md says what they show. All layers have the window that the
model was trained with, or one of the training length T, so that two contexts differ only in where they start: a *short*
one has T tokens, a *long* one 4T tokens.
"""

from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F

import data
from benchmark.scores import attention_scores
from eval_length import choose_blocks
from run.checkpoint import load_checkpoint
from run.script import script

TEXTS = 48  # for training, which give means and probes, and as many others, which are scored
SCORED = 32  # tokens at the end of a context: those whose losses are kept, and the queries of the slopes
START = 16  # tokens of a window that are never moved: they stand off the line of the others
FAR = (1 / 4, 3 / 4)  # of a window back: the sources of copies that count
CLEAR = 0.5  # a layer's states are moved if the place can be read from them with this R² at least


def states_and_losses(model, tokens, n, context=None):
    """The input of each layer and the last output (layers + 1, B, n, C) for the last n inputs of tokens, and the losses
    of the last SCORED predictions (B, SCORED). In each layer, these see the states `context` of the tokens before."""
    x, positions = model.enter(tokens[:, -n - 1 : -1])
    states = [x]
    for layer, block in enumerate(model.transformer.h):
        if context is not None:
            x[:, :-SCORED] = context[layer, :, :-SCORED]
        x = block(x, positions[layer])
        states.append(x)
    logits = model.lm_head(model.transformer.ln_f(x[:, -SCORED:]))
    losses = F.cross_entropy(logits.mT, tokens[:, -SCORED:], reduction="none")
    return torch.stack(states), losses


def read(model, split):
    """Texts (TEXTS, 4T + 1), the states of short contexts and of long ones at their ends, and the texts' documents."""
    T = model.config.block_size
    ends, documents = choose_blocks(split, 4 * T, SCORED, TEXTS, 1337)
    tokens = split.windows(ends - 4 * T, 4 * T)
    short, _ = states_and_losses(model, tokens, T)
    long, _ = states_and_losses(model, tokens, 4 * T)
    return tokens, short, long, documents


@np.errstate(divide="ignore")
def undone(model, states):
    """The share of each head's slope that the content of the scores undoes for the last queries of a window, over many
    texts: (layers, heads), infinite without a slope. If it is 1, a key's distance costs nothing."""
    slopes = np.ravel(model.pos.slopes)  # times sqrt(D), as the scores below
    shares = []
    for layer, block in enumerate(model.transformer.h):
        qkv = block.attn.c_attn(block.ln_1(states[layer])).unflatten(-1, (3, len(slopes), -1))
        query = qkv[:, -SCORED:, 0].mean(1)  # (texts, H, D)
        scores = torch.einsum("thd,tkhd->kh", query, qkv[:, :-SCORED, 1]) / len(query)
        growth, _ = np.polyfit(range(len(scores)), scores, 1)  # of each head's score, by the place of the key
        shares.append(-growth / slopes)
    return shares


def copying(model, tokens):
    """The mean weight of each head, (layers, heads), on the sources of the last SCORED tokens of windows (B, T + 1),
    if they have one: the same token, FAR back, after the same two."""
    T = tokens.size(1) - 1
    back = torch.arange(T - SCORED, T)[:, None] - torch.arange(T)
    spans = tokens.unfold(1, 3, 1)  # (B, T − 1, 3): each token from the third on, behind the two before it
    is_copied = (spans[:, -SCORED:, None] == spans[:, None, :-1]).all(-1)  # (B, SCORED, T − 2)
    source = F.pad(is_copied, (2, 0)) & (back >= FAR[0] * T) & (back <= FAR[1] * T)
    n_copied = source.any(2).sum()
    weights = []
    for scores in attention_scores(model, tokens[:, :-1]):
        attention = scores[:, :, -SCORED:].masked_fill(back < 0, -torch.inf).softmax(-1)
        weights.append(torch.einsum("thqk,tqk->h", attention, source.float()) / n_copied)
    return weights


def readable(states):
    """R² of the place in a window, read linearly from states (texts, T, C): fitted on half of them, tested on half."""
    place = torch.linspace(-1, 1, states.size(1))[:, None]
    fitted, tested = states.chunk(2)
    weights = torch.linalg.lstsq(fitted.flatten(0, 1), place.repeat(len(fitted), 1)).solution
    error = tested @ weights - place
    return 1 - error.square().mean() / place.square().mean()


@torch.no_grad()
def main(argv):
    path, file = argv
    checkpoint = load_checkpoint(path)
    T = checkpoint.config.block_size
    window = checkpoint.config.window or T
    model = checkpoint.model("cpu").override(replace(checkpoint.config, window=window))
    text = data.load(checkpoint.dataset_name())

    # of texts for training: the heads that copy, the slopes undone, the place read, and how far the mean state goes
    # within a window
    tokens, short, long, _ = read(model, text.train)
    weights = copying(model, tokens[:, -window - 1 :])
    shares = [undone(model, long[:, :, max(0, end - window) : end]) for end in range(T // 2, 4 * T + 1, T // 4)]
    place = torch.stack([readable(states) for states in short])
    way = short.mean(1) - long[:, :, 2 * T :].mean((1, 2))[:, None]  # (layers + 1, T, C)
    way[:, :START] = 0

    # moves: none, along the one direction of a layer that holds most of the way, and as far along four random ones
    _, sizes, axes = torch.linalg.svd(way, full_matrices=False)
    axis = axes[:, :1]
    distance = way @ axis.mT  # (layers + 1, T, 1)
    distance[place < CLEAR] = 0
    directions = F.normalize(torch.randn(6, *axis.shape), dim=-1)
    directions[0] = 0
    directions[1] = axis
    moves = (directions * distance)[:, :, None]

    # the losses of other texts
    tokens, short, long, documents = read(model, text.val)
    long = long[:, :, -T:]
    np.savez(
        file,
        copying=weights,
        undone=shares,
        place=place,
        direction=sizes[:, 0].square() / sizes.square().sum(1),
        short=[states_and_losses(model, tokens, T, short - move)[1] for move in moves],
        long=[states_and_losses(model, tokens, T, long + move)[1] for move in moves],
        documents=documents,
    )
    return 0


if __name__ == "__main__":
    torch.manual_seed(0)
    script(main)
