import pytest
import wandb
from conftest import assert_same_run, metrics, wandb_records

import train
from run import tracking


@pytest.fixture
def offline(tmp_path, monkeypatch):
    """Where the real wandb, without a login, writes its runs."""
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    wandb.teardown()  # it remembers the folder and the variables of an earlier test
    return tmp_path


def records_in(folder, kind):
    """The records of this kind of each offline run, oldest first."""
    logs = sorted(folder.glob("wandb/offline-run-*/*.wandb"), key=lambda path: path.stat().st_mtime_ns)
    return [[record[kind] for record in wandb_records(log) if kind in record] for log in logs]


def test_without_a_login_wandb_is_offline_and_gets_the_rows_of_each_call(run_tiny, offline, monkeypatch, capsys):
    """The project is the flag's, or else that of the user's environment, or else ours."""
    folder = run_tiny("r", "--max_iters=3")
    assert "wandb sync wandb/offline-run-" in capsys.readouterr().out
    monkeypatch.setenv("WANDB_PROJECT", "a")
    wandb.teardown()
    resume = ["--resume", f"--out_dir={folder}", "--log_interval=1"]
    train.main([*resume, "--max_iters=6"])
    train.main([*resume, "--max_iters=7", "--wandb_project=b"])
    assert [run["project"] for (run,) in records_in(offline, "run")] == ["lengthwise", "a", "b"]
    first, second, _ = [[row["item"] for row in rows] for rows in records_in(offline, "history")]
    assert [row["step"] for row in first] == [0, 3]
    assert first[1].keys() > {"train/loss", "val/loss"}
    assert [row["step"] for row in second] == [4, 5, 6]


@pytest.mark.parametrize("fails", ["init", "log", "finish"])
def test_a_wandb_fault_is_one_line_and_the_run_ends_as_without_it(fails, run_tiny, offline, monkeypatch, capsys):
    def fault(*args, **settings):
        raise OSError("disk full")

    module = wandb if fails == "init" else wandb.Run
    monkeypatch.setattr(module, fails, fault)
    folder = run_tiny("r")
    out, err = capsys.readouterr()
    assert err.count("disk full") == err.count("\n") == 1
    assert "best.pt" in out and "charts" not in out
    without = run_tiny("without", "--wandb_mode=disabled")
    assert_same_run(folder, without)
    assert metrics(folder, "train/loss") == metrics(without, "train/loss")


def test_a_user_who_has_disabled_wandb_gets_none(run_tiny, offline, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    run_tiny("r")
    assert not records_in(offline, "run")


def test_the_time_left_leaves_out_the_validation_before_the_first_step(tmp_path, monkeypatch, capsys):
    cfg = train.TrainConfig(out_dir=str(tmp_path), max_iters=3, wandb_mode="disabled")
    now = 0.0
    monkeypatch.setattr(tracking.time, "perf_counter", lambda: now)
    log = tracking.RunLog(cfg, rank=0, segment=0, step=0)
    now = 100.0
    log(0, {})
    now = 101.0
    log(1, {})
    assert "step 1/3 | 0:00:02 left" in capsys.readouterr().out
