"""Exact answers past the training length:  python -m evaluation.answers out/task-alibi out/task-rope

For runs on a task of data/tasks.py: the share of exact answers to new examples, by their number of symbols, alone and
behind other examples, and the reach of each model. For runs on recall_char: the share of facts found, by how far back
they stand. Models that have not learned the task are left out of the means, unless no model of a row has.
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

TRAINED = (5, 10, tasks.LONGEST)  # symbols: always answered, because they decide which models have learned the task
LEARNED = 0.99  # a model has learned a task if it answers this share of the examples of TRAINED
REACH = 0.9  # a model reaches the longest examples of which it answers this share
FURTHER = (22, 24, 26, 28, 30, 35, 40, 60, 80)  # symbols, by default
BEHIND = "_behind"  # in the name of an array: behind block_size tokens of other examples


@dataclass(frozen=True)
class AnswersConfig(RunsConfig):
    lengths: str = ""  # symbols of an example, such as 20,40,80; for recall, characters back to a fact
    examples: int = 200  # how many of each length
    seed: config.Seed = 1337  # for the examples

    def __post_init__(self):
        super().__post_init__()
        config.at_least(2, self, "examples")


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


def places(split, separator, longest, block_size, cfg):
    """Where examples begin in the text, (examples,): each behind a separator, with block_size tokens before it."""
    ends, _ = choose_blocks(split, longest, 1, cfg.examples, cfg.seed)
    separators = np.flatnonzero(split.tokens == separator)
    following = np.searchsorted(separators, ends - longest + block_size)
    return separators[following - 1] + 1


def answer_task(cfg, task, lengths, dataset, run):
    """{name: whether each answer of a run is exact (examples,)}: exact-20, exact_behind-20, …"""
    block_size = run.config.block_size
    encoded = {n: encode(tasks.fresh_examples(task, n, cfg.examples, cfg.seed), dataset.tokenizer) for n in lengths}
    longest = block_size + max(ids.shape[1] for ids, _ in encoded.values()) - 1
    separator = dataset.tokenizer.encode("\n")
    starts = places(dataset.val, separator, longest, block_size, cfg)
    arrays = {}
    for n, (ids, is_answer) in encoded.items():
        size = ids.shape[1]
        for kind, context in {"": 1, BEHIND: block_size}.items():
            length = context + size - 1
            if length <= (run.config.max_positions or length):
                windows = torch.cat((dataset.val.windows(starts - context, context - 1), ids), dim=1)
                _, right = measure(cfg, run, windows, size)
                arrays[f"exact{kind}-{n}"] = (right | ~is_answer).all(axis=1)
    return arrays


def answer_recall(cfg, distances, dataset, run):
    """{distance: whether each fact is found (examples,)} by a run. Facts stand 1 to 2 distances back."""
    arrays = {}
    for distance in distances:
        length = max(run.config.block_size, 2 * distance)
        if length <= (run.config.max_positions or length):
            random = recall.Random(cfg.seed * 2**16 + distance)
            texts = [recall.question(random, distance, length + 1) for _ in range(cfg.examples)]
            windows = torch.from_numpy(np.stack([dataset.tokenizer.encode(text) for text in texts]))
            _, right = measure(cfg, run, windows, 1)
            arrays[str(distance)] = right[:, 0]
    return arrays


def learned(exact):
    """Which models have learned the task: (seeds,)."""
    return np.concatenate([exact[n] for n in TRAINED], axis=1).mean(axis=1) >= LEARNED


def reach(exact):
    """Of each model, the most symbols of which it answers the share REACH, or 0: (seeds,)."""
    return np.max([n * (right.mean(axis=1) >= REACH) for n, right in exact.items()], axis=0)


def print_shares(title, rows, prefix, counted):
    """Prints the mean shares of right answers by length, over the models that are `counted` in each row. Returns the
    share of each model, {name: {length: [share, …]}}."""
    cells = {}
    shares = {}
    for name, row in rows.items():
        shares[name] = {n: right.mean(axis=1) for n, right in by_number(row.arrays, prefix).items()}
        cells[name] = {n: f"{share[counted[name]].mean():.0%}" for n, share in shares[name].items()}
    print_table(title, sorted(set().union(*cells.values())), cells)
    return {name: {n: share.tolist() for n, share in by_length.items()} for name, by_length in shares.items()}


def report_task(task, rows):
    """Prints the answers to a task. Returns what is shown of each row, as plain types."""
    results = {}
    counted = {}
    for name, row in rows.items():
        exact = by_number(row.arrays, "exact-")
        has_learned = learned(exact)
        counted[name] = has_learned | ~has_learned.any()
        results[name] = {"seeds": row.seeds, "learned": has_learned.tolist(), "reach": reach(exact).tolist()}
    for title, prefix in {f"exact {task}": "exact-", "behind other examples": f"exact{BEHIND}-"}.items():
        for name, shares in print_shares(title, rows, prefix, counted).items():
            results[name][title] = shares
    print()
    for name, result in results.items():
        reached = ", ".join(map(str, result["reach"]))
        print(f"{name}: {sum(result['learned'])} of {len(result['seeds'])} models learned it; reach: {reached} symbols")
    print(f"\nreach of a model: the most symbols of which it answers {REACH:.0%}")
    print(f"learned: a model answers {LEARNED:.0%} of the examples of {', '.join(map(str, TRAINED))} symbols")
    return results


def main(argv):
    cfg = config.load(AnswersConfig, argv, bare_field="runs")
    runs, kept, dataset = open_runs(cfg)
    given = [int(n) for n in cfg.lengths.split(",") if n.isdecimal()]
    is_recall = dataset.meta["source"]["text"] == recall.SOURCE
    if is_recall:
        if dataset.tokenizer.spec["kind"] != "char":
            raise ValueError(f"{dataset.name} is not in characters: python -m data.prepare recall")
        lengths = given or [recall.NEAREST * 2**k for k in range(9)]
        answer = partial(answer_recall, cfg, lengths, dataset)
    else:
        task = tasks.task_of(dataset)
        lengths = sorted({*TRAINED, *(given or FURTHER)})
        for n in lengths:
            distinct = len({*tasks.fresh_examples(task, n, cfg.examples, cfg.seed)})
            if distinct < cfg.examples:
                print(f"note: of the {cfg.examples} examples of {n} symbols, {distinct} are different")
        answer = partial(answer_task, cfg, task, lengths, dataset)
    examples = np.arange(cfg.examples)
    rows = rows_of(cfg, runs, dataset, Targets(lengths, 1, cfg.seed, examples, examples), answer) | kept
    if is_recall:
        everyone = {name: np.ones(len(row.seeds), bool) for name, row in rows.items()}
        results = print_shares("facts found from", rows, "", everyone)
    else:
        results = report_task(task, rows)
    print()
    save_results(cfg, "answers", dataset, results)
    return 0


if __name__ == "__main__":
    script(main)
