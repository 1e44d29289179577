"""Damaged and hostile files: whatever changes in a file, reading it succeeds or raises one clear ValueError, and takes no
gigabytes."""

import copy
import json
import random
import resource
import shutil

import pytest
import torch

import config
import data
import train
from config import matches
from data.tokenizers import tokenizer_from
from run.checkpoint import load_checkpoint

ODD = [
    None, True, -1, 0, 3, 1.5, 2**40, 10**30, float("nan"), float("inf"), "", "x", "O", "../..", [], [1], ["a"], {},
    {"kind": "bpe"}, {5: 6}, [[[[]]]],
]  # fmt: skip


def paths(value, so_far=()):
    """The path of every value in nested dicts."""
    for key, inner in value.items():
        yield (*so_far, key)
        if isinstance(inner, dict):
            yield from paths(inner, (*so_far, key))


def put(value, path, new):
    """A copy of nested dicts with another value at the path."""
    changed = copy.deepcopy(value)
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = new
    return changed


def memory():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def refused_or_right(action):
    """Whether the action raised ValueError. It may also succeed; any other exception fails the test."""
    try:
        action()
    except ValueError as error:
        assert "\n" not in str(error) and len(str(error)) < 2000
        return True
    return False


def test_checkpoints(trained, tmp_path):
    run = tmp_path / "r"
    shutil.copytree(trained("t5"), run)
    whole = torch.load(run / "latest.pt")
    rng, refused, tried, before = random.Random(1), 0, 0, memory()

    def use():
        loaded = load_checkpoint(run / "latest.pt")
        loaded.model(torch.device("cpu"))
        tokenizer_from(loaded.own_tokenizer_spec())
        train.inherited(train.TrainConfig, {"resume": True, "out_dir": str(run)})

    for path in paths(whole):
        for new in [*rng.sample(ODD, 2), torch.zeros(2), torch.zeros(3).to_sparse(), torch.ones(1).expand(2**40)]:
            torch.save(put(whole, path, new), run / "latest.pt")
            refused += refused_or_right(use)
            tried += 1
    print(f"{tried} odd values in a checkpoint, {refused} refused")
    assert refused > 0.5 * tried and memory() - before < 500_000  # kB


def test_meta_json(dataset, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(dataset, folder)
    whole = json.loads((folder / "meta.json").read_text())
    for path in paths(whole):
        for new in ODD:
            (folder / "meta.json").write_text(json.dumps(put(whole, path, new)))
            refused_or_right(lambda: data.load(str(folder)))
    for text in ("", "7", "[]", "{", "null", '{"a":' * 5000, '{"vocab_size": 1' + "0" * 5000 + "}", "\udcff"):
        (folder / "meta.json").write_bytes(text.encode("utf-8", "surrogateescape"))
        with pytest.raises(ValueError, match="is damaged"):
            data.load(str(folder))
    (folder / "meta.json").write_text(json.dumps(put(whole, ("dtype",), "O")))  # objects: numpy would read pointers
    with pytest.raises(ValueError, match="is damaged"):
        data.load(str(folder))


def test_tokens_and_documents(dataset, tmp_path):
    folder, rng = tmp_path / "copy", random.Random(2)
    shutil.copytree(dataset, folder)
    for name in ("train.bin", "val_docs.bin"):
        whole = (folder / name).read_bytes()
        for n in range(20):
            changed = bytearray(whole)
            changed[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
            (folder / name).write_bytes(changed if n % 2 else whole[: rng.randrange(len(whole))])
            with pytest.raises(ValueError, match=name):
                data.load(str(folder))
        (folder / name).write_bytes(whole)


@pytest.mark.parametrize(
    "text", ["1" * 400, "-" * 10_000 + "1", "1e" + "9" * 400, "[" * 5000, "9" * 5000, "0x" + "f" * 90]
)
@pytest.mark.parametrize("key", ["max_iters", "learning_rate", "compile"])
def test_command_line(key, text):
    with pytest.raises(ValueError) as error:
        config.load(train.TrainConfig, [f"--{key}={text}"])
    assert len(str(error.value)) < 300


def test_matches_checks_types_at_every_depth():
    assert matches({"a": 1, "more": 2}, {"a": int}) and not matches({"a": True}, {"a": int})
    assert matches(["x", "y"], [str]) and not matches(["x", 1], [str]) and not matches("xy", [str])
    assert matches("x", ("x", "y")) and not matches("z", ("x", "y")) and not matches([], {"a": int})
