import json
import shutil
from dataclasses import asdict, fields, replace
from pathlib import Path

import pytest
import torch

import sample
import train
from data.tokenizers import CharTokenizer
from eval_length import unlike_settings
from model import GPT, GPTConfig
from run.checkpoint import BEFORE, CALL_FIELDS, Checkpoint, load_checkpoint

HEAD = "lm_head.weight"


def changed(run, folder, change):
    """A copy of a run, with `change` applied to the content of its files."""
    shutil.copytree(run, folder)
    for name in ("best.pt", "latest.pt"):
        content = torch.load(folder / name)
        change(content)
        torch.save(content, folder / name)
    return folder


def test_a_file_holds_plain_types_and_nanogpts_keys(trained):
    content = torch.load(trained("learnable") / "best.pt", weights_only=True)
    keys = {"model", "optimizer", "model_args", "config", "step", "best_val_loss", "tokenizer"}
    assert keys | {"dataset_hash", "segment", "history"} == content.keys()
    assert {"transformer.wte.weight", "transformer.h.0.attn.c_attn.weight", "transformer.h.0.mlp.c_fc.weight",
            "transformer.ln_f.weight", "lm_head.weight", "pos.wpe.weight"} <= content["model"].keys()  # fmt: skip
    json.dumps({k: v for k, v in content.items() if k not in ("model", "optimizer")})


def test_a_loaded_checkpoint_equals_the_saved_one(tmp_path):
    spec = CharTokenizer("abc").spec
    model = GPT(GPTConfig(vocab_size=3, n_embd=2, n_head=1, n_layer=1))
    settings = asdict(GPTConfig()) | BEFORE | {"dataset": "x", "max_iters": 9, "wandb_group": ""}
    saved = Checkpoint(model.state_dict(), model.config, 7, {"state": {}}, settings, 1.5, spec, "hash", 2)
    saved.save(tmp_path, is_best=True)
    for name in ("best.pt", "latest.pt"):
        loaded = load_checkpoint(tmp_path / name)
        assert all(torch.equal(w, loaded.weights[key]) for key, w in saved.weights.items())
        here = dict(path=str(tmp_path / name), folder=tmp_path, weights={})
        assert replace(loaded, **here) == replace(saved, **here)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["best.pt", "latest.pt"]
    assert not (tmp_path / "best.pt").samefile(tmp_path / "latest.pt")  # damage to one leaves the other
    replace(saved, step=8).save(tmp_path, is_best=False)
    assert (load_checkpoint(tmp_path, "best").step, load_checkpoint(tmp_path, "latest").step) == (7, 8)


def test_an_experiment_does_not_depend_on_the_seed_or_the_call(trained):
    one, two = (load_checkpoint(trained("rope", **more)) for more in ({}, {"seed": 1, "log_interval": 7}))
    assert one.experiment == two.experiment
    for key, value in {"n_layer": 7, "init_from": "out/x", "max_iters": 5}.items():
        assert replace(one, settings=one.settings | {key: value}).experiment != one.experiment
    assert replace(one, dataset_hash="other text").experiment != one.experiment
    assert replace(one, history=[[2, {"learning_rate": 0.01}]]).experiment != one.experiment
    further = [
        replace(run, settings=run.settings | {"init_from": f"out/a-{run.settings['seed']}"}) for run in (one, two)
    ]
    assert further[0].experiment == further[1].experiment  # each from the run of its own seed
    assert unlike_settings({"a-1337": further[0], "a-1": further[1]}, {}) == ""
    assert replace(further[0], settings=one.settings | {"init_from": "out/a-7"}).experiment != further[0].experiment
    assert set(CALL_FIELDS) < {f.name for f in fields(train.TrainConfig)}


def older_than_muon(content):
    del content["model_args"]["gelu_tanh"]
    for name in ("gelu_tanh", "window", *BEFORE):
        del content["config"][name]


def older_than_options(content):
    for part in (content["model_args"], content["config"]):
        part["t5_size"] = float(part.pop("pos_options")[5:] or 64)  # runs of other schemes had it, too
    content["config"] |= {"sample_every": 0, "compile_mode": "default"}
    content["tokenizer"]["hash"] = content["experiment"] = "as the first versions had them"


@pytest.mark.parametrize(
    "scheme, settings, older",
    [
        ("learnable", dict(optimizer="adamw", decay="cosine", muon_lr=0.02), older_than_muon),
        ("t5", dict(pos_options="size=32.0"), older_than_options),
        ("rope", {}, older_than_options),
    ],
)
def test_older_runs_are_the_same_experiment_and_resume(scheme, settings, older, trained, tmp_path, capsys):
    run = trained(scheme, **settings)
    new, old = load_checkpoint(run), load_checkpoint(changed(run, tmp_path / "r", older))
    assert (old.config, old.hash, old.experiment) == (new.config, new.hash, new.experiment)
    flags = [f"--{name}={value}" for name, value in old.settings.items() if name not in CALL_FIELDS]
    flags += [f"--out_dir={tmp_path}/r", "--device=cpu"]
    assert train.main(flags) == 0 and "is finished: 4 steps" in capsys.readouterr().out
    train.main(["--resume", f"--out_dir={tmp_path}/r", "--max_iters=5"])
    assert load_checkpoint(tmp_path / "r", "latest").step == 5


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda c: c.update(model=Path), "cannot be loaded: it is damaged, of another kind, or contains code"),
        (lambda c: c["model_args"].update(n_heads=3), "cannot be loaded: unknown key n_heads"),
        (lambda c: c["model_args"].update(n_layer=2), "Missing key(s) in state_dict: "),
        (
            lambda c: c["model_args"].update(pos_scheme="elsewhere"),
            "pos_scheme='elsewhere' is not one of: none, sinusoidal,",
        ),
        (lambda c: c["model"].update({HEAD: c["model"][HEAD] + 1}), "its output layer (lm_head) is not tied"),
        (lambda c: c["model"].pop(HEAD), f'Missing key(s) in state_dict: "{HEAD}"'),
        (lambda c: c["model"][HEAD].fill_(torch.nan), "transformer.wte.weight is not finite"),
    ],
)
def test_damaged_content_is_one_line(trained, tmp_path, change, message, refused):
    assert message in refused(sample.main, f"--out_dir={changed(trained('rope'), tmp_path / 'r', change)}")
