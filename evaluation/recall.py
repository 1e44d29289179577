"""Recall at a distance: how often a model finds an answer, by how far back in the context the answer is stated."""

import itertools
import re

import numpy as np
import torch

from data import tuning_part
from data.recall import SOURCE
from evaluation.protocols import Protocol
from evaluation.statistics import wilson
from evaluation.windows import Blocks

MENTION = re.compile(r"(\d)([a-zA-Z])")  # a digit and its letter: the first time a fact, from then on a question
SIGNS = ".0123456789"  # the filler between mentions, and the digits
NEAREST = 4  # tokens: a row holds the distances from one power of two to the next


def find_questions(split, tokenizer):
    """Every question of the text, (questions, 2): the start of its document, and the place of its answer."""
    questions = []
    for first, last in itertools.pairwise([*split.docs, len(split.tokens)]):
        text = tokenizer.decode_bytes(split.tokens[first:last]).decode()
        facts = {}  # digit -> its first mention
        for mention in MENTION.finditer(text):
            fact = facts.setdefault(mention[1], mention)
            if mention is not fact:
                questions.append((first, first + mention.end() - 1))
    return np.array(questions)


def choose_questions(dataset, longest, n, seed):
    """The places of the answers of up to n questions, and the starts of their documents. Each answer has `longest`
    tokens of its document before it, and no fact is asked twice. ValueError if there is no such question."""
    start, answer = find_questions(dataset.val, dataset.tokenizer).T
    fits = np.flatnonzero((answer - start >= longest) & (answer >= tuning_part(len(dataset.val.tokens))))
    if not len(fits):
        raise ValueError(f"no question has {longest:,} tokens of its document before it: choose shorter --lengths")
    rng = np.random.default_rng(seed)
    order = rng.permutation(fits)
    facts = np.stack([start, dataset.val.tokens[answer - 1]])[:, order]
    _, one_of_each = np.unique(facts, axis=1, return_index=True)  # a random question of each fact
    chosen = np.sort(order[rng.permutation(one_of_each)[:n]])
    return answer[chosen], start[chosen]


def planted(signs, distances):
    """A `change` of windows that end with a question and its answer: it removes all mentions of the question's digit
    from the context, and plants one so that distances[i] tokens lie between it and the question of window i. signs: the
    ids of SIGNS."""
    filler, *digits = signs.tolist()

    def change(row, i):
        fact = row[-2:]  # the digit and its letter
        for place in torch.nonzero(row[:-2] == fact[0])[:, 0]:
            row[place : min(place + 2, len(row) - 2)] = filler
        # the end of a row: digit and letter, `distance` tokens, digit and letter
        place = len(row) - 4 - distances[i]
        if place and row[place - 1] in digits:  # neither half of another mention may stay
            row[place - 1] = filler
        if row[place + 1] in digits:
            row[place + 2] = filler
        row[place : place + 2] = fact

    return change


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


class Recall(Answers, Protocol, name="recall", stem="recall"):
    question = "For a run on recall_char: how far back in the context does the model find an answer?"
    column = "distance ≥"
    axis = "tokens from the fact to the question, at least"
    columns = {"accuracy": "", "loss": "loss"}
    panels = {"accuracy": "share of right answers"}
    targets = "up to {n_blocks} questions, the same at every distance; the context states the fact once"
    legend = "The share of right answers with its interval (one run: Wilson's, over questions), and their loss in nats"
    version = 2  # a fact is planted once, after its other mentions have been removed from the longest context

    def choose_blocks(self):
        """The places of the answers, and the starts of their documents."""
        check_source(self.dataset, [SOURCE], "recall", "recall")
        return Blocks(*choose_questions(self.dataset, self.longest, self.n_blocks, self.seed))

    @property
    def shown(self):
        n = self.longest // 2 // NEAREST
        return [NEAREST * 2**i for i in range(n.bit_length())]

    def contexts(self, config):
        """One for each distance, just long enough."""
        return {str(d): max(config.block_size, 2 * d) for d in self.shown}

    def measure(self, job, length, scorer):
        """Whether each answer is right (questions,), and `loss-D`, its loss. The facts stand D to 2D tokens back."""
        d = int(job)
        rng = np.random.default_rng((self.seed, d))
        distances = rng.integers(d, min(2 * d, length - 2), size=len(self.blocks.ends))
        change = planted(self.dataset.tokenizer.encode(SIGNS), distances)
        losses, right = scorer.score(self.blocks.ends - length, length, 1, change)
        return {job: right[:, 0], f"loss-{job}": losses[:, 0]}

    def values(self, arrays, trained):
        right = {d: arrays[str(d)] for d in self.shown if str(d) in arrays}
        losses = {d: arrays[f"loss-{d}"] for d in right if f"loss-{d}" in arrays}
        return {"accuracy": right, "loss": losses}
