"""Each protocol against one plain forward pass per window, and on losses that are known."""

from unittest import mock

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import dataset_of, measured, protocol_of

import data
from evaluation.protocols import PROTOCOLS, Protocol
from evaluation.windows import Scorer
from model import GPT, GPTConfig, scheme_names
from run.checkpoint import load_checkpoint

LOSSES = [name for name, protocol in PROTOCOLS.items() if protocol.ranked]


@pytest.mark.parametrize("trained, first", [(2, 2), (3, 3), (8, 4), (30, 15), (31, 31), (100, 25)])
@pytest.mark.parametrize("name", LOSSES)
def test_the_default_lengths_are_doubled_up_to_16_times_the_training_length(name, trained, first):
    lengths = protocol_of(name, dataset_of("a" * 10**5), trained).lengths
    assert lengths == [first * 2**i for i in range(len(lengths))]
    assert trained in lengths and lengths[-1] == 16 * trained


@pytest.mark.parametrize("harm", [0.0, 0.3])
def test_nonoverlapping_is_split_into_dilution_and_real_change(harm):
    """A model that is poor at the first 8 positions of a window and the same from there on gains nothing by a longer
    one; one that gets worse from position 40 on does so by the mean of what it loses there."""
    protocol = protocol_of("nonoverlapping", dataset_of("a" * 3000), lengths="16,32,64,128", blocks=10)

    def block_losses(job, length, scorer):
        p = np.arange(length)
        return np.tile(1.0 + 1.0 * (p < 8) + harm * (p >= 40), (10, 128 // length, 1))

    protocol.block_losses = block_losses
    means, *_ = measured(protocol, GPT(GPTConfig(16, 3, 1, 1, 4, pos_scheme="none")))
    for n in (32, 64, 128):
        assert means["dilution"][n] == pytest.approx((1 - 16 / n) * (1.0 - 1.5), abs=1e-5)
        assert means["real"][n] == pytest.approx(harm * max(0, n - 40) / n, abs=1e-5)
        assert means["dilution"][n] + means["real"][n] == pytest.approx(means["delta"][n], abs=1e-9)


@pytest.mark.parametrize("scheme", scheme_names())
@pytest.mark.parametrize("name", LOSSES)
def test_losses_equal_one_plain_forward_per_window(trained, dataset, scheme, name):
    model = load_checkpoint(trained(scheme)).model("cpu")
    longest = 16 if model.config.max_positions else 64
    text = data.load(dataset)
    protocol = protocol_of(name, text, lengths=f"{longest // 4},{longest}", blocks=6)
    for length in {*protocol.jobs(model.config).values()}:
        scored = {"nonoverlapping": length, "position": longest}.get(name, protocol.block_tokens)
        n_windows = {"sliding": 4, "nonoverlapping": longest // length}.get(name, 1)
        losses = protocol.block_losses(str(length), length, Scorer(model, torch.float32))
        if name == "nonoverlapping":  # its last window comes first, as in sliding
            losses = losses[:, ::-1]
        for end, block in zip(protocol.blocks.ends, losses, strict=True):
            for i, window_losses in zip(range(n_windows), block, strict=True):
                window = text.val.windows(np.array([end - i * scored - length]), length)
                logits, _ = model(window[:, :-1], window[:, 1:])
                expected = F.cross_entropy(logits[0, -scored:], window[0, -scored:], reduction="none")
                np.testing.assert_allclose(window_losses, expected.detach(), atol=1e-5)


def test_positions_are_sampled_as_densely_as_in_training(trained, dataset):
    """A context of 8 tokens, half of the training length, lies among the first half of 16 positions below 64."""
    model = load_checkpoint(trained("rope")).model("cpu")
    model.hidden = mock.Mock(wraps=model.hidden)
    for length in (8, 32):
        window = data.load(dataset).val.windows(np.array([0]), length)
        Scorer(model, torch.float32, max_position=64).score(window, length)
        expected = data.sampled_positions(max(length, 16), 64, (length, 0))[:length]
        assert torch.equal(model.hidden.call_args.kwargs["positions"], expected)


def test_a_model_that_cannot_look_further_gains_nothing_by_further_context(trained, dataset):
    """ALiBi with a window of 8 in its one layer, trained at 16, does not see what lies beyond 16."""
    protocol = protocol_of("context", data.load(dataset), lengths="16,32,64", blocks=12)
    for window in (8, 0):
        model = load_checkpoint(trained("alibi", window=window)).model("cpu")
        means, arrays, _ = measured(protocol, model)
        for n in (32, 64):
            for kind in ("foreign", "shuffled"):
                changed = abs(arrays[f"{kind}-{n}"] - arrays[str(n)]).max()
                assert changed < 1e-5 if window else changed > 1e-4
            if window:
                assert means["over_cut"][n] == pytest.approx(0, abs=1e-5)


@mock.patch.dict(PROTOCOLS)
def test_a_further_protocol_is_one_class(trained, evaluate, tmp_path):
    """It gets its flag, files, table and picture without any other change."""

    class Bits(Protocol, name="bits"):
        question = "the loss in bits"

        def losses(self, arrays):
            return {n: values / np.log(2) for n, values in super().losses(arrays).items()}

    out = evaluate(trained("rope"), "--protocol=bits").out
    assert "bits: the same 20 blocks" in out
    assert [*(tmp_path / "results").glob("length-bits-??????.png")]
