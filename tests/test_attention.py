import math
from dataclasses import replace

import pytest
import torch
from conftest import RELATIVE, build
from test_protocols import measured, protocol_of

import data
from evaluation.attention import attention_entropy, attention_scores
from model import scheme_names
from run.checkpoint import load_checkpoint


@pytest.mark.parametrize("scheme, pos_pattern", [*((s, "") for s in scheme_names()), *((s, "10") for s in RELATIVE)])
def test_scores_give_the_models_own_attention(scheme, pos_pattern):
    model = build(scheme, pos_pattern=pos_pattern, window=5, window_pattern="01")
    idx = torch.randint(11, (3, 16))
    scores = list(attention_scores(model, idx))
    seen = []  # the values that each layer mixes, and what it makes of them
    for block in model.transformer.h:
        block.attn.c_attn.register_forward_hook(lambda m, i, out: seen.append([out.chunk(3, dim=-1)[2]]))
        block.attn.c_proj.register_forward_hook(lambda m, i, out: seen[-1].append(i[0]))
    model.hidden(idx)
    assert len(scores) == len(seen) == 2
    for (layer, visible), (v, y) in zip(scores, seen, strict=True):
        weights = layer.masked_fill(~visible, -torch.inf).softmax(-1)
        mixed = weights @ v.unflatten(-1, (2, 8)).transpose(1, 2)
        torch.testing.assert_close(mixed.transpose(1, 2).flatten(-2), y, rtol=1e-4, atol=1e-5)
    for (layer, visible), (last, some) in zip(scores, attention_scores(model, idx, last=3), strict=True):
        assert torch.equal(some, visible[-3:])
        torch.testing.assert_close(last, layer[:, :, -3:])


def test_entropy_of_uniform_attention_is_the_logarithm_of_the_number_of_keys():
    model = build("none")
    for block in model.transformer.h:
        torch.nn.init.zeros_(block.attn.c_attn.weight)
        torch.nn.init.zeros_(block.attn.c_attn.bias)
    idx = torch.randint(10, (2, 64))
    assert attention_entropy(model, idx, last=1) == pytest.approx(math.log(64), abs=1e-5)
    model.override(replace(model.config, window=8))
    assert attention_entropy(model, idx, last=5) == pytest.approx(math.log(8), abs=1e-5)


@pytest.mark.usefixtures("few_documents")
def test_the_protocol_measures_the_predictions_of_the_blocks(trained, dataset):
    model, ds = load_checkpoint(trained("rope")).model(torch.device("cpu")), data.load(dataset)
    found, rows, _ = measured(protocol_of("entropy", ds.val, lengths="16,64", blocks=6, block_tokens=2), model, ds)
    for length in (16, 64):
        windows = (torch.from_numpy(ds.val.tokens[end - length : end].astype("int64"))[None] for end in found["ends"])
        expected = [attention_entropy(model, window, last=2) for window in windows]
        assert found[str(length)] == pytest.approx(expected)
        assert rows[length]["entropy"] == pytest.approx(sum(expected) / 6) and rows[length]["entropy_band"] > 0
