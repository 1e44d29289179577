"""Each protocol against plain forward passes, and what it makes of known losses."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import dataset_of, measured, protocol_of

import data
from eval_length import EvalConfig
from evaluation.protocols import PROTOCOLS
from evaluation.windows import Scorer
from model import GPTConfig, scheme_names
from run.checkpoint import load_checkpoint

LOSSES = [name for name, protocol in PROTOCOLS.items() if protocol.ranked]


@pytest.mark.parametrize("trained, first", [(2, 2), (3, 3), (8, 4), (30, 15), (31, 31), (100, 25)])
@pytest.mark.parametrize("name", LOSSES)
def test_the_default_lengths_are_doubled_up_to_16_times_the_training_length(name, trained, first):
    lengths = protocol_of(name, dataset_of("a" * 10**5), trained).lengths
    assert lengths == [first * 2**i for i in range(len(lengths))]
    assert trained in lengths and lengths[-1] == 16 * trained


@pytest.mark.parametrize("harm", [0.0, 0.3])
def test_nonoverlapping_is_split_into_dilution_and_real_change(harm, monkeypatch):
    """A model that is poor at the first 8 positions of a window and the same from there on gains nothing by a longer
    one; one that gets worse from position 40 on does so by the mean of what it loses there."""
    protocol = protocol_of("nonoverlapping", dataset_of("a" * 3000), lengths="16,32,64,128", blocks=10)

    def block_losses(length, scorer):
        p = np.arange(length)
        return np.tile(1.0 + 1.0 * (p < 8) + harm * (p >= 40), (10, 128 // length, 1))

    monkeypatch.setattr(protocol, "block_losses", block_losses)
    means, *_ = measured(protocol, SimpleNamespace(config=GPTConfig(block_size=16, pos_scheme="none")))
    for n in (32, 64, 128):
        assert means["dilution"][n] == pytest.approx((1 - 16 / n) * (1.0 - 1.5), abs=1e-5)
        assert means["real"][n] == pytest.approx(harm * max(0, n - 40) / n, abs=1e-5)
        assert means["dilution"][n] + means["real"][n] == pytest.approx(means["delta"][n], abs=1e-9)


@pytest.mark.parametrize("scheme", scheme_names())
@pytest.mark.parametrize("name", LOSSES)
def test_block_losses_equal_one_plain_forward_per_window(trained, dataset, scheme, name):
    model = load_checkpoint(trained(scheme)).model(torch.device("cpu"))
    longest = 16 if model.config.max_positions else 64
    text = data.load(dataset)
    protocol = protocol_of(name, text, lengths=f"{longest // 4},{longest}", blocks=6)
    scorer = Scorer(model, text, torch.float32)
    for length in protocol.jobs(model.config).values():
        n_windows = {"sliding": 4, "nonoverlapping": longest // length}.get(name, 1)
        scored = min(length, protocol.block_tokens)
        for end, losses in zip(protocol.blocks.ends, protocol.block_losses(length, scorer), strict=True):
            ends = end - scored * np.arange(n_windows)
            windows = text.val.windows(ends - length, length)
            logits, _ = model(windows[:, :-1], windows[:, 1:])
            expected = F.cross_entropy(logits[:, -scored:].mT, windows[:, -scored:], reduction="none")
            np.testing.assert_allclose(losses.mean(axis=0), expected.mean(0).detach(), atol=1e-5)


def test_a_model_that_cannot_look_further_gains_nothing_by_further_context(trained, dataset):
    """ALiBi with a window of 8 in its one layer, trained at 16, does not see what lies beyond 16."""
    checkpoint = load_checkpoint(trained("alibi"))
    protocol = protocol_of("context", data.load(dataset), lengths="16,32,64", blocks=12)
    for window in (8, 0):
        config = checkpoint.config_with(EvalConfig(runs=("x",), window=window), 64)
        model = checkpoint.model(torch.device("cpu")).override(config)
        means, arrays, _ = measured(protocol, model)
        for n in (32, 64):
            for kind in ("foreign", "shuffled"):
                changed = abs(arrays[f"{kind}-{n}"] - arrays[str(n)]).max()
                assert changed < 1e-5 if window else changed > 1e-4
            if window:
                assert means["over_cut"][n] == pytest.approx(0, abs=1e-5)
