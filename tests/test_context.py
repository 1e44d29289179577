"""Changed contexts, and models that cannot use them."""

import numpy as np
import pytest
import torch

from data import Split
from evaluation import context
from evaluation.context import foreign, shuffled
from evaluation.rows import Row


def test_a_changed_context_is_foreign_or_shuffled_and_the_rest_is_kept():
    val = Split(np.arange(600, dtype=np.uint16), np.array([0]), 900)
    train = Split(np.arange(600, 900, dtype=np.uint16), np.array([0]), 900)
    windows = val.windows(np.array([50, 90, 250, 450]), 100)
    changed = foreign(windows, train, 30)
    assert torch.equal(changed[:, 70:], windows[:, 70:])
    assert (changed[:, :70] >= 600).all() and (changed[:, :70].diff() == 1).all()
    changed = shuffled(windows, 30, seed=0)
    assert torch.equal(changed[:, 70:], windows[:, 70:])
    assert torch.equal(changed.sort().values, windows) and not torch.equal(changed, windows)


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
