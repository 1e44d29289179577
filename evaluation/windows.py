"""Chooses the tokens that are scored, and computes the losses of windows of text."""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from data import Split, sampled_positions, tuning_part
from model import GPT
from run.device import autocast


@dataclass(frozen=True)
class Subject:
    """The model that is measured, the text, and the precision."""

    model: GPT
    split: Split
    dtype: torch.dtype
    progress: object  # called with the number of tokens processed
    max_position: int = 0  # tokens stand at positions sampled below it; 0: at 0, 1, 2, …

    @property
    def device(self):
        return self.model.lm_head.weight.device


def first_end(n_tokens, longest, stride):
    """The last target of the first block that a text of n_tokens has room for."""
    return max(longest, tuning_part(n_tokens) + stride)


def choose_ends(split, longest, stride, n, seed):
    """The last target of each of n blocks of `stride` targets; the document of each; and the share of contexts that
    cross documents. Blocks are evenly spread over the text past the tuning part and do not overlap. Blocks that have
    `longest` tokens of their own document before them come first. Contexts cross documents, as they do in training,
    only if there are fewer than n of these. ValueError if the text is too short."""
    ends = np.arange(first_end(len(split.tokens), longest, stride), len(split.tokens), stride)
    documents = np.searchsorted(split.docs, ends, side="right") - 1
    own = ends - longest >= split.docs[documents]
    if len(ends) < n:
        raise ValueError(
            f"the validation text has room for {len(ends)} blocks with {longest:,} tokens of context, not for {n}: "
            f"choose shorter --lengths such as --lengths=32,64,128, fewer --blocks, or another --dataset"
        )
    offset = np.random.default_rng(seed).random()

    def spread(candidates, k):
        return candidates[((np.arange(k) + offset) * len(candidates) / max(k, 1)).astype(int)]

    inside = spread(np.flatnonzero(own), min(n, own.sum()))
    chosen = np.sort(np.concatenate([inside, spread(np.flatnonzero(~own), n - len(inside))]))
    return ends[chosen], documents[chosen], 1 - len(inside) / n


@torch.no_grad()
def score(subject, starts, length, scored, change=None):
    """The losses in nats of the last `scored` predictions of each window of `length` tokens, and whether the likeliest
    token is right: both (windows, scored). change(row, i) may change window i, whose row has length + 1 tokens. Memory
    holds only one batch of windows and the logits of 4,096 predictions."""
    budget = 2**17 if subject.device.type == "cuda" else 2**12  # tokens in one forward: with more, a CPU is slower
    rows, losses, right = max(1, budget // length), [], []
    for first in range(0, len(starts), rows):
        window = subject.split.windows(starts[first : first + rows], length)
        if change:
            for i, row in enumerate(window, start=first):
                change(row, i)
        window = window.to(subject.device)
        positions = sampled_positions(length, subject.max_position, (length, first))  # one sample for each forward pass
        with autocast(subject.device, subject.dtype):
            hidden = subject.model.hidden(window[:, :-1], last=scored, positions=positions).flatten(0, 1)
        targets = window[:, -scored:].flatten()
        for some, wanted in zip(hidden.split(4096), targets.split(4096), strict=True):
            logits = subject.model.lm_head(some.float())  # in float32, whatever the dtype
            losses.append(F.cross_entropy(logits, wanted, reduction="none").cpu())
            right.append((logits.argmax(-1) == wanted).cpu())
        subject.progress(len(window) * length)
    return tuple(torch.cat(parts).view(len(starts), scored).numpy() for parts in (losses, right))


def shuffled(kept, seed):
    """A `change` of windows: shuffles the context except its last `kept` tokens."""

    def change(row, i):
        far = row[: -1 - kept]
        far[:] = far[torch.from_numpy(np.random.default_rng((seed, i)).permutation(len(far)))]

    return change


def foreign(split, ends, documents, kept):
    """A `change` of the windows before `ends`: replaces the context except its last `kept` tokens by the tokens in the
    same places before another block, the donor: the first block, searching from half the text ahead, whose tokens lie
    outside both the window and its document. ValueError if there is none."""
    bounds = np.append(split.docs, len(split.tokens))

    def change(row, i):
        n = len(row) - 1
        donors = np.roll(ends, -(i + len(ends) // 2))
        before, after = min(bounds[documents[i]], ends[i] - n), max(bounds[documents[i] + 1], ends[i])
        donors = donors[(donors - kept <= before) | (donors - n >= after)]
        if not len(donors):
            few = f"no block has {n - kept:,} tokens of other documents before it"
            raise ValueError(f"{few}: choose shorter --lengths, or a --dataset of more documents")
        row[: n - kept] = torch.from_numpy(split.tokens[donors[0] - n : donors[0] - kept].astype(np.int64))

    return change
