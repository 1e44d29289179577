"""Small, fast and the same on every machine: one thread, no wandb network, a tiny prepared dataset."""

import os
import re
import sys
import types
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
os.environ["WANDB_MODE"] = "disabled"
torch.set_num_threads(1)

from hypothesis import settings  # noqa: E402

settings.register_profile("suite", max_examples=15, deadline=None, derandomize=True)
settings.load_profile("suite")

# README's example of a new scheme, as it is written there: every test of schemes runs on it, too.
EXAMPLE = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)[1]
sys.modules["readme"] = types.ModuleType("readme")
exec(EXAMPLE, vars(sys.modules["readme"]))

SHARED = ROOT.parent / "shared" / "data"


@pytest.fixture(autouse=True)
def no_peak(monkeypatch):
    """A training run begins by timing large matrix products, which would be half of a tiny run's time."""
    if "train" in sys.modules:
        monkeypatch.setattr("train.matmul_peak", lambda *args: 1e11)


@pytest.fixture(scope="session")
def shakespeare():
    """Tiny Shakespeare, where it lies beside the project."""
    path = SHARED / "tinyshakespeare.txt"
    if not path.is_file():
        pytest.skip("needs ../shared/data/tinyshakespeare.txt")
    return path


@pytest.fixture(scope="session")
def gpt2_bpe(tmp_path_factory):
    """TIKTOKEN_CACHE_DIR with copies of GPT-2's files, where they lie beside the project: tiktoken deletes bad ones."""
    names = {
        "gpt2_vocab.bpe": "6d1cbeee0f20b3d9449abfede4726ed8212e3aee",
        "gpt2_encoder.json": "6c7ea1a7e38e3a7f062df639a5b80947f075ffe6",
    }
    if not all((SHARED / n).is_file() for n in names):
        pytest.skip("needs ../shared/data/gpt2_vocab.bpe and gpt2_encoder.json")
    folder = tmp_path_factory.mktemp("tiktoken")
    for name, cached in names.items():
        (folder / cached).write_bytes((SHARED / name).read_bytes())
    old = os.environ.get("TIKTOKEN_CACHE_DIR")
    os.environ["TIKTOKEN_CACHE_DIR"] = str(folder)
    yield folder
    os.environ.pop("TIKTOKEN_CACHE_DIR") if old is None else os.environ.update(TIKTOKEN_CACHE_DIR=old)


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
    from data.prepare import folder_main

    root = tmp_path_factory.mktemp("data")
    write_texts(root / "texts")
    folder_main([str(root / "texts"), f"--name={root}/tiny"])
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
    made = {}

    def run(scheme, **settings):
        import train

        key = scheme, *sorted(settings.items())
        if key not in made:
            made[key] = tmp_path_factory.mktemp("runs") / scheme
            size = dict(n_layer=1, n_head=2, n_embd=16, block_size=16, batch_size=4, max_iters=4, device="cpu")
            flags = {"dataset": dataset, "out_dir": made[key], "pos_scheme": scheme} | size | settings
            train.main([f"--{name}={value}" for name, value in flags.items()])
        return made[key]

    return run


@pytest.fixture
def refused(monkeypatch, capsys):
    """refused(main, argument, …): the one line that a script says before it exits with status 2."""
    import config

    def call(main, *argv):
        monkeypatch.setattr(sys, "argv", ["script", *map(str, argv)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            config.script(main)
        out, err = capsys.readouterr()
        assert ended.value.code == 2 and err.startswith("error: ") and err.count("\n") == 1, err
        return err

    return call
