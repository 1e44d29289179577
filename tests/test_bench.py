"""The benchmark runs, and names what it measured."""

import pytest

from model import SCHEMES
from tools import bench

TINY = ["--n_layer=1", "--n_head=2", "--n_embd=16", "--block_size=16", "--batch_size=2", "--device=cpu", "--rounds=1"]


def test_every_scheme_is_timed_against_learnable(capsys):
    assert bench.main(TINY) == 0
    rows = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines()[2:]}
    assert set(rows) == set(SCHEMES)
    assert rows["learnable"][-1] == "1.000"
    parameters = {name: int(row[1].replace(",", "")) for name, row in rows.items()}
    assert parameters["learnable"] - parameters["none"] == 16 * 16
    assert parameters["t5"] - parameters["none"] == 32 * 2


def test_a_folder_that_is_no_nanogpt_is_refused(tmp_path):
    with pytest.raises(ValueError, match="has no model.py: give the path of a nanoGPT checkout"):
        bench.main([*TINY, f"--nanogpt={tmp_path}"])
