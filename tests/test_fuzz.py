"""Damaged and hostile files: whatever changes in a file, reading it succeeds or raises one clear ValueError, and takes no
gigabytes."""

import json
import random
import resource
import shutil

import pytest
import torch

import config
import data
from data.tokenizers import tokenizer_from
from run.checkpoint import load_checkpoint
from train import TrainConfig

VALUES = [None, True, -1, 0, 2**40, float("nan"), "", "x", "../..", [1], ["a"], {}, {"kind": "bpe"}, {5: 6}]


def places(value):
    """(dict, key) of every value in nested dicts."""
    for key, inner in list(value.items()):
        yield value, key
        if isinstance(inner, dict):
            yield from places(inner)


def refusals(content, values, save, use):
    """For each place in the content and each of values(), whether it is refused there in one line. It may also be right;
    any other exception fails the test."""
    for holder, key in places(content):
        original = holder[key]
        for value in values() if key != "n_layer" else ():  # a model of any number of layers would be built
            holder[key] = value
            save(content)
            holder[key] = original
            try:
                use()
                yield False
            except ValueError as error:
                assert "\n" not in str(error) and len(str(error)) < 2000
                yield True


def test_checkpoints(trained, tmp_path):
    path = shutil.copytree(trained("t5"), tmp_path / "r") / "latest.pt"
    rng = random.Random(1)
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def values():
        tensors = [torch.zeros(2), torch.zeros(3).to_sparse(), torch.ones(1).expand(2**40)]
        return rng.sample(VALUES, 2) + tensors

    def use():
        checkpoint = load_checkpoint(path)
        checkpoint.model("cpu")
        tokenizer_from(checkpoint.tokenizer_spec)
        config.checked(TrainConfig, checkpoint.settings, path)

    refused = list(refusals(torch.load(path), values, lambda content: torch.save(content, path), use))
    assert sum(refused) > 0.5 * len(refused)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb < 500_000


def test_meta_json(dataset, tmp_path):
    path = shutil.copytree(dataset, tmp_path / "copy") / "meta.json"

    def save(meta):
        path.write_text(json.dumps(meta))

    meta = json.loads(path.read_text())
    assert any(refusals(meta, lambda: VALUES, save, lambda: data.load(str(path.parent))))


@pytest.mark.parametrize("name", ["train.bin", "val_docs.bin", "meta.json"])
def test_files_of_a_dataset(name, dataset, tmp_path):
    path = shutil.copytree(dataset, tmp_path / "copy") / name
    content = path.read_bytes()
    damaged = [b"", b"7", b'{"a":' * 5000, b"1" * 5000, content[:-1]]
    for place in range(0, len(content), 1 + len(content) // 10):
        damaged.append(content[:place] + b"\xff" + content[place + 1 :])
    for changed in damaged:
        path.write_bytes(changed)
        with pytest.raises(ValueError, match=name):
            data.load(str(path.parent))
