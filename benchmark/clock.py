"""How a model undoes ALiBi:  python -m benchmark.clock RUN LAYERS HEADS FILE.npz

LAYERS and HEADS, such as 4567 and 45, name the heads that lose their slopes in the repair. docs/alibi.md says what the
arrays of FILE mean. All layers have a window of T, the training length, so that two contexts differ only in where they
start: a *short* one has T tokens, a *long* one 4T.
"""

import copy
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F

import data
from eval_length import choose_blocks
from model import GPT
from run.checkpoint import load_checkpoint
from run.script import script

TEXTS = 48  # for training, which give means and probes, and as many others, which are scored
SCORED = 32  # tokens at the end of a context: those whose losses are kept, and the queries of the slopes
START = 16  # tokens of a window that are never moved: they stand off the line of the others
CLEAR = 0.8  # a layer's states are moved if the place can be read from them with this R² at least


def states_of(model, tokens, context=None):
    """The input of each layer and the last output for tokens (B, n): layers + 1 of (B, n, C). With a context, which is
    such states of n − SCORED tokens, only the last SCORED tokens are computed, and they see it in each layer."""
    x, positions = model.enter(tokens)
    states = [x]
    for layer, block in enumerate(model.transformer.h):
        at = positions[layer]
        if context is not None:
            x = torch.cat((context[layer], x[:, -SCORED:]), dim=1)
            at = at.part(slice(-SCORED, None), slice(None))
        x = block(x, at)
        states.append(x)
    return states


def losses_of(model, tokens, context=None):
    """The losses of the last SCORED predictions of tokens (B, n + 1): (B, SCORED)."""
    last = states_of(model, tokens[:, :-1], context)[-1][:, -SCORED:]
    logits = model.lm_head(model.transformer.ln_f(last))
    return F.cross_entropy(logits.mT, tokens[:, -SCORED:], reduction="none")


def read(model, split):
    """Texts (TEXTS, 4T + 1), the states of short contexts and of long ones at their ends, and the texts' documents."""
    T = model.config.block_size
    ends, documents = choose_blocks(split, 4 * T, SCORED, TEXTS, 1337)
    tokens = split.windows(ends - 4 * T, 4 * T)
    short = torch.stack(states_of(model, tokens[:, -T - 1 : -1]))
    long = torch.stack(states_of(model, tokens[:, :-1]))
    return tokens, short, long, documents


def undone(model, states, end):
    """The share of each head's slope that the content of the scores undoes for the last queries before `end`, over many
    texts: (layers, heads). If it is 1, a key's distance costs nothing."""
    seen = slice(max(0, end - model.config.block_size), end)
    slopes = np.ravel(model.pos.slopes)  # times sqrt(D), as the scores below
    shares = []
    for layer, block in enumerate(model.transformer.h):
        qkv = block.attn.c_attn(block.ln_1(states[layer, :, seen])).unflatten(-1, (3, len(slopes), -1))
        q, k, _ = qkv.unbind(2)  # (texts, tokens, H, D)
        scores = torch.einsum("thd,tkhd->kh", q[:, -SCORED:].mean(1), k[:, :-SCORED]) / len(q)
        growth, _ = np.polyfit(np.arange(len(scores)), scores, 1)  # of each head's score, by the place of the key
        shares.append(-growth / slopes)
    return shares


def readable(states):
    """R² of the place in a window, read linearly from states (texts, T, C): fitted on half of them, tested on half."""
    place = torch.linspace(-1, 1, states.size(1))[:, None]
    fitted, tested = states.chunk(2)
    weights = torch.linalg.lstsq(fitted.flatten(0, 1), place.repeat(len(fitted), 1)).solution
    error = tested @ weights - place
    return 1 - error.square().mean() / place.square().mean()


@torch.no_grad()
def main(argv):
    path, layers, heads, file = argv
    checkpoint = load_checkpoint(path)
    T = checkpoint.config.block_size
    model = GPT.from_weights(replace(checkpoint.config, window=T), checkpoint.weights)
    text = data.load(checkpoint.settings["dataset"])

    # of texts for training: the slopes undone, the place read, and how far the mean state goes within a window
    _, short, long, _ = read(model, text.train)
    shares = [undone(model, long, end) for end in range(T // 2, 4 * T + 1, T // 4)]
    place = torch.stack([readable(states) for states in short])
    way = short.mean(1) - long[:, :, 2 * T :].mean((1, 2))[:, None]  # (layers + 1, T, C)

    # moves: none, along the one direction of a layer that holds most of the way, and as far along four random ones
    _, sizes, axes = torch.linalg.svd(way[:, START:], full_matrices=False)
    distance = way @ axes[:, 0, :, None]  # (layers + 1, T, 1)
    distance[:, :START] = 0
    distance[place < CLEAR] = 0
    directions = F.normalize(torch.randn(6, len(way), 1, way.size(2)), dim=-1)
    directions[0] = 0
    directions[1] = axes[:, :1]
    moves = (directions * distance)[:, :, None, :-SCORED]

    # the repair
    repaired = copy.deepcopy(model)
    scheme = copy.deepcopy(model.pos)
    for head in heads:
        scheme.slopes[int(head)] = [[0.0]]
    for layer in layers:
        repaired.schemes[int(layer)] = scheme
    repaired.pos_kinds.append(scheme)

    # the losses of other texts
    tokens, short, long, documents = read(model, text.val)
    window = tokens[:, -T - 1 :]
    short = short[:, :, :-SCORED]
    long = long[:, :, -T:-SCORED]
    np.savez(
        file,
        undone=shares,
        place=place,
        direction=sizes[:, 0].square() / sizes.square().sum(1),
        short=[losses_of(model, window, short - move) for move in moves],
        long=[losses_of(model, window, long + move) for move in moves],
        repaired=losses_of(repaired, tokens),
        documents=documents,
    )
    return 0


if __name__ == "__main__":
    torch.manual_seed(0)
    script(main)
