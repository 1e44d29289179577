"""What the attention of a trained model looks at, and the protocol that measures how widely it is spread."""

import math

import numpy as np
import torch

from evaluation.protocols import Protocol, within


@torch.no_grad()
def attention_scores(model, idx, last=None):
    """Yields, layer by layer, the scores of the tokens idx (B, T) before the mask and the softmax, with the `last` of
    them as queries (None: all): (B, H, last, T). Also yields whether each query sees each key: (last, T)."""
    T = idx.size(1)
    x, layers = model.enter(idx)
    for block, positions in zip(model.transformer.h, layers, strict=True):
        q, k, _ = block.attn.project(block.ln_1(x), positions, {})
        queries = slice(-(last or T), None)
        q, asked = q[:, :, queries], positions.part(queries)
        scores = q @ k.mT / math.sqrt(model.config.n_embd // model.config.n_head)
        if asked.biased:
            scores = scores + asked.bias(q, k)
        yield scores, asked.visible()
        x = block(x, positions)


def attention_entropy(model, idx, last):
    """Mean entropy, in nats, of the attention of the `last` of the tokens idx (B, T), over layers and heads."""
    total = 0.0
    for scores, seen in attention_scores(model, idx, last):
        log_p = scores.float().masked_fill(~seen, -torch.inf).log_softmax(-1)
        total += -(log_p.exp() * log_p.masked_fill(~seen, 0)).sum(-1).mean().item() / model.config.n_layer
    return total


class Entropy(Protocol, name="entropy"):
    question = "how widely does the attention of the same predictions spread? (entropy, in nats)"
    options = ("block_tokens",)
    default_blocks = 64
    panels = {"entropy": "entropy of attention (nats)"}
    headline = "entropy"
    targets = "the attention of the same {blocks} blocks of {block_tokens:,} predictions at every length"
    cells = "the entropy of attention in nats, mean over layers and heads (spread evenly over N tokens, it is ln N)"

    def measure(self, job, length, subject, found, trained):
        """The mean entropy of the attention of a block's predictions (blocks,)."""
        entropies = []
        for window in subject.split.windows(found["ends"] - length, length - 1).to(subject.device):
            entropies.append(attention_entropy(subject.model, window[None], self.block_tokens))
            subject.progress(length)
        return {job: np.array(entropies)}

    def rows(self, found, trained):
        rows = dict.fromkeys(self.lengths)
        for n, (entropy, band, _) in self.bands(self.losses(found), found).items():
            rows[n] = {"entropy": entropy, "entropy_band": band}
        return rows

    def cell(self, row, is_training_length):
        return f"{row['entropy']:.3f} {within(row['entropy_band'])}"
