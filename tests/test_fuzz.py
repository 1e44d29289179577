"""Damaged and hostile files: whatever changes in a file, reading it succeeds or raises one clear ValueError, and takes no
gigabytes."""

import json
import random
import resource
import shutil

import pytest
import torch

import data
from data.tokenizers import tokenizer_from
from run.checkpoint import load_checkpoint
from run.start import Origin
from train import TrainConfig

ODD = [
    None, True, -1, 0, 3, 1.5, 2**40, 10**30, float("nan"), float("inf"), "", "x", "O", "../..", [], [1], ["a"], {},
    {"kind": "bpe"}, {5: 6}, [[[[]]]],
]  # fmt: skip


def places(value):
    """(dict, key) of every value in nested dicts."""
    for key, inner in value.items():
        yield value, key
        if isinstance(inner, dict):
            yield from places(inner)


def memory():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def refused_or_right(holder, key, new, save, use):
    """Whether a changed value is refused in one line. It may also be right; any other exception fails the test."""
    old, holder[key] = holder[key], new
    save()
    holder[key] = old
    try:
        use()
    except ValueError as error:
        assert "\n" not in str(error) and len(str(error)) < 2000
        return True
    return False


def test_checkpoints(trained, tmp_path):
    path = shutil.copytree(trained("t5"), tmp_path / "r") / "latest.pt"
    whole, rng, before = torch.load(path), random.Random(1), memory()

    def use():
        loaded = load_checkpoint(path)
        loaded.model(torch.device("cpu"))
        tokenizer_from(loaded.tokenizer_spec)
        Origin({"resume": True, "out_dir": path.parent}).settings(TrainConfig)

    refused = [
        refused_or_right(holder, key, new, lambda: torch.save(whole, path), use)
        for holder, key in list(places(whole))
        if key != "n_layer"  # a model of any number of layers would be built
        for new in [*rng.sample(ODD, 2), torch.zeros(2), torch.zeros(3).to_sparse(), torch.ones(1).expand(2**40)]
    ]
    assert sum(refused) > 0.5 * len(refused) and memory() - before < 500_000  # kB


def test_meta_json(dataset, tmp_path):
    meta = shutil.copytree(dataset, tmp_path / "copy") / "meta.json"
    whole = json.loads(meta.read_text())

    def use():
        data.load(str(meta.parent))

    for holder, key in list(places(whole)):
        for new in ODD:
            refused_or_right(holder, key, new, lambda: meta.write_text(json.dumps(whole)), use)
    objects = json.dumps(whole | {"dtype": "O"})  # numpy would read pointers
    for text in (objects, "", "7", "[]", "{", "null", '{"a":' * 5000, '{"vocab_size": 1' + "0" * 5000 + "}", "\udcff"):
        meta.write_bytes(text.encode("utf-8", "surrogateescape"))
        with pytest.raises(ValueError, match="is damaged"):
            use()


@pytest.mark.parametrize("name", ["train.bin", "val_docs.bin"])
def test_tokens_and_documents(name, dataset, tmp_path):
    path, rng = shutil.copytree(dataset, tmp_path / "copy") / name, random.Random(2)
    whole = path.read_bytes()
    for n in range(20):
        changed = bytearray(whole)
        changed[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
        path.write_bytes(changed if n % 2 else whole[: rng.randrange(len(whole))])
        with pytest.raises(ValueError, match=f"{name} is damaged or incomplete: prepare the dataset again"):
            data.load(str(path.parent))
