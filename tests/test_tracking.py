from unittest.mock import Mock

import pytest

import train
from run import checkpoint as checkpoints
from run.tracking import RunLog, Wandb, format_seconds, read_metrics


def test_a_log_drops_what_a_resumed_run_writes_again_and_is_silent_without_a_folder(tmp_path, capsys):
    log = RunLog(tmp_path, 0, Wandb("disabled", "p", "g", "id", "train", {}, {}))
    for step in (1, 2, 3):
        log(step, {"loss": step}, f"step {step}")
    RunLog(tmp_path, 2, None)
    assert read_metrics(tmp_path) == [{"step": 1, "loss": 1}, {"step": 2, "loss": 2}]
    assert capsys.readouterr().out == "step 1\nstep 2\nstep 3\n"
    silent = RunLog()
    silent(1, {}, "step 1"), silent.say(["x"]), silent.close({})
    assert capsys.readouterr().out == ""


def test_a_wandb_fault_never_stops_training(tiny, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("wandb.init", Mock(side_effect=OSError("disk full")))
    train.main([*tiny, f"--out_dir={tmp_path}/r", "--wandb_mode=offline"])
    assert "wandb failed and is left out from here on: disk full" in capsys.readouterr().err
    assert checkpoints.load(tmp_path / "r").step == 6


def test_wandb_is_offline_without_a_login_and_falls_back_without_a_network(tmp_path, monkeypatch):
    import wandb

    modes = []

    def init(mode, **kw):
        modes.append(mode)
        if mode == "online":
            raise wandb.errors.CommError("no network")
        return Mock()

    monkeypatch.setattr(wandb, "init", init)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    arguments = ("auto", "p", "g", "id", "train", {}, {"train": "step"})
    Wandb(*arguments)
    assert modes == ["offline"]
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    Wandb(*arguments)
    assert modes == ["offline", "online", "offline"]
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert Wandb(*arguments).run is None and len(modes) == 3


@pytest.mark.parametrize("seconds, text", [(0.4, "0:00"), (61, "1:01"), (3600, "1:00:00"), (7325, "2:02:05")])
def test_format_seconds(seconds, text):
    assert format_seconds(seconds) == text
