"""Draws the tables of the pages from benchmark/:  python -m docs.tables

With run folders, it first adds their tuning losses to benchmark/runs.csv:  python -m docs.tables out/*/*
A table stands in its page below the call that draws it, such as <!-- deltas stdlib/baseline 2,16 -->.
"""

import csv
import json
import re
import sys
from pathlib import Path

import numpy as np

from evaluation.report import difference
from evaluation.statistics import contrasts, estimate
from run.checkpoint import load_checkpoint

ROOT = Path(__file__).resolve().parents[1]
BENCHMARK, RUNS = ROOT / "benchmark", ROOT / "benchmark" / "runs.csv"
PAGES = ("README.md", "docs/which-scheme.md", "docs/evidence.md")
SEED = 1337  # of the bootstrap, as eval_length.py has it
SETTINGS = {  # of the earlier study: folder -> in words
    "baseline": "baseline", "adamw": "AdamW", "steps": "four times the steps", "t64": "trained at 64 tokens",
    "t256": "trained at 256 tokens", "w64": "64 channels", "w256": "256 channels", "prose": "prose (King James Bible)",
    "bpe": "BPE tokens",
}  # fmt: skip


class Line:
    """The runs of one scheme in one setting, which differ in their seed only: `losses`, {length in multiples of the
    training length: (seeds, blocks)}."""

    def __init__(self, path):
        with np.load(path) as arrays:
            trained = json.loads(str(arrays["about"]))["settings"]["block_size"]
            lengths = sorted(int(name) for name in arrays if name.isdecimal())
            self.losses = {n / trained: arrays[str(n)].astype(float) for n in lengths}
            self.documents, self.seeds = arrays["documents"], len(arrays[str(trained)])

    def deltas(self):
        """{multiple: (Δ, half-width)}: of a band for a single seed, of an interval for several."""
        change = np.stack([losses - self.losses[1] for losses in self.losses.values()], axis=-1)
        means, widths, _ = estimate([change], self.documents, SEED)
        return {n: (means[i], widths[i]) for i, n in enumerate(self.losses)}

    def minus(self, other, multiple=1):
        """(difference of the losses, half-width; none between one seed and several)."""
        return difference(self.losses[multiple], other.losses[multiple], self.documents, SEED)


def lines(piece):
    """{name: Line} of a folder of benchmark/, the lowest loss at the longest length first, undefined ones last."""
    found = {path.stem: Line(path) for path in (BENCHMARK / piece).glob("*.npz")}
    last = max(max(line.losses) for line in found.values())
    return dict(sorted(found.items(), key=lambda item: item[1].losses.get(last, np.full(1, np.inf)).mean()))


def markdown(head, rows):
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


def signed(mean, width=np.nan):
    return f"{mean:+.3f}" + ("" if np.isnan(width) else f" ±{width:.3f}")


def deltas(piece, multiples="2,4,8,16", fewest=1):
    """Each line's loss at the training length, its difference to RoPE's if that is among them, and Δ. Leaves out lines
    with fewer than `fewest` seeds."""
    kept = {name: line for name, line in lines(piece).items() if line.seeds >= int(fewest)}
    rows, multiples = [], [int(n) for n in multiples.split(",")]
    references = {name: kept[name] for name in ("rope",) if name in kept}
    for name, line in kept.items():
        beside = [signed(*line.minus(other)) if line is not other else "" for other in references.values()]
        found = line.deltas()
        cells = [signed(*found[n]) if n in found else "—" for n in multiples]
        rows.append([f"`{name}`", str(line.seeds), f"{line.losses[1].mean():.3f}", *beside, *cells])
    minus = [f"minus {name}" for name in references]
    return markdown(["", "seeds", "loss at 1×", *minus, *(f"Δ at {n}×" for n in multiples)], rows)


def orders(one="alibi", two="t5", multiples=(0.25, 1, 16)):
    """The difference of two schemes' losses in every setting of the earlier study."""
    kept = {words: lines(f"stdlib/{folder}") for folder, words in SETTINGS.items()}
    rows = [[words, *(signed(*of[one].minus(of[two], n)) for n in multiples)] for words, of in kept.items()]
    return markdown(["", *(f"`{one}` minus `{two}` at {n:g}×" for n in multiples)], rows)


def pairs(piece, multiple):
    """Differences of all lines with several seeds, row minus column, where significant for all pairs together."""
    multiple = int(multiple)
    several = {n: line for n, line in lines(piece).items() if line.seeds > 1 and multiple in line.losses}
    losses = {name: line.losses[multiple] for name, line in several.items()}
    found = contrasts(losses, several["rope"].documents, SEED)
    names, rows = list(several), []
    for i, row in enumerate(names[1:], start=1):
        tested = [found[column, row] for column in names[:i]]
        cells = [f"{-pair['difference']:+.3f}" if pair["significant"] else "·" for pair in tested]
        rows.append([f"`{row}`", *cells, *[""] * (len(names) - 1 - i)])
    power = [pair["detectable"] for pair in found.values()]
    n = sum(pair["significant"] for pair in found.values())
    words = f"{n} of {len(found)} differences are significant. Differences that 80% of repetitions would find: "
    return markdown(["", *names[:-1]], rows) + f"\n\n{words}{min(power):.2f} to {max(power):.2f}."


def settings():
    """Δ in every setting of the earlier study, with the number of seeds."""
    shown, rows = {"none": 2, "sinusoidal": 2, "rope": 2, "alibi": 16, "t5": 16}, []
    for folder, words in SETTINGS.items():
        kept = lines(f"stdlib/{folder}")
        cells = [f"{signed(*kept[name].deltas()[n])} ({kept[name].seeds})" for name, n in shown.items()]
        rows.append([words, *cells])
    return markdown(["", *(f"`{name}` at {n}×" for name, n in shown.items())], rows)


def recall():
    """The share of right answers by distance: the mean over seeds, and the worst and best seed."""
    kept, rows = dict(sorted(lines("stdlib/recall").items())), []
    for n in (64, 128, 256, 512, 1024):  # in runs that are trained at 128 tokens, and kept as float32
        shares = [line.losses[n / 128].mean(axis=1, dtype=np.float32) for line in kept.values()]
        cells = [f"{share.mean():.0%} ({share.min():.0%} to {share.max():.0%})" for share in shares]
        rows.append([f"{n:,}–{2 * n - 1:,}", *cells])
    return markdown(["distance", *(f"`{name}`" for name in kept)], rows)


def read_runs():
    """{(piece, name, seed): row} of benchmark/runs.csv."""
    with open(RUNS, newline="") as file:
        return {(row["piece"], row["name"], row["seed"]): row for row in csv.DictReader(file)}


def add_runs(folders):
    """Adds finished runs to runs.csv, or replaces what it said about them."""
    rows = read_runs()
    for folder in map(Path, folders):
        run, (name, _, seed) = load_checkpoint(folder, "latest"), folder.name.rpartition("-")
        piece = "/".join(folder.parts[1:-1])
        if run.step == run.settings["max_iters"]:
            known = {"piece": piece, "name": name, "seed": seed, "tuning_loss": f"{run.best_val_loss:.4f}"}
            rows[piece, name, seed] = run.settings | known
    with open(RUNS, "w", newline="") as file:
        writer = csv.DictWriter(file, next(iter(rows.values())), extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows[key] for key in sorted(rows))


def rates():
    """The tuning loss at half, once and twice the default rates."""
    runs, pieces, rows = read_runs(), ("rates/x0.5", "baseline", "rates/x2"), []
    for name in sorted({name for _, name, _ in runs}):
        if all((piece, name, "1337") in runs for piece in pieces):
            losses = [float(runs[piece, name, "1337"]["tuning_loss"]) for piece in pieces]
            rows.append([f"`{name}`", *(f"{loss:.3f}" for loss in losses), f"{min(losses) - losses[1]:+.3f}"])
    return markdown(["", "half", "once", "twice", "best minus once"], sorted(rows, key=lambda row: min(row[1:4])))


TABLES = {draw.__name__: draw for draw in (deltas, orders, pairs, settings, recall, rates)}


def drawn(page):
    """The page's text with its tables drawn again."""

    def table(match):
        name, *arguments = match[1].split()
        return f"<!-- {match[1]} -->\n{TABLES[name](*arguments)}\n<!-- end -->"

    return re.sub(r"<!-- (?!end)(.+?) -->\n.*?<!-- end -->", table, (ROOT / page).read_text(), flags=re.S)


def main(argv):
    if argv:
        add_runs(argv)
    for page in PAGES:
        (ROOT / page).write_text(drawn(page))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
