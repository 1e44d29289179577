"""What is claimed of the schemes, and how it is judged by the kept losses (tools/pages.py draws the tables)."""

import itertools
from typing import NamedTuple

import numpy as np


class NotMeasured(ValueError):
    """The evidence has no such losses yet."""


class At(NamedTuple):
    """One side of a comparison: what was measured of an experiment (a loss; under recall, the share of right answers)
    at a length, or its mean over several, less that at `base` if given."""

    name: str
    length: int | tuple
    base: int = 0
    stem: str = "length"

    def values(self, evidence):
        """The protocol, {seed: (blocks,)}, and what is known of one of the runs."""
        protocol, _, losses = evidence.of(rf"{self.name}(-\d+)?", self.stem)
        found = {}
        for seed, run in losses[self.name].items():
            by_length = protocol.losses(run)
            found[seed] = np.mean([by_length[n] for n in np.atleast_1d(self.length)], axis=0)
            if self.base:
                found[seed] = found[seed] - by_length[self.base]
        return protocol, found, next(iter(losses[self.name].values()))


def difference(evidence, one, two, p=0.05):
    """(mean, half-width of its 1 − p interval, seeds in common) of one At less another. The interval is over text and
    seeds, or over the text alone where only one seed is in common. ValueError unless both scored the same blocks."""
    (protocol, ours, run), (_, theirs, other) = (at.values(evidence) for at in (one, two))
    if not np.array_equal(run["ends"], other["ends"]):
        raise ValueError(f"{one.name} and {two.name} did not score the same blocks")
    each = [ours[seed] - theirs[seed] for seed in ours if seed in theirs]
    if not each:
        raise NotMeasured(f"{one.name} and {two.name} have no seed in common")
    mean, width, _ = protocol.bands({one: each[0] if len(each) == 1 else np.stack(each)}, run, p)[one]
    return mean, np.nan if width is None else width, len(each)


def verdict(evidence, pairs, side, edge):
    """Whether every difference lies `above`, `below` or `within` the edge: (True, False, or None where undecided; the
    mean and the half-width of the one that decides; its seeds). True needs all whole intervals on that side, False one
    whole interval off it. The intervals hold for all pairs at once (Bonferroni)."""
    found = [difference(evidence, *pair, p=0.05 / len(pairs)) for pair in pairs]
    means, widths = (np.array(column) for column in list(zip(*found, strict=True))[:2])
    margins = {"above": means - edge, "below": edge - means, "within": edge - abs(means)}[side]
    fails, holds = (margins + widths < 0).any(), (margins - widths > 0).all()
    mean, width, seeds = found[np.argmin(margins + widths if fails else margins - widths)]
    return False if fails else True if holds else None, (mean, width), seeds


def grows(name, length):
    """The change from the training length to another."""
    return [(At(name, length), At(name, 128))]


def pair(one, two, length, stem="length"):
    """One experiment less another."""
    return [(At(one, length, stem=stem), At(two, length, stem=stem))]


def recall(one, two):
    """The share of right answers at four to sixteen times the training length: one scheme's less another's."""
    return pair(f"recall-{one}", f"recall-{two}", (512, 1024), "recall")


def stretched(one, two):
    """RoPE at four times its length under one scaling, less that under another."""
    return [(At("rope", 512, stem=f"length-{one}"), At("rope", 512, stem=f"length-{two}"))]


def base(theta):
    """Δ at eight times the length with another base of RoPE, less that with 10,000."""
    return [(At(f"theta{theta}-rope", 1024, 128), At("theta10000-rope", 1024, 128))]


ABSOLUTE, RELATIVE = ("sinusoidal", "learnable"), ("rope", "alibi", "t5", "transformer_xl")
ORDER = [(At(a, 128), At(r, 128)) for a, r in itertools.product(ABSOLUTE, RELATIVE)]
MORE_TEXT = [(a._replace(stem="length-sliding"), r._replace(stem="length-sliding")) for a, r in ORDER]

# docs/replications.md: card (a letter where the row was not on it), what is compared, side, edge
CARDS = (
    ("1", "alibi, 16× less 1×", grows("alibi", 2048), "below", 0.05),
    ("1", "sinusoidal, 16× less 1×", grows("sinusoidal", 2048), "above", 0.5),
    ("2", "t5 less alibi at 8×", pair("t5", "alibi", 1024), "above", 0.0),
    ("2", "sinusoidal less t5 at 8×", pair("sinusoidal", "t5", 1024), "above", 0.0),
    ("3", "recall at 4 to 16×: none less alibi", recall("none", "alibi"), "above", 0.0),
    ("3", "recall at 4 to 16×: none less rope", recall("none", "rope"), "above", 0.0),
    ("3a", "the same: alibi less rope", recall("alibi", "rope"), "above", 0.0),
    ("3b", "the same: t5 less none", recall("t5", "none"), "above", 0.0),
    ("3c", "the same: t5 less alibi", recall("t5", "alibi"), "above", 0.0),
    ("3d", "the same: t5 less transformer_xl", recall("t5", "transformer_xl"), "above", 0.0),
    ("3e", "the same: alibi less transformer_xl", recall("alibi", "transformer_xl"), "above", 0.0),
    ("4", "rope at 4×: linear less untouched", stretched("linear", "none"), "below", 0.0),
    ("5", "rope at 4×: yarn less ntk", stretched("yarn", "ntk"), "below", 0.0),
    ("5", "rope at 4×: ntk less linear", stretched("ntk", "linear"), "below", 0.0),
    ("6", "8× less 1×: base 20 less base 10,000", base("20"), "below", 0.0),
    ("6", "8× less 1×: base 1,000,000 less base 10,000", base("1e6"), "below", 0.0),
    ("7", "drope less rope at 1×", pair("drope", "rope", 128), "within", 0.05),
    ("7", "drope, 16× less 1×", grows("drope", 2048), "below", 0.1),
    ("7a", "with QK-norm: drope less rope at 1×", pair("qk-drope", "qk-rope", 128), "within", 0.05),
    ("7a", "with QK-norm: drope, 16× less 1×", grows("qk-drope", 2048), "below", 0.1),
    ("8", "absolute less relative at 1×, of eight pairs", ORDER, "above", 0.0),
    ("8a", "the same with more text", MORE_TEXT, "above", 0.0),
    ("9", "sinusoidal less learnable at 1×", pair("sinusoidal", "learnable", 128), "within", 0.03),
    ("9a", "the same with more text", pair("sinusoidal", "learnable", 128, "length-sliding"), "within", 0.03),
)
SEEDS = {card: 5 for card, *_ in CARDS if card.startswith("3")}  # that a card asks for, where it is not three

SETTINGS = {  # in words -> how the names of its runs begin
    "as above": "", "AdamW": "adamw-", "four times the steps": "long-", "trained at 64 tokens": "t64-",
    "trained at 256 tokens": "t256-", "64 channels": "w64-", "256 channels": "w256-", "prose": "prose-",
    "tokens of a BPE": "bpe-",
}  # fmt: skip


class Statement(NamedTuple):
    words: str
    scheme: str
    others: tuple  # what it is compared with; () is itself at the training length
    times: int  # at how many times the training length
    side: str
    edge: float

    def pairs(self, prefix, trained):
        """What is compared in the runs of a setting, which were trained at `trained` tokens."""
        one = At(prefix + self.scheme, self.times * trained)
        return [(one, one._replace(name=prefix + other)) for other in self.others] or [
            (one, one._replace(length=trained))
        ]


STATEMENTS = (
    Statement("none climbs at 2×", "none", (), 2, "above", 0.1),
    Statement("sinusoidal climbs at 2×", "sinusoidal", (), 2, "above", 0.1),
    Statement("rope climbs at 2×", "rope", (), 2, "above", 0.1),
    Statement("alibi holds at 16×", "alibi", (), 16, "below", 0.05),
    Statement("t5 holds at 16×", "t5", (), 16, "below", 0.05),
    Statement("alibi before t5 at 16×", "t5", ("alibi",), 16, "above", 0.0),
    Statement("none is the worst at 1×", "none", ("sinusoidal", "rope", "alibi", "t5"), 1, "above", 0.0),
    Statement("alibi before rope at 1×", "rope", ("alibi",), 1, "above", 0.0),
)
