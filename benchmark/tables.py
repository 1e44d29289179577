"""Draws the tables of the pages from benchmark/:  python -m benchmark.tables

A table stands in its page below the call that draws it, such as <!-- deltas . 2,16 -->, and a number in a sentence
behind its call, such as <!-- value rope - alibi@16 -->. A call names a function below, which yields the rows {title:
cell} of a table or returns a text.
"""

import re
from functools import cache
from pathlib import Path

import numpy as np

from benchmark.results import (
    FAR,
    ROOT,
    SETTINGS,
    growth_of,
    has_row,
    losses_of,
    parts_of,
    read_row,
    read_rows,
    recall_of,
    rise_of,
    task_of,
    value_of,
    verdicts,
)
from eval_length import signed
from evaluation.answers import reach

PAGES = (
    "README.md",
    "docs/which-scheme.md",
    "docs/statements.md",
    "docs/method.md",
    "docs/models.md",
    "docs/tasks.md",
    "docs/longer-context.md",
    "docs/position-encoding.md",
    "docs/position-encoding.zh.md",
    "benchmark/evidence.md",
    "benchmark/replications.md",
    "benchmark/TABLES.md",
)
TELLING = [name for name in SETTINGS if name not in ("prose", "adamw")]  # in these, the far context hardly counts


def markdown(rows):
    """A table of rows {title: cell}."""
    rows = list(rows)
    lines = [rows[0], ["---"] * len(rows[0]), *(row.values() for row in rows)]
    return "\n".join(f"| {' | '.join(map(str, cells))} |" for cells in lines)


def loss_at(line, n):
    losses = losses_of(line)
    return f"{losses[n].mean():.3f}" if n in losses else "—"


def shares(name):
    """What the models that learned recall find far back: the mean, the range, and how many learned it. Also for a
    sentence."""
    by_distance, n_models = recall_of(name)
    if not n_models:
        return "—"
    found = by_distance[FAR]
    if not len(found):
        return f"— (0 of {n_models})"
    return f"{found.mean():.0%}, {found.min():.0%} to {found.max():.0%} ({len(found)} of {n_models})"


def bracketed(reached, has_learned):
    """The reach of each model, in brackets if the model has not learned the task."""
    return ", ".join(f"{n}" if learned else f"({n})" for n, learned in zip(reached, has_learned, strict=True))


def reach_cell(name, where=""):
    """The reach of each model of a row of tasks/. Nothing if a scheme is defined at no such length."""
    exact, has_learned = task_of(name, where)
    return bracketed(reach(exact), has_learned) if exact else ""


def counts(name, folders):
    """How many models are flat, undecided, and rise, over the settings in which a line was measured."""
    total = np.zeros(3, int)
    for folder in folders:
        path = f"{folder}/{name}"
        if has_row(path):
            total += verdicts(read_row(path))
    return total


def counted(name, folders):
    return " / ".join(map(str, counts(name, folders)))


def choice(names):
    """The lines that one may choose from: their losses, what they find, and their models in the settings that tell."""
    for name, line in read_rows(".", names).items():
        risen = rise_of(line)
        yield {
            "": f"`{name}`",
            "850 steps: 1×": loss_at(line, 1),
            "16×": loss_at(line, 16),
            "rise": signed(risen["mean"], risen["width"]),
            "3,400 steps: 16×": loss_at(read_row(f"steps/{name}"), 16) if has_row(f"steps/{name}") else "—",
            "far facts found": shares(name),
            "sorts up to": reach_cell(f"sort/{name}"),
            "flat / undecided / rise": counted(name, TELLING),
        }


def overview(names, control):
    """The lines of the baseline at four lengths, beside a control, with their models and what they find in recall."""
    for name, line in read_rows(".", names).items():
        yield {
            "": f"`{name}`",
            "1/4×": loss_at(line, 1 / 4),
            "1×": loss_at(line, 1),
            "Δ at 2×": value_of(f"Δ{name}@2"),
            "16×": loss_at(line, 16),
            "16× minus 2×": value_of(f"Δ{name}@16/2"),
            "16× minus control": value_of(f"{name} - {control}@16") if name != control else "",
            "flat / undecided / rise": counted(name, ["."]),
            "far facts found": shares(name),
        }


def deltas(folder, multiples="2,4,8,16", names=""):
    """Each line's loss at the training length, its difference to RoPE's if that is among them, Δ at multiples of the
    training length, and the loss at the last."""
    lines = read_rows(folder, names)
    lengths = [int(n) for n in multiples.split(",")]
    for name, line in lines.items():
        row = {"": f"`{name}`", "seeds": len(line.seeds), "loss at 1×": loss_at(line, 1)}
        if "rope" in lines:
            row["minus rope"] = value_of(f"{name} - rope@1", folder) if name != "rope" else ""
        for n in lengths:
            row[f"Δ at {n}×"] = value_of(f"Δ{name}@{n}", folder) if n in losses_of(line) else "—"
        row[f"loss at {lengths[-1]}×"] = loss_at(line, lengths[-1])
        yield row


def onset(*lengths):
    """Δ at lengths in tokens that are hardly longer than the training length."""
    for name, line in read_rows("onset").items():
        deltas = {n: value_of(f"Δ{name}@{int(n) / line.trained}", "onset") for n in lengths}
        yield {"": f"`{name}`", f"loss at {line.trained}": loss_at(line, 1)} | deltas


def differences(*expressions):
    """The values of single expressions, on lines or between semicolons; "words: expression" names one in words."""
    for entry in "; ".join(expressions).split("; "):
        words, _, expression = entry.rpartition(": ")
        value = value_of(expression)
        yield {"": words or f"`{expression}`", "seeds": value.seeds, "found": value}


def value(*words):
    """The value of one expression, for a sentence."""
    return str(value_of(" ".join(words)))


def claims():
    """The expressions of all numbers in sentences that are differences of losses."""
    expressions = set()
    for page in PAGES:
        for name, arguments in re.findall(r"<!-- (value|between) (.+?) -->", (ROOT / page).read_text()):
            expressions |= {arguments} if name == "value" else {*arguments.split()}
    return sorted(expression for expression in expressions if "recall/" not in expression)


def robust():
    """Each difference that a page claims: its mean beside the median over files, and how many files agree."""
    for expression in claims():
        value = value_of(expression)
        yield {
            "": f"`{expression}`",
            "mean": value,
            "median": f"{np.median(value.by_file):+.3f}",
            "files that agree": f"{value.agreeing} of {len(value.by_file)}",
        }


def seen(folder, multiple):
    """Δ of each row at a multiple of the training length, and the part of it that each class of tokens has."""
    for name, parts in parts_of(folder, multiple).items():
        yield {"": f"`{name}`"} | {title: signed(*part) for title, part in parts.items()}


def between(*expressions):
    """The lowest and the highest of the values of expressions, for a sentence."""
    means = [value_of(expression).mean for expression in expressions]
    return f"{min(means):.2f} to {max(means):.2f}"


def models_between(name, multiple):
    """The lowest and the highest loss of a row's models at a multiple of the training length, for a sentence."""
    losses = losses_of(read_row(name))[float(multiple)].mean(axis=1)
    return f"{losses.min():.3f} to {losses.max():.3f}"


def models_that(behave, *names):
    """How many models of these lines are "flat", "undecided" or "rise" in the settings that tell, for a sentence."""
    numbers = sum(counts(name, TELLING) for name in names)
    return f"{numbers[('flat', 'undecided', 'rise').index(behave)]} of {numbers.sum()}"


def grid(*expressions):
    """The values of expressions, on lines or between semicolons, in every setting (seeds)."""
    for folder, words in SETTINGS.items():
        row = {"": words}
        for expression in "; ".join(expressions).split("; "):
            try:
                value = value_of(expression, folder)
                row[f"`{expression}`"] = f"{value} ({value.seeds})"
            except ValueError:
                row[f"`{expression}`"] = "—"
        yield row


def models(names):
    """How many models of each line are flat, undecided, and rise, by setting."""
    for folder, words in SETTINGS.items():
        cells = {f"`{name}`": counted(name, [folder]) for name in names.split(",")}
        yield {"": words} | cells


def settings(names):
    """The loss of each line at 16 times the training length, and Δ there, by setting; and RoPE's loss at 1×."""
    for folder, words in SETTINGS.items():
        lines = read_rows(folder)
        row = {"": words, "`rope` at 1×": loss_at(lines["rope"], 1)}
        for name in names.split(","):
            row[f"`{name}`"] = "—"
            if name in lines:
                row[f"`{name}`"] = f"{loss_at(lines[name], 16)} ({value_of(f'Δ{name}@16', folder).mean:+.2f})"
        yield row


def settings_below(*words):
    """In how many settings an expression has a mean below 0, for a sentence."""
    expression = " ".join(words)
    means = [value_of(expression, folder).mean for folder in SETTINGS]
    return f"{sum(mean < 0 for mean in means)} of {len(means)}"


def recall(folder="."):
    """The share of right answers by distance: the mean over the models that learned the task, and their range."""
    for name in reversed(read_rows(f"{folder}/recall")):
        by_distance, n_models = recall_of(f"{folder}/{name}")
        row = {"": f"`{name}`", "learned": f"{len(by_distance[FAR])} of {n_models}"}
        for n in (64, 128, 256, 512, 1024):
            found = by_distance[n / 128]
            text = f"{found.mean():.0%} ({found.min():.0%} to {found.max():.0%})" if len(found) else "—"
            row[f"{n:,}–{2 * n - 1:,}"] = text
        yield row


def scored_at(name):
    """A name such as copy_behind/none in two, as task_of takes it: copy/none, and "_behind" or nothing."""
    return name.replace("_behind", ""), "_behind" if "_behind" in name else ""


def reached(titles, *schemes):
    """By scheme and task: the reach of each model, alone or, for titles such as copy_behind, behind other examples."""
    for scheme in schemes:
        row = {"": f"`{scheme}`"}
        for title in titles.split(","):
            row[title.replace("_", " ")] = reach_cell(*scored_at(f"{title}/{scheme}"))
        yield row


@cache
def reaches_of(name):
    """{training length: (the reach of each model, which have learned the task)} of a row of reach/."""
    measured = {n: task_of(*scored_at(name), f"reach/{n}") for n in (10, 20, 40)}
    return {n: (reach(exact), has_learned) for n, (exact, has_learned) in measured.items()}


def slope(name):
    """How reach grows with the training length, for a sentence."""
    mean, width = growth_of({n: reached for n, (reached, _) in reaches_of(name).items()})
    return f"{mean:.2f} ±{width:.2f}"


def growth(*names):
    """By task and scheme: the reach of models trained on up to 10, 20 and 40 symbols, and how it grows."""
    for name in names:
        cells = {f"trained on {n}": bracketed(*models) for n, models in reaches_of(name).items()}
        yield {"": f"`{name}`"} | cells | {"slope": slope(name)}


def exact(name, where="", *symbols):
    """The share of exact answers of each model that learned a task, by default the mean of those at 25, 30 and 40
    symbols alone in the window, for a sentence."""
    by_length, has_learned = task_of(name, where)
    lengths = [int(n) for n in symbols] or [25, 30, 40]
    shares = np.mean([by_length[n][has_learned] for n in lengths], axis=(0, 2))
    return ", ".join(f"{share:.2f}" for share in shares)


def cards(*given):
    """The outcomes of cards, written as  number: expression < limit  with <, > or within. Of several expressions,
    separated by semicolons, the one that is farthest from passing counts."""
    for card in given:
        number, expressions, kind, text = re.fullmatch(r"(\w+): (.+) (<|>|within) (\S+)", card).groups()
        limit = float(text)
        tested = []
        for expression in expressions.split("; "):
            value = value_of(expression)
            margin = {"<": limit - value.mean, ">": value.mean - limit, "within": limit - abs(value.mean)}[kind]
            tested.append((margin / value.width, expression, value))
        clearance, expression, value = min(tested)
        yield {
            "card": number,
            "measured and needed": f"`{expression}` {kind} {text}",
            "seeds": value.seeds,
            "found": value,
            "outcome": "pass" if clearance > 1 else "fail" if clearance < -1 else "undecided",
        }


def drawn(page):
    """The page's text with its tables and numbers drawn again. The call of a table has its arguments on its line, or
    on further lines, one on each."""

    def draw(match):
        call, arguments, line_end = match.groups()
        first, *lines = arguments.splitlines()
        name, *words = first.split()
        result = globals()[name](*words, *lines)
        text = result if isinstance(result, str) else markdown(result)
        return f"{call}{text}{line_end}<!-- end -->"

    return re.sub(r"(<!-- (?!end)(.+?)\s-->(\n?)).*?<!-- end -->", draw, (ROOT / page).read_text(), flags=re.S)


if __name__ == "__main__":
    for page in PAGES:
        Path(ROOT, page).write_text(drawn(page))
