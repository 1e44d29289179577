"""Small, fast and the same on every machine: one thread, no wandb network, a tiny prepared dataset."""

import functools
import os
import re
import signal
import sys
import types
from pathlib import Path

import hypothesis
import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
os.environ |= {"WANDB_MODE": "disabled", "OMP_NUM_THREADS": "1"}  # of this process and those it starts
for number in (signal.SIGINT, signal.SIGHUP):  # ignored under nohup and a shell's &, and so in what the tests start
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)
torch.set_num_threads(1)
hypothesis.settings.register_profile("suite", max_examples=15, deadline=None, derandomize=True)
hypothesis.settings.load_profile("suite")


@pytest.fixture(autouse=True)
def no_peak(monkeypatch):
    """A training run begins by timing large matrix products, which would be half of a tiny run's time."""
    if "train" in sys.modules:
        monkeypatch.setattr("train.matmul_peak", lambda *args: 1e11)


def shared(name):
    """The path of a file that may lie beside the project. Where it does not, the test is skipped."""
    path = ROOT.parent / "shared" / "data" / name
    if not path.is_file():
        pytest.skip(f"needs ../shared/data/{name}")
    return path


@pytest.fixture(scope="session")
def shakespeare():
    return shared("tinyshakespeare.txt")


@pytest.fixture(scope="session")
def gpt2_bpe(tmp_path_factory):
    """TIKTOKEN_CACHE_DIR with copies of GPT-2's files, as tiktoken deletes bad ones."""
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


@pytest.fixture(params=["char", "bpe:290", "gpt2"])
def kind(request):
    """Each kind of tokenizer, as --tokenizer takes it."""
    if request.param == "gpt2":
        request.getfixturevalue("gpt2_bpe")
    return request.param


def write_texts(folder, n=12, words=400):
    """n files of made-up code, each different, with a pattern worth learning."""
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(n):
        lines = [f"def f{i}_{j}(x):\n    return x + {i * j % 10}\n" for j in range(words // 8)]
        (folder / f"{i:02}.txt").write_text("".join(lines))
    return folder


@pytest.fixture(scope="session")
def dataset(tmp_path_factory):
    """The path of a tiny prepared char dataset, as --dataset takes it."""
    from data.prepare import main as folder_main

    root = tmp_path_factory.mktemp("data")
    folder_main([str(write_texts(root / "texts", n=22, words=200)), f"--name={root}/tiny"])
    return f"{root}/tiny"


@pytest.fixture(scope="session")
def tiny(dataset):
    """Flags of a training run of a second."""
    return [
        f"--dataset={dataset}", "--n_layer=2", "--n_head=2", "--n_embd=16", "--block_size=16", "--batch_size=4",
        "--max_iters=6", "--eval_interval=3", "--warmup_iters=2", "--device=cpu",
    ]  # fmt: skip


@pytest.fixture(scope="session")
def trained(dataset, tmp_path_factory):
    """trained(scheme, name=value, …): the folder of a run of four steps under these settings, trained once. A test that
    writes into it copies it first."""
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
    """refused(main, argument, …): the one line that a script says before it exits with status 2."""
    from run.script import script

    def call(main, *argv):
        monkeypatch.setattr(sys, "argv", ["script", *map(str, argv)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            script(main)
        out, err = capsys.readouterr()
        assert ended.value.code == 2 and err.startswith("error: ") and err.count("\n") == 1, err
        return err

    return call


@pytest.fixture
def few_documents(monkeypatch):
    """Lets texts of two documents have intervals."""
    for module in ("statistics", "protocols"):
        monkeypatch.setattr(f"evaluation.{module}.FEWEST_DOCUMENTS", 2)


def plain_protocol():
    """A protocol with intervals, for which a run's losses are simply what is known of it."""
    from evaluation.protocols import Protocol

    protocol = types.SimpleNamespace(losses=lambda run: run, seed=0)
    protocol.bands = functools.partial(Protocol.bands, protocol)
    return protocol
