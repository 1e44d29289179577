"""Recall at a distance: how often a model finds an answer, by how far back in the context the answer is stated."""

import itertools
import re

import numpy as np
import torch

from data import tuning_part
from evaluation.protocols import Protocol, doublings
from evaluation.statistics import wilson
from evaluation.windows import score

MENTION = re.compile(r"(\d)([a-zA-Z])")  # a digit and its letter: the first time a fact, from then on a question
SIGNS = ".0123456789"  # the filler between mentions, and the digits
NEAREST = 4  # tokens: a row holds the distances from one power of two to the next


def find_questions(split, tokenizer):
    """Every question of the text, (questions, 2): the start of its document, and the place of its answer. ValueError if
    tokens are not characters, if there is no question, or if a digit has two letters in one document."""
    found, consistent = [], True
    for first, last in itertools.pairwise([*split.docs, len(split.tokens)]):
        text, letters = tokenizer.decode_bytes(split.tokens[first:last]).decode(errors="replace"), {}
        for mention in MENTION.finditer(text if len(text) == last - first else ""):
            digit, letter = mention.groups()
            if digit in letters:
                found.append((first, first + mention.end() - 1))
            consistent &= letters.setdefault(digit, letter) == letter
    if not (consistent and found):
        how = "python -m data.prepare recall, then python train.py config/recall.py config/alibi.py"
        raise ValueError(f"the text does not ask for facts: --protocol=recall needs a run on recall_char ({how})")
    return np.array(found)


def choose_questions(dataset, longest, n, seed):
    """The places of the answers of up to n questions, and the starts of their documents. Each answer has `longest`
    tokens of its document before it, and no fact is asked twice. ValueError if there is no such question."""
    start, answer = find_questions(dataset.val, dataset.tokenizer).T
    fits = np.flatnonzero((answer - start >= longest) & (answer >= tuning_part(len(dataset.val.tokens))))
    if not len(fits):
        raise ValueError(f"no question has {longest:,} tokens of its document before it: choose shorter --lengths")
    rng = np.random.default_rng(seed)
    shuffled = rng.permutation(fits)
    facts = np.stack([start, dataset.val.tokens[answer - 1]])[:, shuffled]
    _, one_of_each = np.unique(facts, axis=1, return_index=True)
    chosen = np.sort(shuffled[rng.permutation(one_of_each)[:n]])
    return answer[chosen], start[chosen]


def planted(signs, distances):
    """A `change` of windows that end with a question and its answer: it removes all mentions of the question's digit
    from the context, and plants one so that distances[i] tokens lie between it and the question of window i. signs: the
    ids of SIGNS."""
    filler, *digits = signs.tolist()

    def change(row, i):
        fact = row[-2:].clone()  # the digit and its letter
        for place in torch.nonzero(row[:-2] == fact[0])[:, 0]:
            row[place : min(place + 2, len(row) - 2)] = filler
        place = len(row) - 4 - distances[i]
        if place and row[place - 1] in digits:  # neither half of another mention may stay
            row[place - 1] = filler
        if row[place + 1] in digits:
            row[place + 2] = filler
        row[place : place + 2] = fact

    return change


class Recall(Protocol, name="recall", stem="recall"):
    question = "for a run on recall_char: how far back in the context does the model find an answer?"
    options = ("max_position", "sinks")
    default_blocks = 200  # questions
    column, axis = "distance ≥", "tokens from the fact to the question, at least"
    panels, headline = {"accuracy": "share of right answers"}, "accuracy"
    targets = "up to {blocks} questions, the same at every distance; the context states the fact once"
    cells = "the share of right answers, its 95% interval, and the loss of the answers in nats"
    uncertainty = (
        "Intervals of one run: over the choice of questions (Wilson); of several seeds: over documents and seeds."
    )
    apart = 1.04
    identity = {"questions": "planted once, with the longest context before all of them"}

    def prepare(self, dataset, trained):
        """`ends` (questions,): the places of the answers; `documents`: the starts of their documents; `signs`: the ids
        of SIGNS."""
        ends, documents = choose_questions(dataset, self.longest, self.blocks, self.seed)
        signs = dataset.tokenizer.encode(SIGNS)
        return {"ends": ends, "documents": documents, "signs": signs, "bytes_per_token": 1.0, "crossing": 0.0}

    def jobs(self, trained, limit):
        """One for each distance, with contexts that are just long enough."""
        lengths = {str(d): max(trained, 2 * d) for d in self.shown()}
        return {d: length for d, length in lengths.items() if limit is None or length <= limit}

    def measure(self, job, length, subject, found, trained):
        """Whether each answer is right (questions,), and `loss-D`, its loss. The facts stand D to 2D tokens back."""
        d = int(job)
        rng = np.random.default_rng((self.seed, d))
        distances = rng.integers(d, min(2 * d, length - 2), size=len(found["ends"]))
        change = planted(found["signs"], distances)
        losses, right = score(subject, found["ends"] - length, length, scored=1, change=change)
        return {job: right[:, 0], f"loss-{job}": losses[:, 0]}

    def losses(self, found):
        """{distance: whether each answer is right}, as numbers."""
        return {d: found[str(d)].astype(float) for d in self.shown() if str(d) in found}

    def rows(self, found, trained):
        """One run has Wilson's interval, over questions. Several seeds have the interval over documents and seeds, or
        Wilson's if that is wider: the first is 0 wide if all answers are right, although that may be luck."""
        rows, losses = dict.fromkeys(self.shown()), self.losses(found)
        bands = self.bands({d: right for d, right in losses.items() if right.ndim > 1}, found)
        for d, right in losses.items():
            share, n = right.mean(), right.shape[-1]
            _, width, _ = bands.get(d, (share, np.nan, {}))
            low, high = wilson(share * n, n)
            low, high = max(0.0, np.fmin(low, share - width)), min(1.0, np.fmax(high, share + width))  # ignores NaN
            loss = found.get(f"loss-{d}", np.full(1, np.nan)).mean()  # older kept lines have none
            rows[d] = {"n": n, "accuracy": share, "low": low, "high": high, "loss": float(loss)}
        return rows

    def shown(self):
        return doublings(NEAREST, self.longest // 2)

    def cell(self, row, is_training_length):
        loss = "—" if np.isnan(row["loss"]) else f"{row['loss']:.3f}"
        return f"{row['accuracy']:.1%} [{row['low']:.1%}, {row['high']:.1%}] {loss}"

    def interval(self, row, key):
        return row["low"], row["high"]
