from types import SimpleNamespace

import pytest
import wandb
from conftest import metrics, wandb_records

import train
from run import tracking
from run.checkpoint import load_checkpoint
from run.tracking import Pace, publish


@pytest.fixture
def offline(tmp_path, monkeypatch):
    """Where the real wandb, without a login, writes its runs."""
    monkeypatch.delenv("WANDB_MODE")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.chdir(tmp_path)
    wandb.teardown()  # it remembers the folder of an earlier test
    return tmp_path


def rows_in(folder):
    """The rows of each offline run, oldest first."""
    logs = sorted(folder.glob("wandb/offline-run-*/*.wandb"), key=lambda path: path.stat().st_mtime_ns)
    return [[r["history"]["item"] for r in wandb_records(log) if "history" in r] for log in logs]


def test_without_a_login_wandb_is_offline_and_gets_the_rows_of_each_call(run_tiny, offline, capsys):
    folder = run_tiny("r", "--max_iters=3")
    assert "wandb sync wandb/offline-run-" in capsys.readouterr().out
    train.main(["--resume", f"--out_dir={folder}", "--max_iters=6", "--log_interval=1"])
    first, second = rows_in(offline)
    assert [row["step"] for row in first] == [0, 3] and first[1].keys() > {"train/loss", "val/loss"}
    assert [row["step"] for row in second] == [4, 5, 6]


def test_any_names_are_taken(offline):
    names = ("a:b", "a/b", "\udcff" * 300)
    runs = {name: ({}, [{"step": 1}]) for name in names}
    assert publish(runs, "auto", {"train": "step"}, {"id": "id", "config": {}})
    assert len(rows_in(offline)) == 3


@pytest.mark.parametrize("fails", ["init", "log"])
def test_a_wandb_fault_is_one_line_and_training_completes(fails, run_tiny, offline, monkeypatch, capsys):
    def fault(*args, **settings):
        raise OSError("disk full")

    run = SimpleNamespace(define_metric=lambda *names, **settings: None, disabled=False, log=fault)
    monkeypatch.setattr(wandb, "init", fault if fails == "init" else lambda **settings: run)
    folder = run_tiny("r")
    err = capsys.readouterr().err
    assert "disk full" in err and err.count("\n") == 1
    assert load_checkpoint(folder).step == 6 and metrics(folder, "step") == [0, 3, 6]


@pytest.mark.parametrize("name, value", [("WANDB_MODE", "disabled"), ("WANDB_DISABLED", "true")])
def test_a_user_who_has_disabled_wandb_gets_none(name, value, run_tiny, offline, monkeypatch):
    monkeypatch.setenv(name, value)
    run_tiny("r")
    assert not rows_in(offline)


def test_pace_measures_speed_since_the_last_row_and_the_time_that_is_left(monkeypatch):
    monkeypatch.setattr(tracking.time, "perf_counter", lambda: now)
    now = 100.0
    pace = Pace(first=10, last=50, tokens=64, flops_per_token=1e4, peak=5.12e6)
    now = 105.0  # two steps and an evaluation
    pace.restart(12)
    now = 107.0
    assert pace.row(20) == {"train/tokens_per_s": 256.0, "train/mfu": 0.5}  # 8 steps in 2 s
    row = {"train/loss": 2, "train/lr": 4e-3, "val/loss": 1.5} | pace.row(20)
    line = "step 20/50 | train 2.0000 | val 1.5000 | lr 4.0e-03 | 0.3k tok/s | 50% MFU | 0:00:21 left"
    assert pace.line(20, row) == line and pace.seconds() == 7.0  # 30 steps are left, at 10 in 7 s
    pace.peak = 1e6  # the machine was busy when it was measured
    assert pace.row(20)["train/mfu"] == 1.0
