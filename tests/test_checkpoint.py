import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import sample
from model import GPTConfig
from run.checkpoint import VERSION, Checkpoint, Overrides, load_checkpoint

HEAD = "lm_head.weight"


def test_a_file_holds_the_fields_as_plain_types_and_nanogpts_names_of_weights(trained):
    folder = trained("learnable")
    content = torch.load(folder / "best.pt", weights_only=True)
    assert content["version"] == VERSION
    assert content.keys() - {"version"} == vars(load_checkpoint(folder)).keys() - {"path", "folder"}
    assert content["weights"].keys() > {"transformer.h.0.attn.c_attn.weight", "pos.wpe.weight", HEAD}


def test_the_hash_depends_on_weights_and_config_only(trained):
    checkpoint = load_checkpoint(trained("rope"))
    assert replace(checkpoint, step=9, path="elsewhere").hash == checkpoint.hash
    assert replace(checkpoint, config=replace(checkpoint.config, window=8)).hash != checkpoint.hash
    assert replace(checkpoint, weights=checkpoint.weights | {HEAD: torch.zeros(2)}).hash != checkpoint.hash


@pytest.mark.parametrize(
    "trained, given, expected",
    [
        ({"window": 8}, 9, [8, 8, 8]),
        ({"layers": "window=8 | "}, 9, [8, 9, 8]),
        ({"layers": "window=8 | "}, 0, [8, math.inf, 8]),
        ({"layers": "window=8 | window=12"}, 6, [6, 6, 6]),
    ],
)
def test_a_window_only_narrows(trained, given, expected):
    checkpoint = Checkpoint({}, GPTConfig(n_layer=3, **trained), step=0)
    kinds = checkpoint.config_with(Overrides(window=given), 64).kinds
    assert [kind.n_keys for kind in kinds] == expected


def test_stretching_leaves_layers_with_a_window_alone():
    c = GPTConfig(n_layer=3, pos_scheme="rope", layers="window=8 | rope_theta=1e6 | pos_scheme=none")
    overrides = Overrides(rope_scaling="yarn")
    kinds = Checkpoint({}, c, step=0).config_with(overrides, 4 * c.block_size).kinds
    assert [(kind.pos_scheme, kind.rope_scaling, kind.rope_factor) for kind in kinds] == [
        ("rope", "none", 1),
        ("rope", "yarn", 4),
        ("none", "none", 1),
    ]


@pytest.mark.parametrize(
    "change, word",
    [
        (lambda c: c.update(version=VERSION + 1), "train the run again"),
        (lambda c: c.update(weights=Path), "contains code"),
        (lambda c: c["config"].update(n_heads=3), "n_heads"),
        (lambda c: c["config"].update(n_layer=2), "Missing key"),
        (lambda c: c["weights"].update({HEAD: c["weights"][HEAD] + 1}), "not tied"),
    ],
)
def test_damaged_content_is_one_line(trained, tmp_path, change, word, refused):
    folder = shutil.copytree(trained("rope"), tmp_path / "r")
    content = torch.load(folder / "best.pt")
    change(content)
    torch.save(content, folder / "best.pt")
    message = refused(sample.main, f"--out_dir={folder}")
    assert f"{folder}/best.pt cannot be loaded" in message and word in message
