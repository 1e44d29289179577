"""Draws the tables of the pages from benchmark/:  python -m benchmark.tables

A table stands in its page below the call that draws it, such as <!-- deltas . 2,16 -->.
"""

import re
from pathlib import Path

import numpy as np

from benchmark.results import ROOT, SETTINGS, losses_of, read_lines, recall_of, rise_of, value_of, verdicts
from evaluation.lines import Line
from evaluation.protocols import signed
from evaluation.statistics import verdict

PAGES = (
    "README.md",
    "docs/which-scheme.md",
    "docs/statements.md",
    "docs/method.md",
    "docs/position-encoding.md",
    "docs/position-encoding.zh.md",
    "benchmark/evidence.md",
    "benchmark/replications.md",
    "benchmark/TABLES.md",
)
TABLES = {}  # name -> function


def table(function):
    """Registers a table under the function's name."""
    TABLES[function.__name__] = function
    return function


def markdown(head, rows):
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


def loss_at(line, n):
    losses = losses_of(line)
    return f"{losses[n].mean():.3f}" if n in losses else "—"


def shares(name):
    """What the models that learned recall find far back: the mean, the range, and how many learned it."""
    found, n_models = recall_of(name)
    if not n_models:
        return "—"
    if not len(found):
        return f"— (0 of {n_models})"
    return f"{found.mean():.0%}, {found.min():.0%} to {found.max():.0%} ({len(found)} of {n_models})"


def counts(name, folders):
    """How many models are flat, undecided, and rise, over the settings in which a line was measured."""
    total = np.zeros(3, int)
    for folder in folders:
        path = ROOT / "benchmark" / folder / f"{name}.npz"
        if path.exists():
            total += verdicts(Line.read(path))
    return " / ".join(map(str, total))


@table
def choice(names):
    """The lines that one may choose from: their losses, what they find, and their models over all settings."""
    rows = []
    for name, line in read_lines(".", names).items():
        rows.append([
            f"`{name}`",
            loss_at(line, 1),
            loss_at(line, 16),
            signed(*rise_of(line)[1:]),
            shares(name),
            counts(name, SETTINGS),
        ])  # fmt: skip
    return markdown(["", "loss at 1×", "loss at 16×", "rise", "far facts found", "flat / undecided / rise"], rows)


@table
def deltas(folder, multiples="2,4,8,16", names=""):
    """Each line's loss at the training length, its difference to RoPE's if that is among them, and, with multiples of
    the training length, Δ at each and the loss at the last."""
    lines = read_lines(folder, names)
    lengths = [int(n) for n in multiples.split(",") if n != "1"]
    head = ["", "seeds", "loss at 1×"]
    if "rope" in lines:
        head.append("minus rope")
    head += [f"Δ at {n}×" for n in lengths]
    head += [f"loss at {n}×" for n in lengths[-1:]]
    rows = []
    for name, line in lines.items():
        row = [f"`{name}`", str(len(line.runs)), loss_at(line, 1)]
        if "rope" in lines:
            row.append(str(value_of(f"{name} - rope@1", folder)) if name != "rope" else "")
        for n in lengths:
            row.append(str(value_of(f"Δ{name}@{n}", folder)) if n in losses_of(line) else "—")
        rows.append([*row, *(loss_at(line, n) for n in lengths[-1:])])
    return markdown(head, rows)


@table
def kinds(folder="."):
    """The rise of each line from its best length to the longest, and its models at three thresholds."""
    rows = []
    for name, line in read_lines(folder).items():
        losses = losses_of(line)
        if max(losses) == 1:
            continue
        best, mean, width = rise_of(line)
        models = [" / ".join(map(str, verdicts(line, flat))) for flat in (0.03, 0.05, 0.1)]
        rows.append(
            [f"`{name}`", loss_at(line, 0.25), f"{best:g}×", signed(mean, width), verdict(mean, width), *models]
        )
    return markdown(
        ["", "loss at 1/4×", "best at", "rise to the longest", "verdict", "at 0.03", "at 0.05", "at 0.1"], rows
    )


@table
def differences(*expressions):
    """The values of single expressions; "words: expression" names one in words."""
    rows = []
    for entry in expressions:
        words, _, expression = entry.rpartition(": ")
        value = value_of(expression)
        rows.append([words or f"`{expression}`", str(value.seeds), str(value)])
    return markdown(["", "seeds", "found"], rows)


@table
def grid(*expressions):
    """The values of expressions in every setting (seeds)."""
    rows = []
    for folder, words in SETTINGS.items():
        row = [words]
        for expression in expressions:
            try:
                value = value_of(expression, folder)
                row.append(f"{value} ({value.seeds})")
            except ValueError:
                row.append("—")
        rows.append(row)
    return markdown(["", *(f"`{expression}`" for expression in expressions)], rows)


@table
def models(names):
    """How many models of each line are flat, undecided, and rise, by setting."""
    names = names.split(",")
    rows = [[words, *(counts(name, [folder]) for name in names)] for folder, words in SETTINGS.items()]
    return markdown(["", *(f"`{name}`" for name in names)], rows)


@table
def recall():
    """The share of right answers by distance: the mean over the models that learned the task, and their range."""
    distances = (64, 128, 256, 512, 1024)
    rows = []
    for name in reversed(read_lines("recall")):
        cells = []
        for n in distances:
            found, n_models = recall_of(name, n / 128)
            cells.append(f"{found.mean():.0%} ({found.min():.0%} to {found.max():.0%})" if len(found) else "—")
        rows.append([f"`{name}`", f"{len(found)} of {n_models}", *cells])
    return markdown(["", "learned", *(f"{n:,}–{2 * n - 1:,}" for n in distances)], rows)


@table
def cards(*given):
    """The outcomes of cards, written as  number: expression < limit  with <, > or within. Of several expressions,
    separated by semicolons, the one that is farthest from passing counts."""
    rows = []
    for card in given:
        number, expressions, kind, text = re.fullmatch(r"(\w+): (.+) (<|>|within) (\S+)", card).groups()
        limit = float(text)
        tested = []
        for expression in expressions.split("; "):
            value = value_of(expression)
            margin = {"<": limit - value.mean, ">": value.mean - limit, "within": limit - abs(value.mean)}[kind]
            row = [f"`{expression}` {kind} {text}", str(value.seeds), str(value)]
            tested.append((margin / value.width, row))
        clearance, row = min(tested)
        outcome = "pass" if clearance > 1 else "fail" if clearance < -1 else "undecided"
        rows.append([number, *row, outcome])
    return markdown(["card", "measured and needed", "seeds", "found", "outcome"], rows)


def drawn(page):
    """The page's text with its tables drawn again. A call has its arguments on its own line, or one on each further
    line."""

    def draw(match):
        call, lines = match[1], match[2].splitlines()
        name, *arguments = lines[0].split()
        return f"{call}{TABLES[name](*arguments, *lines[1:])}\n<!-- end -->"

    return re.sub(r"(<!-- (?!end)(.+?)\s-->\n).*?<!-- end -->", draw, (ROOT / page).read_text(), flags=re.S)


if __name__ == "__main__":
    for page in PAGES:
        Path(ROOT, page).write_text(drawn(page))
