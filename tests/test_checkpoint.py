import math
import shutil
from dataclasses import fields, replace

import pytest
import torch

import data
import sample
from model import GPT, GPTConfig
from run.checkpoint import Checkpoint, Overrides
from run.start import initialise, settings_from

# ----------------------------------------------------------------------------------------------------------
# What an evaluation and --init_from change in a trained model's layers

SHARES = "window=1/2 | temperature=.1"


def checkpoint_of(config=None, **settings):
    sizes = dict(block_size=32, vocab_size=9, n_layer=2, n_head=2, n_embd=16, pos_scheme="rope")
    config = config or GPTConfig(**sizes | settings)
    return Checkpoint({}, config, step=0, settings={"dataset": "x"})


def trained_further(source, **values):
    """The GPTConfig of a run with --init_from=SOURCE."""
    settings = settings_from(source, values)
    return GPTConfig(**{f.name: settings[f.name] for f in fields(GPTConfig)})


def stretches(config):
    """Of each layer: the keys that a query sees, and rope's scaling, its factor and the length that it starts from."""
    return [
        (kind.n_keys, kind.rope_scaling, kind.rope_factor, kind.rope_block_size or kind.block_size)
        for kind in config.kinds
    ]


@pytest.mark.parametrize(
    "layers, change, expected",
    [
        # what a window limits is not stretched, whether it was trained or is given
        (SHARES, {}, [(16, "none", 1), (math.inf, "yarn", 4)]),
        ("", {"layers": "window=8 | window=64"}, [(8, "none", 1), (64, "yarn", 2)]),
        ("window=8 | rope_theta=1e6", {"rope_factor": 8.0}, [(8, "none", 1), (math.inf, "yarn", 8)]),
        # a window only narrows
        ("window=8 | window=12", {"window": 9, "rope_scaling": ""}, [(8, "none", 1), (9, "none", 1)]),
        ("", {"window": 64}, [(64, "yarn", 2)] * 2),  # longer distances than in training, but no longer than that
    ],
)
def test_windows_and_stretching_in_evaluations_and_further_training(layers, change, expected):
    checkpoint = checkpoint_of(layers=layers)
    change = {"rope_scaling": "yarn"} | change
    evaluated = checkpoint.config_with(Overrides(**change), 128)
    assert [row[:3] for row in stretches(evaluated)] == expected
    if "window" not in change:
        further = trained_further(checkpoint, block_size=128, **change)
        assert [row[:3] for row in stretches(further)] == expected


@pytest.mark.parametrize("scaling", ["yarn", "llama3"])
def test_further_training_scales_rope_from_the_length_that_it_was_trained_at(scaling):
    layers = f"window=16 *3 | rope_scaling={scaling} rope_factor=4"  # OLMo 3's
    source = checkpoint_of(n_layer=4)
    for length, factor in ((128, 4), (256, 8), (512, 16)):  # each run starts from the one before
        source = checkpoint_of(trained_further(source, block_size=length, layers=layers))
        assert stretches(source.config)[2:] == [(16, "none", 1, length), (math.inf, scaling, factor, 32)]
        layers = layers.replace(f"={factor}", f"={2 * factor}")
    again = trained_further(source, block_size=1024)
    assert stretches(again)[3] == (math.inf, scaling, 32, 32)


def test_shares_and_temperatures_keep_their_length_in_further_training():
    source = checkpoint_of(layers=SHARES)
    for length in (128, 512, 16):
        source = checkpoint_of(trained_further(source, block_size=length))
        assert [kind.n_keys for kind in source.config.kinds] == [16, math.inf]
        assert source.config.kinds[1].first_length == 32
    assert trained_further(source, block_size=128, first_block_size=0).kinds[0].n_keys == 64


def test_further_training_keeps_options_under_the_same_scheme_only():
    source = checkpoint_of(pos_scheme="t5", pos_options="size=8")
    assert trained_further(source).pos_options == "size=8"
    assert trained_further(source, pos_scheme="none").pos_options == ""


def test_layers_that_are_reordered_start_from_their_own_weights(dataset):
    """--init_from gives each layer the weights that it had, or says that it cannot."""
    text = data.load(dataset)
    for old_layers in ("pos_options=b=1 | pos_options=b=2", "pos_options=b=1 | window=0"):
        config = GPTConfig(8, 25, 2, 2, 16, pos_scheme="fox", layers=old_layers)
        model = GPT(config)
        source = Checkpoint(model.state_dict(), config, step=0, tokenizer_spec=text.tokenizer.spec)
        for layers in ("pos_options=b=2 | pos_options=b=1", "window=4 | pos_options=b=2", ""):
            new = GPT(replace(config, layers=layers), seed=1)
            if layers:
                initialise(new, source, text)
                assert all(torch.equal(new.schemes[n].w, model.schemes[n].w) for n in (0, 1))
            else:
                with pytest.raises(ValueError, match="share pos now"):
                    initialise(new, source, text)


def test_a_file_of_another_version_is_one_line(trained, tmp_path, refused):
    folder = shutil.copytree(trained("rope"), tmp_path / "r")
    content = torch.load(folder / "best.pt")
    content["version"] += 1
    torch.save(content, folder / "best.pt")
    message = refused(sample.main, f"--out_dir={folder}")
    assert f"{folder}/best.pt cannot be loaded" in message and "train the run again" in message
