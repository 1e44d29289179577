"""Draws the tables of the pages from benchmark/:  python -m docs.tables

A table stands in its page below the call that draws it, such as <!-- deltas stdlib/baseline 2,16 -->.
"""

import re
from functools import partial
from pathlib import Path

import numpy as np

from docs.benchmark import ROOT, SEED, SETTINGS, Line, by_setting, lines, read_runs, significant, value
from evaluation.statistics import by_document, contrasts, mean_intervals, text_bands

PAGES = ("README.md", "docs/which-scheme.md", "docs/evidence.md", "docs/method.md", "docs/replications.md")


def markdown(head, rows):
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


def signed(mean, width, *_):
    return f"{mean:+.3f}" + ("" if np.isnan(width) else f" ±{width:.3f}")


def choice(names):
    """What lines of the baseline lose, the share of far facts that the same schemes find, and how many of their models
    in the six settings on today's texts are flat, nearly flat, or neither."""
    rows, today = [], [folder for folder in SETTINGS if "stdlib" not in folder]
    for name, line in lines(".", names).items():
        models = by_setting(lambda folder, name=name: np.array(Line(folder, name).flat_models()[0]), today)
        near, far = (f"{line.losses[n].mean():.3f}" for n in (1, 16))
        facts, counts = Line(Path(name).parent / "recall", Path(name).name).shares(8), sum(models.values())
        rows.append([f"`{name}`", near, signed(*value(f"Δ{name}@16")), far, facts, " / ".join(map(str, counts))])
    return markdown(["", "loss at 1×", "Δ at 16×", "loss at 16×", "far facts found", "flat / nearly / neither"], rows)


def deltas(folder, multiples="2,4,8,16", names=""):
    """Each line's loss at the training length, its difference to RoPE's if that is among them, Δ, and the loss at the
    last of the multiples."""
    kept, rows, multiples = lines(folder, names), [], [int(n) for n in multiples.split(",")]
    for name, line in kept.items():
        beside = [signed(*value(f"{name} - rope@1", folder)) if name != "rope" else ""] if "rope" in kept else []
        cells = [signed(*value(f"Δ{name}@{n}", folder)) if n in line.losses else "—" for n in multiples]
        end = f"{line.losses[multiples[-1]].mean():.3f}" if multiples[-1] in line.losses else "—"
        rows.append([f"`{name}`", str(line.seeds), f"{line.losses[1].mean():.3f}", *beside, *cells, end])
    minus = ["minus rope"] if "rope" in kept else []
    changes = [f"Δ at {n}×" for n in multiples]
    return markdown(["", "seeds", "loss at 1×", *minus, *changes, f"loss at {multiples[-1]}×"], rows)


def pairs(folder, multiple, names=""):
    """Differences between the losses of lines with several seeds, row minus column, where significant for all pairs
    together."""
    kept = [(name, line) for name, line in lines(folder, names).items() if line.seeds > 1]
    losses = {name: line.losses[int(multiple)] for name, line in kept if int(multiple) in line.losses}
    found = contrasts(losses, kept[0][1].documents, SEED)
    names, rows = list(losses), []
    for i, row in enumerate(names[1:], start=1):
        tested = [found[column, row] for column in names[:i]]
        cells = [f"{-pair['difference']:+.3f}" if pair["significant"] else "·" for pair in tested]
        rows.append([f"`{row}`", *cells, *[""] * (len(names) - 1 - i)])
    power = [pair["detectable"] for pair in found.values()]
    n = sum(pair["significant"] for pair in found.values())
    words = f"{n} of {len(found)} differences are significant. Detectable with 80% power: "
    return markdown(["", *names[:-1]], rows) + f"\n\n{words}{min(power):.2f} to {max(power):.2f}."


def differences(*expressions):
    """The values of single expressions."""
    found = {expression: value(expression) for expression in expressions}
    rows = [[f"`{expression}`", str(cell[2]), signed(*cell)] for expression, cell in found.items()]
    return markdown(["", "seeds", "found"], rows)


def settings_table(columns):
    """A table of {head: {folder: cell}} with a line for each setting, and a dash where it was not measured."""
    cells = [[column.get(folder, "—") for folder in SETTINGS] for column in columns.values()]
    return markdown(["", *(f"`{head}`" for head in columns)], zip(SETTINGS.values(), *cells, strict=True))


def grid(*expressions):
    """The values of expressions in every setting (seeds). A star: significant for the whole column together."""
    columns = {}
    for expression in expressions:
        found = by_setting(partial(value, expression))
        stars = significant(expression, found) if " - " in expression else ()
        columns[expression] = {at: f"{signed(*cell)}{'*' * (at in stars)} ({cell[2]})" for at, cell in found.items()}
    return settings_table(columns)


def models(names):
    """How many models of each line are flat, nearly flat, or neither by their own bands at 16×, and the largest Δ."""

    def counts(name, folder):
        models, largest = Line(folder, name).flat_models()
        return f"{models[0]} / {models[1]} / {models[2]} ({largest:+.2f})"

    return settings_table({name: by_setting(partial(counts, name)) for name in names.split(",")})


def recall():
    """The share of right answers by distance, in runs that are trained at 128 tokens. The most come first."""
    rows, distances = [], (64, 128, 256, 512, 1024)
    for name, line in lines("recall").items():
        rows.append([f"`{name}`", str(line.seeds), *(line.shares(n / 128) for n in distances)])
    return markdown(["", "seeds", *(f"{n:,}–{2 * n - 1:,}" for n in distances)], rows[::-1])


def cards(*given):
    """The outcomes of cards, written as  number: expression < limit  with <, > or within. Of several expressions,
    separated by semicolons, the one that is farthest from passing counts."""
    rows = []
    for card in given:
        number, expressions, kind, limit = re.fullmatch(r"(\w+): (.+) (<|>|within) (\S+)", card).groups()
        tested = []
        for expression in expressions.split("; "):
            mean, width, seeds = value(expression)
            margin = {"<": float(limit) - mean, ">": mean - float(limit), "within": float(limit) - abs(mean)}[kind]
            tested.append((margin / width, f"`{expression}` {kind} {limit}", str(seeds), signed(mean, width)))
        clear, *cells = min(tested)
        rows.append([number, *cells, "pass" if clear > 1 else "fail" if clear < -1 else "not decided"])
    return markdown(["card", "measured and needed", "seeds", "found", "outcome"], rows)


def worked(name, n):
    """An example of a band and of an interval, in words."""
    line = Line(".", name)
    i, files = list(line.losses).index(float(n)), len(np.unique(line.documents))
    changes = np.stack([losses - line.losses[1] for losses in line.losses.values()], axis=-1)
    own, band = (values[i] for values in text_bands(changes[0], line.documents, SEED))
    se = np.sqrt((by_document(changes[0], line.documents)[1][:, i] ** 2).sum() / files / (files - 1))
    means, widths, errors = mean_intervals([changes], line.documents)
    text, seeds = errors["text_se"][i], errors["seed_se"][i]
    return f"""Example, `{name}` at {n}×: seed 1337 has Δ = {own:+.4f}. Its {files} files give a
standard error of {se:.4f}. In 95% of the draws, the largest error among the lengths is below {band / se:.1f} standard
errors, so the band is ±{band:.4f}. Over {line.seeds} seeds, Δ = {means[i]:+.4f}, with standard errors of
{text:.4f} from the text and {seeds:.4f} from the seeds: the interval is ±{widths[i]:.4f}."""


def tuning(low, high):
    """The tuning loss of one seed with a smaller value (runs of the piece `low`), the default and a larger one."""
    runs, pieces, rows = read_runs(), (low, "baseline", high), []
    for name in sorted({name for _, name, _ in runs}):
        if all((piece, name, "1337") in runs for piece in pieces):
            losses = [float(runs[piece, name, "1337"]["tuning_loss"]) for piece in pieces]
            rows.append([f"`{name}`", *(f"{loss:.3f}" for loss in losses), f"{min(losses) - losses[1]:+.3f}"])
    head = ["", "smaller", "default", "larger", "best minus default"]
    return markdown(head, sorted(rows, key=lambda row: min(row[1:4])))


TABLES = {f.__name__: f for f in (choice, deltas, pairs, differences, grid, models, recall, cards, worked, tuning)}


def drawn(page):
    """The page's text with its tables drawn again. A call has its arguments on its own line, or one on each further
    line."""

    def table(match):
        call, (first, *more) = match[1], match[2].splitlines()
        name, *arguments = first.split()
        return f"{call}{TABLES[name](*arguments, *more)}\n<!-- end -->"

    return re.sub(r"(<!-- (?!end)(.+?)\s-->\n).*?<!-- end -->", table, (ROOT / page).read_text(), flags=re.S)


if __name__ == "__main__":
    for page in PAGES:
        (ROOT / page).write_text(drawn(page))
