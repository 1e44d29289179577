"""An export computes the same logits and the same tokens in Hugging Face's transformers."""

import json
import os

import pytest
import torch
from conftest import build, tokenizer_json

import config
from data.tokenizers import END_OF_TEXT, CharTokenizer, HuggingFaceTokenizer, make_tokenizer, named_tokenizer
from model import GPT, GPTConfig
from run.checkpoint import Checkpoint
from run.foreign import import_transformers
from tools import export

transformers = import_transformers()
TEXT = "def f(x):\n    return  x + 1  # naïve 中文 🙂\n\n\n'tis I'll"
ARCHITECTURES = {"learnable": "GPT2LMHeadModel", "rope": "GPTNeoXForCausalLM", "alibi": "MptForCausalLM"}


def settings_of(flags):
    """The settings of a GPTConfig, from flags without dashes."""
    settings, _ = config.parse(GPTConfig, [f"--{flag}" for flag in flags.split()])
    return settings


def write_run(folder, tokenizer, pos_scheme="learnable", **settings):
    """A run whose weights are all random, and large enough that any mistake shows. Returns its model."""
    sizes = dict(block_size=32, vocab_size=tokenizer.n_vocab + 3, n_embd=32, bias=False)
    model = build(pos_scheme, spread=2 / 3, **sizes | settings).float()
    checkpoint = Checkpoint(model.state_dict(), model.config, step=1, tokenizer_spec=tokenizer.spec)
    checkpoint.save(folder / "best.pt")
    return model


@pytest.mark.parametrize(
    "flags",
    [
        "pos_scheme=learnable",
        "pos_scheme=learnable gelu_tanh bias",
        "pos_scheme=rope",
        "pos_scheme=rope gelu_tanh bias rope_theta=500",
        "pos_scheme=rope rope_scaling=linear rope_factor=3",
        "pos_scheme=rope rope_scaling=ntk rope_factor=4",
        "pos_scheme=rope rope_scaling=yarn rope_factor=2.5 rope_block_size=512 n_embd=64",
        "pos_scheme=rope rope_fraction=0.5",
        "pos_scheme=rope rope_fraction=0.3 rope_scaling=linear rope_factor=3",
        "pos_scheme=alibi",
        "pos_scheme=alibi n_head=6 n_embd=48",
    ],
)
def test_an_export_has_equal_logits_and_writes_the_same_text(flags, tmp_path, capsys):
    model = write_run(tmp_path / "r", CharTokenizer(set(TEXT)), **settings_of(flags))
    assert export.main([str(tmp_path / "r")]) == 0
    folder = tmp_path / "r" / "hf"
    assert not list(tmp_path.glob("**/.*"))
    exported = transformers.AutoModelForCausalLM.from_pretrained(folder)
    assert export.compare(model, exported) <= 1e-4
    assert type(exported).__name__ == ARCHITECTURES[model.config.pos_scheme]
    idx = torch.tensor([[3, 1, 4, 1]])
    text = exported.generate(idx, max_new_tokens=28, do_sample=False)  # it never stops early
    assert torch.equal(text, model.generate(idx, 28, temperature=0))
    assert ("16 × block_size" in capsys.readouterr().out) == ("alibi" in flags)  # where it ends
    if "rope" in flags:  # older versions of transformers read other keys
        content = json.loads((folder / "config.json").read_text())
        rope = content["rope_parameters"]
        assert content["rope_scaling"] == rope
        assert content["rotary_pct"] == rope["partial_rotary_factor"]
        assert content["rotary_emb_base"] == rope["rope_theta"]


@pytest.mark.parametrize("name", ["char", "bpe:290", "gpt2", "hf"])
def test_the_tokenizer_encodes_and_decodes_as_ours(name, tmp_path, gpt2_bpe):
    if name in ("char", "bpe:290"):
        tokenizer = make_tokenizer(name, {"train": lambda label: [("a.txt", TEXT * 20)]})
    elif name == "hf":
        tokenizer = named_tokenizer(tokenizer_json(tmp_path / "tokenizer.json"))
    else:
        tokenizer = named_tokenizer(name)
    write_run(tmp_path / "r", tokenizer, n_embd=2, n_layer=1)
    export.main([f"{tmp_path}/r"])
    exported = transformers.AutoTokenizer.from_pretrained(tmp_path / "r" / "hf")
    text = TEXT + ("" if name == "char" else END_OF_TEXT) + TEXT
    ids = exported.encode(text)
    assert ids == list(tokenizer.encode(text))
    assert exported.decode(ids) == text
    assert exported.eos_token_id == tokenizer.eot
    assert "PreTrainedTokenizerFast" in (tmp_path / "r/hf/tokenizer_config.json").read_text()  # for older versions
    if name == "char":  # unknown characters are not dropped
        with pytest.raises(Exception, match="Missing"):
            exported.encode("def €")
    else:  # and the file can be read again
        assert named_tokenizer(f"{tmp_path}/r/hf/tokenizer.json").encode(text) == ids


@pytest.mark.parametrize(
    "flags, named",
    {
        "pos_scheme=t5": "t5",
        "window=8": "window",
        "pos_scheme=rope layers=pos_scheme=none": "layers",
        "qk_norm": "qk_norm",
        "pos_scheme=alibi bias": "bias",
        "pos_scheme=rope rope_scaling=yarn rope_fraction=0.5": "rope_fraction",
    }.items(),
)
def test_mistake_exporting_what_hugging_face_does_not_compute(flags, named):
    model = GPT(GPTConfig(block_size=8, vocab_size=8, n_layer=1, n_head=2, n_embd=8, **settings_of(flags)))
    with pytest.raises(ValueError, match=f"cannot export .*{named}"):
        export.to_hugging_face(model, None)


def test_mistake_exporting_a_tokenizer_that_hugging_face_decodes_otherwise(tmp_path, refused):
    inner = named_tokenizer(tokenizer_json(tmp_path / "tokenizer.json")).inner
    inner.add_tokens(["café"])  # letters that stand for bytes in a byte-level BPE
    run = tmp_path / "r"
    write_run(run, HuggingFaceTokenizer(inner.to_str()))
    assert str(run) in refused(export.main, run)
    assert sorted(os.listdir(run)) == ["best.pt"]


def test_mistake_in_an_export_leaves_everything_as_it_is(tmp_path, refused, monkeypatch):
    run = tmp_path / "r"
    write_run(run, CharTokenizer(set(TEXT)))
    with monkeypatch.context() as patch:
        patch.setattr(export, "TOLERANCE", -1.0)
        assert str(run) in refused(export.main, run)
    assert sorted(os.listdir(run)) == ["best.pt"]
    (run / "hf").mkdir()
    assert export.main([str(run)]) == 0  # the folder was empty
    assert f"{run}/hf" in refused(export.main, run)
