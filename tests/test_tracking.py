import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import ROOT, metrics, wandb_records

import train
from run import tracking
from run.checkpoint import load_checkpoint
from run.tracking import Pace, publish

ARGUMENTS = {"train": "step"}, {"id": "id", "config": {}}
FAKE = """
import json, os, time
from types import SimpleNamespace as Settings

class errors:
    class Error(Exception): pass

def setup(): return Settings(settings=Settings(mode=os.environ.get("WANDB_MODE", "online")))
def login(**given): return "WANDB_API_KEY" in os.environ

class Run:
    url, project_url = "there", "everywhere"
    def __init__(self, mode, id):
        self.settings = Settings(sync_dir=f"wandb/{mode}-run-{id}", _offline=mode == "offline")
    def define_metric(self, *names, **given): pass
    def log(self, row):
        step = str(row.get("step"))
        if step == os.environ.get("FAIL_AT"): raise OSError("disk\\nfull")
        with open("logged", "a") as f: f.write(json.dumps(row) + "\\n")
    def finish(self):
        if "HANG" in os.environ: time.sleep(900)

def init(mode, id, **given):
    with open("modes", "a") as f: f.write(f"{mode} {id} {os.getpid()}\\n")
    if mode == "online" and "NO_NETWORK" in os.environ: raise errors.Error("no network")
    return Run(mode, id)
"""


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """A wandb that obeys the environment. Returns the folder that it writes to."""
    (tmp_path / "fake").mkdir()
    (tmp_path / "fake" / "wandb.py").write_text(FAKE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "fake"))
    monkeypatch.delenv("WANDB_MODE")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "modes").touch()
    return tmp_path


def logged(folder):
    return [json.loads(line) for line in (folder / "logged").read_text().splitlines()]


def started(folder):
    """The mode and the id of every wandb.init, without the random part of each id."""
    calls = (folder / "modes").read_text().splitlines()
    assert len(set(calls)) == len(calls)
    return [re.sub(r"-\w{8}-\d| \d+$", "", call) for call in calls]


def is_alive(pid):
    state = Path(f"/proc/{pid}/stat")
    return state.exists() and state.read_text().split()[2] != "Z"


def test_wandb_gets_the_rows_of_this_call_also_when_it_resumes(run_tiny, fake):
    folder = run_tiny("r", "--max_iters=3")
    assert [row["step"] for row in logged(fake)] == [0, 3]
    assert logged(fake)[1].keys() > {"train/loss", "val/loss"}
    (fake / "logged").unlink()
    train.main(["--resume", f"--out_dir={folder}", "--max_iters=6", "--log_interval=1"])
    assert [row["step"] for row in logged(fake)] == [4, 5, 6]
    assert started(fake)[1].endswith("-r1")


def test_a_wandb_fault_is_one_line_and_training_completes(run_tiny, fake, monkeypatch, capfd):
    monkeypatch.setenv("FAIL_AT", "3")
    folder = run_tiny("r", "--wandb_mode=offline")
    err = capfd.readouterr().err
    assert "disk full" in err and err.count("\n") == 1 and logged(fake)[-1]["step"] == 0
    assert load_checkpoint(folder).step == 6 and metrics(folder, "step") == [0, 3, 6]


LOGIN = {"WANDB_API_KEY": "k" * 40}
NO_NETWORK = LOGIN | {"NO_NETWORK": "1"}  # it is tried once


@pytest.mark.parametrize(
    "env, names, mode, expected, charts",
    [
        ({}, "ab", "auto", ["offline a-id", "offline b-id"], "wandb leet wandb "),
        (LOGIN, "a", "auto", ["online a-id"], "there\n"),
        (LOGIN, "ab", "auto", ["online a-id", "online b-id"], "everywhere\n"),
        (LOGIN, "a", "offline", ["offline a-id"], "wandb leet wandb "),
        (NO_NETWORK, "ab", "auto", ["online a-id", "offline a-id-offline", "offline b-id"], "wandb leet wandb "),
        ({"WANDB_DISABLED": "true"}, "a", "auto", [], ""),
        ({"WANDB_MODE": "disabled"}, "a", "auto", [], ""),
    ],
)
def test_wandb_is_offline_without_a_login_or_a_network(env, names, mode, expected, charts, fake, monkeypatch, capfd):
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    is_logged = publish({name: ({}, [{"step": 1}]) for name in names}, mode, *ARGUMENTS)
    assert is_logged == bool(expected)
    assert started(fake) == expected
    out, err = capfd.readouterr()
    assert charts in out and ("wandb sync wandb/*" in out) == ("leet" in charts)
    assert err.count("\n") == (env is NO_NETWORK)


@pytest.mark.parametrize("mode, n_runs", [("disabled", 0), ("offline", 3)])
def test_wandb_follows_the_user_s_settings_and_takes_any_names(mode, n_runs, tmp_path, monkeypatch, capfd):
    folder = tmp_path / "a b"
    (folder / "wandb").mkdir(parents=True)
    settings = f"[default]\nmode = {mode}\n"  # as the command `wandb disabled` writes it
    (folder / "wandb" / "settings").write_text(settings)
    monkeypatch.chdir(folder)
    monkeypatch.delenv("WANDB_MODE")
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    monkeypatch.setenv("WANDB_DIR", str(folder))
    publish({name: ({}, [{"step": 1}]) for name in ("a:b", "a/b", "\udcff" * 300)}, "auto", *ARGUMENTS)
    assert len([*folder.glob("wandb/offline-run-*/*.wandb")]) == n_runs
    assert capfd.readouterr().err == ""


def test_a_wandb_that_hangs_is_ended_after_a_while(fake, monkeypatch, capfd):
    monkeypatch.setenv("HANG", "1")
    monkeypatch.setattr(tracking, "PATIENCE", 3)
    rows = [{"step": step} for step in range(20_000)]  # far more than a pipe holds
    assert not publish({"a": ({}, rows)}, "online", *ARGUMENTS)
    assert capfd.readouterr().err.count("\n") == 1
    assert not is_alive((fake / "modes").read_text().split()[-1])
    assert len(logged(fake)) == 20_000


def test_a_killed_run_leaves_a_complete_offline_run(tmp_path, monkeypatch):
    code = """if True:
        import os
        from run.tracking import RunLog
        from train import TrainConfig
        log = RunLog(TrainConfig(out_dir="id", wandb_mode="offline"), 0, 0, 0)
        log(7, {"train/loss": 1.5}, str(log.process.pid))
        os.kill(os.getpid(), 9)"""
    monkeypatch.delenv("WANDB_MODE")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, stdout=-1, text=True)
    assert done.returncode == -signal.SIGKILL
    for _ in range(300):
        time.sleep(0.1)
        if not is_alive(done.stdout.split()[0]):
            break
    [log] = tmp_path.glob("wandb/offline-run-*-id-*/*.wandb")
    rows = [record["history"]["item"] for record in wandb_records(log) if "history" in record]
    assert [row["train/loss"] for row in rows] == [1.5]


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
