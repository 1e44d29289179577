"""Does a model use the far text, or does it merely survive it?  python -m evaluation.context out/rope out/alibi

Scores the same tokens as eval_length.py, once more with the context beyond the training length replaced by another
document's, or shuffled. What the true context gains over each of these, and over none at all, is what it is worth.
"""

from functools import partial

import numpy as np
import torch

import config
from eval_length import EvalConfig, choose_targets, measure, print_table, signed
from evaluation.rows import open_runs, rows_of, save_results
from evaluation.statistics import interval
from run.script import script


def foreign(windows, train, n_kept):
    """The windows with pieces of the training text before their last n_kept tokens. No document is in both texts."""
    n = windows.size(1) - 1 - n_kept
    starts = np.linspace(0, len(train.tokens) - n, len(windows)).astype(int)
    return torch.cat((train.windows(starts, n - 1), windows[:, n:]), dim=1)


def shuffled(windows, n_kept, seed):
    """The windows with a shuffled context before their last n_kept tokens."""
    far = np.random.default_rng(seed).permuted(windows[:, : -1 - n_kept].numpy(), axis=1)
    return torch.cat((torch.from_numpy(far), windows[:, -1 - n_kept :]), dim=1)


def measure_contexts(cfg, dataset, targets, run):
    """{name: the mean loss of each block (blocks,)} of a run: 512 with the true context of 512 tokens, foreign-512 and
    shuffled-512 with another one beyond the training length."""
    trained = run.config.block_size
    arrays = {}
    for n in targets.lengths:
        if trained <= n <= (run.config.max_positions or n):
            windows = dataset.val.windows(targets.ends - n, n)
            contexts = {str(n): windows}
            if n > trained:
                contexts[f"foreign-{n}"] = foreign(windows, dataset.train, trained)
                contexts[f"shuffled-{n}"] = shuffled(windows, trained, cfg.seed)
            for name, changed in contexts.items():
                losses, _ = measure(cfg, run, changed, targets.scored)
                arrays[name] = losses.mean(axis=1)
    return arrays


def print_gains(kind, rows, results):
    """Prints, by length, how much lower the loss of each row is with the true context beyond the training length than
    without one (cut), with another document's (foreign), or with its own in another order (shuffled). Adds it to the
    row's results."""
    cells = {}
    for name, row in rows.items():
        cells[name] = {}
        results[name][kind] = {}
        for n, losses in row.losses.items():
            if n > row.trained:
                other = row.losses[row.trained] if kind == "cut" else row.arrays[f"{kind}-{n}"]
                mean, width = interval([other - losses], row.documents)
                cells[name][n] = signed(mean, width)
                results[name][kind][n] = {"gain": mean, "width": width}
    print_table(f"gain over {kind} at", sorted(set().union(*cells.values())), cells)


def main(argv):
    cfg = config.load(EvalConfig, argv, bare_field="runs")
    runs, kept, dataset = open_runs(cfg)
    targets = choose_targets(cfg, dataset, runs, kept)
    rows = rows_of(cfg, runs, dataset, targets, partial(measure_contexts, cfg, dataset, targets)) | kept

    results = {name: {"scheme": row.scheme, "seeds": row.seeds} for name, row in rows.items()}
    for kind in ("cut", "foreign", "shuffled"):
        print_gains(kind, rows, results)
    print("""
How much lower the loss is, in nats per token, with the true text beyond the training length than without it (cut), with
another document's text in its place (foreign), or with its own in another order (shuffled). Below 0, it harms.
""")
    save_results(cfg, "context", dataset, results)
    return 0


if __name__ == "__main__":
    script(main)
