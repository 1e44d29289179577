"""What the kept results say: the rows of a folder of benchmark/, and the value and ± of an expression such as
"alibi - rope@16".
"""

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmark.tokens import CLASSES
from eval_length import signed
from evaluation.answers import learned
from evaluation.rows import TOKENS, Row, by_number
from evaluation.statistics import interval, pair, rise, t_quantile

ROOT = Path(__file__).resolve().parents[1]
BENCHMARK = ROOT / "benchmark"
SETTINGS = {  # folder -> in words
    ".": "baseline",
    "steps": "four times the steps",
    "prose": "prose (King James Bible)",
    "adamw": "AdamW",
    "bpe": "BPE tokens",
    "t256": "trained at 256 tokens",
    "width64": "64 channels",
    "width256": "256 channels",
}
FAR = 8  # times the training length: how far back far facts stand in recall, at least
LEARNED = 0.5  # a model has learned recall if it finds this share of the facts 64 to 127 characters back


def has_row(name):
    return (BENCHMARK / f"{name}.npz").is_file()


def read_row(name):
    """The Row benchmark/NAME.npz."""
    return Row.read(BENCHMARK / f"{name}.npz")


def losses_of(row):
    """{length in multiples of the training length: (seeds, blocks)}."""
    return {n / row.trained: losses for n, losses in row.losses.items()}


def read_rows(folder, names=""):
    """{name: Row} of a folder of benchmark/, or of those in a list of names, a,b,c. The lowest loss at the longest
    length comes first, undefined ones last."""
    chosen = names.split(",") if names else [path.stem for path in (BENCHMARK / folder).glob("*.npz")]
    rows = [(name, read_row(f"{folder}/{name}")) for name in chosen]
    last = max(max(losses_of(row)) for _, row in rows)
    return dict(sorted(rows, key=lambda item: np.mean(losses_of(item[1]).get(last, np.inf))))


@dataclass(frozen=True)
class Value:
    mean: float
    width: float  # the half-width of its ±
    seeds: int  # the fewest of the rows in it
    by_file: np.ndarray  # the mean of each file

    def __str__(self):
        return signed(self.mean, self.width)

    @property
    def agreeing(self):
        """How many files have the sign of the mean."""
        return int(np.sum(np.sign(self.by_file) == np.sign(self.mean)))


def value_of(expression, folder="."):
    """The Value of  rope@16, a row's loss at 16 times its training length, of  Δrope@16, that minus its loss at 1×, of
    Δrope@16/2, minus its loss at 2×, or of a difference,  t5 - alibi@8, at 8 times the training length of the last;
    @4,8 is the mean of both. alibi:foreign@16 is what the true context gains over a foreign one, measured
    by evaluation.context. "… without 671,672" leaves two files out, by their numbers in the text. ValueError for rows
    that were scored on different blocks."""
    names, at, origin, left_out = re.fullmatch(r"(.+)@([\d.,]+)/?([\d.]*)(?: without )?([\d,]*)", expression).groups()
    names = names.split(" - ")
    rows = [read_row(f"{folder}/{re.sub('Δ|:.*', '', name)}") for name in names]
    if any(not np.array_equal(row.ends, rows[0].ends) for row in rows):
        raise ValueError(f"{expression}: these rows were scored on different blocks")

    # the terms, each (seeds, blocks): the means over the multiples
    terms = []
    for name, row, sign in zip(names, rows, (1, -1)[: len(names)], strict=True):
        losses = []
        for multiple in at.split(","):
            n = round(float(multiple) * rows[-1].trained)
            loss = row.arrays[f"{n}"]
            if ":" in name:
                loss = row.arrays[f"{name.partition(':')[2]}-{n}"] - loss
            if name.startswith("Δ"):
                loss = loss - row.arrays[f"{round(float(origin or 1) * row.trained)}"]
            losses.append(loss)
        terms.append((row.models, sign * np.mean(losses, axis=0)))

    # their sum, without the blocks of some files
    files = rows[0].documents
    counted = ~np.isin(files.astype(str), left_out.split(","))
    groups = [group[:, counted] for group in pair(terms)]
    files = files[counted]
    mean, width = interval(groups, files)
    blocks = sum(group.mean(axis=0) for group in groups)
    by_file = np.array([blocks[files == file].mean() for file in np.unique(files)])
    return Value(mean, width, min(len(row.seeds) for row in rows), by_file)


def parts_of(folder, multiple):
    """{name: {title: (mean, width)}} of the rows of a folder with losses of tokens: Δ at a multiple of the training
    length, and the parts of it that the classes of tokens have, which add up to it."""
    classes = np.load(BENCHMARK / folder / "seen.npy")
    masks = {"Δ": np.ones(classes.shape)}
    for i, title in enumerate(CLASSES):
        mask = classes == i
        masks[f"{title} ({mask.mean():.0%})"] = mask
    parts = {}
    for name, row in read_rows(folder).items():
        far = row.arrays[f"{row.trained * int(multiple)}{TOKENS}"]
        deltas = far - row.arrays[f"{row.trained}{TOKENS}"]
        parts[name] = {title: interval([(deltas * mask).mean(axis=2)], row.documents) for title, mask in masks.items()}
    return parts


def rise_of(row):
    """The rise of a row, with its best length in multiples of the training length; None without longer lengths."""
    return rise(losses_of(row), 1, row.documents)


def verdicts(row):
    """How many of its models are flat, undecided, and rise, each judged by itself."""
    words = []
    for i in range(len(row.seeds)):
        risen = rise({n: losses[[i]] for n, losses in losses_of(row).items()}, 1, row.documents)
        words.append(risen and risen["verdict"])
    return [words.count(word) for word in ("flat", "undecided", "rises")]


def recall_of(name):
    """{distance in multiples of the training length: the share that each model found there} of the models that learned
    recall, and how many models were trained. {} and 0 if the row has no recall."""
    path = Path(name).parent / "recall" / Path(name).name
    if not has_row(path):
        return {}, 0
    right = losses_of(read_row(path))
    has_learned = right[0.5].mean(axis=1) >= LEARNED
    return {n: answers.mean(axis=1)[has_learned] for n, answers in right.items()}, len(has_learned)


def task_of(name, where="", folder="tasks"):
    """Of a row such as copy/alibi: {symbols of an example: whether each answer is exact, (models, examples)}, alone in
    the window or, with "_behind", behind other examples; and which models learned the task. {} and an empty array if
    there is no such row."""
    if not has_row(f"{folder}/{name}"):
        return {}, np.empty(0, bool)
    arrays = read_row(f"{folder}/{name}").arrays
    exact = by_number(arrays, "exact-")
    _, _, longest, *_ = exact  # of training: a quarter and a half of it are always measured as well
    return by_number(arrays, f"exact{where}-"), learned(exact, longest)


def growth_of(reached):
    """The slope of log reach on log training length, over all models of {training length: the reach of each model}, and
    its ±. A reach of 0 counts as 1. 1: the reach grows in proportion."""
    x = np.concatenate([np.full(len(models), np.log(n)) for n, models in reached.items()])
    y = np.log(np.maximum(np.concatenate([*reached.values()]), 1))
    x -= x.mean()
    slope = x @ y / (x @ x)
    errors = y - y.mean() - slope * x
    df = len(x) - 2
    return slope, t_quantile(df) * np.sqrt(errors @ errors / df / (x @ x))
