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
        return [line.replace(",", "").split() for line in capsys.readouterr().out.splitlines()[2:]]

    return call


def test_every_scheme_is_timed_against_learnable(rows):
    base, *others, other_optimizer = rows("--flowing=2")
    assert base[-1] == "1.000" and other_optimizer[:2] == ["learnable", "adamw"]
    n_parameters = {row[0]: int(row[1]) for row in (base, *others)}
    assert n_parameters.keys() == {*scheme_names()}
    assert n_parameters["learnable"] - n_parameters["none"] == 16 * 16


@pytest.mark.parametrize("scheme, slow, fast", [("none", 8, 64), ("t5", 64, 2048)])
def test_a_step_is_timed_at_lengths_and_its_memory_grows(scheme, slow, fast, rows):
    short, long = rows("--lengths=512,16", f"--schemes={scheme}")
    assert short[:2] == [scheme, "16"] and long[:2] == [scheme, "512"]
    # the memory; not the time: it depends on what else the machine does
    assert slow < float(long[3]) / float(short[3]) < fast
