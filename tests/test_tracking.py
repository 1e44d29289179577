import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import ROOT

import train
from run import checkpoint as checkpoints
from run import tracking
from run.tracking import RunLog, Wandb, format_seconds, read_metrics

ARGUMENTS = ("p", "g", "id", "train", {"a": 1}, {"train": "step"})
FAKE = """
import json, os, sys, time

class errors:
    class Error(Exception): pass

class Settings(dict):
    def __init__(self, **given): self.__dict__ = given

def setup(settings): pass
def login(**given): return "WANDB_API_KEY" in os.environ

class Run:
    def __init__(self, mode, id):
        self.settings, self.url = Settings(sync_dir=f"wandb/{mode}-run-{id}", _offline=mode == "offline"), "there"
    def define_metric(self, *names, **given): pass
    def log(self, row):
        if row["step"] == int(os.environ.get("FAIL_AT", -1)): raise OSError("disk\\nfull")
        with open("logged", "a") as f: f.write(json.dumps(row) + "\\n")
    def finish(self):
        if "SERVER" in os.environ:  # in a session of its own, as wandb's is
            import subprocess
            subprocess.Popen(["sleep", "900"], start_new_session=True)
        time.sleep(float(os.environ.get("FINISH_SECONDS", 0)))

def init(mode, id, **given):
    with open("modes", "a") as f: f.write(f"{mode} {id}\\n")
    if mode == "online" and "NO_NETWORK" in os.environ: raise errors.Error("no network")
    return Run(mode, id)
"""


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """A wandb that does what the environment asks of it. Returns the folder that it writes to."""
    (tmp_path / "fake").mkdir()
    (tmp_path / "fake" / "wandb.py").write_text(FAKE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "fake"))
    monkeypatch.delenv("WANDB_MODE")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def rows(folder):
    return [json.loads(line) for line in (folder / "logged").read_text().splitlines()]


def test_a_log_drops_what_a_resumed_run_writes_again_and_is_silent_without_a_folder(tmp_path, capsys):
    log = RunLog(tmp_path, 0, Wandb("disabled", *ARGUMENTS))
    for step in (1, 2, 3):
        log(step, {"loss": step}, f"step {step}")
    RunLog(tmp_path, 2, None)
    assert read_metrics(tmp_path) == [{"step": 1, "loss": 1}, {"step": 2, "loss": 2}]
    assert capsys.readouterr().out == "step 1\nstep 2\nstep 3\n"
    silent = RunLog()
    silent(1, {}, "step 1"), silent.say(["x"]), silent.close({})
    assert capsys.readouterr().out == ""


def test_a_wandb_fault_is_one_line_and_never_stops_training(tiny, fake, monkeypatch, capfd):
    monkeypatch.setenv("FAIL_AT", "3")
    train.main([*tiny, f"--out_dir={fake}/r", "--wandb_mode=offline"])
    assert capfd.readouterr().err.count("wandb failed and is left out from here on: disk full\n") == 1
    assert checkpoints.load(fake / "r").step == 6 and rows(fake)[-1]["step"] == 0


def test_wandb_is_offline_without_a_login_and_falls_back_without_a_network(fake, monkeypatch, capfd):
    def modes():
        wandb = Wandb("auto", *ARGUMENTS)
        wandb.log({"step": 1})
        lines = wandb.finish()
        text = (fake / "modes").read_text() if wandb.process else ""
        (fake / "modes").unlink(missing_ok=True)
        return text.split("\n")[:-1], lines

    offline = ["charts    wandb leet wandb", "upload    wandb sync wandb/offline-run-id"]
    assert modes() == (["offline id"], offline)
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    assert modes() == (["online id"], ["charts    there"])
    monkeypatch.setenv("NO_NETWORK", "1")
    assert modes() == (["online id", "offline id-offline"], [offline[0], offline[1] + "-offline"])
    assert "wandb is not reachable (Error), so it logs offline" in capfd.readouterr().err
    assert rows(fake) == [{"step": 1}] * 3
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert modes() == ([], [])
    monkeypatch.setenv("WANDB_MODE", "loud")
    with pytest.raises(ValueError, match="WANDB_MODE='loud' is not one of: online, offline, disabled"):
        modes()


def test_a_wandb_that_hangs_is_ended_and_what_it_has_stays(fake, monkeypatch, capfd):
    monkeypatch.setattr(tracking, "PATIENCE", 1)
    monkeypatch.setenv("FINISH_SECONDS", "900")
    monkeypatch.setenv("SERVER", "1")
    wandb, begin = Wandb("online", *ARGUMENTS), time.monotonic()
    for step in range(100_000):  # far more than a pipe holds
        wandb.log({"step": step})
    assert wandb.finish() == ["charts    wandb leet wandb", "upload    wandb sync wandb/online-run-id"]
    assert time.monotonic() - begin < 5 and wandb.process.poll() is not None
    assert "wandb did not finish within 1 s and was ended" in capfd.readouterr().err


def test_a_killed_run_leaves_a_whole_offline_run(tmp_path):
    script = """if True:
        import os
        from run.tracking import Wandb
        wandb = Wandb("offline", "p", "g", "id", "train", {}, {"train": "step"})
        wandb.log({"step": 7, "train/loss": 1.5})
        while not wandb.calls.empty(): pass
        print(wandb.process.pid, flush=True)
        os.kill(os.getpid(), 9)"""
    env = {k: v for k, v in os.environ.items() if not k.startswith("WANDB")} | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True)
    assert done.returncode == -9
    command = [Path(sys.executable).parent / "wandb", "leet", "inspect", "--json"]
    for _ in range(100):
        time.sleep(0.1)
        logs = list(tmp_path.glob("wandb/offline-run-*-id/*.wandb"))
        if logs and not Path(f"/proc/{done.stdout.strip()}").exists():
            break
    shown = subprocess.run([*command, *logs], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
    assert '"train/loss"' in shown.stdout and "1.5" in shown.stdout


@pytest.mark.parametrize("seconds, text", [(0.4, "0:00"), (61, "1:01"), (3600, "1:00:00"), (7325, "2:02:05")])
def test_format_seconds(seconds, text):
    assert format_seconds(seconds) == text
