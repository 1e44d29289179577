"""Small, fast and the same on every machine: one thread, no wandb network, a tiny prepared dataset."""

import functools
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import hypothesis
import numpy as np
import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
os.environ |= {"WANDB_MODE": "disabled", "OMP_NUM_THREADS": "1"}  # of this process and of those that it starts
torch.set_num_threads(1)
hypothesis.settings.register_profile("suite", max_examples=15, deadline=None, derandomize=True)
hypothesis.settings.load_profile("suite")


def in_one_line(path):
    """The text of a page, so that a sentence is found wherever its lines break."""
    return " ".join((ROOT / path).read_text().split())


def shared(name):
    """The path of a file beside the project. Skips the test if it is missing."""
    path = ROOT.parent / "shared" / "data" / name
    if not path.is_file():
        pytest.skip(f"needs ../shared/data/{name}")
    return path


@pytest.fixture(scope="session")
def gpt2_bpe(tmp_path_factory):
    """A TIKTOKEN_CACHE_DIR with copies of GPT-2's files, because tiktoken deletes damaged ones."""
    names = {
        "gpt2_vocab.bpe": "6d1cbeee0f20b3d9449abfede4726ed8212e3aee",
        "gpt2_encoder.json": "6c7ea1a7e38e3a7f062df639a5b80947f075ffe6",
    }
    folder = tmp_path_factory.mktemp("tiktoken")
    for name, cached in names.items():
        (folder / cached).write_bytes(shared(name).read_bytes())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIKTOKEN_CACHE_DIR", str(folder))
        yield folder


def write_texts(folder, n=12, words=400):
    """Writes n different files of made-up code, with a pattern to learn. Returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(n):
        lines = [f"def f{i}_{j}(x):\n    return x + {i * j % 10}\n" for j in range(words // 8)]
        (folder / f"{i:02}.txt").write_text("".join(lines))
    return folder


# Prepared texts and tokenizers: test_data, test_huggingface


def prepare(folder, *args, name="set"):
    """The dataset folder/name, prepared with these arguments."""
    import data.prepare

    assert data.prepare.main([*map(str, args), f"--name={folder}/{name}"]) == 0
    return data.load(f"{folder}/{name}")


def documents(ds, split):
    """The documents of a split, by their offsets, without the sign between them."""
    parts = np.split(split.tokens, split.docs)[1:]
    return [ds.tokenizer.decode_bytes(ids).decode().removesuffix("<|endoftext|>") for ids in parts]


# The tiny dataset and its runs


@pytest.fixture(scope="session")
def dataset(tmp_path_factory):
    """The path of a tiny dataset of characters, for --dataset."""
    root = tmp_path_factory.mktemp("data")
    return prepare(root, write_texts(root / "texts", n=22, words=200)).name


@pytest.fixture(scope="session")
def tiny(dataset):
    """The flags of a training run that takes a second."""
    return [
        f"--dataset={dataset}", "--n_layer=2", "--n_head=2", "--n_embd=16", "--block_size=16", "--batch_size=4",
        "--max_iters=6", "--eval_interval=3", "--warmup_iters=2", "--device=cpu",
    ]  # fmt: skip


@pytest.fixture(scope="session")
def trained(dataset, tmp_path_factory):
    """trained(scheme, name=value, …): the folder of a run of four steps with these settings, trained once. A test that
    changes the folder copies it first."""
    import train

    @functools.cache
    def run(scheme, **settings):
        folder = tmp_path_factory.mktemp("runs") / scheme
        size = dict(n_layer=1, n_head=2, n_embd=16, block_size=16, batch_size=4, max_iters=4, device="cpu")
        flags = {"dataset": dataset, "out_dir": folder, "pos_scheme": scheme} | size | settings
        train.main([f"--{name}={value}" for name, value in flags.items()])
        return folder

    return run


@pytest.fixture
def refused(monkeypatch, capsys):
    """refused(main, flag, …): the one line that a script prints before it exits with status 2."""
    from run.script import script

    def call(main, *argv):
        monkeypatch.setattr(sys, "argv", ["script", *map(str, argv)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            script(main)
        out, err = capsys.readouterr()
        assert ended.value.code == 2
        assert err.startswith("error: ")
        assert err.count("\n") == 1
        return err

    return call


# ----------------------------------------------------------------------------------------------------------
# Evaluation


@pytest.fixture
def evaluate(tmp_path, capsys):
    """evaluate(run, flag, …): runs eval_length.py. Returns the content of its .json, and what it prints as `out`."""
    import eval_length

    def call(*arguments):
        flags = ["--blocks=20", "--device=cpu", f"--results_dir={tmp_path}/results"]
        assert eval_length.main([*flags, *map(str, arguments)]) == 0
        path = max((tmp_path / "results").glob("*.json"), key=lambda path: path.stat().st_mtime_ns)
        content = json.loads(path.read_text(), parse_constant=pytest.fail)  # no NaN
        return SimpleNamespace(**content, out=capsys.readouterr().out)

    return call


@pytest.fixture
def few_documents(monkeypatch):
    """Allows intervals for texts of two documents."""
    monkeypatch.setattr("evaluation.statistics.FEWEST_DOCUMENTS", 2)
    monkeypatch.setattr("eval_length.FEWEST_DOCUMENTS", 2)


def facts_dataset(folder, text, *flags):
    """The path of a small text of facts or of a task, for --dataset."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("data.recall.DOCUMENTS", 60)
        return prepare(folder, text, *flags, name=text).name


# ----------------------------------------------------------------------------------------------------------
# Trained runs: used by test_checkpoint, test_train, test_sample, test_robust, test_foreign and test_tracking


@pytest.fixture
def run_tiny(tiny, tmp_path):
    """run_tiny(name, flag, …): trains with the flags of `tiny` and these. Returns the run's folder, tmp_path/name."""
    import train

    def call(name, *flags):
        assert train.main([*tiny, f"--out_dir={tmp_path}/{name}", *flags]) == 0
        return tmp_path / name

    return call


def metrics(folder, key):
    """A column of metrics.jsonl."""
    from run.tracking import read_metrics

    return [row[key] for row in read_metrics(folder) if key in row]


def assert_same_run(a, b, which="latest", tolerance=0):
    """The checkpoints of two folders have the same step, best loss and weights."""
    from run.checkpoint import load_checkpoint

    a = load_checkpoint(a, which)
    b = load_checkpoint(b, which)
    assert a.step == b.step
    assert a.best_val_loss == pytest.approx(b.best_val_loss, abs=tolerance, rel=0)
    torch.testing.assert_close(a.weights, b.weights, rtol=tolerance, atol=tolerance)


def wandb_records(log):
    """The records in the file of an offline run of wandb."""
    command = [Path(sys.executable).parent / "wandb", "leet", "inspect", "--json", log]
    lines = subprocess.check_output(command, stdin=subprocess.DEVNULL, text=True).splitlines()
    return [json.loads(line) for line in lines]


def write_sample(folder, **settings):
    """The texts that sample.py returns, and what it prints."""
    import sample

    out = io.StringIO()
    cfg = sample.SampleConfig(out_dir=str(folder), device="cpu", **settings)
    texts = sample.sample(cfg, out)
    return texts, out.getvalue()


# ----------------------------------------------------------------------------------------------------------
# Small models: for the tests of model.py and of what uses it

from model import GPT, GPTConfig  # noqa: E402


def build(scheme, seed=0, spread=1.0, **sizes):
    """A small float64 model with random parameters, large enough that no score is near 0 and no attention uniform."""
    sizes = dict(block_size=24, vocab_size=11, n_layer=2, n_head=2, n_embd=16) | sizes
    model = GPT(GPTConfig(**sizes, pos_scheme=scheme)).double().eval()
    generator = torch.Generator().manual_seed(seed)
    for name, p in model.named_parameters():
        mean = 1.0 if "ln" in name and name.endswith("weight") else 0.0
        std = 0.3 * spread if p.dim() > 1 else 0.1
        torch.nn.init.normal_(p, mean, std, generator)
    return model


def tokens(model, B, T, seed=0):
    """Random tokens (B, T)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(model.config.vocab_size, (B, T), generator=generator)
