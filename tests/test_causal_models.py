"""Causal language models of Hugging Face, past their training length: python eval_length.py hf:FOLDER"""

import numpy as np
import pytest
import torch
import transformers
from conftest import prepare, write_texts
from test_huggingface import write_tokenizer

import eval_length
from evaluation.huggingface import HuggingFaceRun
from tools import import_weights

pytestmark = pytest.mark.usefixtures("few_documents")
SIZE = dict(vocab_size=300, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, max_position_embeddings=16)


@pytest.fixture(params=["llama", "gpt_neox", "gpt2"])
def folder(request, tmp_path):
    """A tiny model with random weights, and its tokenizer."""
    path = tmp_path / request.param
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(request.param, **SIZE)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(path)
    write_tokenizer(path, vocabulary=300)
    return path


@pytest.fixture
def text(folder, tmp_path):
    """The name of a text in the tokens of the model."""
    return prepare(tmp_path, write_texts(tmp_path / "texts", n=22), f"--tokenizer=hf:{folder}").name


def test_it_is_measured_past_its_length_in_its_own_tokens(folder, text, dataset, evaluate, refused, tmp_path):
    name = f"hf:{folder}"
    results = evaluate(name, f"--dataset={text}", "--blocks=8")
    row = results.rows[name]
    lengths = [4, 8, 16] if folder.name == "gpt2" else [4, 8, 16, 32, 64, 128, 256]  # learned positions end
    assert [*map(int, row["lengths"])] == lengths
    assert row["training_length"] == 16
    assert row["scheme"] == folder.name
    assert [*(tmp_path / "results" / folder.name).glob("scores-*.npy")]
    for flag in ("--window=8", "--rope_scaling=yarn"):
        assert "config.json" in refused(eval_length.main, name, f"--dataset={text}", flag)
    for flags in ([], [f"--dataset={dataset}"]):
        assert f"--tokenizer={name}" in refused(eval_length.main, name, *flags)


def test_its_losses_are_those_of_all_its_logits(folder, tmp_path):
    run = HuggingFaceRun(str(folder), tmp_path)
    windows = torch.randint(300, (5, 17))
    losses, _ = eval_length.score(run.model("cpu"), windows, 4, torch.device("cpu"), torch.float32)
    logits = run.causal(windows[:, :-1]).logits[:, -4:]
    expected = torch.nn.functional.cross_entropy(logits.mT, windows[:, -4:], reduction="none")
    np.testing.assert_allclose(losses, expected.detach(), atol=1e-5)


@pytest.mark.parametrize("folder", ["gpt2"], indirect=True)
def test_it_equals_ours_with_the_same_weights(folder, text, evaluate, tmp_path):
    assert import_weights.main([str(folder), f"--out_dir={tmp_path}/ours", f"--tokenizer=data:{text}"]) == 0
    theirs, ours = evaluate(f"hf:{folder}", tmp_path / "ours", f"--dataset={text}").rows.values()
    for n in ("4", "16"):
        loss = ours["lengths"][n]["loss"]
        assert theirs["lengths"][n]["loss"] == pytest.approx(loss, abs=1e-5)


def test_a_name_that_does_not_exist_is_one_line(refused, tmp_path):
    assert "the model" in refused(eval_length.main, f"hf:{tmp_path}/nothing", "--dataset=x")
