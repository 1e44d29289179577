"""The benchmark runs, and names what it measured."""

import pytest

from model import SCHEMES
from tools import bench

TINY = ["--n_layer=1", "--n_head=2", "--n_embd=16", "--block_size=16", "--batch_size=2", "--device=cpu", "--rounds=1"]


def test_every_scheme_is_timed_against_learnable(capsys, tmp_path):
    assert bench.main([*TINY, f"--results_dir={tmp_path}"]) == 0
    rows = {line[:20].strip(): line[20:].split() for line in capsys.readouterr().out.splitlines()[2:-1]}
    assert set(rows) == {*SCHEMES, "learnable, adamw"}
    assert rows["learnable"][-1] == "1.000"
    parameters = {name: int(row[0].replace(",", "")) for name, row in rows.items()}
    assert parameters["learnable"] - parameters["none"] == 16 * 16
    assert parameters["t5"] - parameters["none"] == 32 * 2


def test_a_folder_that_is_no_nanogpt_is_refused(tmp_path):
    with pytest.raises(ValueError, match="has no model.py: give the path of a nanoGPT checkout"):
        bench.main([*TINY, f"--nanogpt={tmp_path}"])


def test_attention_is_timed_at_lengths_and_its_memory_grows(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(bench, "SCHEMES", {"none": SCHEMES["none"], "t5": SCHEMES["t5"]})
    assert bench.main([*TINY, "--lengths=512,16", f"--results_dir={tmp_path}"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    for name, slow, fast in (("none", 8, 64), ("t5", 64, 2048)):  # in 32 times the length
        times, alone, step = ([float(n.replace(",", "")) for n in row[1:]] for row in rows if row[0] == name)
        assert times[0] < times[1]
        assert slow < alone[1] / alone[0] < fast and slow < step[1] / step[0] < fast
    assert (tmp_path / "bench-lengths.png").stat().st_size > 10_000


def test_sampling_is_timed(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(bench, "SAMPLED", 40)
    monkeypatch.setattr(bench, "SPAN", 10)
    assert bench.main([*TINY, "--sampling", f"--results_dir={tmp_path}"]) == 0
    rows = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines()[2:-1]}
    assert set(rows) == set(SCHEMES)
    assert all(float(value.replace(",", "")) > 0 for row in rows.values() for value in row[1:])


def test_startup_is_timed_up_to_the_awaited_words(dataset, capsys):
    assert bench.main([*TINY, "--startup", f"--dataset={dataset}"]) == 0
    seconds = [float(line.split()[-2]) for line in capsys.readouterr().out.splitlines()]
    assert len(seconds) == 4 and min(seconds) > 0
