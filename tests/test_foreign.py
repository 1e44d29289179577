"""Imported weights: nanoGPT's checkpoints and GPT-2 in Hugging Face's format."""

import json
import shutil
import sys
from dataclasses import replace

import pytest
import torch
from test_sample import write

import eval_length
import sample
import train
from model import GPT, GPTConfig
from run.checkpoint import load_checkpoint
from run.foreign import import_transformers

transformers = import_transformers()
V = 30  # ids: the tests' dataset has 25 characters


@pytest.fixture(scope="module", params=["gelu_new", "gelu"])
def gpt2(request, tmp_path_factory):
    """A GPT-2 with weights large enough that a wrong GELU shows, and its folder."""
    return write_gpt2(tmp_path_factory.mktemp("hf") / "small", activation_function=request.param)


def write_gpt2(folder, **settings):
    torch.manual_seed(0)
    size = dict(vocab_size=V, n_positions=16, n_embd=64, n_layer=2, n_head=2, initializer_range=0.2, bos_token_id=None, eos_token_id=None)  # fmt: skip
    theirs = transformers.GPT2LMHeadModel(transformers.GPT2Config(**size | settings)).eval()
    for p in theirs.parameters():
        if p.dim() == 1:  # also biases and norms
            p.data += 0.2 * torch.randn_like(p)
    theirs.save_pretrained(folder)
    return theirs, folder


def load(path):
    return load_checkpoint(path).model(torch.device("cpu"))


@torch.no_grad()
def test_a_gpt2_gives_its_own_logits_and_text_and_another_gelu_does_not(gpt2):
    theirs, folder = gpt2
    idx = torch.randint(V, (3, 16))
    logits, written = theirs(idx).logits, theirs.generate(idx[:, :4], max_new_tokens=12, do_sample=False)
    for source in (folder, folder / "config.json"):
        assert (load(source)(idx, idx)[0] - logits).abs().max() <= 1e-4
    assert torch.equal(load(folder).generate(idx[:, :4], 12, temperature=0), written)
    checkpoint, tanh = load_checkpoint(folder), theirs.config.activation_function == "gelu_new"
    assert checkpoint.config == GPTConfig(16, V, 2, 2, 64, gelu_tanh=tanh)
    other = replace(checkpoint, config=replace(checkpoint.config, gelu_tanh=not tanh)).model(torch.device("cpu"))
    assert (other(idx, idx)[0] - logits).abs().max() > 1e-3


@pytest.mark.parametrize("layout", ["shards", "bin", "without_head"])
@torch.no_grad()
def test_a_gpt2_can_be_in_several_files_in_an_old_one_or_without_its_head(layout, gpt2, tmp_path):
    theirs, idx = gpt2[0], torch.randint(V, (3, 16))
    saved = theirs.transformer if layout == "without_head" else theirs  # as on the hub: wte.weight, h.0.ln_1.weight
    saved.save_pretrained(tmp_path, max_shard_size="50KB" if layout == "shards" else "1GB")
    assert (tmp_path / "model.safetensors").is_file() == (layout != "shards")
    if layout == "bin":
        masks = {"transformer.h.0.attn.bias": torch.ones(1), "transformer.h.0.attn.masked_bias": torch.ones(1)}
        torch.save(theirs.state_dict() | masks, tmp_path / "pytorch_model.bin")
        (tmp_path / "model.safetensors").unlink()
    assert (load(tmp_path)(idx, idx)[0] - theirs(idx).logits).abs().max() <= 1e-4


UNCOMPUTED = dict(
    n_inner=32, activation_function="relu", layer_norm_epsilon=1e-6, scale_attn_weights=False, reorder_and_upcast_attn=True,
    scale_attn_by_inverse_layer_idx=True, tie_word_embeddings=False,
)  # fmt: skip
INVALID = [
    *((name, value, f"has {name}={value!r}, but model.py computes ") for name, value in UNCOMPUTED.items()),
    ("model_type", "llama", "has model_type='llama', but model.py computes 'gpt2'"),
    ("n_layer", 3, "could not be loaded (it lacks transformer.h.2.attn."),
    ("n_embd", 128, "could not be loaded ("),
]


@pytest.mark.parametrize("name, value, message", INVALID)
def test_mistake_importing_what_model_py_does_not_compute(name, value, message, tmp_path, refused):
    write_gpt2(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {name: value}))
    assert message in refused(sample.main, f"--out_dir={tmp_path}")


def test_only_hub_names_use_the_network(tmp_path, monkeypatch, refused):
    monkeypatch.chdir(tmp_path)
    asked = []

    def offline(name, **kw):
        asked.append(name)
        raise OSError("We couldn't connect to the hub.\nCheck your internet connection.")

    monkeypatch.setattr(transformers.GPT2Config, "get_config_dict", offline)
    for name in ("out/gpt2", "gpt3", "owner/name", "no/config.json"):
        assert f"there is no checkpoint {name}" in refused(sample.main, f"--out_dir={name}")
    assert not asked
    for name in ("gpt2", "gpt2-xl", "hf:owner/name"):
        line = refused(sample.main, f"--out_dir={name}")
        assert f"error: {name} could not be loaded (We couldn't connect" in line and "connect to the network" in line
    assert asked == ["gpt2", "gpt2-xl", "owner/name"]


def test_mistake_without_transformers(gpt2, monkeypatch, refused):
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert "pip install transformers" in refused(sample.main, f"--out_dir={gpt2[1]}")


@pytest.fixture(scope="module")
def nanogpt(tmp_path_factory):
    """A model, and a folder with the checkpoint that nanoGPT would write, compiled and with its first versions' masks."""
    model = GPT(GPTConfig(16, V, 2, 2, 16, bias=False)).eval()
    for p in model.parameters():
        p.data *= 10
    weights = {"_orig_mod." + k.replace("pos.wpe", "transformer.wpe"): v for k, v in model.state_dict().items()}
    masks = {f"_orig_mod.transformer.h.{n}.attn.bias": torch.ones(1, 1, 16, 16).tril() for n in range(2)}
    args = dict(n_layer=2, n_head=2, n_embd=16, block_size=16, bias=False, vocab_size=V, dropout=0.0)
    settings = {"dataset": "shakespeare_char", "max_iters": 5000, "wandb_log": False}
    folder = tmp_path_factory.mktemp("out-shakespeare-char")
    checkpoint = {"model": weights | masks, "optimizer": {}, "model_args": args, "iter_num": 250,
                  "best_val_loss": torch.tensor(1.5), "config": settings}  # fmt: skip
    torch.save(checkpoint, folder / "ckpt.pt")
    return model, folder


@torch.no_grad()
def test_a_nanogpt_checkpoint_gives_its_own_logits(nanogpt):
    model, folder = nanogpt
    idx = torch.randint(V, (3, 16))
    for source in (folder, folder / "ckpt.pt"):
        assert torch.equal(load(source)(idx, idx)[0], model(idx, idx)[0])
    assert load_checkpoint(folder).step == 250


@pytest.fixture(params=["nanogpt", "gpt2"])
def foreign(request, nanogpt, tmp_path_factory):
    return nanogpt[1] if request.param == "nanogpt" else write_gpt2(tmp_path_factory.mktemp("hf") / "m")[1]


def test_samples_with_a_named_tokenizer(foreign, dataset, gpt2_bpe, refused):
    texts, _ = write(foreign, tokenizer=f"data:{dataset}", start="def f", num_samples=2, max_new_tokens=20)
    assert len(texts) == 2 and all(t.startswith("def f") and len(t) == 25 for t in texts)
    advice = "carries no tokenizer: add --tokenizer=gpt2, or data:NAME for that of a text"
    assert advice in refused(sample.main, f"--out_dir={foreign}")
    line = refused(sample.main, f"--out_dir={foreign}", "--tokenizer=gpt2")
    assert "has 30 ids, too few for the 50,257 of --tokenizer=gpt2" in line


@pytest.mark.usefixtures("few_documents")
def test_is_evaluated_beside_a_run(foreign, dataset, trained, tmp_path, monkeypatch, capsys, refused):
    shutil.copytree(trained("rope"), tmp_path / "rope", ignore=shutil.ignore_patterns("length*"))
    argv = [str(foreign), f"{tmp_path}/rope", "--block_tokens=1", "--blocks=20", f"--results_dir={tmp_path}/results"]
    assert "does not say which text it was trained on" in refused(eval_length.main, *argv)
    argv.append(f"--dataset={dataset}")
    assert eval_length.main(argv) == 0
    out = capsys.readouterr().out
    assert "—" in out and "±" in out
    monkeypatch.setattr("evaluation.protocols.score", None)  # computing again would fail
    assert eval_length.main(argv) == 0
    assert capsys.readouterr().out.count("measured before") == 2
    assert len(list(foreign.glob("length-*.npz"))) == 1


def test_a_hub_model_is_evaluated_in_a_folder_of_its_own(dataset, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_gpt2(tmp_path / "owner" / "name")  # transformers also looks here first
    argv = ["hf:owner/name", "--blocks=20", f"--dataset={dataset}"]
    assert eval_length.main(argv) == 0 and [*(tmp_path / "results/hub/owner/name").glob("length-*.npz")]
    assert "measured before" not in capsys.readouterr().out
    assert eval_length.main(argv) == 0
    assert "name: measured before" in capsys.readouterr().out


def test_training_starts_from_it(foreign, dataset, tmp_path, refused):
    flags = [f"--init_from={foreign}", "--max_iters=1", "--learning_rate=0", "--muon_lr=0", "--device=cpu"]
    assert "does not say which text it was trained on" in refused(train.main, *flags, f"--out_dir={tmp_path}/r")
    assert not (tmp_path / "r").exists()
    theirs = load_checkpoint(foreign)
    for block_size, rows in ((8, 8), (32, 16)):
        folder = tmp_path / str(block_size)
        train.main([*flags, f"--block_size={block_size}", f"--dataset={dataset}", f"--out_dir={folder}"])
        ours = load_checkpoint(folder)
        assert ours.config == replace(theirs.config, block_size=block_size)
        assert all(torch.equal(v, theirs.weights[k]) for k, v in ours.weights.items() if not k.startswith("pos."))
        assert torch.equal(ours.weights["pos.wpe.weight"][:rows], theirs.weights["pos.wpe.weight"][:rows])
    without = "--bias=False" if theirs.config.bias else "--n_layer=1"
    line = refused(train.main, *flags, without, f"--dataset={dataset}", f"--out_dir={tmp_path}/r")
    assert "has weights that this model does not have, such as transformer.h." in line
    write(folder)  # it now has the dataset's tokenizer


def test_eval_only_works_and_resume_does_not(foreign, dataset, capsys, refused):
    train.main(["--eval_only", f"--out_dir={foreign}", f"--dataset={dataset}", "--device=cpu"])
    assert "nats per token" in capsys.readouterr().out
    assert "does not say which text it was trained on" in refused(train.main, "--eval_only", f"--out_dir={foreign}")
    assert "no run to resume" in refused(train.main, "--resume", f"--out_dir={foreign}", f"--dataset={dataset}")
