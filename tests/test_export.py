"""An export computes the same logits and the same tokens in Hugging Face's transformers."""

import json
import os

import pytest
import torch
from conftest import build
from test_data import tokenizer_json

from data.tokenizers import END_OF_TEXT, CharTokenizer, make_tokenizer, named_tokenizer
from model import GPT, GPTConfig, scheme_names
from run.checkpoint import Checkpoint
from run.foreign import import_transformers
from tools import export
from tools.export import ARCHITECTURES, to_hugging_face

transformers = import_transformers()
TEXT = "def f(x):\n    return  x + 1  # naïve 中文 🙂\n\n\n'tis I'll"


def write_run(folder, tokenizer=None, **settings):
    """A run whose weights are all random, and large enough that any mistake shows."""
    tokenizer = tokenizer or CharTokenizer(set(TEXT))
    sizes = dict(block_size=32, vocab_size=tokenizer.n_vocab + 3, n_layer=2, n_head=2, n_embd=32, bias=False)
    model = build(settings.pop("pos_scheme", "learnable"), spread=0.67, **sizes | settings).float()
    folder.mkdir()
    known = dict(settings={"dataset": "tiny"}, best_val_loss=1.0, dataset_hash="", tokenizer_spec=tokenizer.spec)
    Checkpoint(model.state_dict(), model.config, 1, **known).save(folder, is_best=True)
    return model


def differences(model, folder):
    """The largest difference of logits at block_size and, if the scheme is defined there, at four times it."""
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder)
    n = model.config.block_size
    lengths = [n] if model.config.max_positions else [n, 4 * n]
    return [export.largest_difference(model, theirs, length)[0] for length in lengths]


NAMES = {"learnable": "GPT2LMHeadModel", "rope": "GPTNeoXForCausalLM", "alibi": "MptForCausalLM"}
EXPORTED = [
    ("learnable", dict()), ("learnable", dict(bias=True)), ("learnable", dict(gelu_tanh=True, bias=True)),
    ("rope", dict()), ("rope", dict(bias=True, rope_theta=500.0)), ("rope", dict(gelu_tanh=True)),
    ("rope", dict(rope_scaling="linear", rope_factor=3.0)), ("rope", dict(rope_scaling="ntk", rope_factor=4.0)),
    ("rope", dict(rope_scaling="yarn", rope_factor=4.0)),
    ("rope", dict(rope_scaling="yarn", rope_factor=2.5, rope_block_size=512, n_embd=64)),
    ("rope", dict(rope_fraction=0.5)), ("rope", dict(rope_fraction=0.3, rope_scaling="linear", rope_factor=3.0)),
    ("alibi", dict()), ("alibi", dict(n_head=6, n_embd=48)),
]  # fmt: skip


@pytest.mark.parametrize("scheme, settings", EXPORTED, ids=str)
def test_an_export_has_equal_logits_and_writes_the_same_text(scheme, settings, tmp_path, capsys):
    model = write_run(tmp_path / "r", pos_scheme=scheme, **settings)
    assert export.main([str(tmp_path / "r")]) == 0
    hf = tmp_path / "r" / "hf"
    found, out = differences(model, hf), capsys.readouterr().out
    assert max(found) <= 1e-4 and out.count("largest difference") == len(found)
    theirs, idx = transformers.AutoModelForCausalLM.from_pretrained(hf), torch.tensor([[3, 1, 4, 1]])
    written = theirs.generate(idx, max_new_tokens=28, do_sample=False)  # it never stops early
    assert torch.equal(written, model.generate(idx, 28, temperature=0))
    assert f"{hf}: {NAMES[scheme]}, with its tokenizer" in out
    assert (hf / "model.safetensors").is_file() and not list(tmp_path.glob("**/.writing*"))
    if "rope_scaling" in settings:  # without the scaling it differs
        path = hf / "config.json"
        rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0}
        path.write_text(json.dumps(json.loads(path.read_text()) | {"rope_parameters": rope}))
        assert min(differences(model, hf)) > 1e-3


@pytest.mark.parametrize("name", ["char", "bpe:290", "gpt2", "hf"])
def test_the_tokenizer_encodes_and_decodes_as_ours(name, tmp_path, gpt2_bpe):
    end = "" if name == "char" else END_OF_TEXT
    if name in ("char", "bpe:290"):
        tokenizer = make_tokenizer(name, lambda split: iter([TEXT * 20]))
    else:
        tokenizer = named_tokenizer(tokenizer_json(tmp_path / "tokenizer.json") if name == "hf" else name)
    write_run(tmp_path / "r", tokenizer, n_embd=2, n_layer=1)
    export.main([f"{tmp_path}/r"])
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "r" / "hf")
    text = f"{TEXT}{end}{TEXT}"
    assert theirs.encode(text) == list(tokenizer.encode(text))
    assert theirs.decode(theirs.encode(text)) == text == tokenizer.decode_bytes(theirs.encode(text)).decode()
    assert theirs.eos_token_id == tokenizer.eot
    if name == "char":  # unknown characters are not dropped
        with pytest.raises(Exception, match="Missing"):
            theirs.encode("def €")
    else:  # and the file can be read again
        back = named_tokenizer(f"{tmp_path}/r/hf/tokenizer.json")
        assert back.encode(text) == theirs.encode(text)
        assert back.encode(text, plain=True) == tokenizer.encode(text, plain=True)
        assert all(back.decode_bytes([id]) == tokenizer.decode_bytes([id]) for id in range(back.n_vocab))


OTHERS = [(dict(pos_scheme=s), f"cannot export pos_scheme={s}") for s in scheme_names() if s not in ARCHITECTURES]
UNEXPORTED = [
    *OTHERS,
    (dict(window=8), "cannot export a window, a pos_pattern or qk_norm"),
    (dict(pos_scheme="rope", pos_pattern="10"), "cannot export a window"),
    (dict(qk_norm=True), "cannot export a window"),
]


@pytest.mark.parametrize("settings, message", UNEXPORTED)
def test_mistake_exporting_what_hugging_face_does_not_compute(settings, message):
    with pytest.raises(ValueError, match=message):
        to_hugging_face(GPT(GPTConfig(block_size=8, vocab_size=8, n_layer=1, n_head=2, n_embd=8, **settings)), None)


def test_mistake_in_an_export_leaves_everything_as_it_is(tmp_path, refused, monkeypatch):
    run = tmp_path / "r"
    write_run(run)
    monkeypatch.setattr(export, "TOLERANCE", -1.0)
    assert "transformers computes other logits, so nothing was written" in refused(export.main, run)
    assert sorted(os.listdir(run)) == ["best.pt", "latest.pt"]
    monkeypatch.undo()
    (tmp_path / "empty").mkdir()
    assert export.main([f"{run}", f"--hf_dir={tmp_path}/empty"]) == 0
