"""Exact answers past the training length:  python -m evaluation.answers out/task-alibi out/task-rope

For runs on a task of data/tasks.py: the share of exact answers to new examples, by their number of symbols, alone and
behind other examples, and the reach of each model. For runs on recall_char: the share of facts found, by how far back
they stand. Shares are means over the models of a row; the .json has those of each model.
"""

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

import config
from data import recall, tasks
from eval_length import choose_blocks, measure, print_table
from evaluation.rows import RunsConfig, Targets, by_number, open_runs, rows_of, save_results
from run.script import script

LEARNED = 0.99  # a model has learned a task if it answers this share of examples of trained lengths
REACH = 0.9  # a model reaches the longest examples of which it answers this share
FURTHER = (1.1, 1.2, 1.3, 1.4, 1.5, 1.75, 2, 3, 4)  # multiples of the longest trained length, by default


@dataclass(frozen=True)
class AnswersConfig(RunsConfig):
    lengths: str = ""  # symbols of an example, such as 20,40,80; for recall, characters back to a fact
    examples: config.Count = 200  # how many of each length
    seed: config.Seed = 1337  # for the examples


# ----------------------------------------------------------------------------------------------------------
# Questions: {name: (windows (examples, tokens), which of their last tokens are an answer (examples, scored))}


def encode(examples, tokenizer):
    """Questions and answers as they stand in the text, padded with separators: ids (examples, size), and which of them
    are an answer or the separator after it."""
    lines = [f"{question}>{answer}\n" for question, answer in examples]
    size = max(map(len, lines))
    ids = np.stack([tokenizer.encode(line.ljust(size, "\n")) for line in lines])
    is_answer = np.zeros(ids.shape, bool)
    for i, (question, _) in enumerate(examples):
        is_answer[i, len(question) + 1 : len(lines[i])] = True
    return torch.from_numpy(ids), is_answer


def task_questions(cfg, task, lengths, dataset, block_size):
    """Examples of a task: exact-20, alone in the window; exact_behind-20, behind block_size tokens of others; …"""
    encoded = {n: encode(tasks.fresh_examples(task, n, cfg.examples, cfg.seed), dataset.tokenizer) for n in lengths}
    longest = block_size + max(ids.shape[1] for ids, _ in encoded.values()) - 1
    places, _ = choose_blocks(dataset.val, longest, 1, cfg.examples, cfg.seed)
    separators = np.flatnonzero(dataset.val.tokens == dataset.tokenizer.encode("\n"))
    ends = separators[np.searchsorted(separators, places - longest + block_size) - 1]  # of the others
    questions = {}
    for n, (ids, is_answer) in encoded.items():
        for kind, size in {"exact": 1, "exact_behind": block_size}.items():
            others = dataset.val.windows(ends - size + 1, size - 1)  # alone: the separator
            questions[f"{kind}-{n}"] = torch.cat((others, ids), dim=1), is_answer
    return questions


def recall_questions(cfg, distances, dataset, block_size):
    """Questions whose facts stand 1 to 2 distances back, by distance."""
    questions = {}
    for distance in distances:
        size = max(block_size, 2 * distance) + 1
        random = recall.Random(cfg.seed * 2**16 + distance)
        texts = [recall.question(random, distance, size) for _ in range(cfg.examples)]
        windows = torch.from_numpy(np.stack([dataset.tokenizer.encode(text) for text in texts]))
        questions[str(distance)] = windows, np.ones((cfg.examples, 1), bool)
    return questions


# ----------------------------------------------------------------------------------------------------------
# Answers


def answer(cfg, questions_of, run):
    """{name: whether each answer of a run is exact (examples,)}, where its scheme is defined. questions_of: a function
    of the run's training length."""
    arrays = {}
    for name, (windows, is_answer) in questions_of(run.config.block_size).items():
        length = windows.size(1) - 1
        if length <= (run.config.max_positions or length):
            _, right = measure(cfg, run, windows, is_answer.shape[1])
            arrays[name] = (right.astype(bool) | ~is_answer).all(axis=1)
    return arrays


def trained_lengths(longest):
    """Symbols: always answered, because they decide which models have learned a task trained up to `longest`."""
    return max(1, longest // 4), max(1, longest // 2), longest


def learned(exact, longest=tasks.LONGEST):
    """Which models have learned the task: (seeds,)."""
    return np.concatenate([exact[n] for n in trained_lengths(longest)], axis=1).mean(axis=1) >= LEARNED


def reach(exact):
    """Of each model, the most symbols of which it answers the share REACH, or 0: (seeds,)."""
    return np.max([n * (right.mean(axis=1) >= REACH) for n, right in exact.items()], axis=0)


def print_shares(title, prefix, rows, results):
    """Prints the share of right answers of each row by length, and adds that of each model to its results."""
    cells = {}
    for name, row in rows.items():
        shares = {n: right.mean(axis=1) for n, right in by_number(row.arrays, prefix).items()}
        cells[name] = {n: f"{share.mean():.0%}" for n, share in shares.items()}
        results[name][title] = {n: share.tolist() for n, share in shares.items()}
    print_table(title, sorted(set().union(*cells.values())), cells)


def print_reach(rows, results, longest):
    """Prints how many models of each row have learned the task, and their reach, and adds both to its results."""
    print()
    for name, row in rows.items():
        exact = by_number(row.arrays, "exact-")
        results[name] |= {"learned": learned(exact, longest).tolist(), "reach": reach(exact).tolist()}
        reached = ", ".join(f"{n} ({n / longest:.3g}×)" for n in results[name]["reach"])
        n_learned = sum(results[name]["learned"])
        print(f"{name}: {n_learned} of {len(row.seeds)} models learned it; reach: {reached} symbols")
    print(f"\nreach of a model: the most symbols of which it answers {REACH:.0%} (×: times the trained {longest})")
    print(f"learned: a model answers {LEARNED:.0%} of the examples of a quarter, half and all of these {longest}")


def main(argv):
    cfg = config.load(AnswersConfig, argv, bare_field="runs")
    runs, kept, dataset = open_runs(cfg)
    lengths = [int(n) for n in cfg.lengths.split(",") if n.isdecimal()]
    is_recall = dataset.meta["source"]["text"] == recall.SOURCE
    if is_recall:
        lengths = lengths or [recall.NEAREST * 2**k for k in range(9)]
        questions_of = partial(recall_questions, cfg, lengths, dataset)
        titles = {"facts found from": ""}
    else:
        task, longest = tasks.task_of(dataset)
        lengths = lengths or [round(factor * longest) for factor in FURTHER]
        lengths = sorted({*trained_lengths(longest), *lengths})
        questions_of = partial(task_questions, cfg, task, lengths, dataset)
        for n in lengths:
            distinct = len({*tasks.fresh_examples(task, n, cfg.examples, cfg.seed)})
            if distinct < cfg.examples:
                print(f"note: of the {cfg.examples} examples of {n} symbols, {distinct} are different")
        titles = {f"exact {task}": "exact-", "behind other examples": "exact_behind-"}
    examples = np.arange(cfg.examples)
    targets = Targets(lengths, 1, cfg.seed, examples, examples)
    rows = rows_of(cfg, runs, dataset, targets, partial(answer, cfg, questions_of)) | kept

    results = {name: {"seeds": row.seeds} for name, row in rows.items()}
    for title, prefix in titles.items():
        print_shares(title, prefix, rows, results)
    if not is_recall:
        print_reach(rows, results, longest)
    print()
    save_results(cfg, "answers", dataset, results)
    return 0


if __name__ == "__main__":
    script(main)
