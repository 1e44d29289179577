"""Each protocol on models whose losses are known, and against one plain forward per window."""

from unittest import mock

import numpy as np
import pytest
import torch

import data
import eval_length
from data.tokenizers import END_OF_TEXT, CharTokenizer, tokenizer_from
from eval_length import EvalConfig
from evaluation.protocols import PROTOCOLS, Protocol
from evaluation.statistics import breakdown
from evaluation.windows import Subject
from model import GPTConfig, scheme_names
from run.checkpoint import load_checkpoint

LOSSES = [name for name in PROTOCOLS if name not in ("entropy", "recall")]  # see test_attention.py, test_recall.py

pytestmark = pytest.mark.usefixtures("few_documents")


class KnownModel:
    """Its loss at position p of a window is f(p), whatever the text: over three tokens, token 0 has the probability
    exp(−f(p)), and every token of the text is 0."""

    config = GPTConfig(block_size=16, vocab_size=3, n_embd=12)
    lm_head = torch.nn.Identity()  # `hidden` returns the logits
    lm_head.weight = torch.zeros(1)

    def __init__(self, f):
        self.f = f

    def hidden(self, idx, last, positions=None):
        p = torch.exp(-self.f(torch.arange(idx.size(1), dtype=torch.float64)[-last:]))
        return torch.stack((p, (1 - p) / 2, (1 - p) / 2), dim=-1).log().expand(len(idx), -1, -1)


def protocol_of(name, split, **settings):
    """A protocol for runs trained at 16 tokens."""
    if "block_tokens" in settings and "block_tokens" not in PROTOCOLS[name].options:
        del settings["block_tokens"]
    return PROTOCOLS[name](EvalConfig(runs=("x",), protocol=name, **settings), {16}, len(split.tokens))


def measured(protocol, model, dataset, trained=16):
    """What a protocol finds about a model that was trained at `trained` tokens, its rows, and the Subject."""
    found, subject = protocol.prepare(dataset, trained), Subject(model, dataset.val, torch.float32, lambda n: None)
    for job, length in protocol.jobs(trained, None).items():
        found |= protocol.measure(job, length, subject, found, trained)
    return found, protocol.rows(found, trained), subject


@pytest.fixture
def known():
    """known(f, name): a protocol, and what is `measured` of a model whose loss at position p is f(p)."""

    def measure(f, name):
        split = data.Split(np.zeros(3000, np.uint16), np.arange(0, 3000, 300), 3)
        protocol = protocol_of(name, split, lengths="16,32,64,128", blocks=10, block_tokens=4)
        dataset = data.Dataset("x", split, split, CharTokenizer("abc"), {}, "")
        return protocol, *measured(protocol, KnownModel(f), dataset)

    return measure


@pytest.mark.parametrize("name", LOSSES)
def test_protocols_return_the_loss_of_a_model_whose_loss_is_known(name, known):
    def f(p):
        return 0.5 + 1 / (p + 2) + 0.01 * (p > 40) * (p - 40)

    protocol, found, _, subject = known(f, name)
    for length in protocol.jobs(16, None).values():
        expected = f(torch.arange(length, dtype=torch.float64)).numpy()
        losses = protocol.block_losses(length, subject, found)
        windows, scored = {
            "sliding": (4, 4), "nonoverlapping": (128 // length, length), "position": (1, length),
        }.get(name, (1, 4))  # fmt: skip
        assert losses.shape == (10, windows, scored)
        np.testing.assert_allclose(losses, np.broadcast_to(expected[-scored:], losses.shape), atol=1e-5)


@pytest.mark.parametrize("name", LOSSES)
def test_a_breakdown_is_found_where_it_was_planted(name, known):
    _, _, rows, _ = known(lambda p: 1.0 + 0.5 * (p >= 40), name)
    assert breakdown(rows, 16, 0.1) == 64 and breakdown(rows, 16, 0.6) is None
    assert rows[32]["delta"] == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("harm", [0.0, 0.3])
def test_nonoverlapping_is_split_into_dilution_and_real_change(harm, known):
    """A model that is poor at the first 8 positions of a window and the same from there on gains nothing by a longer
    one; one that gets worse from position 40 on does so by the mean of what it loses there."""
    _, _, rows, _ = known(lambda p: 1.0 + 1.0 * (p < 8) + harm * (p >= 40), "nonoverlapping")
    for n in (32, 64, 128):
        assert rows[n]["dilution"] == pytest.approx((1 - 16 / n) * (1.0 - 1.5), abs=1e-5)
        assert rows[n]["real"] == pytest.approx(harm * max(0, n - 40) / n, abs=1e-5)
        assert rows[n]["dilution"] + rows[n]["real"] == pytest.approx(rows[n]["delta"], abs=1e-9)


def test_bytes_per_token_are_of_the_text_of_the_targets(gpt2_bpe):
    """Four tokens of 3, 1, 2 and 0 bytes, the last an end of text: 1.5 bytes a token."""
    tokenizer = tokenizer_from({"kind": "gpt2"})
    ids = [tokenizer.encode(t)[0] for t in (" of", "x", "ab", END_OF_TEXT)]
    split = data.Split(np.array(ids * 40, np.uint16), np.array([0]), tokenizer.n_vocab)
    protocol = protocol_of("fixed", split, lengths="16", block_tokens=4, blocks=5)
    assert protocol.prepare(data.Dataset("x", split, split, tokenizer, {}, ""), 16)["bytes_per_token"] == 1.5


@pytest.mark.parametrize("scheme", scheme_names())
@pytest.mark.parametrize("name", ["fixed", "sliding", "nonoverlapping"])
def test_block_losses_equal_one_plain_forward_per_window(trained, dataset, scheme, name):
    model = load_checkpoint(trained(scheme)).model(torch.device("cpu"))
    longest = 16 if model.config.max_positions else 64
    ds = data.load(dataset)
    tokens = torch.from_numpy(ds.val.tokens.astype(np.int64))
    block_tokens = 3 if name == "sliding" else 1
    protocol = protocol_of(name, ds.val, lengths=f"{longest // 4},{longest}", block_tokens=block_tokens, blocks=6)
    found, subject = protocol.prepare(ds, 16), Subject(model, ds.val, torch.float32, lambda n: None)
    for length in protocol.jobs(16, None).values():
        expected = []
        scored = length if name == "nonoverlapping" else block_tokens
        windows = {"fixed": 1, "sliding": 4, "nonoverlapping": longest // length}[name]
        for last in found["ends"]:
            losses = []
            for end in (last - scored * np.arange(windows)).tolist():
                x, y = tokens[None, end - length : end], tokens[None, end - length + 1 : end + 1]
                losses.append(torch.nn.functional.cross_entropy(model(x, y)[0][0, -scored:], y[0, -scored:]).item())
            expected.append(np.mean(losses))
        assert protocol.block_losses(length, subject, found).mean(axis=(1, 2)) == pytest.approx(expected, abs=1e-5)


def test_a_model_that_cannot_look_further_gains_nothing_by_further_context(trained, dataset):
    """ALiBi with a window of 8 in its one layer, trained at 16, does not see what lies beyond 16."""
    checkpoint, ds = load_checkpoint(trained("alibi")), data.load(dataset)
    protocol = protocol_of("context", ds.val, lengths="16,32,64", block_tokens=2, blocks=12)
    for window in (8, 0):
        config = checkpoint.under(EvalConfig(runs=("x",), window=window), 64)
        found, rows, _ = measured(protocol, checkpoint.model(torch.device("cpu")).override(config), ds)
        for n in (32, 64):
            if window:
                gains = [rows[n][f"gain_over_{kind}"] for kind in protocol.kinds]
                assert gains == pytest.approx([0] * 3, abs=1e-5)
            else:  # it does see it
                assert abs(found[f"foreign-{n}"] - found[str(n)]).max() > 1e-4
                assert abs(found[f"shuffled-{n}"] - found[str(n)]).max() > 1e-4


@mock.patch.dict(PROTOCOLS)
def test_a_further_protocol_is_one_class(trained, tmp_path, capsys):
    """It gets its flag, files, table and picture without any other change."""

    class Bits(Protocol, name="bits"):
        question = "the loss in bits"

        def losses(self, found):
            return {n: values / np.log(2) for n, values in super().losses(found).items()}

    argv = [str(trained("rope")), "--blocks=20", f"--results_dir={tmp_path}", "--device=cpu", "--protocol=bits"]
    assert eval_length.main(argv) == 0
    assert "bits: the same 20 blocks of 1 tokens" in capsys.readouterr().out
    assert [*tmp_path.glob("length-bits-??????.png")]
    [path] = trained("rope").glob("length-bits-*.npz")
    with np.load(path) as kept:
        assert kept["64"].shape == (20,)
