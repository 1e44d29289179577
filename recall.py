"""Recall at a distance: how often a model looks an answer up rightly, by how far back it was last stated."""

import functools
import itertools
import json
import re
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

import data
import run
from bands import wilson
from pictures import figure_of, length_axis, line_style, mark_training_length

MENTION = re.compile(
    r"(\d)([a-zA-Z])"
)  # of a digit and its letter: the first in a document is a fact, further ones ask
QUESTIONS = 200  # of a row
NEAREST = 4  # tokens: a row holds the distances from one power of two to the next


def find_questions(split, tokenizer):
    """(document's begin, answer, distance) of every question of the text, (questions, 3): the answer's place, and how
    many tokens lie between the mention before and the question. ValueError where tokens are not characters, none asks,
    or a digit has two letters in one document."""
    found, different = [], False
    for first, last in itertools.pairwise([*split.docs, len(split.tokens)]):
        text, before = tokenizer.decode_bytes(split.tokens[first:last]).decode(errors="replace"), {}
        for mention in MENTION.finditer(text if len(text) == last - first else ""):
            digit, letter = mention.groups()
            known, end = before.get(digit, (letter, None))
            different |= letter != known
            if end is not None:
                found.append((first, first + mention.end() - 1, mention.start() - end))
            before[digit] = letter, mention.end()
    if different or not found:
        raise ValueError(
            "the text does not ask for facts: --recall needs a run on recall_char "
            "(python data/recall_char/prepare.py, then python train.py config/recall.py config/alibi.py)"
        )
    return np.array(found)


@torch.no_grad()
def answers(model, split, places, length, dtype):
    """Of answers at `places` (n,), in contexts of `length` tokens: whether each is right (n,) and its loss (n,)."""
    device, right, losses = model.lm_head.weight.device, [], []
    rows = max(1, 2**14 // length)
    for some in np.split(places, range(rows, len(places), rows)):
        window = data.windows(split.tokens, some - length, length, model.config.vocab_size).to(device)
        with run.autocast(device, dtype):
            hidden = model.hidden(window[:, :-1], last=1)[:, 0]
        logits = model.lm_head(hidden.float())
        right.append((logits.argmax(-1) == window[:, -1]).cpu())
        losses.append(F.cross_entropy(logits, window[:, -1], reduction="none").cpu())
    return torch.cat(right).numpy(), torch.cat(losses).numpy()


def choose_questions(dataset, trained, furthest, n, seed):
    """{distance: (length, places)}: up to n questions whose distance is from that one to its double, each of another
    fact, and the length of their contexts: enough for what is asked, the training length at least, and all of it in
    the question's document."""
    begin, answer, distance = find_questions(dataset.val, dataset.tokenizer).T
    facts = np.stack([begin, dataset.val.tokens[answer - 1]])
    rng, rows = np.random.default_rng(seed), {}
    for nearest in itertools.takewhile(lambda d: 2 * d <= furthest, (NEAREST * 2**i for i in itertools.count())):
        length = max(trained, 2 * nearest)
        fits = (distance >= nearest) & (distance < 2 * nearest) & (distance + 3 <= length) & (answer - begin >= length)
        shuffled = rng.permutation(np.flatnonzero(fits))
        _, one_of_each = np.unique(facts[:, shuffled], axis=1, return_index=True)
        rows[nearest] = length, answer[np.sort(shuffled[rng.permutation(one_of_each)[:n]])]
    return rows


def measure(model, split, questions, dtype, label, adapt=lambda length: None):
    """{distance: {"n", "accuracy", "low", "high", "loss"}, or None where undefined or never asked}. adapt(length) makes
    the model ready for contexts of that length."""
    limit, rows = model.pos.max_positions, dict.fromkeys(questions)
    asked = {d: q for d, q in questions.items() if len(q[1]) and (limit is None or q[0] <= limit)}
    progress = run.Progress(label, sum(length * len(places) for length, places in asked.values()))
    for nearest, (length, places) in asked.items():
        adapt(length)
        right, losses = answers(model, split, places, length, dtype)
        low, high = wilson(right.sum(), len(right))
        rows[nearest] = {"n": len(right), "accuracy": float(right.mean()), "low": low, "high": high}
        rows[nearest]["loss"] = float(losses.mean())
        progress(length * len(places))
    progress.close()
    return rows


def table(results):
    """Distance × run: accuracy with its interval, and loss."""

    def cell(row):
        return f"{row['accuracy']:.1%} [{row['low']:.1%}, {row['high']:.1%}] {row['loss']:.3f}" if row else "—"

    distances, width = list(next(iter(results.values()))["rows"]), 30
    names, tables = list(results), []
    for some in (names[i : i + 3] for i in range(0, len(names), 3)):
        lines = [f"{'distance':>11}" + "".join(f"{name:>{width}}" for name in some)]
        for d in distances:
            cells = "".join(f"{cell(results[name]['rows'][d]):>{width}}" for name in some)
            lines.append(f"{f'{d}–{2 * d - 1}':>11}" + cells)
        tables.append("\n".join(lines))
    return "\n\n".join(tables)


def draw(results, title):
    """Accuracy against distance, with Wilson's 95% intervals."""
    figure, (axes,) = figure_of(1, width=8, height=5, title=title)
    for i, (name, result) in enumerate(results.items()):
        rows = {d: row for d, row in result["rows"].items() if row}
        accuracy = np.array([row["accuracy"] for row in rows.values()])
        reach = [accuracy - [r["low"] for r in rows.values()], [r["high"] for r in rows.values()] - accuracy]
        beside = np.array(list(rows)) * 1.04 ** (i - (len(results) - 1) / 2)  # so that none hides another
        axes.errorbar(beside, accuracy, yerr=np.maximum(reach, 0), capsize=3, label=name, **line_style(i))
    length_axis(axes, list(next(iter(results.values()))["rows"]), "tokens from one mention to the next, at least")
    for n in sorted({r["training_length"] for r in results.values()}):
        mark_training_length(axes, n)
    axes.set_ylabel("answers that are right")
    axes.legend(frameon=False)
    return figure


def evaluate(cfg, runs, furthest, variant, tracker_of):
    """--recall of eval_length.py: accuracy by distance, up to `furthest` tokens, as a table, a picture, numbers and in
    wandb. Returns the exit status."""
    device, n = run.pick_device(cfg.device), cfg.blocks or QUESTIONS
    dtype, results, closing = run.pick_dtype(cfg.dtype, device), {}, []
    questions = []
    for _, checkpoint in runs:  # what does not fit is told before any is measured
        trained = run.overridden(checkpoint, cfg, furthest).block_size
        questions.append(choose_questions(checkpoint["dataset"], trained, furthest, n, cfg.seed))
    for (name, checkpoint), asked in zip(runs, questions, strict=True):
        model = run.load_model(checkpoint, device)
        adapt = functools.partial(run.override, model, checkpoint, cfg)
        rows = measure(model, checkpoint["dataset"].val, asked, dtype, name, adapt)
        scheme, trained = model.config.pos_scheme, model.config.block_size
        results[name] = {"pos_scheme": scheme, "training_length": trained, "rows": rows}
        tracker = tracker_of(cfg, name, checkpoint, variant, {"recall": "recall/distance"})
        for distance, row in rows.items():
            if row:
                tracker.log({"recall/distance": distance} | {f"recall/{key}": value for key, value in row.items()})
        closing = tracker.finish()
    texts = ", ".join(dict.fromkeys(checkpoint["dataset"].name for _, checkpoint in runs))
    title = f"recall on {texts}: up to {n} questions of each distance"
    print(f"\n{title}\nShare of right answers with Wilson's 95% interval, and the loss of answers in nats.\n")
    print(f"{table(results)}\n")
    base = Path(cfg.results_dir) / (variant if len(runs) > 1 else f"{variant}-{runs[0][0]}")
    run.write_atomically(Path(f"{base}.json"), json.dumps({"runs": results}, indent=1, allow_nan=False))
    draw(results, title).savefig(f"{base}.png", dpi=150)
    print("\n".join([f"picture   {base}.png", f"numbers   {base}.json", *closing]))
    return 0
