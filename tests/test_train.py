import copy
import dataclasses
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys

import pytest
import torch
from conftest import ROOT

import data
import eval_length
from model import GPT, GPTConfig, scheme_names
from run.checkpoint import CALL_FIELDS, load_checkpoint
from run.device import pick_device
from run.optimizer import Optimizer, schedule
from run.tracking import read_metrics
from train import TrainConfig, main

ONCE = ["--max_iters=1", "--device=cpu", "--learning_rate=0", "--muon_lr=0"]  # a step that changes no weight


@pytest.fixture
def run_tiny(tiny, tmp_path):
    """run_tiny(name, flag, …): trains with the flags of `tiny` and these. Returns the run's folder, tmp_path/name."""

    def call(name, *flags):
        assert main([*tiny, f"--out_dir={tmp_path}/{name}", *flags]) == 0
        return tmp_path / name

    return call


def torchrun(*flags):
    """Trains in two processes."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "train.py"]
    return subprocess.run([*command, *flags], cwd=ROOT, capture_output=True, text=True)


def load(folder, which="latest"):
    return load_checkpoint(folder, which)


def assert_same_weights(a, b, tolerance=0):
    """The latest checkpoints of two folders have the same weights."""
    torch.testing.assert_close(load(a).weights, load(b).weights, rtol=tolerance, atol=tolerance)


def metrics(folder, key):
    return [row[key] for row in read_metrics(folder) if key in row]


@pytest.mark.parametrize("scheme", scheme_names())
def test_every_scheme_trains(run_tiny, scheme):
    folder = run_tiny("r", f"--pos_scheme={scheme}", "--max_iters=60", "--learning_rate=0.01")
    losses = metrics(folder, "val/loss")
    assert losses[0] == pytest.approx(math.log(25), abs=0.1)  # uniform over 25 characters
    assert losses[-1] < 2.2
    assert (folder / "loss.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("more", ["--optimizer=adamw", "--max_position=300", "--dropout=0.3", "--pos_pattern=0"])
def test_resumed_equals_uninterrupted_bit_for_bit(run_tiny, tmp_path, monkeypatch, more, capsys):
    flags = ["--pos_scheme=t5", more, "--max_iters=8", "--log_interval=1", "--warmup_iters=8"]
    whole, parts = run_tiny("whole", *flags), tmp_path / "parts"
    original, calls = data.Batches.__call__, []

    def interrupt(self, step, first, last):
        calls.append(step)
        if len(calls) == 5:
            os.kill(os.getpid(), signal.SIGINT)
        return original(self, step, first, last)

    monkeypatch.setattr(data.Batches, "__call__", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_tiny("parts", *flags)
    out = capsys.readouterr().out
    assert f"stopped and saved at step 5. To resume:\n  python train.py --resume --out_dir={parts}" in out
    numbers = r"train \d\.\d{4} \| val \d\.\d{4} \| lr 1\.3e-03 \| \d+\.\dk tok/s \| \d+% MFU \| 0:\d\d left"
    assert len(re.findall(rf"^step 3/8 \| {numbers}$", out, re.M)) == 2
    assert load(parts).step == 5
    main(["--resume", f"--out_dir={parts}", "--device=cpu"])
    assert calls == list(range(8))
    assert_same_weights(whole, parts)
    for key in ("step", "val/loss", "train/loss", "train/grad_norm"):
        assert metrics(whole, key) == metrics(parts, key)
    assert load(whole).best_val_loss == load(parts).best_val_loss == min(metrics(whole, "val/loss")[1:])


def test_micro_steps_give_the_gradients_of_one_step(run_tiny):
    adamw = "--optimizer=adamw"  # Muon computes in bfloat16, which magnifies rounding
    one, four = run_tiny("one", adamw), run_tiny("four", adamw, "--batch_size=1", "--gradient_accumulation_steps=4")
    assert_same_weights(one, four, tolerance=1e-5)
    assert metrics(one, "train/grad_norm") == pytest.approx(metrics(four, "train/grad_norm"), rel=1e-4)


def test_two_processes_train_as_one_and_either_resumes_the_other(tiny, run_tiny, tmp_path):
    flags = ["--pos_scheme=rope", "--gradient_accumulation_steps=2"]
    one, ddp = run_tiny("one", *flags), tmp_path / "ddp"
    two = run_tiny("two", *flags, "--max_iters=3", "--min_lr=4e-3")
    three = shutil.copytree(two, tmp_path / "three")
    assert torchrun(*tiny, *flags, f"--out_dir={ddp}").stdout.count("step 6/6") == 1  # only one process prints
    assert_same_weights(one, ddp, tolerance=1e-5)
    assert metrics(one, "val/loss") == pytest.approx(metrics(ddp, "val/loss"), abs=1e-5)
    torchrun("--resume", f"--out_dir={two}", "--max_iters=6")
    main(["--resume", f"--out_dir={three}", "--max_iters=6"])
    assert_same_weights(two, three, tolerance=1e-5)
    done = torchrun(*tiny, "--learning_rat=1")
    assert done.returncode != 0 and done.stderr.count("error: unknown key --learning_rat") == 1


def test_a_finished_run_is_reported_and_another_run_is_never_overwritten(run_tiny, capsys):
    folder = run_tiny("r")
    before = (folder / "latest.pt").read_bytes()
    capsys.readouterr()
    run_tiny("r", "--log_interval=2", "--eval_interval=2")  # still the same experiment
    assert f"{folder} is finished: 6 steps" in capsys.readouterr().out
    with pytest.raises(ValueError, match=r"another run \(learning_rate 0.004 there, 0.1 now.*--resume.*--overwrite"):
        run_tiny("r", "--learning_rate=0.1")
    for flag, name in (("--pos_scheme=rope", "pos_scheme"), ("--optimizer=adamw", "optimizer")):
        with pytest.raises(ValueError, match=f"cannot be resumed after a change of {name}"):
            run_tiny("r", flag, "--resume")
    assert (folder / "latest.pt").read_bytes() == before
    run_tiny("r", "--pos_scheme=rope", "--overwrite")
    assert load(folder, "best").config.pos_scheme == "rope"
    assert metrics(folder, "step") == [0, 3, 6]


def test_runs_are_one_experiment_if_those_that_they_start_from_are(run_tiny):
    def further(seed, *flags):
        source = run_tiny(f"a-{seed}", f"--seed={seed}", "--overwrite", *flags)
        return load(run_tiny(f"b-{seed}", f"--init_from={source}", f"--seed={seed}", "--overwrite")).experiment

    assert further(1) == further(2)
    assert further(1, "--learning_rate=1e-4") != further(1)


def test_a_run_remembers_every_resume_that_changed_a_setting(run_tiny):
    folder = run_tiny("r")
    for steps in (9, 10):
        main(["--resume", f"--out_dir={folder}", f"--max_iters={steps}"])
    assert metrics(folder, "step") == [0, 3, 6, 9, 10]
    assert load(folder).settings["max_iters"] == 10
    assert load(folder).history == [[6, {"max_iters": 9}], [9, {"max_iters": 10}]]


def test_eval_only_prints_the_mean_over_the_whole_validation_text(trained, capsys, dataset):
    folder = trained("learnable")
    main(["--eval_only", f"--out_dir={folder}"])
    tokens = torch.from_numpy(data.load(dataset).val.tokens.astype("int64"))
    n = (len(tokens) - 1) // 16 * 16
    x, y = tokens[:n].view(-1, 16), tokens[1 : n + 1].view(-1, 16)
    loss = load(folder, "best").model(torch.device("cpu"))(x, y)[1].item()
    assert f":\n{loss:.4f} nats per token, {loss / math.log(2):.4f} bits per byte" in capsys.readouterr().out


def test_eval_only_needs_the_run_s_own_text_and_settings(trained, tmp_path, refused):
    run = shutil.copytree(trained("rope"), tmp_path / "r")
    for flag in ("--window=2", "--pos_scheme=t5", "--n_layer=7"):
        line = refused(main, "--eval_only", f"--out_dir={run}", flag)
        assert f"--eval_only evaluates the model as it was trained: remove {flag.split('=')[0]}" in line
    content = torch.load(run / "best.pt") | {"dataset_hash": "that of another text"}
    torch.save(content, run / "best.pt")
    assert "was not trained on the text that" in refused(main, "--eval_only", f"--out_dir={run}")


FREE = {  # another value for each setting that a resumed run may change
    "max_iters": "7", "learning_rate": "0.2", "muon_lr": "0.3", "min_lr": "0.1", "warmup_iters": "5", "decay": "cosine",
    "weight_decay": "0.5", "beta1": "0.3", "beta2": "0.5", "grad_clip": "0.01", "batch_size": "5",
    "gradient_accumulation_steps": "2",
}  # fmt: skip
FIXED = {"optimizer": "adamw", "pos_scheme": "none", "rope_scaling": "linear", "rope_factor": "2.0", "dropout": "0.5"}
FIXED |= {"window_pattern": "10", "pos_pattern": "10"}


@pytest.mark.parametrize("name", [f.name for f in dataclasses.fields(TrainConfig) if f.name not in CALL_FIELDS])
def test_a_changed_setting_takes_effect_on_resuming_or_is_an_error(name, run_tiny, trained, tmp_path):
    run_tiny("r", "--max_iters=3", "--pos_scheme=rope")
    shutil.copytree(tmp_path / "r", tmp_path / "plain")
    if name in FREE:
        main(["--resume", f"--out_dir={tmp_path}/plain", "--max_iters=6"])
        main(["--resume", f"--out_dir={tmp_path}/r", "--max_iters=6", f"--{name}={FREE[name]}"])
        done, plain = load(tmp_path / "r"), load(tmp_path / "plain")
        assert done.settings[name] != plain.settings[name] and done.experiment != plain.experiment
        assert done.history == [[3, {"max_iters": 6, name: done.settings[name]}]]
        assert any(not torch.equal(w, plain.weights[key]) for key, w in done.weights.items())
        return
    value = load(tmp_path / "r").settings[name]
    if isinstance(value, bool):
        other = not value
    else:
        other = FIXED.get(name, value + 2 if isinstance(value, int | float) else f"{tmp_path}/other")
    if name == "dataset":
        shutil.copytree(value, other)
    with pytest.raises(ValueError):
        main(["--resume", f"--out_dir={tmp_path}/r", "--max_iters=6", f"--{name}={other}"])
    assert load(tmp_path / "r").step == 3


def test_an_optimizer_state_that_does_not_fit_is_one_line(run_tiny, tmp_path, refused):
    run_tiny("r", "--max_iters=3")
    whole = torch.load(tmp_path / "r" / "latest.pt")
    name = "transformer.h.0.ln_1.weight"
    for change in (
        lambda o: o["adamw"][name].update(exp_avg=torch.zeros(3)),
        lambda o: o["adamw"][name].pop("step"),
        lambda o: o.pop("muon"),
    ):
        content = copy.deepcopy(whole)
        change(content["optimizer"])
        torch.save(content, tmp_path / "r" / "latest.pt")
        line = refused(main, "--resume", f"--out_dir={tmp_path}/r", "--max_iters=6")
        assert "latest.pt cannot be resumed: its optimizer state does not fit" in line


def test_the_rates_warm_up_then_fall_along_a_cosine_or_a_line():
    cfg = TrainConfig(max_iters=100, warmup_iters=10, learning_rate=2.0, min_lr=0.2, muon_lr=0.1)
    for decay, quarter in (("linear", 0.775), ("cosine", 0.1 + 0.9 * (2 + math.sqrt(2)) / 4)):
        decaying = dataclasses.replace(cfg, decay=decay, warmup_iters=20)
        shares = [schedule(decaying, step) for step in (0, 19, 20, 40, 60, 100)]
        assert shares == pytest.approx([1 / 21, 20 / 21, 1.0, quarter, 0.55, 0.1])
    below_min_lr = TrainConfig(learning_rate=3e-5, min_lr=1e-4, warmup_iters=2, max_iters=10)  # never rises
    assert max(schedule(below_min_lr, step) for step in range(11)) == 1
    optimizer = Optimizer(GPT(cfg.model_config(32)), cfg)
    assert optimizer.set_rates(55) == pytest.approx(0.55)
    assert [group["lr"] for group in optimizer.groups()] == pytest.approx([1.1, 1.1, 0.055])


@pytest.mark.parametrize("scheme", scheme_names())
def test_every_parameter_has_one_optimizer_and_only_matrices_decay(scheme):
    model = GPT(GPTConfig(16, 32, 1, 2, 8, pos_scheme=scheme))
    exempt = [getattr(model.pos, name) for name in model.pos.no_decay]
    for name, matrices in (("adamw", 0), ("muon", 4)):  # those of the one block
        optimizer = Optimizer(model, TrainConfig(optimizer=name))
        held = [id(p) for group in optimizer.groups() for p in group["params"]]
        assert sorted(held) == sorted(id(p) for p in model.parameters())
        assert sum(len(group["params"]) for group in optimizer.groups()[2:]) == matrices
        for group in optimizer.groups():
            decays = {p.dim() >= 2 and all(p is not e for e in exempt) for p in group["params"]}
            assert decays <= {group["weight_decay"] == 0.1}


# ----------------------------------------------------------------------------------------------------------
# Initialising from another run


@pytest.mark.parametrize("scheme", scheme_names())
def test_init_from_keeps_the_weights_at_a_longer_block_size(trained, tmp_path, scheme, capsys):
    scaling = ["--rope_scaling=yarn", "--rope_factor=2"] if scheme == "rope" else []
    main([f"--init_from={trained(scheme)}", "--block_size=32", f"--out_dir={tmp_path}/r", *ONCE, *scaling])
    c, new, old = load(tmp_path / "r").config, load(tmp_path / "r").weights, load(trained(scheme)).weights
    assert (c.n_layer, c.n_embd, c.block_size, c.pos_scheme) == (1, 16, 32, scheme)
    assert all(torch.equal(new[k], v) for k, v in old.items() if k not in ("pos.wpe.weight", "pos.table"))
    if scheme == "learnable":
        assert torch.equal(new["pos.wpe.weight"][:16], old["pos.wpe.weight"])
        assert "pos.wpe.weight keeps its first 16 rows, 16 start untrained" in capsys.readouterr().out
    if scheme == "rope":
        main([f"--init_from={trained('rope')}", "--block_size=32", f"--out_dir={tmp_path}/unscaled", *ONCE])
        assert load(tmp_path / "unscaled").config.rope_block_size == 0  # it is trained at 32 without scaling
        assert (c.rope_block_size, c.rope_factor, c.rope_scaling) == (16, 2.0, "yarn")  # remembers the first length
        assert load(tmp_path / "r").experiment != load(trained("rope")).experiment
    if scheme == "t5":  # training reached only the first 16 buckets; the others start as copies of the last of these
        assert torch.equal(new["pos.table"], old["pos.table"][[*range(16), *[15] * 16]])


def test_init_from_keeps_the_backbone_under_another_scheme_and_options_under_the_same(trained, tmp_path, capsys):
    main([f"--init_from={trained('rope')}", "--pos_scheme=none", f"--out_dir={tmp_path}/drope", *ONCE])
    assert_same_weights(tmp_path / "drope", trained("rope"))
    main([f"--init_from={trained('learnable')}", "--pos_scheme=t5", f"--out_dir={tmp_path}/t5", *ONCE])
    out = capsys.readouterr().out
    assert "pos.table starts untrained" in out and "pos.wpe.weight is not loaded" in out
    assert "\npeak learning rate: adamw 0\n" in out  # and no Muon, for trained weights
    main([f"--init_from={trained('t5', pos_options='size=8')}", f"--out_dir={tmp_path}/same", *ONCE])
    main([f"--init_from={trained('t5', pos_options='size=8')}", "--pos_scheme=none", f"--out_dir={tmp_path}/no", *ONCE])
    assert [load(tmp_path / name).config.pos_options for name in ("same", "no")] == ["size=8", ""]


def test_sampled_positions_change_the_weights_and_are_sampled_in_the_evaluation_too(run_tiny, tmp_path):
    sampled = run_tiny("sampled", "--pos_scheme=rope", "--max_position=300")
    plain = run_tiny("plain", "--pos_scheme=rope")
    assert any(not torch.equal(w, load(plain).weights[name]) for name, w in load(sampled).weights.items())
    for more in ([], ["--max_position=256"]):
        eval_length.main([str(sampled), "--blocks=4", "--device=cpu", f"--results_dir={tmp_path}", *more])
    found = [json.loads(path.read_text()) for path in tmp_path.glob("length-*.json")]
    assert len({result["runs"]["sampled"]["rows"]["64"]["loss"] for result in found}) == 2


@pytest.mark.skipif(not torch.set_flush_denormal(False), reason="this processor cannot treat tiny floats as 0")
def test_floats_too_small_to_be_fast_are_zero_in_all_threads():
    pick_device("cpu")
    assert not (torch.full((1_000_000,), 1e-39) * 1).any()
