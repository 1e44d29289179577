"""No fault of the machine or the user costs work. The tests kill real processes and damage real files."""

import math
import resource
import shutil
import signal
import subprocess
import sys

import pytest
import torch
from conftest import ROOT, assert_same_run, metrics

import train
from run.checkpoint import load_checkpoint
from run.files import locked
from run.tracking import read_metrics

TRAIN = [sys.executable, str(ROOT / "train.py")]
FILES = ["best.pt", "latest.pt", "loss.png", "metrics.jsonl"]  # of a run, and nothing else


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture(scope="module")
def whole(tiny, tmp_path_factory):
    """The folder of a run without interruption."""
    folder = tmp_path_factory.mktemp("whole") / "r"
    train.main([*tiny, f"--out_dir={folder}"])
    return folder


KILL = """if True:
    import itertools, os, sys, train
    replace, calls = os.replace, itertools.count(1)
    os.replace = lambda *names: os.kill(os.getpid(), 9) if next(calls) == int(sys.argv[1]) else replace(*names)
    train.main(sys.argv[2:])"""


@pytest.mark.parametrize(
    "nth, partial",
    [
        (3, "latest.pt"),
        (4, "best.pt"),
        (5, "latest.pt"),
        (6, "loss.png"),
    ],
)
def test_a_kill_before_any_rename_loses_nothing_and_leaves_nothing(nth, partial, tiny, whole, tmp_path):
    """The first rename is that of metrics.jsonl. Each evaluation renames best.pt and latest.pt; loss.png is the last."""
    flags = [*tiny, f"--out_dir={tmp_path}/r"]
    done = subprocess.run([sys.executable, "-c", KILL, str(nth), *flags], cwd=ROOT)
    assert done.returncode == -signal.SIGKILL
    assert set(names(tmp_path / "r")) - set(FILES) == {".lock", f".{partial}.tmp"}
    train.main(flags)  # the same command resumes
    for which in ("best", "latest"):
        assert_same_run(whole, tmp_path / "r", which)
    assert metrics(tmp_path / "r", "step") == [0, 3, 6]
    if nth < 6:  # the run was not finished
        assert names(tmp_path / "r") == FILES


def test_one_process_at_a_time_writes_into_a_folder(tiny, tmp_path, refused):
    folder = tmp_path / "r"
    with locked(folder):
        assert f"another process is writing into {folder}" in refused(train.main, *tiny, f"--out_dir={folder}")


def test_a_full_disk_is_one_line_and_leaves_the_last_good_files(tiny, tmp_path):
    folder = tmp_path / "r"
    train.main([*tiny, f"--out_dir={folder}", "--max_iters=3"])
    content = (folder / "latest.pt").read_bytes()
    half = len(content) // 2

    def limit():  # writing a larger file is an error, as on a full disk
        resource.setrlimit(resource.RLIMIT_FSIZE, (half, half))

    command = [*TRAIN, "--resume", f"--out_dir={folder}", "--max_iters=6"]
    done = subprocess.run(command, stderr=subprocess.PIPE, preexec_fn=limit)
    assert done.returncode == 2
    assert done.stderr.count(b"\n") == 1
    assert (folder / "latest.pt").read_bytes() == content
    assert names(folder) == FILES


def test_after_a_signal_the_run_is_saved_and_the_process_dies_as_after_ctrl_c(tiny, tmp_path):
    flags = [*tiny, f"--out_dir={tmp_path}/r", "--max_iters=100000", "--log_interval=3"]
    with subprocess.Popen([*TRAIN, *flags], stdout=-1, stderr=-1, text=True) as process:
        while "step 3/" not in process.stdout.readline():
            pass
        process.terminate()
        assert "saved" in process.communicate()[1]
    assert process.returncode == -signal.SIGINT
    step = load_checkpoint(tmp_path / "r", "latest").step
    assert metrics(tmp_path / "r", "step") == [*range(0, step + 1, 3)]


def test_weights_that_are_not_finite_are_never_saved(whole, tmp_path):
    name = "transformer.h.0.ln_1.weight"
    checkpoint = load_checkpoint(whole)
    checkpoint.weights[name][0] = torch.inf
    with pytest.raises(ValueError, match=name):
        checkpoint.save(tmp_path / "latest.pt")
    assert not names(tmp_path)


def test_every_flipped_bit_is_found(whole, tmp_path):
    path = shutil.copytree(whole, tmp_path / "r") / "latest.pt"
    content = path.read_bytes()
    n_found = 0
    for i in range(60):
        changed = bytearray(content)
        changed[i * len(content) // 60] ^= 1 << i % 8
        path.write_bytes(changed)
        try:
            assert_same_run(whole, path.parent)  # a bit without meaning, such as one of a time stamp or of padding
        except ValueError:
            n_found += 1
    assert n_found > 40


@pytest.mark.parametrize(
    "losses, kept", [([9, 3.0, math.nan], "the last checkpoint is kept"), ([9, math.nan], "nothing was saved")]
)
def test_a_loss_that_is_not_finite_ends_the_run_and_leaves_the_last_checkpoint(
    losses, kept, tiny, tmp_path, monkeypatch
):
    remaining = iter(losses)
    monkeypatch.setattr(train, "evaluate", lambda *args: next(remaining))
    with pytest.raises(ValueError, match=f"not finite at step {3 * len(losses) - 3}: lower --learning_rate; {kept}"):
        train.main([*tiny, f"--out_dir={tmp_path}/r"])
    assert metrics(tmp_path / "r", "val/loss") == losses[:-1]
    assert [*(tmp_path / "r").glob("*.pt")] == [] or load_checkpoint(tmp_path / "r").best_val_loss == 3


def test_malformed_rows_are_skipped(tmp_path):
    (tmp_path / "metrics.jsonl").write_bytes(b'\xff\xfe\n{"step": 1, "lo\n{"step": 3}\n')
    assert read_metrics(tmp_path) == [{"step": 3}]
