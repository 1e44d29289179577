"""Exact answers: to the tasks of data/tasks.py by the number of symbols, and to the questions of data/recall.py by the
distance of the fact."""

from dataclasses import replace

import numpy as np
import torch

from data import recall, tasks
from evaluation.protocols import Protocol, choose_lengths
from evaluation.statistics import wilson
from evaluation.windows import Blocks

LENGTHS = "5,10,20,40,80,160"  # symbols, by default: from a quarter of tasks.LONGEST to 8 times as many
LEARNED = 0.99  # a model has learned a task if it answers this share of the examples up to tasks.LONGEST symbols


def check_source(dataset, sources, name, text):
    """ValueError unless a dataset has the text of one of the sources, by character. name: of the protocol, and of the
    config file for the text."""
    source = dataset.meta["source"]
    if source["text"] not in sources or source["tokenizer"] != "char":
        raise ValueError(
            f"--protocol={name} is not for a run on {dataset.name}, or its text was made by another rule than today's: "
            f"python -m data.prepare {text} (--overwrite), then python train.py config/{name}.py config/alibi.py"
        )


class Answers:
    """What the protocols share whose values are shares of right answers, except the losses."""

    has_block_tokens = False
    default_blocks = 200
    ranked = False

    def bounds(self, key, values, documents):
        """The share of right answers has Wilson's interval, or that over documents and seeds if it is wider: that one
        is 0 wide if all answers are right, although that may be luck."""
        mean, low, high = super().bounds(key, values, documents)
        if key.startswith("loss"):
            return mean, low, high
        n = values.shape[1]
        wilson_low, wilson_high = wilson(mean * n, n)
        if len(values) == 1 or np.isnan(low):
            return mean, wilson_low, wilson_high
        return mean, max(0.0, min(low, wilson_low)), min(1.0, max(high, wilson_high))

    def cell(self, key, value, is_training_length):
        if key == "loss":
            return super().cell(key, value, is_training_length)
        return f"{value['mean']:.1%} [{value['low']:.1%}, {value['high']:.1%}]"


def encode(examples, tokenizer):
    """Questions and answers as they stand in the text, padded with separators: ids (examples, size), and which of them
    are an answer or the separator after it."""
    lines = [f"{question}>{answer}\n" for question, answer in examples]
    size = max(map(len, lines))
    ids = np.stack([tokenizer.encode(line.ljust(size, "\n")) for line in lines])
    is_answer = np.zeros(ids.shape, bool)
    for i, (question, _) in enumerate(examples):
        is_answer[i, len(question) + 1 : len(lines[i])] = True
    return ids, is_answer


def exact_of(arrays):
    """{symbols of an example: whether each answer is exact, (seeds, examples)}, of examples alone in the window."""
    return {int(name.removeprefix("exact-")): exact for name, exact in arrays.items() if name.startswith("exact-")}


def learned(arrays):
    """Which seeds have learned the task: (seeds,)."""
    exact = [exact for n, exact in exact_of(arrays).items() if n <= tasks.LONGEST]
    return np.concatenate(exact, axis=1).mean(axis=1) >= LEARNED


class Task(Answers, Protocol, name="task", stem="task"):
    question = "For a run on a task such as copy_char: are the answers still exact when the examples are longer?"
    column = "symbols"
    axis = "symbols of an example"
    columns = {"exact": "", "tokens": "tokens", "exact_behind": "exact behind others"}
    panels = {"exact": "share of exact answers", "exact_behind": "share of exact answers behind other examples"}
    targets = "{n_blocks} new examples of each length"
    legend = (
        "The share of exact answers, the share of their tokens that are right, and the share of exact answers\n"
        "behind block_size tokens of short examples. Learned: right in 99% of the examples up to the training length.\n"
        "Seeds that have not learned the task are left out of the means, unless no seed has"
    )

    def __init__(self, cfg, training_lengths, dataset):
        names = {tasks.source_of(name): name for name in tasks.TASKS}
        check_source(dataset, names, "task", "copy")
        task = names[dataset.meta["source"]["text"]]
        self.question = f"{task}: are the answers still exact when the examples are longer?"
        cfg = replace(cfg, lengths=cfg.lengths or LENGTHS, blocks=cfg.blocks or self.default_blocks)
        self.block_size = max(training_lengths)
        self.examples = {}  # number of symbols -> ids, is_answer
        self.sizes = {}  # number of symbols -> tokens
        for n in choose_lengths(cfg.lengths, {tasks.LONGEST}):
            examples = tasks.fresh_examples(task, n, cfg.blocks, cfg.seed)
            ids, is_answer = encode(examples, dataset.tokenizer)
            self.examples[n] = ids, is_answer
            self.sizes[n] = ids.shape[1]
        if min(training_lengths) < self.sizes[tasks.LONGEST]:
            raise ValueError(
                f"block_size={min(training_lengths)} is shorter than an example of {tasks.LONGEST} symbols"
            )
        super().__init__(cfg, {tasks.LONGEST}, dataset)

    @property
    def longest(self):
        """In tokens."""
        return self.block_size + max(self.sizes.values()) - 1

    def choose_blocks(self):
        """The places in the text where examples begin, with room for others to be put there."""
        blocks = super().choose_blocks()
        separators = np.flatnonzero(self.dataset.val.tokens == self.dataset.tokenizer.encode("\n"))
        following = np.searchsorted(separators, blocks.ends - self.longest + self.block_size)
        return replace(blocks, ends=separators[following - 1] + 1)

    def contexts(self, config):
        """Two for each length: the example behind one separator, and behind block_size tokens of the text."""
        lengths = {}
        for n, size in self.sizes.items():
            lengths[f"exact-{n}"] = size
            lengths[f"exact_behind-{n}"] = config.block_size + size - 1
        return lengths

    def measure(self, job, length, scorer):
        """(examples,) each: whether all tokens of the answer are right, and the share that is."""
        key, n = job.split("-")
        ids, is_answer = self.examples[int(n)]
        size = self.sizes[int(n)]
        windows = self.dataset.val.windows(self.blocks.ends + size - 1 - length, length)
        windows[:, -size:] = torch.from_numpy(ids)
        _, right = scorer.score(windows, size)
        kind = key.removeprefix("exact")
        return {
            job: (right | ~is_answer).all(axis=1),
            f"tokens{kind}-{n}": np.average(right, axis=1, weights=is_answer),
        }

    def note(self, arrays):
        seeds = learned(arrays)
        return f" (learned {seeds.sum()} of {len(seeds)})"

    def values(self, arrays, trained):
        """Of the seeds that have learned the task, or of all if none has."""
        seeds = learned(arrays)
        chosen = seeds | ~seeds.any()
        values = {}
        for key in ("exact", "exact_behind", "tokens", "tokens_behind"):
            shown = [n for n in self.lengths if f"{key}-{n}" in arrays]
            values[key] = {n: arrays[f"{key}-{n}"][chosen] for n in shown}
        return values


class Recall(Answers, Protocol, name="recall", stem="recall"):
    question = "For a run on recall_char: how far back in the context does the model find an answer?"
    column = "distance ≥"
    axis = "tokens from the fact to the question, at least"
    columns = {"accuracy": ""}
    panels = {"accuracy": "share of right answers"}
    targets = "{n_blocks} questions at every distance; the context states the fact once"
    legend = "The share of right answers with its interval (one run: Wilson's, over questions)"
    version = 3  # questions are generated

    def choose_blocks(self):
        check_source(self.dataset, [recall.SOURCE], "recall", "recall")
        return Blocks(np.arange(self.n_blocks), np.arange(self.n_blocks))  # each question has a text of its own

    @property
    def shown(self):
        n = self.longest // 2 // recall.NEAREST
        return [recall.NEAREST * 2**i for i in range(n.bit_length())]

    def contexts(self, config):
        """One for each distance, just long enough."""
        return {str(d): max(config.block_size, 2 * d) for d in self.shown}

    def windows(self, job, length, trained):
        random = recall.Random(self.seed * 2**16 + int(job))
        texts = [recall.question(random, int(job), length + 1) for _ in range(self.n_blocks)]
        return torch.from_numpy(np.stack([self.dataset.tokenizer.encode(text) for text in texts]))

    def measure(self, job, length, scorer):
        """Whether each answer is right (questions,). The facts stand D to 2D tokens back."""
        _, right = scorer.score(self.windows(job, length, scorer.trained), 1)
        return {job: right[:, 0]}

    def values(self, arrays, trained):
        return {"accuracy": {d: arrays[str(d)] for d in self.shown if str(d) in arrays}}
