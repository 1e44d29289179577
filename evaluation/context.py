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


def foreign(windows, split, ends, documents, n_kept):
    """The windows that stop at `ends`, with another context before their last n_kept tokens: that of another block, the
    donor. It is the first one, from half of the blocks ahead on, which has no token in the window or its document.
    ValueError if no block will do."""
    n = windows.size(1) - 1
    bounds = np.append(split.docs, len(split.tokens))
    chosen = []
    for i, document in enumerate(documents):
        before = min(bounds[document], ends[i] - n)
        after = bounds[document + 1]
        donors = np.roll(ends, -(i + len(ends) // 2))
        donors = donors[(donors - n_kept <= before) | (donors - n >= after)]
        if not len(donors):
            raise ValueError(f"no block follows {n - n_kept:,} tokens of other documents: choose shorter --lengths")
        chosen.append(donors[0])
    far = split.windows(np.array(chosen) - n, n)[:, : n - n_kept]
    return torch.cat((far, windows[:, n - n_kept :]), dim=1)


def shuffled(windows, n_kept, seed):
    """The windows with a shuffled context before their last n_kept tokens."""
    changed = windows.clone()
    for i, row in enumerate(changed):
        far = row[: -1 - n_kept].numpy()  # shares the row's memory
        np.random.default_rng((seed, i)).shuffle(far)
    return changed


def measure_contexts(cfg, split, targets, run):
    """{name: the mean loss of each block (blocks,)} of a run: 512 with the true context of 512 tokens, foreign-512 and
    shuffled-512 with another one beyond the training length."""
    trained = run.config.block_size
    arrays = {}
    for n in targets.lengths:
        if trained <= n <= (run.config.max_positions or n):
            windows = split.windows(targets.ends - n, n)
            contexts = {str(n): windows}
            if n > trained:
                contexts[f"foreign-{n}"] = foreign(windows, split, targets.ends, targets.documents, trained)
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
    rows = rows_of(cfg, runs, dataset, targets, partial(measure_contexts, cfg, dataset.val, targets)) | kept

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
