"""Protocols: what is scored at each context length, and what is shown of it. A protocol is one class, which registers
itself and names its files:  class Fixed(Protocol, name="fixed", stem="length").
"""

import itertools

import numpy as np

from evaluation.statistics import interval
from evaluation.windows import block_ends, choose_blocks, foreign, shuffled

BLOCK_TOKENS = 8  # targets of a window, by default
STRIDES = 4  # in a block of `sliding`

PROTOCOLS = {}  # name -> class


class Protocol:
    """Scores the same blocks of targets at every length. `arrays` are what was measured, by name; the first dimension
    is (blocks,) for one run, and (seeds, blocks) for a line of the table."""

    question = ""  # what it answers: for --help, and the title of the picture
    has_block_tokens = True  # may a user choose the tokens of a block?
    default_blocks = 256
    column = "context"  # the title of the table's first column
    axis = "context length (tokens)"  # of the picture
    columns = {"loss": "", "delta": "Δ"}  # of the table for each run: key of `values` -> title
    panels = {"loss": "loss (nats per token)"}  # of the picture: key of `values` -> label of the y axis
    targets = "the same {n_blocks} blocks of {block_tokens:,} tokens at every length"  # what is scored, in words
    legend = "Losses in nats per token. Δ: the loss minus that at the training length"
    ranked = True  # does a table rank the runs by their loss?
    version = 1  # raise it when the same flags measure something else

    def __init_subclass__(cls, name, stem=None):
        cls.name = name
        cls.stem = stem or f"length-{name}"
        PROTOCOLS[name] = cls

    def __init__(self, cfg, training_lengths, dataset):
        """cfg: an EvalConfig. ValueError if lengths, blocks and text do not fit together."""
        self.dataset = dataset
        self.seed = cfg.seed
        self.max_position = cfg.max_position
        self.training_lengths = sorted(training_lengths)
        self.lengths = choose_lengths(cfg.lengths, training_lengths)
        if 0 < cfg.max_position < self.longest:
            raise ValueError(f"max_position={cfg.max_position} must be at least the longest length, {self.longest}")
        if cfg.block_tokens and not self.has_block_tokens:
            raise ValueError(f"--protocol={self.name} has no --block_tokens")
        default, largest = self.block_sizes()
        if cfg.block_tokens > largest:
            raise ValueError(
                f"block_tokens={cfg.block_tokens}: at most {largest}, since the shortest length is {self.lengths[0]}"
            )
        self.block_tokens = cfg.block_tokens or default
        before, _ = self.layout(self.longest)
        self.span = len(before) * self.block_tokens  # targets of all windows of a block
        room = len(block_ends(dataset.val, self.longest, self.span)) - 1
        self.n_blocks = cfg.blocks or max(2, min(self.default_blocks, room))
        self.blocks = self.choose_blocks()

    def block_sizes(self):
        """How many tokens a block has by default, and how many it may have."""
        quarter = max(1, self.lengths[0] // 4)
        return min(BLOCK_TOKENS, quarter), quarter

    def settings(self):
        """What defines a measurement, as plain types."""
        return {
            "protocol": self.name,
            "version": self.version,
            "lengths": ",".join(map(str, self.lengths)),
            "blocks": self.n_blocks,
            "block_tokens": self.block_tokens,
            "seed": self.seed,
            "max_position": self.max_position,
        }

    # what is measured

    @property
    def longest(self):
        """The tokens of the longest context."""
        return self.lengths[-1]

    def layout(self, length):
        """How far before the end of a block each of its windows of `length` tokens starts, and how many of a window's
        last predictions are scored. With `fixed`: [length], 8. With `sliding` and a stride of 8, at 32: [32, 40, 48,
        56], 8. The longest windows of one block cover its targets side by side."""
        return np.array([length]), min(self.block_tokens, length)

    def choose_blocks(self):
        """The Blocks that every run is scored on."""
        before, _ = self.layout(self.longest)
        return choose_blocks(self.dataset.val, before.max(), self.span, self.n_blocks, self.seed)

    def contexts(self, config):
        """What is measured for a model, {name of the array: tokens of context}."""
        return {str(n): n for n in self.lengths}

    def jobs(self, config):
        """The contexts at which the model's scheme is defined."""
        return {job: n for job, n in self.contexts(config).items() if n <= (config.max_positions or n)}

    def n_tokens(self, length):
        """How many tokens are fed for a job of this length."""
        before, _ = self.layout(length)
        return len(self.blocks.ends) * len(before) * length

    def windows(self, job, length, trained):
        """What is scored for a job of a model that was trained at `trained` tokens: (windows, length + 1)."""
        before, _ = self.layout(length)
        starts = (self.blocks.ends[:, None] - before).flatten()
        return self.dataset.val.windows(starts, length)

    def block_losses(self, job, length, scorer):
        """(blocks, windows of a block, scored) float64."""
        _, scored = self.layout(length)
        losses, _ = scorer.score(self.windows(job, length, scorer.trained), scored)
        return losses.astype(np.float64).reshape(self.n_blocks, -1, scored)

    def measure(self, job, length, scorer):
        """What a job yields: {name: array}. The array of the job's own name is the mean loss of every block."""
        return {job: self.block_losses(job, length, scorer).mean(axis=(1, 2))}

    # what is shown of the measurements

    @property
    def shown(self):
        """The lengths that have a row in the table and a place in the picture."""
        return self.lengths

    def losses(self, arrays):
        """{length: (seeds, blocks)} of the lengths at which the scheme is defined."""
        return {n: arrays[str(n)] for n in self.shown if str(n) in arrays}

    def values(self, arrays, trained):
        """{key: {length: (seeds, blocks)}}: all that is shown."""
        losses = self.losses(arrays)
        return {"loss": losses, "delta": {n: values - losses[trained] for n, values in losses.items()}}

    def bounds(self, key, values, documents):
        """The mean of values (seeds, blocks) and its interval: (mean, low, high)."""
        mean, width = interval([values], documents)
        return mean, mean - width, mean + width

    def note(self, arrays):
        """What is said of a line behind its name."""
        return ""

    def cell(self, key, value, is_training_length):
        """A value in the table. Losses have no ±: nearly all of it comes from the text, which all runs share."""
        if key == "loss":
            return f"{value['mean']:.3f}"
        return "" if is_training_length else signed(value["mean"], (value["high"] - value["low"]) / 2)


def signed(mean, width):
    """A difference and its ±, which is NaN where it is unknown."""
    return f"{mean:+.3f}" + ("" if np.isnan(width) else f" ±{width:.3f}")


def choose_lengths(given, training_lengths):
    """The context lengths, ascending. They always include the training lengths, because Δ is relative to those. The
    default is every training length times 1/4, 1/2, … 16, where that is a whole number of at least 4."""
    quarters = {n * 2**k for n in training_lengths for k in range(7)}
    lengths = [n // 4 for n in quarters if n % 4 == 0 and n >= 16]
    if given:
        lengths = [int(n) if n.isdecimal() else 0 for n in given.split(",")]
        if lengths[0] < 1 or sorted(set(lengths)) != lengths or lengths[-1] > 2**24:
            raise ValueError(f"lengths={given!r} must be ascending positive numbers such as 32,64,128")
    return sorted({*lengths, *training_lengths})


class Fixed(Protocol, name="fixed", stem="length"):
    question = "How does the loss of the same tokens change as their context grows?"


class Sliding(Protocol, name="sliding"):
    question = "Windows one stride apart over the same text, each scoring only its last stride: common in papers"
    default_blocks = 128
    targets = f"the same {{n_blocks}} blocks of {STRIDES} strides of {{block_tokens:,}} tokens at every length"

    def block_sizes(self):
        return self.lengths[0], self.lengths[0]

    def layout(self, length):
        return length + np.arange(STRIDES) * self.block_tokens, self.block_tokens


class NonOverlapping(Protocol, name="nonoverlapping"):
    question = "The same text cut into windows of each length, with every token scored: the headline number of papers"
    has_block_tokens = False
    default_blocks = 64
    columns = Protocol.columns | {"real": "real"}
    targets = "the same {n_blocks} stretches of {block_tokens:,} tokens at every length"
    legend = Protocol.legend + ". real: Δ without dilution\n(in longer windows, fewer tokens are near the start)"

    def block_sizes(self):
        if any(self.longest % n for n in self.lengths):
            raise ValueError(f"--protocol=nonoverlapping: all lengths must divide the longest, not {self.lengths}")
        return self.longest, self.longest

    def layout(self, length):
        return self.longest - np.arange(0, self.longest, length), length

    def measure(self, job, length, scorer):
        """Also yields `edge` (blocks,): the loss in the last quarter of the training length."""
        losses = self.block_losses(job, length, scorer)
        arrays = {job: losses.mean(axis=(1, 2))}
        if length == scorer.trained:
            arrays["edge"] = losses[:, :, -max(1, length // 4) :].mean(axis=(1, 2))
        return arrays

    def values(self, arrays, trained):
        """Splits Δ into dilution, which needs no change of the loss at any position, and the remainder, `real`."""
        values = super().values(arrays, trained)
        gap = arrays["edge"] - values["loss"][trained]
        # if no position changes, the mean at n is trained/n · its mean at the training length + (1 − trained/n) · edge
        values["dilution"] = {n: (1 - trained / n) * gap for n in values["loss"] if n > trained}
        values["real"] = {n: values["delta"][n] - diluted for n, diluted in values["dilution"].items()}
        return values


class Position(Protocol, name="position"):
    question = "The longest windows only: the mean loss at the positions between one length and the next"
    has_block_tokens = False
    default_blocks = 64
    column = "up to"
    axis = "positions up to"
    targets = "{n_blocks} windows of {block_tokens:,} tokens; each row: the mean over positions since the row above"
    legend = "Losses in nats per token. Δ: the loss minus that in the row of the training length"

    def block_sizes(self):
        return self.longest, self.longest

    def jobs(self, config):
        return {"positions": max(super().jobs(config).values())}

    def measure(self, job, length, scorer):
        """`positions` (blocks, length): the loss at every position."""
        return {job: self.block_losses(job, length, scorer)[:, 0]}

    def losses(self, arrays):
        positions = arrays["positions"]
        edges = [0, *(n for n in self.lengths if n <= positions.shape[-1])]
        return {high: positions[..., low:high].mean(axis=-1) for low, high in itertools.pairwise(edges)}


class Context(Protocol, name="context"):
    question = "Fixed, and again with the context beyond the training length cut off, replaced or shuffled"
    columns = {"loss": "", "over_cut": "over cut", "over_foreign": "over foreign", "over_shuffled": "over shuffled"}
    panels = {
        "over_cut": "nats gained over no context beyond the training length",
        "over_foreign": "nats gained over another document's context",
        "over_shuffled": "nats gained over shuffled context",
    }
    legend = (
        "Losses in nats per token. What the true context beyond the training length gains\n"
        "over none (cut), over another document's (foreign), and over itself shuffled"
    )
    version = 2  # a foreign context lies outside both the window and its document

    @property
    def shown(self):
        return [n for n in self.lengths if n >= self.training_lengths[0]]

    def contexts(self, config):
        trained = config.block_size
        contexts = {str(n): n for n in self.lengths if n >= trained}
        for kind in ("foreign", "shuffled"):
            contexts |= {f"{kind}-{n}": n for n in self.lengths if n > trained}
        return contexts

    def windows(self, job, length, trained):
        windows = super().windows(job, length, trained)
        if job.startswith("foreign"):
            return foreign(windows, self.dataset.val, self.blocks, trained)
        return shuffled(windows, trained, self.seed) if job.startswith("shuffled") else windows

    def values(self, arrays, trained):
        values = super().values(arrays, trained)
        losses = values["loss"]
        longer = [n for n in losses if n > trained]
        values["over_cut"] = {n: losses[trained] - losses[n] for n in longer}
        for kind in ("foreign", "shuffled"):
            values[f"over_{kind}"] = {n: arrays[f"{kind}-{n}"] - losses[n] for n in longer}
        return values
