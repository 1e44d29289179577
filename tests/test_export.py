import json
import os
import sys

import pytest
import torch

import data
from model import GPT, SCHEMES, GPTConfig
from run import checkpoint as checkpoints
from run.checkpoint import Checkpoint
from run.foreign import ARCHITECTURES, import_transformers
from tools import export

transformers = import_transformers()
TEXT = "def f(x):\n    return  x + 1  # naïve 中文 🙂\n\n\n'tis I'll"


def write_run(folder, tokenizer=None, **settings):
    """The folder of a run whose weights are all random, and so large that nothing can pass unseen."""
    tokenizer = tokenizer or data.CharTokenizer(set(TEXT))
    args = dict(block_size=32, vocab_size=tokenizer.n_vocab + 3, n_layer=2, n_head=2, n_embd=32, bias=False)
    model = GPT(GPTConfig(**args | settings)).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(0.2 * torch.randn(p.shape, generator=generator) + ("ln_" in name and p.dim() == 1 and "bias" not in name))  # fmt: skip
    folder.mkdir()
    known = dict(settings={"dataset": "tiny"}, best_val_loss=1.0, dataset_hash="", tokenizer_spec=tokenizer.spec)
    Checkpoint(model.state_dict(), model.config, 1, **known).save(folder, is_best=True)
    return model


def differences(model, folder):
    """Largest difference of logits at block_size and, where the scheme is defined there, at four times it."""
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder)
    n = model.config.block_size
    return [
        export.largest_difference(model, theirs, k)[0] for k in ((n,) if model.config.max_positions else (n, 4 * n))
    ]


EXPORTED = {
    "learnable": ({}, "GPT2LMHeadModel"),
    "learnable, biases": ({"bias": True}, "GPT2LMHeadModel"),
    "learnable, tanh": ({"gelu_tanh": True, "bias": True}, "GPT2LMHeadModel"),
    "rope": ({}, "GPTNeoXForCausalLM"),
    "rope, biases": ({"bias": True, "rope_theta": 500.0}, "GPTNeoXForCausalLM"),
    "rope, tanh": ({"gelu_tanh": True}, "GPTNeoXForCausalLM"),
    "rope, linear": ({"rope_scaling": "linear", "rope_factor": 3.0}, "GPTNeoXForCausalLM"),
    "rope, ntk": ({"rope_scaling": "ntk", "rope_factor": 4.0}, "GPTNeoXForCausalLM"),
    "rope, yarn": ({"rope_scaling": "yarn", "rope_factor": 4.0}, "GPTNeoXForCausalLM"),
    "rope, yarn from 512": (
        {"rope_scaling": "yarn", "rope_factor": 2.5, "rope_block_size": 512, "n_embd": 64},
        "GPTNeoXForCausalLM",
    ),
    "alibi": ({}, "MptForCausalLM"),
    "alibi, 6 heads": ({"n_head": 6, "n_embd": 48}, "MptForCausalLM"),
}


@pytest.mark.parametrize("name", EXPORTED)
def test_an_export_has_equal_logits(name, tmp_path, capsys):
    settings, architecture = EXPORTED[name]
    model = write_run(tmp_path / "r", pos_scheme=name.split(",")[0], **settings)
    assert export.main([str(tmp_path / "r")]) == 0
    hf = tmp_path / "r" / "hf"
    assert max(differences(model, hf)) <= 1e-4
    out = capsys.readouterr().out
    assert f"{hf}: {architecture}, with its tokenizer" in out and out.count("largest difference") == len(
        differences(model, hf)
    )
    assert (hf / "model.safetensors").is_file() and not list(tmp_path.glob("**/.writing*"))
    if "rope_scaling" in settings:  # and would not without the scaling
        path = hf / "config.json"
        theirs = json.loads(path.read_text())
        theirs["rope_parameters"] = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0}
        path.write_text(json.dumps(theirs))
        assert min(differences(model, hf)) > 1e-3


def test_what_went_out_comes_in_again(tmp_path):
    model = write_run(tmp_path / "r")
    export.main([f"{tmp_path}/r", f"--hf_dir={tmp_path}/a"])
    back = checkpoints.load(tmp_path / "a").model(torch.device("cpu"))
    idx = torch.randint(20, (1, 32))
    with torch.no_grad():
        assert torch.allclose(back(idx, idx)[0], model(idx, idx)[0], atol=1e-4)
    export.main([f"{tmp_path}/a", f"--hf_dir={tmp_path}/b"])  # which carries no tokenizer
    assert max(differences(model, tmp_path / "b")) <= 1e-4 and not (tmp_path / "b" / "tokenizer.json").exists()


@pytest.mark.parametrize("scheme", ARCHITECTURES)
def test_generation_goes_on_as_ours_and_stops_nowhere(scheme, tmp_path):
    model = write_run(tmp_path / "r", pos_scheme=scheme)
    export.main([f"{tmp_path}/r"])
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "r" / "hf")
    idx = torch.tensor([[3, 1, 4, 1]])
    expected = model.generate(idx, 28, temperature=0)
    assert torch.equal(theirs.generate(idx, max_new_tokens=28, do_sample=False), expected)


@pytest.mark.parametrize("kind", ["char", "bpe", "gpt2"])
def test_the_tokenizer_encodes_and_decodes_as_ours(kind, tmp_path, request):
    tokenizer = data.CharTokenizer(set(TEXT))
    if kind == "bpe":
        from data.prepare import make_tokenizer

        tokenizer = make_tokenizer("bpe:280", lambda split: iter([TEXT * 20]))
    elif kind == "gpt2":
        request.getfixturevalue("gpt2_bpe")
        tokenizer = data.tokenizer_from({"kind": "gpt2"})
    write_run(tmp_path / "r", tokenizer, n_embd=2, n_layer=1)
    export.main([f"{tmp_path}/r"])
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "r" / "hf")
    text = TEXT if kind == "char" else f"{TEXT}{data.END_OF_TEXT}{TEXT} "
    assert theirs.encode(text) == list(tokenizer.encode(text))
    assert theirs.decode(theirs.encode(text)) == text == tokenizer.decode_bytes(theirs.encode(text)).decode()
    assert theirs.eos_token_id == tokenizer.eot


UNEXPORTED = {
    **{s: ({"pos_scheme": s}, f"computes pos_scheme={s}: only learnable, rope, alibi") for s in SCHEMES if s not in ARCHITECTURES},
    "biases": ({"pos_scheme": "alibi", "bias": True}, "MPT has no biases and the exact GELU: bias=True"),
    "tanh": ({"pos_scheme": "alibi", "gelu_tanh": True}, "gelu_tanh=True do not fit it"),
    "window": ({"pos_scheme": "rope", "window": 8}, "with a window or a pos_pattern"),
    "pattern": ({"pos_scheme": "rope", "pos_pattern": "10"}, "with a window or a pos_pattern"),
}  # fmt: skip


@pytest.mark.parametrize("name", UNEXPORTED)
def test_what_hugging_face_does_not_compute_is_refused(name, tmp_path, refused):
    settings, message = UNEXPORTED[name]
    write_run(tmp_path / "r", **settings)
    assert message in refused(export.main, tmp_path / "r")
    assert sorted(os.listdir(tmp_path / "r")) == ["best.pt", "latest.pt"]


def test_bad_input_leaves_everything_as_it_is(tmp_path, refused, monkeypatch):
    write_run(tmp_path / "r")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    assert "exists and is not empty: choose another --hf_dir" in refused(
        export.main, tmp_path / "r", f"--hf_dir={tmp_path}/full"
    )
    assert "exists and is not empty" in refused(export.main, tmp_path / "r", f"--hf_dir={tmp_path}/full/mine")
    assert "there is no checkpoint" in refused(export.main, tmp_path / "full")
    assert "which run? Name one" in refused(export.main)
    monkeypatch.setattr(export, "TOLERANCE", -1.0)
    assert "transformers computes other logits, so nothing was written" in refused(export.main, tmp_path / "r")
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert "pip install transformers" in refused(export.main, tmp_path / "r")
    assert sorted(os.listdir(tmp_path / "r")) == ["best.pt", "latest.pt"] and os.listdir(tmp_path / "full") == ["mine"]
    monkeypatch.undo()
    (tmp_path / "empty").mkdir()
    assert export.main([f"{tmp_path}/r", f"--hf_dir={tmp_path}/empty"]) == 0
