"""The benchmark runs, and names what it measured."""

from model import scheme_names
from tools import bench

TINY = ["--n_layer=1", "--n_head=2", "--n_embd=16", "--block_size=16", "--batch_size=2", "--device=cpu", "--rounds=1"]


def test_every_scheme_is_timed_against_learnable(capsys):
    assert bench.main(TINY) == 0
    rows = {line[:20].strip(): line[20:].split() for line in capsys.readouterr().out.splitlines()[2:]}
    assert set(rows) == {*scheme_names(), "learnable, adamw"}
    assert rows["learnable"][-1] == "1.000"
    parameters = {name: int(row[0].replace(",", "")) for name, row in rows.items()}
    assert parameters["learnable"] - parameters["none"] == 16 * 16
    assert parameters["t5"] - parameters["none"] == 32 * 2


def test_attention_is_timed_at_lengths_and_its_memory_grows(capsys):
    assert bench.main([*TINY, "--lengths=512,16", "--schemes=none,t5"]) == 0
    rows = [line.replace(",", "").split() for line in capsys.readouterr().out.splitlines()[2:]]
    measured = {(name, int(n)): [float(number) for number in numbers] for name, n, *numbers in rows}
    for name, slow, fast in (("none", 8, 64), ("t5", 64, 2048)):  # growth over 32 times the length
        _, alone, step = (long / short for short, long in zip(measured[name, 16], measured[name, 512], strict=True))
        assert slow < alone < fast and slow < step < fast  # not the time: it depends on what else the machine does
