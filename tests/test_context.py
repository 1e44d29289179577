"""Changed contexts, and models that cannot use them."""

import numpy as np
import pytest
import torch

from data import Split
from evaluation import context
from evaluation.context import foreign, shuffled
from evaluation.rows import Row


def text(n, documents, ends, length):
    """n tokens that are their own positions, and the windows of `length` predictions that stop at `ends`."""
    split = Split(np.arange(n, dtype=np.uint16), np.array(documents), n)
    return split, split.windows(ends - length, length)


@pytest.mark.parametrize("kind", ["foreign", "shuffled"])
def test_a_changed_context_is_foreign_or_shuffled_and_the_rest_is_kept(kind):
    ends = np.array([150, 190, 350, 550])
    documents = [0, 0, 1, 2]
    split, windows = text(600, [0, 200, 400], ends, 100)
    changed = foreign(windows, split, ends, documents, 30) if kind == "foreign" else shuffled(windows, 30, seed=0)
    assert torch.equal(changed[:, 70:], windows[:, 70:])
    for before, after, document in zip(windows[:, :70].tolist(), changed[:, :70].tolist(), documents, strict=True):
        if kind == "foreign":
            assert np.searchsorted(split.docs, after[-1], side="right") - 1 != document
        else:
            assert after != before == sorted(after)


def test_foreign_context_avoids_a_neighbour_whose_context_begins_in_the_same_document():
    """Of blocks whose contexts cross documents, the next one, at 120, would bring tokens 70 … 99: the window's own."""
    ends = np.array([80, 300, 120, 60])
    split, windows = text(400, [0, 100, 110], ends, 50)
    changed = foreign(windows, split, ends, [0, 2, 2, 0], 20)
    assert changed[0, :30].tolist() == list(range(250, 280))
    ends = np.array([130, 165])
    windows = split.windows(ends - 50, 50)  # 80 … 109 belong to other documents
    with pytest.raises(ValueError, match="--lengths"):
        foreign(windows, split, ends, [2, 2], 20)  # 165 brings 115 … 144


@pytest.mark.usefixtures("few_documents")
@pytest.mark.parametrize("window", [8, 0])
def test_a_model_that_cannot_look_further_gains_nothing_by_further_context(trained, tmp_path, capsys, refused, window):
    """ALiBi with a window of 8 in its one layer, trained at 16, does not see what lies beyond 16."""
    run = trained("alibi", window=window)
    path = tmp_path / f"{run.name}.npz"
    flags = ["--blocks=12", "--lengths=16,32", "--device=cpu", f"--results_dir={tmp_path}", f"--keep={tmp_path}"]
    for row in (run, path):
        assert context.main([str(row), *flags]) == 0
        out = capsys.readouterr().out
        for kind in ("cut", "foreign", "shuffled"):
            assert f"gain over {kind} at" in out
    assert str(path) in refused(context.main, path, *flags, "--blocks=9")  # other targets
    arrays = Row.read(path).arrays
    for kind in ("foreign-32", "shuffled-32"):
        changed = abs(arrays[kind] - arrays["32"]).max()
        assert changed < 1e-5 if window else changed > 1e-4
    if window:
        np.testing.assert_allclose(arrays["32"], arrays["16"], atol=1e-5)
