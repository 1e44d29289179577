"""Was a scored token seen before?  python -m benchmark.tokens DATASET FOLDER [NEAR FAR SPAN]

Classes the scored tokens of the kept results in a folder from the text alone, in FOLDER/seen.npy: seen in the nearest
NEAR tokens, only farther, up to FAR, or not. By default, NEAR is the training length and FAR the longest one.
"""

from pathlib import Path

import numpy as np

import data
from evaluation.rows import Row
from run.script import script

CLASSES = ("seen at 1×", "seen only farther", "never seen")
SPAN = 5  # tokens: a token was seen if it and the four before it stand in the context, in this order; by default


def seen(windows, near, scored, n_span=SPAN):
    """The place in CLASSES of each of the last `scored` tokens of windows (windows, tokens): (windows, scored). near:
    how many tokens of context are the nearer ones."""
    classes = np.full((len(windows), scored), 2)
    size = windows.shape[1]
    for window, row in zip(windows.tolist(), classes, strict=True):
        starts = {}  # of the last place of each span
        for start in range(size - n_span + 1):
            span = tuple(window[start : start + n_span])
            i = start + n_span - size + scored - 1
            if i >= 0 and span in starts:
                row[i] = starts[span] < size - 1 - near
            starts[span] = start
    return classes


def main(argv):
    dataset, folder, *sizes = argv
    row = Row.read(next(Path(folder).glob("*.npz")))
    near, far, n_span = map(int, sizes or (row.trained, max(row.losses), SPAN))
    windows = data.load(dataset).val.windows(row.ends - far, far).numpy()
    classes = seen(windows, near, row.about["measured"]["block_tokens"], n_span)
    np.save(Path(folder, "seen.npy"), classes.astype(np.int8))
    return 0


if __name__ == "__main__":
    script(main)
