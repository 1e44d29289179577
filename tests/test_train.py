import dataclasses
import math
import os
import shutil
import signal
import subprocess
import sys

import pytest
import torch
from conftest import ROOT, assert_same_run, metrics
from torch.utils._python_dispatch import TorchDispatchMode

import data
from model import GPT, GPTConfig, scheme_names
from run.checkpoint import load_checkpoint
from run.device import pick_device
from run.optimizer import Optimizer, clip, orthogonalise, schedule
from train import TrainConfig, main, train

ONCE = ["--max_iters=1", "--device=cpu", "--learning_rate=0", "--muon_lr=0"]  # a step that changes no weight


def torchrun(*flags):
    """Trains in two processes."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "train.py"]
    return subprocess.run([*command, *flags], cwd=ROOT, capture_output=True, text=True)


def load(folder, which="latest"):
    return load_checkpoint(folder, which)


@pytest.mark.parametrize("scheme", scheme_names())
def test_every_scheme_trains(run_tiny, scheme):
    folder = run_tiny("r", f"--pos_scheme={scheme}", "--max_iters=60", "--learning_rate=0.01")
    losses = metrics(folder, "val/loss")
    assert losses[0] == pytest.approx(math.log(25), abs=0.1)  # uniform over 25 characters
    assert losses[-1] < 2.2


@pytest.mark.parametrize(
    "flag", ["--optimizer=adamw", "--max_position=300", "--dropout=0.3", "--layers=pos_scheme=none"]
)
def test_resumed_equals_uninterrupted_bit_for_bit(run_tiny, tmp_path, monkeypatch, flag, capsys):
    flags = ["--pos_scheme=t5", flag, "--max_iters=8", "--log_interval=1", "--warmup_iters=8"]
    whole = run_tiny("whole", *flags)
    parts = tmp_path / "two parts"
    call = data.Batches.__call__
    steps = []

    def interrupt(self, step, first, last):
        steps.append(step)
        if len(steps) == 5:
            os.kill(os.getpid(), signal.SIGINT)
        return call(self, step, first, last)

    monkeypatch.setattr(data.Batches, "__call__", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_tiny(parts.name, *flags)
    assert f"python train.py --resume --out_dir='{parts}'" in capsys.readouterr().out
    assert load(parts).step == 5
    main(["--resume", f"--out_dir={parts}", "--device=cpu"])
    assert steps == list(range(8))
    assert_same_run(whole, parts)
    for key in ("step", "val/loss", "train/loss", "train/grad_norm"):
        assert metrics(whole, key) == metrics(parts, key)


def test_micro_steps_give_the_gradients_of_one_step(run_tiny):
    adamw = "--optimizer=adamw"  # Muon computes in bfloat16, which magnifies rounding
    one = run_tiny("one", adamw)
    four = run_tiny("four", adamw, "--batch_size=1", "--gradient_accumulation_steps=4")
    assert_same_run(one, four, tolerance=1e-5)
    assert metrics(one, "train/grad_norm") == pytest.approx(metrics(four, "train/grad_norm"), rel=1e-4)


def test_two_processes_train_as_one_and_either_resumes_the_other(tiny, run_tiny, tmp_path):
    # t5's table gets no gradient
    flags = ["--pos_scheme=t5", "--layers=pos_scheme=none", "--gradient_accumulation_steps=2"]
    one = run_tiny("one", *flags)
    two = run_tiny("two", *flags, "--max_iters=3", "--min_lr=4e-3")
    three = shutil.copytree(two, tmp_path / "three")
    done = torchrun(*tiny, *flags, f"--out_dir={tmp_path}/ddp")
    assert done.stdout.count("step 6/6") == 1  # only one process prints
    assert_same_run(one, tmp_path / "ddp", tolerance=1e-5)
    torchrun("--resume", f"--out_dir={two}", "--max_iters=6")
    main(["--resume", f"--out_dir={three}", "--max_iters=6"])
    assert_same_run(two, three, tolerance=1e-5)


def test_a_finished_run_is_reported_and_another_run_is_never_overwritten(run_tiny, capsys):
    folder = run_tiny("r")
    earlier = load(folder)
    del earlier.settings["unscored"]  # a setting that earlier code did not have
    earlier.save(folder / "latest.pt")
    before = (folder / "latest.pt").read_bytes()
    run_tiny("r", "--log_interval=2", "--eval_interval=2")  # still the same experiment
    assert f"{folder} is finished: 6 steps" in capsys.readouterr().out
    with pytest.raises(ValueError, match="learning_rate.*--out_dir.*--overwrite.*--resume"):
        run_tiny("r", "--learning_rate=0.1")
    for name, value in {"pos_scheme": "rope", "seed": 1}.items():
        with pytest.raises(ValueError, match=f"{name}=.*--out_dir"):
            run_tiny("r", "--resume", f"--{name}={value}")
    assert (folder / "latest.pt").read_bytes() == before
    dataclasses.replace(load(folder), dataset_hash="another").save(folder / "latest.pt")
    with pytest.raises(ValueError, match="prepared text="):
        run_tiny("r", "--resume")
    run_tiny("r", "--pos_scheme=rope", "--overwrite")
    assert load(folder, "best").config.pos_scheme == "rope"
    assert metrics(folder, "step") == [0, 3, 6]


def test_a_run_remembers_its_source_and_every_resume_that_changed_a_setting(run_tiny):
    folder = run_tiny("r")
    for steps in (9, 10):
        main(["--resume", f"--out_dir={folder}", f"--max_iters={steps}"])
    assert metrics(folder, "step") == [0, 3, 6, 9, 10]
    source = load(folder, "best")
    assert load(folder).history == [[6, {"max_iters": 9}], [9, {"max_iters": 10}]]
    known = {"settings": source.settings, "dataset_hash": source.dataset_hash, "history": source.history}
    assert load(run_tiny("further", f"--init_from={folder}")).history == [[0, {"init_from": known}]]


def test_train_can_be_called_from_python(trained, tmp_path):
    settings = load(trained("rope")).settings | {"out_dir": str(tmp_path)}
    assert train(TrainConfig(**settings)) == load(tmp_path).best_val_loss


def test_eval_only_prints_the_mean_over_the_whole_validation_text(trained, capsys, dataset):
    folder = trained("learnable")
    main(["--eval_only", f"--out_dir={folder}"])
    val = data.load(dataset).val
    windows = val.windows(val.val_starts(16), 16)
    _, loss = load(folder, "best").model("cpu")(windows[:, :-1], windows[:, 1:])
    assert (
        f"\n{loss.item():.4f} nats per token, {loss.item() / math.log(2):.4f} bits per byte" in capsys.readouterr().out
    )


def test_eval_only_needs_the_run_s_own_text_and_settings(trained, tmp_path, refused):
    run = shutil.copytree(trained("rope"), tmp_path / "r")
    assert "remove --window" in refused(main, "--eval_only", f"--out_dir={run}", "--window=2")
    dataclasses.replace(load(run), dataset_hash="another").save(run / "best.pt")
    assert "--dataset" in refused(main, "--eval_only", f"--out_dir={run}")


FREE = {  # another value for each setting that a resumed run may change
    "max_iters": 7,
    "max_position": 300,
    "sampled_every": 2,
    "batch_size": 5,
    "gradient_accumulation_steps": 2,
    "learning_rate": 0.2,
    "muon_lr": 0.3,
    "min_lr": 0.1,
    "warmup_iters": 5,
    "decay": "cosine",
    "weight_decay": 0.5,
    "beta1": 0.3,
    "beta2": 0.5,
    "grad_clip": 0.01,
}


def test_every_setting_that_may_change_takes_effect_on_resuming(run_tiny, tmp_path):
    folder = run_tiny("r", "--max_iters=3", "--pos_scheme=rope", "--max_position=200")
    hashes = set()
    for name, value in [("max_iters", 6), *FREE.items()]:
        copy = shutil.copytree(folder, tmp_path / f"{name}={value}")
        main(["--resume", f"--out_dir={copy}", "--max_iters=6", f"--{name}={value}"])
        new = load(copy).hash
        assert new not in hashes, name
        hashes.add(new)


@pytest.mark.parametrize("decay, quarter", [("linear", 0.775), ("cosine", 0.1 + 0.9 * (2 + math.sqrt(2)) / 4)])
def test_the_rates_warm_up_then_fall_along_a_cosine_or_a_line(decay, quarter):
    cfg = TrainConfig(max_iters=100, warmup_iters=20, learning_rate=2.0, min_lr=0.2, muon_lr=0.1, decay=decay)
    shares = [schedule(cfg, step) for step in (0, 19, 20, 40, 60, 100)]
    assert shares == pytest.approx([1 / 21, 20 / 21, 1.0, quarter, 0.55, 0.1])
    below_min_lr = dataclasses.replace(cfg, learning_rate=0.1)  # never rises
    assert schedule(below_min_lr, 20) == schedule(below_min_lr, 100) == 1
    optimizer = Optimizer(GPT(cfg.model_config(32)), cfg)
    optimizer.set_rates(60)
    assert [group["lr"] for group in optimizer.groups] == pytest.approx([1.1, 1.1, *[0.055] * 4])


@pytest.mark.parametrize("optimizer, n_muon", [("adamw", 0), ("muon", 4)])  # the matrices of the one block
@pytest.mark.parametrize("scheme", scheme_names())
def test_every_parameter_has_one_optimizer_and_only_matrices_decay(scheme, optimizer, n_muon):
    model = GPT(GPTConfig(16, 32, 1, 2, 8, pos_scheme=scheme))
    exempt = {getattr(model.pos, name) for name in model.pos.no_decay}
    groups = Optimizer(model, TrainConfig(optimizer=optimizer)).groups
    parameters = []
    for group in groups:
        parameters += group["params"]
        for p in group["params"]:
            assert (group["weight_decay"] > 0) == (p.dim() >= 2 and p not in exempt)
    assert len(parameters) == len({*parameters}) == len([*model.parameters()])
    assert sum(len(group["params"]) for group in groups[2:]) == n_muon


class Calls(TorchDispatchMode):
    """Counts the calls of torch's operators."""

    count = 0

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        self.count += 1
        return operator(*args, **kwargs or {})


@pytest.mark.parametrize("size", [0, 1e-6, 1.0, 1e3])
def test_muon_and_clipping_give_torchs_bits_in_few_calls(size, monkeypatch):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    cfg = TrainConfig(n_layer=12, n_head=2, n_embd=24)
    ours = GPT(cfg.model_config(32))
    theirs = GPT(cfg.model_config(32))
    optimizer = Optimizer(ours, cfg)
    matrices = {name: p for name, p in theirs.named_parameters() if ".h." in name and p.dim() == 2}
    muon = torch.optim.Muon(matrices.values(), cfg.muon_lr, cfg.weight_decay)
    for _ in range(3):
        for p, copy in zip(ours.parameters(), theirs.parameters(), strict=True):
            p.grad = size * torch.randn_like(p)
            copy.grad = p.grad.clone()
        with Calls() as clipping:
            norm = clip(ours, 1.0)
        assert norm == torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
        with Calls() as stepping:
            optimizer.step()
        muon.step()
    assert clipping.count <= 10
    assert stepping.count <= 150  # torch's take 1,400
    for name, p in matrices.items():
        assert torch.equal(ours.get_parameter(name), p)


def test_without_avx512_muon_rounds_where_bfloat16_would(monkeypatch):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    X = torch.randn(16, 128, 48, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = X.mT.bfloat16().double()
    norms = expected.norm(dim=(1, 2), keepdim=True).bfloat16().double()
    expected = (expected / norms).bfloat16().double()
    for _ in range(5):
        A = (expected @ expected.mT).bfloat16().double()
        A = (2.0315 * A @ A - 4.7750 * A).bfloat16().double()
        expected = (3.4445 * expected + A @ expected).bfloat16().double()
    error = (orthogonalise(X.float()) - expected.mT).norm()
    assert error <= 0.007 * expected.norm()  # without rounding the norms, 0.015; all, 0.015


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc is told to")
def test_freed_memory_is_kept():
    import resource

    pick_device("cpu")
    for _ in range(2):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt  # page faults
        tensors = [torch.ones(2**20) for _ in range(20)]
        del tensors
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < 10_000  # not the tensors' 20,480


# ----------------------------------------------------------------------------------------------------------
# Initialising from another run


def initialised(folder, source, *flags):
    """The checkpoint of a run in a folder that starts from another run and takes a step that changes no weight."""
    main([f"--init_from={source}", f"--out_dir={folder}", *flags, *ONCE])
    return load(folder)


@pytest.mark.parametrize(
    "scheme, flag, note",
    [
        *((scheme, "--block_size=32", "") for scheme in scheme_names()),
        ("learnable", "--block_size=32", "pos.wpe.weight keeps its first 16 rows"),
        ("learnable", "--pos_scheme=t5", "pos.table starts untrained"),
        ("t5", "--pos_scheme=none", "pos.table is not loaded"),
        ("rope", "--sink", "transformer.h.0.attn.sink starts untrained"),
    ],
)
def test_init_from_keeps_the_weights_and_says_which_it_does_not(scheme, flag, note, trained, tmp_path, capsys):
    new = initialised(tmp_path / "r", trained(scheme), flag)
    assert new.settings["optimizer"] == "adamw"  # no Muon for trained weights
    assert note in capsys.readouterr().out
    old = load(trained(scheme)).weights
    for name in old.keys() & new.weights.keys() - {"pos.wpe.weight", "pos.table", "pos.p"}:  # resized or filled
        assert torch.equal(new.weights[name], old[name])


def test_buckets_that_a_shorter_training_did_not_reach_start_as_copies_of_the_last(trained, tmp_path):
    """In the model's own scheme and in that of a kind of layers."""
    run = trained("t5", n_layer=2, layers="window=4 | pos_options=size=8")
    old = load(run).weights
    new = initialised(tmp_path / "r", run, "--block_size=32").weights
    for name in ("pos.table", "pos_kinds.0.table"):
        reached, others = new[name].split(16)
        assert torch.equal(reached, old[name][:16])
        assert torch.equal(others, old[name][15].expand(16, -1))


def test_a_bias_by_distance_is_0_beyond_the_extent_that_it_was_trained_to(trained, tmp_path):
    run = trained("inkling", pos_options="extent=1/4")
    old = load(run).weights["pos.p"]
    n = len(old)
    new = initialised(tmp_path / "r", run, f"--pos_options=extent={2 * n}").weights["pos.p"]
    assert torch.equal(new[:n], old)
    assert not new[n:].any()
