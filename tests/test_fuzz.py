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

VALUES = [
    None,
    True,
    -1,
    0,
    3,
    2**40,
    float("nan"),
    "",
    "x",
    "O",
    "../..",
    [1],
    ["a"],
    {},
    {"kind": "bpe"},
    {5: 6},
]


def places(value):
    """(dict, key) of every value in nested dicts."""
    for key, inner in value.items():
        yield value, key
        if isinstance(inner, dict):
            yield from places(inner)


def peak_kb():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def is_refused(holder, key, value, save, use):
    """Whether a changed value is refused in one line. It may also be right; any other exception fails the test."""
    original = holder[key]
    holder[key] = value
    save()
    holder[key] = original
    try:
        use()
    except ValueError as error:
        assert "\n" not in str(error) and len(str(error)) < 2000
        return True
    return False


def test_checkpoints(trained, tmp_path):
    path = shutil.copytree(trained("t5"), tmp_path / "r") / "latest.pt"
    content = torch.load(path)
    rng = random.Random(1)
    before_kb = peak_kb()

    def save():
        torch.save(content, path)

    def use():
        checkpoint = load_checkpoint(path)
        checkpoint.model("cpu")
        tokenizer_from(checkpoint.tokenizer_spec)
        config.checked(TrainConfig, checkpoint.settings, path)

    refused = []
    for holder, key in list(places(content)):
        if key != "n_layer":  # a model of any number of layers would be built
            tensors = torch.zeros(2), torch.zeros(3).to_sparse(), torch.ones(1).expand(2**40)
            for value in (*rng.sample(VALUES, 2), *tensors):
                refused.append(is_refused(holder, key, value, save, use))
    assert sum(refused) > 0.5 * len(refused) and peak_kb() - before_kb < 500_000


def test_meta_json(dataset, tmp_path):
    path = shutil.copytree(dataset, tmp_path / "copy") / "meta.json"
    meta = json.loads(path.read_text())

    def save():
        path.write_text(json.dumps(meta))

    def use():
        data.load(str(path.parent))

    for holder, key in list(places(meta)):
        for value in VALUES:
            is_refused(holder, key, value, save, use)


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
