"""Changed contexts, and models that cannot use them."""

import numpy as np
import pytest
import torch

from data import Split
from evaluation import context
from evaluation.context import foreign, shuffled
from evaluation.rows import Row


def text(n, *documents):
    """n tokens that are their own positions, and a function for the window of `length` predictions that ends at `end`."""
    split = Split(np.arange(n, dtype=np.uint16), np.array(documents), n)
    return split, lambda end, length: split.windows(np.array([end - length]), length)


@pytest.mark.parametrize("kind", ["foreign", "shuffled"])
@pytest.mark.parametrize("i", [0, 2])
def test_a_changed_context_is_foreign_or_shuffled_and_the_rest_is_kept(kind, i):
    split, window_before = text(600, 0, 200, 400)
    ends = np.array([150, 190, 350, 550])
    documents = np.array([0, 0, 1, 2])
    windows = torch.cat([window_before(end, 100) for end in ends])
    changed = foreign(windows, split, ends, documents, 30) if kind == "foreign" else shuffled(windows, 30, seed=0)
    before = windows[i].tolist()
    after = changed[i].tolist()
    assert after[70:] == before[70:] and after[:70] != before[:70]
    if kind == "foreign":
        assert np.searchsorted(split.docs, after[69], side="right") - 1 != documents[i]
    else:
        assert sorted(after) == before


def test_foreign_context_avoids_a_neighbour_whose_context_begins_in_the_same_document():
    """Of blocks whose contexts cross documents, the next one, at 120, would bring tokens 70 … 99: the window's own."""
    split, window_before = text(400, 0, 100, 110)
    ends = np.array([80, 300, 120, 60])
    windows = torch.cat([window_before(end, 50) for end in ends])
    assert foreign(windows, split, ends, np.array([0, 2, 2, 0]), 20)[0, :30].tolist() == list(range(250, 280))
    ends = np.array([130, 165])
    windows = torch.cat([window_before(end, 50) for end in ends])  # 80 … 109 belong to other documents
    with pytest.raises(ValueError, match="--lengths"):
        foreign(windows, split, ends, np.array([2, 2]), 20)  # 165 brings 115 … 144


@pytest.mark.usefixtures("few_documents")
@pytest.mark.parametrize("window", [8, 0])
def test_a_model_that_cannot_look_further_gains_nothing_by_further_context(trained, tmp_path, capsys, refused, window):
    """ALiBi with a window of 8 in its one layer, trained at 16, does not see what lies beyond 16."""
    run = trained("alibi", window=window)
    path = tmp_path / f"{run.name}.npz"
    flags = ["--lengths=16,32", "--device=cpu", f"--results_dir={tmp_path}", f"--keep={tmp_path}"]
    assert context.main([str(run), "--blocks=12", *flags]) == 0
    first = capsys.readouterr().out
    assert context.main([str(path), "--blocks=12", *flags]) == 0
    again = capsys.readouterr().out
    for kind in ("cut", "foreign", "shuffled"):
        assert f"gain over {kind} at" in first and f"gain over {kind} at" in again
    assert str(path) in refused(context.main, path, "--blocks=9", *flags)  # other targets
    arrays = Row.read(path).arrays
    for kind in ("foreign-32", "shuffled-32"):
        changed = abs(arrays[kind] - arrays["32"]).max()
        assert changed < 1e-5 if window else changed > 1e-4
    if window:
        np.testing.assert_allclose(arrays["32"], arrays["16"], atol=1e-5)
