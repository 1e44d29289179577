import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import data
import train
from model import GPT, SCHEMES, GPTConfig
from run import checkpoint as checkpoints
from run.tracking import read_metrics
from train import TrainConfig, main


def load(folder, which="latest"):
    return checkpoints.load(folder, which)


def weights(folder, which="latest"):
    return load(folder, which).weights


def assert_same(a, b):
    assert a.keys() == b.keys()
    assert all(torch.equal(a[k], b[k]) for k in a)


def metrics(folder, key):
    return [row[key] for row in read_metrics(Path(folder)) if key in row]


@pytest.mark.parametrize("scheme", sorted(SCHEMES))
def test_every_scheme_trains(tiny, tmp_path, scheme):
    assert (
        main([*tiny, f"--pos_scheme={scheme}", f"--out_dir={tmp_path}/r", "--max_iters=60", "--learning_rate=0.01"])
        == 0
    )
    losses = metrics(tmp_path / "r", "val/loss")
    assert losses[0] == pytest.approx(torch.tensor(25.0).log().item(), abs=0.1)  # uniform over 25 characters
    assert losses[-1] < 2.2


def test_schemes_see_identical_batches(tiny, tmp_path, monkeypatch):
    seen = {}
    original = data.Batches.__call__

    def spy(self, step, first, last):
        x, y = original(self, step, first, last)
        seen[current].append(x)
        return x, y

    monkeypatch.setattr(data.Batches, "__call__", spy)
    for current in SCHEMES:
        seen[current] = []
        interval = 2 if current == "rope" else 3  # how often we look must not matter
        main([*tiny, f"--pos_scheme={current}", f"--out_dir={tmp_path}/{current}", f"--eval_interval={interval}"])
    assert all(torch.equal(torch.stack(seen[s]), torch.stack(seen["none"])) for s in SCHEMES)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_resumed_equals_uninterrupted_bit_for_bit(tiny, tmp_path, monkeypatch, dropout, capsys):
    flags = [*tiny, "--pos_scheme=rope", f"--dropout={dropout}", "--max_iters=8", "--log_interval=1"]
    main([*flags, f"--out_dir={tmp_path}/whole"])
    original, calls = data.Batches.__call__, []

    def interrupt(self, step, first, last):
        calls.append(step)
        if len(calls) == 5:
            os.kill(os.getpid(), signal.SIGINT)
        return original(self, step, first, last)

    monkeypatch.setattr(data.Batches, "__call__", interrupt)
    with pytest.raises(KeyboardInterrupt):
        main([*flags, f"--out_dir={tmp_path}/parts"])
    out = capsys.readouterr().out
    assert f"stopped and saved at step 5. Go on with:\n  python train.py --resume --out_dir={tmp_path}/parts" in out
    assert load(tmp_path / "parts").step == 5
    main(["--resume", f"--out_dir={tmp_path}/parts", "--device=cpu"])
    assert calls == list(range(8))
    assert_same(weights(tmp_path / "whole"), weights(tmp_path / "parts"))
    for key in ("step", "val/loss", "train/loss", "train/grad_norm"):
        assert metrics(tmp_path / "whole", key) == metrics(tmp_path / "parts", key)
    a, b = (load(tmp_path / n) for n in ("whole", "parts"))
    assert a.best_val_loss == b.best_val_loss == min(metrics(tmp_path / "whole", "val/loss")[1:])


def test_micro_steps_give_the_gradients_of_one_step(tiny, tmp_path):
    main([*tiny, f"--out_dir={tmp_path}/one", "--batch_size=4"])
    main([*tiny, f"--out_dir={tmp_path}/four", "--batch_size=1", "--gradient_accumulation_steps=4"])
    a, b = weights(tmp_path / "one"), weights(tmp_path / "four")
    assert all(torch.allclose(a[k], b[k], atol=1e-5) for k in a)


def test_two_processes_train_as_one_and_either_resumes_the_other(tiny, tmp_path):
    def launch(*flags):
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "train.py"]
        env = os.environ | {"OMP_NUM_THREADS": "1", "WANDB_MODE": "disabled"}
        done = subprocess.run(
            [*command, *flags], cwd=Path(train.__file__).parent, env=env, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout

    flags = [*tiny, "--pos_scheme=rope", "--gradient_accumulation_steps=2"]
    main([*flags, f"--out_dir={tmp_path}/one"])
    with contextlib.chdir(tmp_path):
        main([*flags, f"--out_dir={tmp_path}/two", "--max_iters=3", "--min_lr=4e-3"])
    main([*flags, f"--out_dir={tmp_path}/three", "--max_iters=3", "--min_lr=4e-3"])
    assert_same(weights(tmp_path / "two"), weights(tmp_path / "three"))
    out = launch(*flags, f"--out_dir={tmp_path}/ddp")
    assert out.count("step 6/6") == 1  # one process speaks
    a, b = weights(tmp_path / "one"), weights(tmp_path / "ddp")
    assert all(torch.allclose(a[k], b[k], atol=1e-5) for k in a)
    assert metrics(tmp_path / "one", "val/loss") == pytest.approx(metrics(tmp_path / "ddp", "val/loss"), abs=1e-5)
    launch("--resume", f"--out_dir={tmp_path}/two", "--max_iters=6")
    main(["--resume", f"--out_dir={tmp_path}/three", "--max_iters=6"])
    a, b = weights(tmp_path / "two"), weights(tmp_path / "three")
    assert all(torch.allclose(a[k], b[k], atol=1e-5) for k in a)


def test_a_finished_run_says_so_and_another_is_never_overwritten(tiny, tmp_path, capsys):
    flags = [*tiny, f"--out_dir={tmp_path}/r"]
    main(flags)
    before = (tmp_path / "r" / "latest.pt").read_bytes()
    capsys.readouterr()
    assert main([*flags, "--log_interval=2", "--eval_interval=2"]) == 0  # these are no other experiment
    assert f"{tmp_path}/r is finished: 6 steps" in capsys.readouterr().out
    with pytest.raises(
        ValueError, match=r"holds another run \(learning_rate 0.004 there, 0.1 now.*--resume.*--overwrite"
    ):
        main([*flags, "--learning_rate=0.1"])
    with pytest.raises(ValueError, match="cannot be resumed with another pos_scheme"):
        main([*flags, "--pos_scheme=rope", "--resume"])
    assert (tmp_path / "r" / "latest.pt").read_bytes() == before
    main([*flags, "--pos_scheme=rope", "--overwrite"])
    assert load(tmp_path / "r", "best").config.pos_scheme == "rope"
    assert metrics(tmp_path / "r", "step") == [0, 3, 6]


def test_a_run_goes_on_to_a_larger_max_iters(tiny, tmp_path):
    main([*tiny, f"--out_dir={tmp_path}/r"])
    main(["--resume", f"--out_dir={tmp_path}/r", "--max_iters=9"])
    assert metrics(tmp_path / "r", "step") == [0, 3, 6, 9]
    assert load(tmp_path / "r").settings["max_iters"] == 9


def test_best_is_kept_when_latest_is_worse(tiny, tmp_path, monkeypatch):
    losses = iter([5.0, 1.0, 2.0])
    monkeypatch.setattr(train, "evaluate", lambda *args, **kw: next(losses))
    main([*tiny, f"--out_dir={tmp_path}/r"])
    assert load(tmp_path / "r", "best").step == 3
    assert load(tmp_path / "r").step == 6
    assert load(tmp_path / "r").best_val_loss == 1.0


def test_eval_only_is_the_mean_over_all_of_the_validation_text(tiny, tmp_path, capsys, dataset):
    main([*tiny, f"--out_dir={tmp_path}/r"])
    capsys.readouterr()
    main(["--eval_only", f"--out_dir={tmp_path}/r"])
    out = capsys.readouterr().out
    model = load(tmp_path / "r", "best").model(torch.device("cpu"))
    tokens = torch.from_numpy(data.load(dataset).val.tokens.astype("int64"))
    n = (len(tokens) - 1) // 16
    x, y = tokens[: n * 16].view(n, 16), tokens[1 : n * 16 + 1].view(n, 16)
    loss = model(x, y)[1].item()
    assert f": {loss:.4f} nats per token, {loss / 0.6931472:.4f} bits per byte" in out


def test_log_line_reads_at_a_glance(tiny, tmp_path, capsys):
    main([*tiny, f"--out_dir={tmp_path}/r"])
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("step")]
    pattern = (
        r"step 3/6 \| train \d\.\d{4} \| val \d\.\d{4} \| lr 4\.0e-03 \| \d+\.\dk tok/s \| \d+% MFU \| 0:\d\d left"
    )
    assert re.fullmatch(pattern, lines[1]), lines[1]


def test_learning_rate_warms_up_then_falls_along_a_cosine():
    cfg = TrainConfig(max_iters=100, warmup_iters=10, learning_rate=1.0, min_lr=0.1)
    assert [train.learning_rate(cfg, s) for s in (0, 9)] == pytest.approx([1 / 11, 10 / 11])
    assert train.learning_rate(cfg, 10) == 1.0
    assert train.learning_rate(cfg, 55) == pytest.approx(0.55)
    assert train.learning_rate(cfg, 100) == pytest.approx(0.1)


def test_weight_decay_is_for_matrices_alone():
    for group in train.configure_optimizer(GPT(GPTConfig(16, 32, 1, 2, 8)), TrainConfig()).param_groups:
        assert all((p.dim() >= 2) == (group["weight_decay"] == 0.1) for p in group["params"])


# ----------------------------------------------------------------------------------------------------------
# Beginning from another run


@pytest.mark.parametrize("scheme", sorted(SCHEMES))
def test_init_from_goes_on_at_a_longer_block_size(trained, tmp_path, scheme, capsys, monkeypatch):
    begun, original, source = {}, train.begin_from, trained(scheme)

    def spy(path, model, dataset):
        lines = original(path, model, dataset)
        begun.update({k: v.clone() for k, v in model.state_dict().items()})
        return lines

    monkeypatch.setattr(train, "begin_from", spy)
    main([f"--init_from={source}", "--block_size=32", f"--out_dir={tmp_path}/r", "--max_iters=2", "--device=cpu"])
    c = load(tmp_path / "r").config
    assert (c.n_layer, c.n_embd, c.block_size, c.pos_scheme) == (1, 16, 32, scheme)
    theirs = weights(source, "best")
    assert all(torch.equal(begun[k], v) for k, v in theirs.items() if k != "pos.wpe.weight")
    if scheme == "learnable":
        assert torch.equal(begun["pos.wpe.weight"][:16], theirs["pos.wpe.weight"])
        assert "pos.wpe.weight keeps its first 16 rows, 16 begin afresh" in capsys.readouterr().out
    if scheme == "rope":
        assert c.rope_block_size == 16


def test_init_from_with_another_scheme_keeps_the_backbone(trained, tmp_path, capsys):
    once = ["--max_iters=1", "--device=cpu", "--learning_rate=0", "--min_lr=0"]  # a step at rate 0 changes nothing
    main([f"--init_from={trained('rope')}", "--pos_scheme=none", f"--out_dir={tmp_path}/drope", *once])
    assert_same(weights(tmp_path / "drope"), weights(trained("rope"), "best"))
    main([f"--init_from={trained('learnable')}", "--pos_scheme=t5", f"--out_dir={tmp_path}/t5", *once])
    out = capsys.readouterr().out
    assert "pos.table begins afresh" in out and "pos.wpe.weight left behind" in out


def test_fine_tuning_with_scaling_remembers_the_first_length(trained, tmp_path):
    flags = ["--block_size=64", "--rope_scaling=yarn", "--rope_factor=4", "--max_iters=1", "--device=cpu"]
    main([f"--init_from={trained('rope')}", *flags, f"--out_dir={tmp_path}/r"])
    c = load(tmp_path / "r").config
    assert (c.rope_block_size, c.rope_factor, c.rope_scaling) == (16, 4.0, "yarn")
    assert load(tmp_path / "r").experiment != load(trained("rope")).experiment


# ----------------------------------------------------------------------------------------------------------
# Mistakes and faults


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--rope_scaling=yarn"], "rope_scaling is an option of pos_scheme=rope, not of learnable"),
        (["--pos_pattern=10"], "learnable enters once, at the embedding"),
        (["--window=-1"], "window=-1 must be at least 0"),
        (["--window_pattern=10"], "window_pattern=10 does nothing without a window"),
        (["--n_embd=10", "--n_head=4"], "n_embd=10 must be a multiple of n_head=4"),
        (["--n_embd=6", "--n_head=2", "--pos_scheme=rope"], "the head size n_embd/n_head = 6/2 = 3 must be even"),
        (["--n_embd=15", "--n_head=3", "--pos_scheme=sinusoidal"], "n_embd=15 must be even"),
        (["--pos_scheme=ropes"], "is not one of: none, sinusoidal, learnable, rope, alibi, t5, transformer_xl"),
        (["--dataset=no_such"], "dataset 'no_such' is not prepared"),
        (["--vocab_size=5"], "vocab_size=5 is smaller than the tokenizer's 25"),
        (["--block_size=100000"], "too few for block_size=100000"),
        (["--block_size=5000"], "the validation text has 3,080 tokens, too few for block_size=5000"),
        (["--init_from={run}", "--n_embd=24"], "(transformer.wte.weight: (25, 24) here, (25, 16) there)"),
        (["--init_from=out/no_such"], "there is no checkpoint out/no_such"),
        (["--resume"], "there is no checkpoint {out}"),
        (["--eval_only"], "there is no checkpoint {out}"),
        (["--device=tpu9"], "device='tpu9' is not available here"),
        (["--dtype=float8"], "dtype='float8' is not one of"),
        (["--wandb_mode=loud"], "wandb_mode='loud' is not one of"),
        (["--max_iters=0"], "max_iters=0 must be at least 1"),
        (["--resume", "--overwrite"], "there is no checkpoint {out}"),
    ],
)
def test_bad_input_is_named_and_nothing_is_written(tiny, trained, tmp_path, flags, message, refused):
    flags = [flag.format(run=trained("rope")) for flag in flags]
    assert message.format(out=tmp_path / "r") in refused(main, *tiny, f"--out_dir={tmp_path}/r", *flags)
    assert not (tmp_path / "r").exists()


def test_a_loss_that_is_not_finite_ends_the_run_and_keeps_the_last_checkpoint(tiny, tmp_path, monkeypatch):
    losses = iter([5.0, 1.0, float("nan")])
    monkeypatch.setattr(train, "evaluate", lambda *args, **kw: next(losses))
    with pytest.raises(ValueError, match="the loss is not finite at step 6"):
        main([*tiny, f"--out_dir={tmp_path}/r"])
    assert load(tmp_path / "r").step == 3
    assert "NaN" not in (tmp_path / "r" / "metrics.jsonl").read_text()


def test_a_line_cut_short_in_metrics_does_not_stop_a_resume(tiny, tmp_path):
    main([*tiny, f"--out_dir={tmp_path}/r"])
    with open(tmp_path / "r" / "metrics.jsonl", "a") as f:
        f.write('{"step": 6, "tra')
    main(["--resume", f"--out_dir={tmp_path}/r", "--max_iters=9"])
    assert metrics(tmp_path / "r", "step") == [0, 3, 6, 9]


def test_ctrl_c_ends_a_shells_loop(tiny, tmp_path):
    """The process dies of the signal itself, after it has saved."""
    command = [sys.executable, "train.py", *tiny, f"--out_dir={tmp_path}/r", "--max_iters=100000", "--log_interval=1"]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, cwd=Path(train.__file__).parent, env=env, stdout=subprocess.PIPE, text=True
    ) as process:
        while "step 1/" not in process.stdout.readline():
            pass
        process.send_signal(signal.SIGINT)
        assert "stopped and saved at step" in process.communicate()[0]
    assert process.returncode == -signal.SIGINT
    assert load(tmp_path / "r").step > 0


def test_a_learning_rate_below_min_lr_never_rises_again():
    cfg = TrainConfig(learning_rate=3e-5, warmup_iters=2, max_iters=10)
    assert max(train.learning_rate(cfg, step) for step in range(11)) == 3e-5


def test_a_warm_up_that_fills_the_run_is_reported(tiny, tmp_path, capsys):
    main([*tiny, f"--out_dir={tmp_path}/r", "--warmup_iters=6"])
    assert "note: warmup_iters=6 is not over by step 6" in capsys.readouterr().out
