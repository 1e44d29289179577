"""The same as test_robust.py, at length:  python -m pytest -m slow"""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from conftest import ROOT

import train
from run import checkpoint as checkpoints
from run.tracking import read_metrics

pytestmark = pytest.mark.slow
TRAIN = [sys.executable, str(ROOT / "train.py")]


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
        a, b = (checkpoints.load(tmp_path / name, which) for name in ("whole", "r"))
        assert a.step == b.step and all(torch.equal(w, b.weights[name]) for name, w in a.weights.items())
    assert [row["val/loss"] for row in read_metrics(tmp_path / "whole") if "val/loss" in row] == [
        row["val/loss"] for row in read_metrics(tmp_path / "r") if "val/loss" in row
    ]


def test_a_process_that_stands_still_ends_the_other_with_a_line(tiny, tmp_path):
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
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(children[-1]), signal.SIGSTOP)
        begin = time.monotonic()
        said = process.communicate(timeout=120)[1]
    assert process.returncode != 0 and time.monotonic() - begin < 90
    assert "another process of this run has ended or stands still" in said


def test_a_dead_wandb_server_holds_nothing(tiny, tmp_path):
    env = {k: v for k, v in os.environ.items() if not k.startswith("WANDB")}
    command = [*TRAIN, *tiny, f"--out_dir={tmp_path}/r", "--max_iters=100000", "--wandb_mode=offline"]
    with subprocess.Popen(command, cwd=tmp_path, env=env, stdout=-1, stderr=-1, text=True) as process:
        while not list(tmp_path.glob("wandb/offline-run-*/*.wandb")):
            time.sleep(0.1)
        subprocess.run(["pkill", "-9", "wandb-core"], check=True)
        time.sleep(1)
        process.send_signal(signal.SIGTERM)
        begin = time.monotonic()
        said = process.communicate(timeout=60)[1]
    assert process.returncode == -signal.SIGTERM and time.monotonic() - begin < 15
    assert said.count("wandb") <= 1 and "Traceback" not in said


def test_three_hundred_flipped_bits(trained, tmp_path):
    whole, rng, refused = (trained("rope") / "best.pt").read_bytes(), random.Random(0), 0
    weights = checkpoints.load(trained("rope")).weights
    for _ in range(300):
        changed = bytearray(whole)
        changed[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
        (tmp_path / "best.pt").write_bytes(changed)
        try:
            loaded = checkpoints.load(tmp_path)
        except ValueError:
            refused += 1
        else:
            assert all(torch.equal(w, weights[name]) for name, w in loaded.weights.items())
    print(f"{refused} of 300 refused; the others changed no weight")
