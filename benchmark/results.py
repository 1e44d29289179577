"""What the kept results say: the lines of a folder of benchmark/, and the value and ± of an expression such as
"alibi - rope@16".
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from evaluation.lines import Line, is_line
from evaluation.protocols import signed
from evaluation.statistics import FLAT, interval, rise, verdict
from evaluation.tasks import exact_of, learned

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


def losses_of(line):
    """{length in multiples of the training length: (seeds, blocks)}."""
    lengths = sorted(int(name) for name in line.arrays if name.isdecimal())
    return {n / line.trained: line.arrays[str(n)] for n in lengths}


def read_lines(folder, names=""):
    """{name: Line} of a folder of benchmark/, or of those in a list of names, a,b,c. The lowest loss at the longest
    length comes first, undefined ones last."""
    chosen = names.split(",") if names else [path.stem for path in (BENCHMARK / folder).glob("*.npz")]
    lines = {name: Line.read(BENCHMARK / folder / name) for name in chosen}
    last = max(max(losses_of(line)) for line in lines.values())

    def loss_at_last(name):
        return np.mean(losses_of(lines[name]).get(last, np.inf))

    return {name: lines[name] for name in sorted(lines, key=loss_at_last)}


@dataclass(frozen=True)
class Value:
    mean: float
    width: float  # the half-width of its ±
    seeds: int  # the fewest of the lines in it

    def __str__(self):
        return signed(self.mean, self.width)


def value_of(expression, folder="."):
    """The Value of  rope@16, a line's loss at 16 times its training length, of  Δrope@16, that minus its loss at 1×, of
    Δrope@16/2, minus its loss at 2×, or of a difference,  t5 - alibi@8, at 8 times the training length of the last;
    @4,8 is the mean of both. alibi:foreign@16 is what the true context gains over a foreign one in a line of the
    protocol `context`. ValueError for lines that were scored on different blocks."""
    names, _, at = expression.rpartition("@")
    at, _, origin = at.partition("/")
    multiples = [float(n) for n in at.split(",")]
    names = names.split(" - ")
    lines = [Line.read(BENCHMARK / folder / name.strip("Δ").partition(":")[0]) for name in names]
    if any(not np.array_equal(line.blocks.ends, lines[0].blocks.ends) for line in lines):
        raise ValueError(f"{expression}: these lines were scored on different blocks")
    unit = lines[-1].trained

    def values(name, line):
        """(seeds, blocks), the mean over the multiples."""
        kind = name.partition(":")[2]
        parts = []
        for multiple in multiples:
            n = round(multiple * unit)
            part = line.arrays[str(n)]
            if kind:
                part = line.arrays[f"{kind}-{n}"] - part
            if name.startswith("Δ"):
                part = part - line.arrays[str(round(float(origin or 1) * line.trained))]
            parts.append(part)
        return np.mean(parts, axis=0)

    groups = {}  # lines of the same models are one group: their seeds are paired
    for n, (name, line) in enumerate(zip(names, lines, strict=True)):
        models = tuple(run["checkpoint"] for run in line.runs)
        sign = -1 if n else 1
        groups[models] = groups.get(models, 0) + sign * values(name, line)
    mean, width = interval(groups.values(), lines[0].blocks.documents)
    return Value(mean, width, min(len(line.runs) for line in lines))


def rise_of(line):
    """`rise` of a line: its best length in multiples of the training length, the rise, and its ±."""
    return rise(losses_of(line), 1, line.blocks.documents)


def verdicts(line, flat=FLAT):
    """How many of its models are flat, undecided, and rise, each judged by itself."""
    words = []
    for i in range(len(line.runs)):
        losses = {n: array[[i]] for n, array in losses_of(line).items()}
        _, mean, width = rise(losses, 1, line.blocks.documents)
        words.append(verdict(mean, width, flat))
    return [words.count(word) for word in ("flat", "undecided", "rises")]


def recall_of(name):
    """{distance in multiples of the training length: the share that each model found there} of the models that learned
    recall, and how many models were trained. {} and 0 if the line has no recall."""
    path = BENCHMARK / Path(name).parent / "recall" / Path(name).name
    if not is_line(path):
        return {}, 0
    right = losses_of(Line.read(path))
    has_learned = right[0.5].mean(axis=1) >= LEARNED
    return {n: answers.mean(axis=1)[has_learned] for n, answers in right.items()}, len(has_learned)


def task_of(name):
    """Of a line such as copy/alibi: {symbols of an example: whether each answer is exact, (models, examples)}, and
    which models learned the task. {} and an empty array if there is no such line."""
    path = BENCHMARK / "tasks" / name
    if not is_line(path):
        return {}, np.empty(0, bool)
    arrays = Line.read(path).arrays
    exact = dict(sorted(exact_of(arrays).items()))  # the file may have them in another order
    return exact, learned(arrays)


def exact_value(expression):
    """The Value of  copy/alibi, the mean share of exact answers at 25, 30 and 40 symbols, or of  copy/alibi -
    copy/none. ValueError if fewer than two models of a line learned its task."""
    groups = []
    for sign, name in zip((1, -1), expression.split(" - "), strict=False):
        exact, has_learned = task_of(name)
        groups.append(sign * np.mean([exact[n][has_learned] for n in (25, 30, 40)], axis=0))
    fewest = min(map(len, groups))
    if fewest < 2:
        raise ValueError(f"{expression}: fewer than two models learned the task")
    mean, width = interval(groups, np.arange(groups[0].shape[1]))  # each example has a text of its own
    return Value(mean, width, fewest)
