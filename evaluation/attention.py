"""What the attention of a trained model looks at."""

import math

import torch


@torch.no_grad()
def attention_scores(model, idx, last=None):
    """Yields, layer by layer, the scores of the tokens idx (B, T) before the mask and the softmax, with the `last` of
    them as queries (None: all): (B, H, last, T). Also yields whether each query sees each key: (last, T)."""
    T = idx.size(1)
    x, layers = model.enter(idx)
    for block, positions, window in layers:
        q, k, _ = block.attn.project(block.ln_1(x), positions)
        queries = slice(-(last or T), None)
        q, asked = q[:, :, queries], positions.part(queries, slice(None))
        scores = q @ k.mT / math.sqrt(model.config.n_embd // model.config.n_head)
        if asked.biased:
            scores = scores + asked.bias(q, k, block.attn.layer)
        yield scores, asked.visible(window or T)
        x = block(x, positions, window, None, T)


def attention_entropy(model, idx, last):
    """Mean entropy, in nats, of the attention of the `last` of the tokens idx (B, T), over layers and heads."""
    total = 0.0
    for scores, seen in attention_scores(model, idx, last):
        log_p = scores.float().masked_fill(~seen, -torch.inf).log_softmax(-1)
        total += -(log_p.exp() * log_p.masked_fill(~seen, 0)).sum(-1).mean().item() / model.config.n_layer
    return total
