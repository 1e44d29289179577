"""Recall at a distance: how often a model answers a question rightly, by how far back the fact was stated."""

import re

import numpy as np
import torch

import data
import run
from bands import wilson
from pictures import figure_of, length_axis, line_style, mark_training_length

FACT = re.compile(r"(\w+)=(\w+);")  # and, when it comes again, the question and its answer
NEAREST = 16  # tokens: a row holds the distances from one power of two to the next
MARGIN = 32  # tokens of context before the fact, at least


def find_questions(split, tokenizer):
    """(end of the answer, its length, distance) of every question of the text, (questions, 3): the distance is from the
    end of the fact to the question, in tokens. ValueError where there are none, or tokens are not characters."""
    found = []
    for first, last in zip(split.docs, [*split.docs[1:], len(split.tokens)], strict=True):
        text, known = tokenizer.decode_bytes(split.tokens[first:last]).decode(errors="replace"), {}
        if len(text) != last - first:
            raise ValueError("--recall needs a text by character: prepare data/recall_char and train on it")
        for match in FACT.finditer(text):
            name, answer = match.groups()
            if name in known:
                found.append((first + match.end(2), len(answer), match.start() - known.pop(name)))
            else:
                known[name] = match.end()
    if not found:
        raise ValueError("the text holds no questions: --recall needs a run on recall_char")
    return np.array(found)


@torch.no_grad()
def answers(model, split, questions, length, dtype):
    """Of questions (n, 3) in contexts of `length` tokens: whether each answer is right in every token, (n,), and its
    mean loss per token in nats, (n,)."""
    device, widest = next(model.parameters()).device, questions[:, 1].max()
    right, losses = [], []
    for some in np.split(questions, range(max(1, 2**14 // length), len(questions), max(1, 2**14 // length))):
        window = data.windows(split.tokens, some[:, 0] - 1 - length, length, model.config.vocab_size).to(device)
        targets = window[:, -widest:]
        with run.autocast(device, dtype):
            hidden = model.hidden(window[:, :-1], last=widest)
        logits = model.lm_head(hidden.float())
        own = torch.arange(widest, 0, -1) <= torch.from_numpy(some[:, 1:2])  # the answer's tokens, not those before it
        loss = torch.nn.functional.cross_entropy(logits.mT, targets, reduction="none").cpu()
        right.append(((logits.argmax(-1) == targets).cpu() | ~own).all(dim=1))
        losses.append((loss * own).sum(1) / own.sum(1))
    return torch.cat(right).numpy(), torch.cat(losses).numpy()


def measure(model, dataset, furthest, n, seed, dtype, label):
    """{distance: {"n", "accuracy", "low", "high", "loss"} or None where undefined}: a row holds the distances from that
    one to its double; the context reaches back beyond the fact, and to the training length at least."""
    split, trained, limit = dataset.val, model.config.block_size, model.pos.max_positions
    questions = find_questions(split, dataset.tokenizer)
    rng, rows, jobs = np.random.default_rng(seed), {}, []
    for nearest in NEAREST * 2 ** np.arange(64):
        if nearest >= furthest:
            break
        length = max(trained, 2 * nearest + MARGIN)
        fit = (questions[:, 2] >= nearest) & (questions[:, 2] < 2 * nearest) & (questions[:, 0] > length + 1)
        chosen = rng.permutation(np.flatnonzero(fit))[:n]
        rows[int(nearest)] = None
        if len(chosen) and (limit is None or length <= limit):
            jobs.append((int(nearest), int(length), questions[np.sort(chosen)]))
    progress = run.Progress(label, sum(length * len(chosen) for _, length, chosen in jobs))
    for nearest, length, chosen in jobs:
        right, losses = answers(model, split, chosen, length, dtype)
        low, high = wilson(right.sum(), len(right))
        rows[nearest] = {"n": len(right), "accuracy": float(right.mean()), "low": low, "high": high}
        rows[nearest]["loss"] = float(losses.mean())
        progress(length * len(chosen))
    progress.close()
    return rows


def table(results):
    """Distance × run: accuracy with its interval, and loss."""

    def cell(row):
        return f"{row['accuracy']:6.1%} [{row['low']:.1%}, {row['high']:.1%}]  {row['loss']:.3f}" if row else "—"

    distances, width = list(next(iter(results.values()))["rows"]), 34
    lines = [" " * 12 + "".join(f"{name:>{width}}" for name in results)]
    for d in distances:
        lines.append(f"{f'{d}–{2 * d - 1}':12}" + "".join(f"{cell(r['rows'][d]):>{width}}" for r in results.values()))
    return "\n".join(lines)


def draw(results, title):
    """Accuracy against distance, with Wilson's 95% intervals."""
    figure, (axes,) = figure_of(1, width=8, height=5, title=title)
    for i, (name, result) in enumerate(results.items()):
        rows = {d: row for d, row in result["rows"].items() if row}
        accuracy = np.array([row["accuracy"] for row in rows.values()])
        reach = [accuracy - [r["low"] for r in rows.values()], [r["high"] for r in rows.values()] - accuracy]
        axes.errorbar(list(rows), accuracy, yerr=np.maximum(reach, 0), capsize=3, label=name, **line_style(i))
    length_axis(axes, list(next(iter(results.values()))["rows"]), "distance from the fact to the question (tokens)")
    for n in sorted({r["training_length"] for r in results.values()}):
        mark_training_length(axes, n)
    axes.set_ylabel("answers right in every character")
    axes.legend(frameon=False)
    return figure
