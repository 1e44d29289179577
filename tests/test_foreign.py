"""Imported weights: nanoGPT's checkpoints and GPT-2 in Hugging Face's format."""

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from conftest import write_sample

import eval_length
import sample
import train
from model import GPT, GPTConfig
from run.checkpoint import load_checkpoint
from run.foreign import import_transformers

transformers = import_transformers()
V = 30  # ids: the tests' dataset has 25 characters
CPU = torch.device("cpu")


def write_gpt2(folder, **settings):
    """Writes a GPT-2 with weights large enough that a wrong GELU shows. Returns it and its folder."""
    torch.manual_seed(0)
    size = dict(vocab_size=V, n_positions=16, n_embd=64, n_layer=2, n_head=2)
    others = dict(initializer_range=0.2, bos_token_id=None, eos_token_id=None)
    theirs = transformers.GPT2LMHeadModel(transformers.GPT2Config(**size, **others, **settings)).eval()
    for p in theirs.parameters():
        if p.dim() == 1:  # also biases and norms
            p.data += 0.2 * torch.randn_like(p)
    theirs.save_pretrained(folder)
    return theirs, folder


@pytest.fixture(scope="module", params=["gelu_new", "gelu"])
def gpt2(request, tmp_path_factory):
    return write_gpt2(tmp_path_factory.mktemp("hf") / "small", activation_function=request.param)


@torch.no_grad()
def test_a_gpt2_gives_its_own_logits_and_text_and_another_gelu_does_not(gpt2):
    theirs, folder = gpt2
    idx = torch.randint(V, (3, 16))
    logits = theirs(idx).logits
    checkpoint = load_checkpoint(folder / "config.json")
    tanh = theirs.config.activation_function == "gelu_new"
    assert checkpoint.config == GPTConfig(16, V, 2, 2, 64, gelu_tanh=tanh)
    ours = load_checkpoint(folder).model(CPU)
    assert (ours(idx, idx)[0] - logits).abs().max() <= 1e-4
    text = theirs.generate(idx[:, :4], max_new_tokens=12, do_sample=False)
    assert torch.equal(ours.generate(idx[:, :4], 12, temperature=0), text)
    other = replace(checkpoint, config=replace(checkpoint.config, gelu_tanh=not tanh)).model(CPU)
    assert (other(idx, idx)[0] - logits).abs().max() > 1e-3


@pytest.mark.parametrize("layout", ["shards", "bin", "without_head"])
@torch.no_grad()
def test_a_gpt2_can_be_in_several_files_in_an_old_one_or_without_its_head(layout, gpt2, tmp_path):
    theirs = gpt2[0]
    idx = torch.randint(V, (3, 16))
    saved = theirs.transformer if layout == "without_head" else theirs  # as on the hub: wte.weight, h.0.ln_1.weight
    saved.save_pretrained(tmp_path, max_shard_size="50KB" if layout == "shards" else "1GB")
    assert (tmp_path / "model.safetensors").is_file() == (layout != "shards")
    if layout == "bin":
        masks = {"transformer.h.0.attn.bias": torch.ones(1), "transformer.h.0.attn.masked_bias": torch.ones(1)}
        torch.save(theirs.state_dict() | masks, tmp_path / "pytorch_model.bin")
        (tmp_path / "model.safetensors").unlink()
    ours = load_checkpoint(tmp_path).model(CPU)
    assert (ours(idx, idx)[0] - theirs(idx).logits).abs().max() <= 1e-4


@pytest.mark.parametrize(
    "name, value, word",
    [
        ("model_type", "llama", "model_type"),
        ("n_inner", 32, "n_inner"),
        ("activation_function", "relu", "activation_function"),
        ("layer_norm_epsilon", 1e-6, "layer_norm_epsilon"),
        ("reorder_and_upcast_attn", True, "reorder_and_upcast_attn"),
        ("scale_attn_weights", False, "scale_attn_weights"),
        ("scale_attn_by_inverse_layer_idx", True, "scale_attn_by_inverse_layer_idx"),
        ("tie_word_embeddings", False, "tie_word_embeddings"),
        ("n_layer", 3, "transformer.h.2.attn."),
        ("n_embd", 128, "cannot be loaded"),
    ],
)
def test_mistake_importing_what_model_py_does_not_compute(name, value, word, tmp_path, refused):
    write_gpt2(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {name: value}))
    message = refused(sample.main, f"--out_dir={tmp_path}")
    assert f"{tmp_path} cannot be loaded" in message and word in message


def test_only_hub_names_use_the_network(tmp_path, monkeypatch, refused):
    monkeypatch.chdir(tmp_path)
    asked = []

    def offline(name, **options):
        asked.append(name)
        raise OSError("We couldn't connect to the hub.\nCheck your internet connection.")

    monkeypatch.setattr(transformers.GPT2Config, "get_config_dict", offline)
    for name in ("out/gpt2", "gpt3", "owner/name", "no/config.json"):
        assert f"there is no checkpoint '{name}'" in refused(sample.main, f"--out_dir={name}")
    assert not asked
    for name in ("gpt2", "gpt2-xl", "hf:owner/name"):
        assert f"{name} cannot be loaded: We couldn't connect" in refused(sample.main, f"--out_dir={name}")
    assert asked == ["gpt2", "gpt2-xl", "owner/name"]


def test_mistake_without_transformers(gpt2, monkeypatch, refused):
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert "pip install transformers" in refused(sample.main, f"--out_dir={gpt2[1]}")


@pytest.fixture(scope="module")
def nanogpt(tmp_path_factory):
    """A model, and a folder with the checkpoint that nanoGPT would write, compiled and with its first versions' masks."""
    model = GPT(GPTConfig(16, V, 2, 2, 16, bias=False)).eval()
    weights = {}
    for name, p in model.state_dict().items():
        p *= 10
        weights["_orig_mod." + name.replace("pos.wpe", "transformer.wpe")] = p
    for n in range(2):
        weights[f"_orig_mod.transformer.h.{n}.attn.bias"] = torch.ones(1, 1, 16, 16).tril()
    content = {
        "model": weights,
        "optimizer": {},
        "model_args": dict(n_layer=2, n_head=2, n_embd=16, block_size=16, bias=False, vocab_size=V, dropout=0.0),
        "iter_num": 250,
        "best_val_loss": torch.tensor(1.5),
        "config": {"dataset": "shakespeare_char", "max_iters": 5000, "wandb_log": False},
    }
    folder = tmp_path_factory.mktemp("out-shakespeare-char")
    torch.save(content, folder / "ckpt.pt")
    return model, folder


@torch.no_grad()
def test_a_nanogpt_checkpoint_gives_its_own_logits(nanogpt):
    model, folder = nanogpt
    idx = torch.randint(V, (3, 16))
    for source in (folder, folder / "ckpt.pt"):
        checkpoint = load_checkpoint(source)
        assert checkpoint.step == 250
        assert torch.equal(checkpoint.model(CPU)(idx, idx)[0], model(idx, idx)[0])


@pytest.fixture(params=["nanogpt", "gpt2"])
def foreign(request, nanogpt, tmp_path_factory):
    return nanogpt[1] if request.param == "nanogpt" else write_gpt2(tmp_path_factory.mktemp("hf") / "m")[1]


def test_samples_with_a_named_tokenizer(foreign, dataset, gpt2_bpe, refused):
    texts, _ = write_sample(foreign, tokenizer=f"data:{dataset}", start="def f", num_samples=2, max_new_tokens=20)
    assert len(texts) == 2 and all(text.startswith("def f") and len(text) == 25 for text in texts)
    assert "--tokenizer=gpt2" in refused(sample.main, f"--out_dir={foreign}")
    message = refused(sample.main, f"--out_dir={foreign}", "--tokenizer=gpt2")
    assert "30 ids" in message and "50,257" in message


@pytest.mark.usefixtures("few_documents")
def test_is_evaluated_beside_a_run(foreign, dataset, trained, tmp_path, capsys, refused):
    shutil.copytree(trained("rope"), tmp_path / "rope", ignore=shutil.ignore_patterns("length*"))
    argv = [str(foreign), f"{tmp_path}/rope", "--block_tokens=1", "--blocks=20", f"--results_dir={tmp_path}/results"]
    assert "--dataset" in refused(eval_length.main, *argv)
    argv.append(f"--dataset={dataset}")
    for n_measured_before in (0, 2):
        assert eval_length.main(argv) == 0
        assert capsys.readouterr().out.count("measured before") == n_measured_before
    assert len(list(foreign.glob("length-*.npz"))) == 1


def test_a_hub_model_has_a_folder_of_its_own_for_results(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_gpt2(tmp_path / "owner" / "name")  # transformers looks here before it asks the hub
    checkpoint = load_checkpoint("hf:owner/name")
    assert (checkpoint.path, checkpoint.folder) == ("hf:owner/name", Path("results/hub/owner/name"))


def test_training_starts_from_it(foreign, dataset, tmp_path, refused):
    flags = [f"--init_from={foreign}", "--max_iters=1", "--learning_rate=0", "--device=cpu"]
    assert "--dataset" in refused(train.main, *flags, f"--out_dir={tmp_path}/r")
    flags.append(f"--dataset={dataset}")
    theirs = load_checkpoint(foreign)
    for block_size, n_rows in ((8, 8), (32, 16)):
        folder = tmp_path / str(block_size)
        train.main([*flags, f"--block_size={block_size}", f"--out_dir={folder}"])
        ours = load_checkpoint(folder)
        assert ours.config == replace(theirs.config, block_size=block_size)
        assert ours.history == [[0, {"init_from": theirs.hash}]]
        for name, tensor in ours.weights.items():
            n = n_rows if name == "pos.wpe.weight" else None
            assert torch.equal(tensor[:n], theirs.weights[name][:n])
    smaller = "--bias=False" if theirs.config.bias else "--n_layer=1"
    assert "transformer.h." in refused(train.main, *flags, smaller, f"--out_dir={tmp_path}/r")
    assert not (tmp_path / "r").exists()
    write_sample(folder)  # it now has the dataset's tokenizer


def test_eval_only_works_and_resume_does_not(foreign, dataset, capsys, refused):
    train.main(["--eval_only", f"--out_dir={foreign}", f"--dataset={dataset}", "--device=cpu"])
    assert "nats per token" in capsys.readouterr().out
    assert "--dataset" in refused(train.main, "--eval_only", f"--out_dir={foreign}")
    assert "no run to resume" in refused(train.main, "--resume", f"--out_dir={foreign}", f"--dataset={dataset}")
