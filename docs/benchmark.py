"""What benchmark/ holds: the lines of the tables with all their losses, and the list of runs.

With run folders, adds their tuning losses to that list:  python -m docs.benchmark out/*/*
A folder out/PIECE/NAME-SEED says the piece of the study; the piece of out/NAME-SEED is the baseline.
"""

import contextlib
import csv
import json
from pathlib import Path

import numpy as np

from evaluation.statistics import estimate, flatness, text_bands
from run.checkpoint import load_checkpoint
from run.script import script

ROOT = Path(__file__).resolve().parents[1]
BENCHMARK, RUNS = ROOT / "benchmark", ROOT / "benchmark" / "runs.csv"
SEED = 1337  # of the bootstrap, as eval_length.py has it
SETTINGS = {  # folder -> in words
    ".": "baseline", "steps": "four times the steps", "prose": "prose (King James Bible)", "adamw": "AdamW",
    "bpe": "BPE tokens", "t256": "trained at 256 tokens",
    "stdlib/baseline": "Python's library", "stdlib/steps": "… four times the steps",
    "stdlib/t64": "… trained at 64 tokens", "stdlib/t256": "… trained at 256 tokens",
    "stdlib/w64": "… 64 channels", "stdlib/w256": "… 256 channels", "stdlib/bpe": "… BPE tokens",
}  # fmt: skip


class Line:
    """The runs of one scheme in one setting, which differ in their seed only: `losses`, {length in multiples of the
    training length: (seeds, blocks)}, and the `ends` and `documents` of the blocks. In a line of the protocol
    `context`, `alibi:foreign` has for losses what the true context gains over a foreign one."""

    def __init__(self, folder, name):
        name, _, other = name.partition(":")
        with np.load(BENCHMARK / folder / f"{name}.npz") as arrays:
            self.trained = json.loads(str(arrays["about"]))["settings"]["block_size"]
            lengths = sorted(int(name) for name in arrays if name.isdecimal())
            self.losses = {n / self.trained: arrays[str(n)].astype(float) for n in lengths}
            if other:
                further = {n: own for n, own in self.losses.items() if n > 1}
                self.losses = {n: arrays[f"{other}-{n * self.trained:.0f}"] - own for n, own in further.items()}
            self.ends, self.documents = arrays["ends"], arrays["documents"]
            self.seeds = len(arrays[str(self.trained)])

    def shares(self, n):
        """The share of right answers at n times the training length: the mean, and the worst and the best run."""
        found = self.losses[n].mean(axis=1, dtype=np.float32)  # as the answers were kept
        return f"{found.mean():.0%} ({found.min():.0%} to {found.max():.0%})"

    def flat_models(self):
        """How many of the runs are flat, nearly flat, and neither, each by its own band, and the largest Δ."""
        changes = np.stack([own - self.losses[1] for own in self.losses.values()], axis=-1)
        ends = [[values[-1] for values in text_bands(own, self.documents, SEED)] for own in changes]
        words = [flatness(*end, threshold=0.1) for end in ends]
        return [words.count(word) for word in ("flat", "nearly flat", "")], max(ends)[0]


def lines(folder, names=""):
    """{name: Line} of a folder of benchmark/, or of those in a list of names, a,b,c. The lowest loss at the longest
    length comes first, undefined ones last."""
    named = names.split(",") if names else [path.stem for path in (BENCHMARK / folder).glob("*.npz")]
    found = {name: Line(folder, name) for name in named}
    last = max(max(line.losses) for line in found.values())
    return dict(sorted(found.items(), key=lambda item: item[1].losses.get(last, np.full(1, np.inf)).mean()))


def value(expression, folder=".", p=0.05):
    """(mean, half-width, seeds) of  rope@16, a line's loss at 16 times its training length, of  Δrope@16, or of a
    difference,  t5 - alibi@8, at 8 times the training length of the last;  @4,8 is the mean of both. The half-width is
    that of a band for single seeds, of an interval for several, at 1 − p, and NaN for a mixture. ValueError for lines
    that were scored at different places."""
    names, _, multiples = expression.rpartition("@")
    names, multiples = names.split(" - "), [float(n) for n in multiples.split(",")]
    found = {name: Line(folder, name.strip("Δ")) for name in names}
    trained = found[names[-1]].trained
    losses = {name: {n * line.trained / trained: own for n, own in line.losses.items()} for name, line in found.items()}
    if any(not np.array_equal(line.ends, found[names[0]].ends) for line in found.values()):
        raise ValueError(f"{expression}: these lines were scored at different places")
    common = [n for n in losses[names[0]] if all(n in own for own in losses.values())]
    groups = []
    for name, own in losses.items():
        values = np.stack([own[n] - (own[1] if "Δ" in name else 0) for n in common], axis=-1)
        groups.append(values if name == names[0] else -values)
    if len(multiples) > 1:
        groups = [values[..., [common.index(n) for n in multiples]].mean(axis=-1, keepdims=True) for values in groups]
    means, widths, _ = estimate(groups, found[names[0]].documents, SEED, p)
    i, seeds = common.index(multiples[0]) if len(multiples) == 1 else 0, {line.seeds for line in found.values()}
    return means[i], np.nan if 1 in seeds and len(seeds) > 1 else widths[i], min(seeds)


def by_setting(measure, settings=tuple(SETTINGS)):
    """{folder: what `measure` returns for it} of the settings where its lines were measured."""
    found = {}
    for folder in settings:
        with contextlib.suppress(FileNotFoundError):
            found[folder] = measure(folder)
    return found


def significant(expression, found):
    """The folders in which a difference is significant for all folders of several seeds together (Holm 1979). found:
    {folder: value(expression, folder)}."""
    several = [folder for folder, (*_, seeds) in found.items() if seeds > 1]
    clearest_first = sorted(several, key=lambda folder: -abs(found[folder][0]) / found[folder][1])
    for i, folder in enumerate(clearest_first):
        mean, width, _ = value(expression, folder, 0.05 / (len(several) - i))
        if abs(mean) < width:
            return clearest_first[:i]
    return clearest_first


def read_runs():
    """{(piece, name, seed): row} of benchmark/runs.csv."""
    with open(RUNS, newline="") as file:
        return {(row["piece"], row["name"], row["seed"]): row for row in csv.DictReader(file)}


def main(folders):
    """Adds finished runs to runs.csv, or replaces what it said about them."""
    rows = read_runs()
    columns = list(next(iter(rows.values())))
    for folder in map(Path, folders):
        run = load_checkpoint(folder, "latest")
        seed, is_finished = str(run.settings["seed"]), run.step == run.settings["max_iters"]
        name = run.without_seed(folder.name)
        piece = "/".join(folder.parts[folder.parts.index("out") + 1 : -1]) or "baseline"
        if is_finished:
            known = {"piece": piece, "name": name, "seed": seed, "tuning_loss": f"{run.best_val_loss:.4f}"}
            rows[piece, name, seed] = run.settings | known
        print(f"{piece}/{name}, seed {seed}: {'added' if is_finished else 'not finished, so not added'}")
    with open(RUNS, "w", newline="") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows[key] for key in sorted(rows))
    return 0


if __name__ == "__main__":
    script(main)
