"""Chooses the blocks that are scored, and computes the losses of windows of text."""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from data import sampled_positions, tuning_part
from model import GPT
from run.device import autocast

HEAD_ROWS = 4096  # predictions whose logits are in memory at a time


@dataclass(frozen=True)
class Blocks:
    """The targets: blocks of consecutive tokens of the validation text."""

    ends: np.ndarray  # (blocks,): the place of each block's last target
    documents: np.ndarray  # (blocks,): the document of each block
    crossing: float = 0.0  # the share of blocks whose longest context starts in another document


@dataclass(frozen=True)
class Scorer:
    """Scores windows of tokens with a model."""

    model: GPT
    dtype: torch.dtype
    progress: object = lambda n: None  # called with the number of tokens processed
    max_position: int = 0  # tokens stand at positions sampled below it; 0: at 0, 1, 2, …

    @property
    def trained(self):
        """The training length."""
        return self.model.config.block_size

    @torch.no_grad()
    def score(self, windows, scored):
        """The losses in nats of the last `scored` predictions of each window (windows, length + 1), and whether the
        likeliest token is right: both (windows, scored). The device holds one batch of windows and the logits of
        HEAD_ROWS predictions."""
        device = self.model.lm_head.weight.device
        length = windows.size(1) - 1
        tokens = 2**17 if device.type == "cuda" else 2**12  # in one forward pass: with more, a CPU is slower
        losses = []
        right = []
        first = 0  # window of the batch
        for window in windows.split(max(1, tokens // length)):
            window = window.to(device)
            positions = sampled_positions(max(length, self.trained), self.max_position, (length, first))  # one a pass
            if positions is not None:
                positions = positions[:length]  # a short context has gaps as in training
            with autocast(device, self.dtype):
                hidden = self.model.hidden(window[:, :-1], last=scored, positions=positions).flatten(0, 1)
            targets = window[:, -scored:].flatten()
            for h, target in zip(hidden.split(HEAD_ROWS), targets.split(HEAD_ROWS), strict=True):
                logits = self.model.lm_head(h.float())  # in float32, whatever the dtype
                losses.append(F.cross_entropy(logits, target, reduction="none").cpu())
                right.append((logits.argmax(-1) == target).cpu())
            self.progress(len(window) * length)
            first += len(window)
        shape = len(windows), scored
        return torch.cat(losses).view(shape).numpy(), torch.cat(right).view(shape).numpy()


def block_ends(split, longest, span):
    """The last targets of all blocks of `span` targets, side by side past the tuning part, that have room for the
    longest context."""
    n_tokens = len(split.tokens)
    return np.arange(max(longest, tuning_part(n_tokens) + span), n_tokens, span)


def choose_blocks(split, longest, span, n, seed):
    """n Blocks of `span` targets. They are evenly spread over the text past the tuning part and do not overlap. Those
    that have `longest` tokens of their own document before them come first; contexts cross documents, as they do in
    training, only if these are fewer than n. ValueError if the text is too short."""
    ends = block_ends(split, longest, span)
    documents = np.searchsorted(split.docs, ends, side="right") - 1
    fits = ends - longest >= split.docs[documents]
    if len(ends) < n:
        raise ValueError(
            f"the validation text has room for {len(ends)} blocks with {longest:,} tokens of context, not for {n}: "
            f"choose shorter --lengths such as --lengths=32,64,128, fewer --blocks, or another --dataset"
        )
    offset = np.random.default_rng(seed).random()

    def spread(candidates, k):
        return candidates[((np.arange(k) + offset) * len(candidates) / max(k, 1)).astype(int)]

    inside = spread(np.flatnonzero(fits), min(n, fits.sum()))
    outside = spread(np.flatnonzero(~fits), n - len(inside))
    chosen = np.sort(np.concatenate([inside, outside]))
    return Blocks(ends[chosen], documents[chosen], len(outside) / n)


def shuffled(windows, n_kept, seed):
    """The windows with a shuffled context, except its last n_kept tokens."""
    changed = windows.clone()
    for i, row in enumerate(changed):
        far = row[: -1 - n_kept].numpy()  # shares the row's memory
        np.random.default_rng((seed, i)).shuffle(far)
    return changed


def foreign(windows, split, blocks, n_kept):
    """The windows before the blocks with another context, except its last n_kept tokens: the tokens in the same places
    before another block, the donor: the first block, searching from half the text ahead, whose tokens lie outside both
    the window and its document. ValueError if there is none."""
    n = windows.size(1) - 1
    bounds = np.append(split.docs, len(split.tokens))
    chosen = []
    for i, document in enumerate(blocks.documents):
        before = min(bounds[document], blocks.ends[i] - n)
        after = bounds[document + 1]
        donors = np.roll(blocks.ends, -(i + len(blocks.ends) // 2))
        ends_before = donors - n_kept <= before
        starts_after = donors - n >= after
        donors = donors[ends_before | starts_after]
        if not len(donors):
            raise ValueError(
                f"no block has {n - n_kept:,} tokens of other documents before it: choose shorter --lengths, or a "
                "--dataset of more documents"
            )
        chosen.append(donors[0])
    far = split.windows(np.array(chosen) - n, n)[:, : n - n_kept]
    return torch.cat((far, windows[:, n - n_kept :]), dim=1)
