"""Recall at a distance: how often a model looks an answer up correctly, by how far back it was last stated."""

import itertools
import re

import numpy as np
import torch
import torch.nn.functional as F

from data import tuning_part
from evaluation.protocols import Job, Protocol, doublings
from evaluation.statistics import wilson
from evaluation.windows import predictions

MENTION = re.compile(r"(\d)([a-zA-Z])")  # a digit and its letter: first in a document a fact, from then on a question
NEAREST = 4  # tokens: a row holds the distances from one power of two to the next


def find_questions(split, tokenizer):
    """Every question of the text, (questions, 3): where its document begins, where its answer stands, and how many
    tokens lie between the question and the mention before. ValueError where tokens are not characters, where there is
    no question, or where a digit has two letters in one document."""
    found, different = [], False
    for first, last in itertools.pairwise([*split.docs, len(split.tokens)]):
        text, before = tokenizer.decode_bytes(split.tokens[first:last]).decode(errors="replace"), {}
        for mention in MENTION.finditer(text if len(text) == last - first else ""):
            digit, letter = mention.groups()
            if digit in before:
                different |= before[digit][2] != letter
                found.append((first, first + mention.end() - 1, mention.start() - before[digit].end()))
            before[digit] = mention
    if different or not found:
        how = "python data/recall_char/prepare.py, then python train.py config/recall.py config/alibi.py"
        raise ValueError(f"the text does not ask for facts: --protocol=recall needs a run on recall_char ({how})")
    return np.array(found)


def choose_questions(dataset, lengths, n, seed):
    """{distance: places of answers}: up to n questions for each distance up to twice that, no fact twice. lengths:
    {distance: length of the contexts}. Each context lies in its question's document and holds the fact."""
    questions = find_questions(dataset.val, dataset.tokenizer)
    begin, answer, distance = questions[questions[:, 1] >= tuning_part(len(dataset.val.tokens))].T
    facts = np.stack([begin, dataset.val.tokens[answer - 1]])
    rng, places = np.random.default_rng(seed), {}
    for nearest, length in lengths.items():
        fits = (distance >= nearest) & (distance < 2 * nearest) & (distance + 3 <= length) & (answer - begin >= length)
        shuffled = rng.permutation(np.flatnonzero(fits))
        _, one_of_each = np.unique(facts[:, shuffled], axis=1, return_index=True)
        places[nearest] = answer[np.sort(shuffled[rng.permutation(one_of_each)[:n]])]
    return places


class Recall(Protocol, name="recall", stem="recall"):
    question = "for a run on recall_char: how far back can an answer lie that the model looks up?"
    options = ()
    default_blocks = 200  # questions for each distance
    column, axis = "distance", "tokens from one mention to the next, at least"
    panels, headline = {"accuracy": "share of right answers"}, "accuracy"
    targets = "up to {blocks} questions for each distance"
    title = "Answers looked up at a distance, {past}"
    pools_seeds, apart = False, 1.04

    def prepare(self, dataset, trained):
        """`places-D` (questions,): where the answers stand that were last mentioned D to 2·D − 1 tokens before."""
        lengths = {d: max(trained, 2 * d) for d in self.shown()}
        places = choose_questions(dataset, lengths, self.blocks, self.seed)
        return {f"places-{d}": found for d, found in places.items()}

    def jobs(self, found, trained, limit):
        asked = [Job(str(d), max(trained, 2 * d)) for d in self.shown() if len(found[f"places-{d}"])]
        return [job for job in asked if limit is None or job.length <= limit]

    def units(self, job, found):
        return len(found[f"places-{job.name}"])

    def tokens(self, job, found):
        return self.units(job, found) * job.length

    def measure(self, job, subject, found, trained):
        """Whether each answer is right (questions,), and `loss-D`, its loss."""
        starts, right, losses = found[f"places-{job.name}"] - job.length, [], []
        for logits, answers in predictions(subject, starts, job.length, scored=1):
            right.append((logits.argmax(-1) == answers).cpu())
            losses.append(F.cross_entropy(logits, answers, reduction="none").cpu())
        return {job.name: torch.cat(right).numpy(), f"loss-{job.name}": torch.cat(losses).numpy()}

    def rows(self, found, trained):
        rows = dict.fromkeys(self.shown())
        for d in rows:
            if str(d) in found:
                right, loss = found[str(d)], float(found[f"loss-{d}"].mean())
                low, high = wilson(right.sum(), len(right))
                rows[d] = {"n": len(right), "accuracy": float(right.mean()), "low": low, "high": high, "loss": loss}
        return rows

    def about_text(self, found):
        return {}

    def heading(self, texts, pooled):
        return [
            f"recall on {', '.join(texts)}: {self.targets.format(**vars(self))}",
            "Share of right answers with Wilson's 95% interval, and the loss of answers in nats.",
        ]

    def shown(self):
        return doublings(NEAREST, self.longest // 2)

    def label(self, n):
        return f"{n}–{2 * n - 1}"

    def cell(self, row, is_training_length):
        return f"{row['accuracy']:.1%} [{row['low']:.1%}, {row['high']:.1%}] {row['loss']:.3f}"

    def interval(self, row, key):
        return row.get("low", np.nan), row.get("high", np.nan)
