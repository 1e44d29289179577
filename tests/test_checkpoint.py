import math
import shutil
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch

import data
import sample
from model import GPT, GPTConfig
from run.checkpoint import VERSION, Checkpoint, Overrides
from run.start import initialise, settings_from

HEAD = "lm_head.weight"


# ----------------------------------------------------------------------------------------------------------
# What an evaluation and --init_from change in a trained model's layers

OLMO = "window=16 *3 | rope_scaling=yarn rope_factor=4"
SHARES = "window=1/2 | temperature=.1"


def checkpoint_of(config=None, **settings):
    sizes = dict(block_size=32, vocab_size=9, n_layer=2, n_head=2, n_embd=16, pos_scheme="rope")
    return Checkpoint({}, config or GPTConfig(**sizes | settings), step=0, settings={"dataset": "x"})


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
    "trained, given, expected",
    [
        ({"window": 8}, 9, [8, 8, 8]),
        ({"layers": "window=8 | "}, 9, [8, 9, 8]),
        ({"layers": "window=8 | "}, 0, [8, math.inf, 8]),
        ({"layers": "window=8 | window=12"}, 6, [6, 6, 6]),
    ],
)
def test_a_window_only_narrows(trained, given, expected):
    kinds = checkpoint_of(n_layer=3, **trained).config_with(Overrides(window=given), 64).kinds
    assert [kind.n_keys for kind in kinds] == expected


@pytest.mark.parametrize(
    "layers, change, expected",
    [
        # what a window limits is not stretched, whether it was trained or is given
        ("window=8 | rope_theta=1e6", {}, [(8, "none", 1), (math.inf, "yarn", 4)]),
        (SHARES, {}, [(16, "none", 1), (math.inf, "yarn", 4)]),
        ("", {"layers": "window=8 | window=64"}, [(8, "none", 1), (64, "yarn", 2)]),
        ("", {"window": 32}, [(32, "none", 1)] * 2),
        ("", {"window": 64}, [(64, "yarn", 2)] * 2),  # longer distances than in training, but no longer than that
        ("window=8 | rope_theta=1e6", {"rope_factor": 8.0}, [(8, "none", 1), (math.inf, "yarn", 8)]),
    ],
)
def test_stretching_leaves_layers_with_a_window_alone_in_evaluations_and_further_training(layers, change, expected):
    checkpoint = checkpoint_of(layers=layers)
    evaluated = checkpoint.config_with(Overrides(rope_scaling="yarn", **change), 128)
    further = trained_further(checkpoint, block_size=128, rope_scaling="yarn", **change)
    assert [row[:3] for row in stretches(evaluated)] == expected
    assert [row[:3] for row in stretches(further)] == expected
    for kind in further.kinds:
        assert kind.rope_scaling == "none" or kind.rope_block_size == 32


@pytest.mark.parametrize("scaling", ["yarn", "llama3"])
def test_further_training_scales_rope_from_the_length_that_it_was_trained_at(scaling):
    layers = OLMO.replace("yarn", scaling)
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
        model = GPT(source.config)
        _, contexts = model.enter(torch.zeros(1, 16, dtype=torch.int64))
        context = replace(contexts[1], q_pos=torch.tensor([31, 32, 96]))
        scale = context.tempered(torch.ones(3, 1)).flatten().tolist()
        assert scale == pytest.approx([1, 1 + 0.1 * math.log(2), 1 + 0.1 * math.log(4)])
    assert trained_further(source, block_size=128, first_block_size=0).kinds[0].n_keys == 64


def test_layers_that_are_reordered_start_from_their_own_weights(dataset):
    """--init_from gives each layer the weights that it had, or says that it cannot."""
    text = data.load(dataset)
    for old_layers in ("pos_options=b=1 | pos_options=b=2", "pos_options=b=1 | window=0"):
        config = GPTConfig(8, 25, 2, 2, 16, pos_scheme="fox", layers=old_layers)
        model = GPT(config)
        for layers in ("pos_options=b=2 | pos_options=b=1", "window=4 | pos_options=b=2", ""):
            new = GPT(replace(config, layers=layers), seed=1)
            weights = {name: w.clone() for name, w in model.state_dict().items()}
            source = Checkpoint(weights, config, step=0, tokenizer_spec=text.tokenizer.spec)
            if layers:
                initialise(new, source, text)
                assert all(torch.equal(new.schemes[n].w, model.schemes[n].w) for n in (0, 1))
            else:
                with pytest.raises(ValueError, match="share pos now"):
                    initialise(new, source, text)


@pytest.mark.parametrize(
    "change, word",
    [
        (lambda c: c.update(version=VERSION + 1), "train the run again"),
        (lambda c: c.update(weights=Path), "weights_only"),
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
