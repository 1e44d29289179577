"""The list of the study's runs, benchmark/runs.csv. To add finished runs:  python -m benchmark.runs out/*/*

A folder out/PIECE/NAME-SEED says the piece of the study; the piece of out/NAME-SEED is the baseline.
"""

import csv
from pathlib import Path

from evaluation.lines import without_seed
from run.checkpoint import load_checkpoint
from run.script import script

RUNS = Path(__file__).with_name("runs.csv")


def read_runs():
    """{(piece, name, seed): row}."""
    with open(RUNS, newline="") as file:
        return {(row["piece"], row["name"], row["seed"]): row for row in csv.DictReader(file)}


def main(folders):
    rows = read_runs()
    columns = list(next(iter(rows.values())))
    for folder in map(Path, folders):
        run = load_checkpoint(folder, "latest")
        seed = str(run.settings["seed"])
        name = without_seed(folder.name, run.settings)
        piece = "/".join(folder.parts[folder.parts.index("out") + 1 : -1]) or "baseline"
        if run.step < run.settings["max_iters"]:
            print(f"{piece}/{name}, seed {seed}: not finished, so not added")
            continue
        known = {"piece": piece, "name": name, "seed": seed, "tuning_loss": f"{run.best_val_loss:.4f}"}
        rows[piece, name, seed] = run.settings | known
        print(f"{piece}/{name}, seed {seed}: added")
    with open(RUNS, "w", newline="") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows[key] for key in sorted(rows))
    return 0


if __name__ == "__main__":
    script(main)
