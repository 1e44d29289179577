"""Protocols: what is scored at each context length, and how it is shown. A protocol is one class, which registers
itself and names its files:  class Fixed(Protocol, name="fixed", stem="length").
"""

import itertools

import numpy as np

from evaluation.statistics import estimate
from evaluation.windows import choose_ends, first_end, foreign, score, shuffled

STRIDES = 4  # per block, under `sliding`

PROTOCOLS = {}  # name -> class


class Protocol:
    """Scores the same blocks of targets at every length. In its methods, `found` is what is known about a run: arrays
    by the names of jobs, and what `prepare` returned."""

    question = ""  # what it answers: for --help, and the title of the picture
    options = ("block_tokens", "threshold", "max_position", "sinks")  # the optional fields of EvalConfig that it reads
    default_blocks = 256
    block_share, default_block_tokens = 4, 8  # a block is at most a quarter of the shortest length
    column, axis = "context", "context length (tokens)"  # the title of the table's first column, and of the x axis
    panels = {"loss": "loss (nats per token)"}  # of the picture: key in a row -> label of the y axis
    headline = "loss"  # the key in a row of what `losses` returns
    targets = "the same {blocks} blocks of {block_tokens:,} tokens at every length"  # what is scored, in words
    cells = "loss in nats per token, then Δ: that loss minus the loss at the training length"
    uncertainty = (
        "± of one run: its 95% band, over the choice of text only, for all lengths simultaneously.\n"
        "± of several seeds: the 95% interval of their mean, over text and seeds, for each length alone."
    )
    apart = 1.0  # factor that moves a picture's lines apart horizontally, so that equal ones stay visible
    identity = {}  # words that define the measurement: changing them makes kept losses invalid

    def __init_subclass__(cls, name, stem=None):
        cls.name, cls.stem, PROTOCOLS[name] = name, stem or f"length-{name}", cls

    def __init__(self, cfg, training_lengths, n_tokens):
        """cfg: an EvalConfig. n_tokens: of the text. ValueError if lengths and blocks do not fit together."""
        self.seed, self.threshold, self.max_position = cfg.seed, cfg.threshold, cfg.max_position
        self.training_lengths = sorted(training_lengths)
        self.lengths = choose_lengths(cfg.lengths, training_lengths)
        self.longest = self.lengths[-1]
        if 0 < cfg.max_position < self.longest:
            raise ValueError(f"max_position={cfg.max_position} must be at least the longest length, {self.longest}")
        self.block_tokens = self.choose_block_tokens(cfg.block_tokens)
        self.stride = len(self.layout(self.longest)[0]) * self.block_tokens
        room = (n_tokens - 1 - first_end(n_tokens, self.longest, self.stride)) // self.stride
        self.blocks = cfg.blocks or max(2, min(self.default_blocks, room))

    def choose_block_tokens(self, given):
        """The tokens of a block: `given`, or a default if that is 0. ValueError if it does not fit the lengths."""
        largest = self.lengths[0] // self.block_share
        if largest < max(1, given):
            least = self.block_share * max(1, given)
            raise ValueError(f"block_tokens={given}: the shortest length, {self.lengths[0]}, must be at least {least}")
        return given or min(self.default_block_tokens, largest)

    # what is measured

    def layout(self, length):
        """How far before the end of a block each of its windows of `length` tokens starts, and how many of a window's
        last predictions are scored. The longest windows of one block cover its targets side by side."""
        return np.array([length]), min(self.block_tokens, length)

    def prepare(self, dataset, trained):
        """What a run is measured on: `ends` (blocks,), the place in val.bin of each block's last target; `documents`
        (blocks,); `bytes_per_token` () of the targets; `crossing` (), the share of contexts that cross documents."""
        before, scored = self.layout(self.longest)
        ends, documents, crossing = choose_ends(dataset.val, before.max(), self.stride, self.blocks, self.seed)
        targets = dataset.val.tokens[ends[:, None] + np.arange(1 - len(before) * scored, 1)].flatten()
        text = [id for id in targets.tolist() if id != dataset.tokenizer.eot]  # a mark between documents has no bytes
        bytes_per_token = len(dataset.tokenizer.decode_bytes(text)) / len(targets)
        return {"ends": ends, "documents": documents, "bytes_per_token": bytes_per_token, "crossing": crossing}

    def jobs(self, trained, limit):
        """What is measured for a run, {name of the array: tokens of context}. limit: the positions of its scheme, or
        None."""
        return {str(n): n for n in self.lengths if limit is None or n <= limit}

    def block_losses(self, length, subject, found, change=None):
        """(blocks, windows of a block, scored) float64."""
        before, scored = self.layout(length)
        starts = (found["ends"][:, None] - before).flatten()
        losses, _ = score(subject, starts, length, scored, change)
        return losses.astype(np.float64).reshape(self.blocks, -1, scored)

    def measure(self, job, length, subject, found, trained):
        """What a job yields: {name: array}. The array of the job's own name is the mean loss of every block."""
        return {job: self.block_losses(length, subject, found).mean(axis=(1, 2))}

    # what is computed from the measurements

    def losses(self, found):
        """{length: (blocks,)}. In `found`, arrays may have the seeds of one experiment as a first dimension."""
        return {n: found[str(n)] for n in self.lengths if str(n) in found}

    def bands(self, values, found):
        """{key: (mean, half-width, standard errors by cause)} of values, {key: (blocks,) or (seeds, blocks)}. One run
        has the half-width of a band, several seeds that of an interval (see statistics.py)."""
        if not values:
            return {}
        stacked = np.stack([np.atleast_2d(losses) for losses in values.values()], axis=-1)
        means, widths, errors = estimate([stacked], found["documents"], self.seed)
        by_cause = [{cause: of_each[i] for cause, of_each in errors.items()} for i in range(len(means))]
        return dict(zip(values, zip(means, widths, by_cause, strict=True), strict=True))

    def rows(self, found, trained):
        """{length: row, or None where the scheme is undefined}."""
        losses, rows = self.losses(found), dict.fromkeys(self.lengths)
        bands = self.bands({n: values - losses[trained] for n, values in losses.items()}, found)
        for n, (delta, band, errors) in bands.items():
            rows[n] = {"loss": losses[n].mean(), "delta": delta, "band": band} | errors
        return rows

    # how it is shown

    def shown(self):
        """The lengths that have a line in the table and a place in the picture."""
        return self.lengths

    def cell(self, row, is_training_length):
        """One run at one length."""
        if is_training_length:
            return f"{row['loss']:.3f}  at training  "
        return f"{row['loss']:.3f}  {row['delta']:+.3f} {within(row['band'])}"

    def interval(self, row, key):
        """What the picture shades around a row's value: (low, high)."""
        band = row["band" if key in ("loss", "delta") else f"{key}_band"]
        return row[key] - band, row[key] + band


def within(band):
    """The half-width of a band or an interval, in a table."""
    return " " * 6 if np.isnan(band) else f"±{band:.3f}"


def doublings(first, last):
    """first, its double, and so on, up to last."""
    return [first * 2**i for i in range((last // first).bit_length())]


def choose_lengths(given, training_lengths):
    """The context lengths, ascending. They always include the training lengths, because Δ is measured from there."""
    lengths = doublings(max(4, min(training_lengths) // 4), 16 * max(training_lengths))
    if given:
        lengths = [int(n) if n.isdecimal() else 0 for n in given.split(",")]
        if lengths[0] < 1 or sorted(set(lengths)) != lengths or lengths[-1] > 2**24:
            raise ValueError(f"lengths={given!r} must be ascending positive numbers such as 32,64,128")
    return sorted({*lengths, *training_lengths})


class Fixed(Protocol, name="fixed", stem="length"):
    question = "how does the loss of the same tokens change as their context grows?"
    panels = {"delta": "Δ: change of the loss (nats; log beyond ±0.1)"}


class Sliding(Protocol, name="sliding"):
    question = "windows one stride apart over the same text, each scoring only its last stride: common in papers"
    default_blocks = 128
    block_share, default_block_tokens = 1, np.inf  # a block has STRIDES windows, one stride apart
    targets = f"the same {{blocks}} blocks of {STRIDES} strides of {{block_tokens:,}} tokens at every length"

    def layout(self, length):
        return length + np.arange(STRIDES) * self.block_tokens, self.block_tokens


class NonOverlapping(Protocol, name="nonoverlapping"):
    question = "the same text cut into windows of each length, with every token scored: the headline number of papers"
    options = ("threshold", "max_position", "sinks")
    default_blocks = 64
    targets = "the same {blocks} stretches of {block_tokens:,} tokens at every length"
    cells = Protocol.cells + ",\nand `real`: Δ without dilution (in longer windows, fewer tokens are near the start)"

    def choose_block_tokens(self, given):
        if any(self.longest % n for n in self.lengths):
            raise ValueError(f"--protocol=nonoverlapping: all lengths must divide the longest, not {self.lengths}")
        return self.longest

    def layout(self, length):
        return self.longest - np.arange(0, self.longest, length), length

    def measure(self, job, length, subject, found, trained):
        """Also yields `edge` (blocks,): the loss in the last quarter of the training length."""
        losses = self.block_losses(length, subject, found)
        kept = {job: losses.mean(axis=(1, 2))}
        if length == trained:
            kept["edge"] = losses[:, :, -max(1, trained // 4) :].mean(axis=(1, 2))
        return kept

    def rows(self, found, trained):
        """Splits Δ into dilution, which needs no change in the loss at any position, and the real rest."""
        rows, losses = super().rows(found, trained), self.losses(found)
        dilution = {n: (1 - trained / n) * (found["edge"] - losses[trained]) for n in losses if n > trained}
        bands = self.bands({n: losses[n] - losses[trained] - dilution[n] for n in dilution}, found)
        for n, (real, band, _) in bands.items():
            rows[n] |= {"dilution": dilution[n].mean(), "real": real, "real_band": band}
        return rows

    def cell(self, row, is_training_length):
        text = super().cell(row, is_training_length)
        real = f"  real {row['real']:+.3f} {within(row['real_band'])}" if "real" in row else " " * 20
        return text + real


class Position(Protocol, name="position"):
    question = "the longest windows only: the mean loss at the positions between one length and the next"
    options = ("threshold", "max_position", "sinks")
    default_blocks = 64
    column, axis = "up to", "positions up to"
    targets = "{blocks} windows of {block_tokens:,} tokens; each line: the mean over positions since the line above"
    cells = "loss in nats per token, then Δ: that loss minus the loss in the line of the training length"

    def choose_block_tokens(self, given):
        return self.longest

    def jobs(self, trained, limit):
        return {"positions": max(super().jobs(trained, limit).values())}

    def measure(self, job, length, subject, found, trained):
        """`positions` (blocks, length): the loss at every position."""
        return {job: self.block_losses(length, subject, found)[:, 0]}

    def losses(self, found):
        positions = found["positions"]
        edges = [0, *(n for n in self.lengths if n <= positions.shape[-1])]
        return {n: positions[..., low:n].mean(axis=-1) for low, n in itertools.pairwise(edges)}


class Context(Protocol, name="context"):
    question = "fixed, and again with the context beyond the training length cut off, replaced or shuffled"
    kinds = {  # of a context beyond the training length -> in words
        "cut": "no context beyond the training length",
        "foreign": "another document's context there",
        "shuffled": "shuffled context there",
    }
    panels = {f"gain_over_{kind}": f"nats gained over {words}" for kind, words in kinds.items()}
    cells = f"loss in nats per token, then the nats that the true context gains\nover {', over '.join(kinds.values())}"
    identity = {"foreign": "neither of the window nor of its document"}

    def jobs(self, trained, limit):
        plain = {job: n for job, n in super().jobs(trained, limit).items() if n >= trained}
        further = [n for n in plain.values() if n > trained]
        return plain | {f"{kind}-{n}": n for kind in ("foreign", "shuffled") for n in further}

    def measure(self, job, length, subject, found, trained):
        change = None
        if job.startswith("foreign"):
            change = foreign(subject.split, found["ends"], found["documents"], trained)
        elif job.startswith("shuffled"):
            change = shuffled(trained, self.seed)
        return {job: self.block_losses(length, subject, found, change).mean(axis=(1, 2))}

    def rows(self, found, trained):
        """Adds what the true context gains over each of the others."""
        rows, losses, gains = super().rows(found, trained), self.losses(found), {}
        for kind, n in itertools.product(self.kinds, losses):
            if n > trained:
                gains[kind, n] = (losses[trained] if kind == "cut" else found[f"{kind}-{n}"]) - losses[n]
        for (kind, n), (gain, band, _) in self.bands(gains, found).items():
            rows[n] |= {f"gain_over_{kind}": gain, f"gain_over_{kind}_band": band}
        return rows

    def shown(self):
        return [n for n in self.lengths if n >= min(self.training_lengths)]

    def cell(self, row, is_training_length):
        if "gain_over_cut" not in row:
            return super().cell(row, is_training_length)
        gains = (f"  {row[f'gain_over_{k}']:+.3f} {within(row[f'gain_over_{k}_band'])}" for k in self.kinds)
        return f"{row['loss']:.3f}" + "".join(gains)
