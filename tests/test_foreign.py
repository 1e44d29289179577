"""Imported weights: nanoGPT's checkpoints and GPT-2 in Hugging Face's format become run folders."""

import json
from dataclasses import replace

import pytest
import torch
from conftest import write_sample

import eval_length
import sample
import train
from evaluation.huggingface import import_transformers
from model import GPT, GPTConfig
from run.checkpoint import load_checkpoint
from tools import import_weights

transformers = import_transformers()
V = 30  # ids: the tests' dataset has 25 characters


def write_gpt2(folder, **settings):
    """Writes a GPT-2 with weights large enough that a wrong GELU shows. Returns it."""
    torch.manual_seed(0)
    size = dict(vocab_size=V, n_positions=16, n_embd=64, n_layer=2, n_head=2)
    others = dict(initializer_range=0.2, bos_token_id=None, eos_token_id=None)
    theirs = transformers.GPT2LMHeadModel(transformers.GPT2Config(**size, **others, **settings)).eval()
    for p in theirs.parameters():
        if p.dim() == 1:  # also biases and norms
            p.data += 0.2 * torch.randn_like(p)
    theirs.save_pretrained(folder)
    return theirs


@pytest.fixture
def imported(tmp_path, dataset):
    """imported(source): the run folder that the tool makes."""

    def call(source):
        folder = tmp_path / "imported"
        assert import_weights.main([str(source), str(folder), f"--tokenizer=data:{dataset}"]) == 0
        return folder

    return call


def logits(checkpoint, idx):
    return checkpoint.model("cpu")(idx, idx)[0]


@pytest.mark.parametrize("activation, is_old", [("gelu", False), ("gelu_new", True)])
@torch.no_grad()
def test_a_gpt2_gives_its_own_logits(activation, is_old, tmp_path, imported):
    theirs = write_gpt2(tmp_path, activation_function=activation)
    if is_old:  # with masks, and without a head, as on the hub: wte.weight, h.0.ln_1.weight
        masks = {"h.0.attn.bias": torch.ones(1), "h.0.attn.masked_bias": torch.ones(1)}
        torch.save(theirs.transformer.state_dict() | masks, tmp_path / "pytorch_model.bin")
        (tmp_path / "model.safetensors").unlink()
    idx = torch.randint(V, (3, 16))
    checkpoint = load_checkpoint(imported(tmp_path))
    assert checkpoint.config == GPTConfig(16, V, 2, 2, 64, gelu_tanh=activation == "gelu_new")
    assert (logits(checkpoint, idx) - theirs(idx).logits).abs().max() <= 1e-4


@pytest.mark.parametrize(
    "name, value, word",
    [
        ("model_type", "llama", "model_type"),
        ("activation_function", "relu", "activation_function"),
        ("scale_attn_weights", False, "scale_attn_weights"),
        ("n_layer", 3, "transformer.h.2.attn."),
        ("n_embd", 128, "transformer.h.0.attn.c_attn.bias"),
    ],
)
def test_mistake_importing_what_model_py_does_not_compute(name, value, word, tmp_path, refused):
    write_gpt2(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {name: value}))
    assert word in refused(import_weights.main, tmp_path, tmp_path / "r")


@torch.no_grad()
def test_a_nanogpt_checkpoint_gives_its_own_logits(tmp_path, imported, refused):
    """As nanoGPT would write it in bfloat16, compiled, and with its first versions' masks."""
    model = GPT(GPTConfig(16, V, 2, 2, 16, bias=False)).eval()
    for p in model.parameters():
        p.data = (10 * p).bfloat16().float()
    weights = {name.replace("pos.wpe", "transformer.wpe"): p.bfloat16() for name, p in model.state_dict().items()}
    weights["transformer.h.0.attn.bias"] = torch.ones(1, 1, 16, 16).tril()
    content = {
        "model": {f"_orig_mod.{name}": p for name, p in weights.items()},
        "model_args": dict(n_layer=2, n_head=2, n_embd=16, block_size=16, bias=False, vocab_size=V, dropout=0.0),
        "iter_num": 250,
    }
    torch.save(content, tmp_path / "ckpt.pt")
    idx = torch.randint(V, (3, 16))
    checkpoint = load_checkpoint(imported(tmp_path / "ckpt.pt"))
    assert checkpoint.step == 250
    assert torch.equal(logits(checkpoint, idx), model(idx, idx)[0])
    assert "tools.import_weights" in refused(sample.main, tmp_path / "ckpt.pt")


@pytest.mark.usefixtures("few_documents")
def test_it_is_sampled_and_evaluated_but_no_run_to_resume(tmp_path, imported, dataset, trained, evaluate, refused):
    write_gpt2(tmp_path / "gpt2")
    foreign = imported(tmp_path / "gpt2")
    ((text,), _) = write_sample(foreign, start="def f", num_samples=1, max_new_tokens=20)
    assert text.startswith("def f")
    assert len(text) == 25
    pair = foreign, trained("rope")
    assert "--dataset" in refused(eval_length.main, *pair)
    assert len(evaluate(*pair, f"--dataset={dataset}").rows) == 2
    flags = f"--out_dir={foreign}", "--device=cpu"
    assert "--dataset" in refused(train.main, "--eval_only", *flags)
    assert train.main(["--eval_only", *flags, f"--dataset={dataset}"]) == 0
    assert f"--init_from={foreign}" in refused(train.main, *flags, f"--dataset={dataset}")


def test_training_starts_from_it(imported, dataset, tmp_path, refused):
    write_gpt2(tmp_path)
    foreign = imported(tmp_path)
    flags = [f"--init_from={foreign}", "--block_size=8", f"--out_dir={tmp_path}/r", "--device=cpu"]
    assert "--dataset" in refused(train.main, *flags)
    flags.append(f"--dataset={dataset}")
    assert "has bias=" in refused(train.main, *flags, "--bias=False")
    assert not (tmp_path / "r").exists()
    train.main([*flags, "--max_iters=1", "--learning_rate=0"])
    theirs = load_checkpoint(foreign)
    ours = load_checkpoint(tmp_path / "r")
    assert ours.config == replace(theirs.config, block_size=8, first_block_size=16)
    assert ours.history == [[0, {"init_from": theirs.hash}]]
    theirs.weights["pos.wpe.weight"] = theirs.weights["pos.wpe.weight"][:8]
    torch.testing.assert_close(ours.weights, theirs.weights, rtol=0, atol=0)
