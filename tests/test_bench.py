"""The benchmark runs, and names what it measured."""

import pytest

from model import scheme_names
from tools import bench


@pytest.fixture
def rows(capsys):
    """rows(flag, …): the rows of the table below its title and its head, as words."""

    def call(*flags):
        sizes = ["--n_layer=1", "--n_head=2", "--n_embd=16", "--block_size=16", "--batch_size=2"]
        assert bench.main([*sizes, "--device=cpu", "--rounds=1", *flags]) == 0
        lines = capsys.readouterr().out.splitlines()[2:]
        return [line.replace(",", "").split() for line in lines]

    return call


def test_every_scheme_is_timed_against_learnable(rows):
    *timed, other_optimizer = rows("--flowing=2")
    assert timed[0][-1] == "1.000"
    assert other_optimizer[:2] == ["learnable", "adamw"]
    n_parameters = {row[0]: int(row[1]) for row in timed}
    assert n_parameters.keys() == {*scheme_names()}
    assert n_parameters["learnable"] - n_parameters["none"] == 16 * 16


@pytest.mark.parametrize("scheme, slow, fast", [("none", 8, 64), ("t5", 64, 2048)])
def test_the_memory_of_a_step_grows_with_the_length(scheme, slow, fast, rows):
    short, long = rows("--lengths=512,16", f"--schemes={scheme}")
    assert (short[1], long[1]) == ("16", "512")
    assert slow < float(long[3]) / float(short[3]) < fast  # not the time: it depends on what else the machine does
