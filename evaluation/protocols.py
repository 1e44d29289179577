"""The protocols: what is scored at each context length, and how it is shown. A protocol is one class, which
registers itself and names its files:  class Fixed(Protocol, name="fixed", stem="length").
"""

import itertools
import math
from typing import NamedTuple

import numpy as np

from evaluation.attention import attention_entropy
from evaluation.pictures import figure_of, mark_training_length, scheme_styles
from evaluation.statistics import FEWEST_DOCUMENTS, mean_intervals, text_bands
from evaluation.windows import choose_ends, first_end, foreign, shuffled, window_losses

STRIDES = 4  # per block, under `sliding`
ENTROPY_BLOCKS = 64  # from which the entropy of attention is computed

PROTOCOLS = {}  # name -> class


class Job(NamedTuple):
    """One measurement of a run."""

    name: str  # under which its losses are kept
    length: int  # tokens of context
    kind: str = ""  # what is done to the context beyond the training length


class Protocol:
    """Scores the same blocks of targets at every length. `found` is what is known about a run: arrays by the names of
    jobs, and what `prepare` returned."""

    question = ""  # what it answers, for --help
    options = ("block_tokens", "threshold")  # those of EvalConfig that it reads; others of this kind are refused
    default_blocks = 256
    column, axis = "context", "context length (tokens)"  # over the table's first column, and under the picture
    panels = {"loss": "loss (nats per token)"}  # of the picture: key of a row -> label
    headline = "loss"  # the key of a row that a comparison in wandb shows
    scored = "Loss"  # what `losses` returns, in words
    columns = "Δ to the training length with its 95% band"  # what stands in a cell after the loss
    targets = "the same {blocks} blocks of {block_tokens:,} tokens at every length"  # what is scored, in words
    title = "Loss as the context grows {past}"
    apart = 1.0  # horizontal offset between the lines of a picture, as a factor, where they would hide each other
    identity = {}  # a definition in words: changing it makes saved losses invalid

    def __init_subclass__(cls, name=None, stem=None):
        if name:  # a class without a name is only a base of others
            cls.name, cls.stem, PROTOCOLS[name] = name, stem or f"length-{name}", cls

    def __init__(self, cfg, training_lengths, n_tokens):
        """cfg: an EvalConfig. n_tokens: of the shortest text. ValueError where lengths and blocks do not fit."""
        self.seed, self.threshold, self.training_lengths = cfg.seed, cfg.threshold, sorted(training_lengths)
        self.lengths = choose_lengths(cfg.lengths, training_lengths)
        self.longest = self.lengths[-1]
        self.block_tokens = self.choose_block_tokens(cfg.block_tokens)
        stride = len(self.layout(self.longest)[0]) * self.block_tokens
        room = (n_tokens - 1 - first_end(n_tokens, self.longest, stride)) // stride
        self.blocks = cfg.blocks or max(2, min(self.default_blocks, room))
        one = f"past the {self.training_lengths[0]:,} tokens of training"
        self.past = one if len(training_lengths) == 1 else "past the training length"

    def choose_block_tokens(self, given):
        """The tokens of a block: `given`, or a default where that is 0. ValueError where lengths do not allow it."""
        if self.lengths[0] < 4 * max(1, given):
            raise ValueError(
                f"the shortest length, {self.lengths[0]}, must be at least four times block_tokens={max(1, given)}: "
                f"the block's own tokens are part of its context"
            )
        return given or min(8, self.lengths[0] // 4)

    # what is measured

    def layout(self, length):
        """How far before the end of a block each of its windows of `length` tokens begins, and how many of a window's
        last predictions are scored. The longest windows of one block cover its targets side by side."""
        return np.array([length]), self.block_tokens

    def prepare(self, dataset, trained):
        """What a run's losses are measured on: `ends` and `documents` (blocks,), a block's last target in val.bin and
        its document; `bytes_per_token` () of the targets; and `crossing` (), the share of contexts that cross
        documents."""
        before, scored = self.layout(self.longest)
        stride = len(before) * self.block_tokens
        ends, documents, crossing = choose_ends(dataset.val, before.max(), stride, self.blocks, self.seed)
        targets = dataset.val.tokens[ends[:, None] + np.arange(1 - len(before) * scored, 1)].flatten()
        text = [id for id in targets.tolist() if id != dataset.tokenizer.eot]  # what only divides documents: no bytes
        bytes_per_token = len(dataset.tokenizer.decode_bytes(text)) / len(targets)
        return {"ends": ends, "documents": documents, "bytes_per_token": bytes_per_token, "crossing": crossing}

    def jobs(self, found, trained, limit):
        """Everything that is measured for a run. limit: how many positions its scheme has; None: any number."""
        return [Job(str(n), n) for n in self.lengths if limit is None or n <= limit]

    def units(self, job, found):
        """How many losses, or rows of them, are kept of a job."""
        return self.blocks

    def tokens(self, job, found):
        """How many tokens the job sends through the model."""
        return self.blocks * len(self.layout(job.length)[0]) * job.length

    def block_losses(self, job, subject, found, change=None):
        """(blocks, windows of a block, scored) float64."""
        before, scored = self.layout(job.length)
        starts = (found["ends"][:, None] - before).flatten()
        losses = window_losses(subject, starts, job.length, scored, change)
        return losses.astype(np.float64).reshape(self.blocks, -1, scored)

    def measure(self, job, subject, found, trained):
        """What is kept of a job: {name: array}, under the job's own name the mean loss of every block."""
        return {job.name: self.block_losses(job, subject, found).mean(axis=(1, 2))}

    # what follows from it

    def losses(self, found):
        """{length: (blocks,)}."""
        return {n: found[str(n)] for n in self.lengths if str(n) in found}

    def bands(self, differences, found, p=0.05):
        """{key: (mean, half-width of its 1 − p interval, standard errors by cause)} of differences, {key: (blocks,) of
        one run, or (seeds, blocks)}. Over one run's text the intervals hold at all keys at once; over seeds and text,
        each by itself. None where the text has too few documents."""
        if not differences:
            return {}
        values, parts = np.stack(list(differences.values()), axis=-1), {}
        if values.ndim == 2:
            means, widths = text_bands(values, found["documents"], self.seed, p)
        else:
            means, widths, parts = mean_intervals(values, found["documents"], p)

        def plain(value):
            return None if np.isnan(value) else float(value)

        return {
            key: (float(means[i]), plain(widths[i]), {cause: plain(errors[i]) for cause, errors in parts.items()})
            for i, key in enumerate(differences)
        }

    def rows(self, found, trained):
        """{length: row, or None where the scheme is undefined}. In `found`, losses may have the seeds of one
        experiment as a first dimension."""
        losses, rows = self.losses(found), dict.fromkeys(self.lengths)
        deltas = self.bands({n: values - losses[trained] for n, values in losses.items()}, found)
        for n, (loss, level, _) in self.bands(losses, found).items():
            delta, band, errors = deltas[n]
            rows[n] = {"loss": loss, "level": level, "delta": delta, "band": band} | errors
            rows[n]["bits_per_byte"] = loss / math.log(2) / float(found["bytes_per_token"])
        self.add_columns(rows, losses, found, trained)
        return rows

    def add_columns(self, rows, losses, found, trained):
        """Adds to the rows what this protocol knows besides."""

    # how it is shown

    def about_text(self, found):
        """What the report says about a text, as plain types."""
        known = {key: float(found[key]) for key in ("crossing", "bytes_per_token")}
        return known | {"documents": len(np.unique(found["documents"]))}

    def heading(self, texts, pooled):
        """The lines over the table. texts: {dataset: what `about_text` returned}."""
        lines = [f"{self.name}: {self.targets.format(**vars(self))}"]
        for name, text in texts.items():
            lines.append(
                f"{name}: {text['documents']} documents, {text['crossing']:.0%} of the longest contexts cross "
                f"documents, {text['bytes_per_token']:.3g} bytes per token"
            )
            if text["documents"] < FEWEST_DOCUMENTS:
                few = f"{text['documents']} documents are too few for an interval: at least {FEWEST_DOCUMENTS}"
                lines.append(f"note: {few}; choose a --dataset of more documents, or shorter --lengths")
        lines.append(f"Loss in nats per token, ± its interval at the training length, then {self.columns}.")
        lines.append("One run: ± is a 95% band over the choice of text, at all lengths at once.")
        if pooled:
            lines.append(
                "Several seeds: ± is a 95% interval of the mean over text and training, for each length by itself."
            )
        return [*lines, f"L*: where Δ exceeds {self.threshold:g} nats by more than its band."]

    def shown(self):
        """The lengths that have a line in the table and a place in the picture."""
        return self.lengths

    def label(self, n):
        """A line's name in the table."""
        return str(n)

    def cell(self, row, is_training_length):
        """One run at one length."""
        if is_training_length:
            return f"{row['loss']:.3f} {within(row['level'])} training length"
        return f"{row['loss']:.3f}  {row['delta']:+.3f} {within(row['band'])}"

    def interval(self, row, key):
        """What the picture shows around a row's value: (low, high). The row is {} where the scheme is undefined."""
        value, band = row.get(key, math.nan), row.get("band" if key == "loss" else f"{key}_band") or 0.0
        return value - band, value + band

    def draw(self, results):
        """The figure: each panel against the context length, one line with a band per run; undefined is a gap."""
        shown, wide = np.array(self.shown()), 8 if len(self.panels) == 1 else 6
        figure, all_axes = figure_of(len(self.panels), width=wide, height=5, title=self.title.format(**vars(self)))
        styles = scheme_styles([result["pos_scheme"] for result in results.values()])
        for axes, (key, ylabel) in zip(all_axes, self.panels.items(), strict=True):
            for i, (name, result) in enumerate(results.items()):
                x, color = shown * self.apart ** (i - (len(results) - 1) / 2), styles[i]["color"]
                end = max((n for n, row in result["rows"].items() if row), default=0)
                label = f"{name} (undefined past {end})" if end < max(result["rows"]) else name
                rows = [result["rows"][n] or {} for n in shown]
                axes.plot(x, [row.get(key, math.nan) for row in rows], label=label, **styles[i])
                reach = np.transpose([self.interval(row, key) for row in rows])
                axes.fill_between(x, *reach, color=color, alpha=0.2, linewidth=0)
                for own in result.get("seeds", {}).values():
                    y = [(own[n] or {}).get(key, math.nan) for n in shown]
                    axes.plot(x, y, color=color, linewidth=0.6, alpha=0.6)
            axes.set_xscale("log", base=2)
            axes.set_xticks(shown, [f"{n:,}" for n in shown])
            axes.minorticks_off()
            axes.grid(alpha=0.25)
            mark_training_length(axes, *self.training_lengths)
            axes.set(xlabel=self.axis, ylabel=ylabel)
        all_axes[0].legend(frameon=False)
        return figure


def within(band):
    """An interval's half-width in a table."""
    return " " * 6 if band is None else f"±{band:.3f}"


def doublings(first, last):
    """first, its double, and so on, up to last."""
    return [first * 2**i for i in range((last // first).bit_length())]


def choose_lengths(given, training_lengths):
    """The context lengths, ascending. The training lengths are always among them, since Δ is taken against them."""
    lengths = doublings(max(1, min(training_lengths) // 4), 16 * max(training_lengths))
    if given:
        try:
            lengths = [int(n) for n in given.split(",")]
        except ValueError:
            raise ValueError(f"lengths={given!r} must be whole numbers with commas between them") from None
        if lengths[0] < 1 or sorted(set(lengths)) != lengths:
            raise ValueError(f"lengths={given!r} must ascend, from 1 on")
    return sorted({*lengths, *training_lengths})


class Fixed(Protocol, name="fixed", stem="length"):
    question = "the same last tokens of every context: does more of it help or hurt them?"
    panels = {"loss": "loss (nats per token)", "entropy": "entropy of attention (nats)"}

    identity = {"entropy of blocks": ENTROPY_BLOCKS}

    def some(self):
        """The blocks from which the entropy of attention is computed."""
        n = min(ENTROPY_BLOCKS, self.blocks)
        return np.arange(n) * self.blocks // n

    def measure(self, job, subject, found, trained):
        """Adds `entropy-N` (some blocks,): the mean entropy of the attention of a block's predictions."""
        starts = found["ends"][self.some()] - job.length
        rows = subject.split.windows(starts, job.length - 1).to(subject.device)[:, None]  # one at a time
        entropies = np.array([attention_entropy(subject.model, row, self.block_tokens) for row in rows])
        return super().measure(job, subject, found, trained) | {f"entropy-{job.name}": entropies}

    def add_columns(self, rows, losses, found, trained):
        entropies = {n: found[key] for n in losses if (key := f"entropy-{n}") in found}
        bands = self.bands(entropies, {"documents": found["documents"][self.some()]})
        for n, (entropy, band, _) in bands.items():
            rows[n] |= {"entropy": entropy, "entropy_band": band}


class Sliding(Protocol, name="sliding"):
    question = "the same text at every length: windows a stride apart score their last stride (the papers' number)"
    default_blocks = 128
    targets = f"the same {{blocks}} blocks of {STRIDES} strides of {{block_tokens:,}} tokens at every length"
    title = "Loss in sliding windows as they grow {past}"

    def choose_block_tokens(self, given):
        shortest = self.lengths[0]
        if shortest < given:
            raise ValueError(f"the shortest length, {shortest}, must be at least the stride, block_tokens={given}")
        return given or shortest

    def layout(self, length):
        return length + np.arange(STRIDES) * self.block_tokens, self.block_tokens


class NonOverlapping(Protocol, name="nonoverlapping"):
    question = "the same text cut into windows of each length, all of their tokens scored (the papers' headline number)"
    options = ("threshold",)
    default_blocks = 64
    targets = "the same {blocks} stretches of {block_tokens:,} tokens at every length"
    title = "Loss of text cut into windows as they grow {past}"

    def choose_block_tokens(self, given):
        if any(self.longest % n for n in self.lengths):
            raise ValueError(f"under nonoverlapping, lengths {self.lengths} must all divide the longest")
        return self.longest

    def layout(self, length):
        return self.longest - np.arange(0, self.longest, length), length

    def measure(self, job, subject, found, trained):
        """Adds `edge` (blocks,): the loss in the last quarter of the training length."""
        losses = self.block_losses(job, subject, found)
        kept = {job.name: losses.mean(axis=(1, 2))}
        if job.length == trained:
            kept["edge"] = losses[:, :, -max(1, trained // 4) :].mean(axis=(1, 2))
        return kept

    def add_columns(self, rows, losses, found, trained):
        """Splits Δ into dilution and the rest, which is real. Longer windows bring dilution even where the losses by
        position stay as they are."""
        dilution = {n: (1 - trained / n) * (found["edge"] - losses[trained]) for n in losses if n > trained}
        bands = self.bands({n: losses[n] - losses[trained] - dilution[n] for n in dilution}, found)
        for n, (real, band, _) in bands.items():
            rows[n] |= {"dilution": float(dilution[n].mean()), "real": real, "real_band": band}

    def cell(self, row, is_training_length):
        text = super().cell(row, is_training_length)
        real = f"  real {row['real']:+.3f} {within(row['real_band'])}" if "real" in row else " " * 20
        return text if is_training_length else text + real


class Position(Protocol, name="position"):
    question = "the longest windows alone, by position: a row holds those from the length before it up to its own"
    options = ("threshold",)
    default_blocks = 64
    axis = "positions up to"
    targets = "{blocks} windows of {block_tokens:,} tokens"
    title = "Loss by position in one window that goes {past}"

    def choose_block_tokens(self, given):
        return self.longest

    def layout(self, length):
        return np.array([length]), length

    def jobs(self, found, trained, limit):
        return [Job("positions", super().jobs(found, trained, limit)[-1].length)]

    def measure(self, job, subject, found, trained):
        """`positions` (blocks, length): the loss at every position."""
        return {job.name: self.block_losses(job, subject, found)[:, 0]}

    def losses(self, found):
        positions = found["positions"]
        edges = [0, *(n for n in self.lengths if n <= positions.shape[-1])]
        return {n: positions[..., low:n].mean(axis=-1) for low, n in itertools.pairwise(edges)}

    def add_columns(self, rows, losses, found, trained):
        for n in losses:
            del rows[n]["bits_per_byte"]  # known for all targets, not for those of a row


class Context(Protocol, name="context"):
    question = "fixed, and again with all beyond the training length cut off, from another document, or shuffled"
    kinds = {  # of a context beyond the training length -> in words
        "cut": "none beyond the training length",
        "foreign": "another document's",
        "shuffled": "a shuffled one",
    }
    panels = {f"gain_over_{kind}": f"nats gained over {words}" for kind, words in kinds.items()}
    columns = f"the gain over {', over '.join(kinds.values())}, each with its 95% band"
    title = "What the context is worth {past}"
    identity = {"foreign": "neither of the window nor of its document"}

    def prepare(self, dataset, trained):
        found = super().prepare(dataset, trained)
        if len(np.unique(found["documents"])) < 2:
            raise ValueError("--protocol=context needs a text of several documents: all blocks are of one")
        return found

    def jobs(self, found, trained, limit):
        plain = [job for job in super().jobs(found, trained, limit) if job.length >= trained]
        further = [job.length for job in plain if job.length > trained]
        return plain + [Job(f"{kind}-{n}", n, kind) for kind in ("foreign", "shuffled") for n in further]

    def measure(self, job, subject, found, trained):
        other = foreign(subject.split, found["ends"], found["documents"], trained)
        change = {"": None, "foreign": other, "shuffled": shuffled(trained, self.seed)}[job.kind]
        return {job.name: self.block_losses(job, subject, found, change).mean(axis=(1, 2))}

    def add_columns(self, rows, losses, found, trained):
        """What the true context gains over each other one."""
        asked = [(kind, n) for kind in self.kinds for n in losses if n > trained]
        others = {(kind, n): losses[trained] if kind == "cut" else found[f"{kind}-{n}"] for kind, n in asked}
        bands = self.bands({(kind, n): others[kind, n] - losses[n] for kind, n in asked}, found)
        for (kind, n), (gain, band, _) in bands.items():
            rows[n] |= {f"gain_over_{kind}": gain, f"gain_over_{kind}_band": band}

    def shown(self):
        return [n for n in self.lengths if n >= min(self.training_lengths)]

    def cell(self, row, is_training_length):
        if "gain_over_cut" not in row:
            return super().cell(row, is_training_length)
        gains = (f"  {row[f'gain_over_{k}']:+.3f} {within(row[f'gain_over_{k}_band'])}" for k in self.kinds)
        return f"{row['loss']:.3f}" + "".join(gains)
