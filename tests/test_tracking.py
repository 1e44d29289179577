import pytest
import wandb
from conftest import assert_same_run, metrics, wandb_records

import train
from run.tracking import publish


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


def test_without_a_login_wandb_is_offline_and_gets_the_rows_of_each_call(run_tiny, offline, capsys):
    folder = run_tiny("r", "--max_iters=3")
    assert "wandb sync wandb/offline-run-" in capsys.readouterr().out
    train.main(["--resume", f"--out_dir={folder}", "--max_iters=6", "--log_interval=1"])
    first, second = [[row["item"] for row in rows] for rows in records_in(offline, "history")]
    assert [row["step"] for row in first] == [0, 3]
    assert first[1].keys() > {"train/loss", "val/loss"}
    assert [row["step"] for row in second] == [4, 5, 6]


@pytest.mark.parametrize("flag, variable, expected", [("", "", "lengthwise"), ("", "a", "a"), ("b", "a", "b")])
def test_the_project_is_that_of_the_flag_or_of_the_environment(flag, variable, expected, offline, monkeypatch):
    monkeypatch.setenv("WANDB_PROJECT", variable)
    init = {"name": "x", "project": flag, "config": {}}
    publish({"a": ({}, [{"step": 1}])}, "auto", {"train": "step"}, init)
    ((run,),) = records_in(offline, "run")
    assert run["project"] == expected


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
