"""Like test_robust.py, but slow:  python -m pytest -m slow"""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import ROOT
from test_robust import FILES, TRAIN, assert_same, names

import train
from run.tracking import read_metrics

pytestmark = pytest.mark.slow


def children(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_forty_random_kills_end_bit_identical(dataset, tmp_path):
    size = ["--n_layer=2", "--n_head=2", "--n_embd=64", "--block_size=16", "--batch_size=4", "--device=cpu"]
    flags = [f"--dataset={dataset}", *size, "--max_iters=3000", "--eval_interval=20", "--log_interval=10"]
    train.main([*flags, f"--out_dir={tmp_path}/whole"])
    rng, kills, command = random.Random(0), 0, [*TRAIN, *flags, f"--out_dir={tmp_path}/r"]
    while True:
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as process:
            try:
                process.wait(timeout=2.5 + 2 * rng.random() if kills < 40 else None)
                break
            except subprocess.TimeoutExpired:
                process.kill()
                kills += 1
    assert process.returncode == 0 and kills > 5
    for which in ("best", "latest"):
        assert_same(tmp_path / "whole", tmp_path / "r", which)
    a, b = ([row.get("val/loss") for row in read_metrics(tmp_path / name)] for name in ("whole", "r"))
    assert a == b and names(tmp_path / "r") == FILES


def test_a_process_that_hangs_ends_the_other_with_one_line(tiny, tmp_path):
    script = tmp_path / "impatient.py"
    script.write_text(
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "from datetime import timedelta\nimport train, run.script, run.world\n"
        "run.world.PATIENCE = timedelta(seconds=10)\nrun.script.script(train.main)\n"
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", str(script)]
    flags = [*tiny, "--max_iters=1000000", f"--out_dir={tmp_path}/r", "--gradient_accumulation_steps=2"]
    with subprocess.Popen([*command, *flags], cwd=ROOT, stdout=-1, stderr=-1, text=True) as process:
        while "step 3/" not in process.stdout.readline():
            pass
        os.kill(children(process.pid)[-1], signal.SIGSTOP)
        started = time.monotonic()
        said = process.communicate(timeout=120)[1]
    assert process.returncode != 0 and time.monotonic() - started < 90
    assert "another process of this run has ended or hangs" in said


def test_a_killed_wandb_server_does_not_delay_the_end(tiny, tmp_path):
    env = {k: v for k, v in os.environ.items() if not k.startswith("WANDB")}
    command = [*TRAIN, *tiny, f"--out_dir={tmp_path}/r", "--max_iters=100000", "--wandb_mode=offline"]
    with subprocess.Popen(command, cwd=tmp_path, env=env, stdout=-1, stderr=-1, text=True) as process:
        while not list(tmp_path.glob("wandb/offline-run-*/*.wandb")):
            time.sleep(0.1)
        while not (servers := [pid for follower in children(process.pid) for pid in children(follower)]):
            time.sleep(0.1)
        for server in servers:
            os.kill(server, signal.SIGKILL)
        time.sleep(1)
        process.send_signal(signal.SIGTERM)
        started = time.monotonic()
        said = process.communicate(timeout=60)[1]
    assert process.returncode == -signal.SIGTERM and time.monotonic() - started < 15
    assert said.count("wandb") <= 1 and "Traceback" not in said
