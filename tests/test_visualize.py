"""The pictures are drawn from what the model computes."""

import pytest
import torch

import run
import train
import visualize
from model import GPT, SCHEMES, GPTConfig


def config_of(scheme, **more):
    return GPTConfig(**dict(block_size=16, vocab_size=11, n_layer=2, n_head=2, n_embd=8, pos_scheme=scheme) | more)


def randomised(config):
    model = GPT(config).eval()
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.5)
    return model


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("pos_pattern", ["", "10"])
def test_scores_give_the_models_own_attention(scheme, pos_pattern):
    try:
        model = randomised(config_of(scheme, pos_pattern=pos_pattern))
    except ValueError:
        pytest.skip("a pattern is not for schemes that enter at the embedding")
    seen = []  # the values that each layer mixes, and what it makes of them
    hooks = []
    for block in model.transformer.h:
        values = block.attn.c_attn.register_forward_hook(lambda m, i, out: seen.append([out.chunk(3, dim=-1)[2]]))
        hooks += [values, block.attn.c_proj.register_forward_hook(lambda m, i, out: seen[-1].append(i[0]))]
    idx = torch.randint(11, (3, 16))
    model.hidden(idx)
    for hook in hooks:
        hook.remove()
    future = torch.ones(16, 16, dtype=torch.bool).triu(1)
    scores = list(run.attention_scores(model, idx))
    assert len(scores) == len(seen) == 2
    for layer, (v, y) in zip(scores, seen, strict=True):
        weights = layer.masked_fill(future, -torch.inf).softmax(-1)
        mixed = weights @ v.unflatten(-1, (2, 4)).transpose(1, 2)
        torch.testing.assert_close(mixed.transpose(1, 2).flatten(-2), y, rtol=1e-4, atol=1e-5)
    assert "rotate" not in vars(model.pos) and "rotate" not in vars(model.no_pos)


def test_mean_score_by_distance_of_known_scores():
    """Without queries ALiBi's scores are −m·distance: their mean over heads, about the mean over a row's keys."""
    model = GPT(config_of("alibi"))
    for block in model.transformer.h:
        torch.nn.init.zeros_(block.attn.c_attn.weight)
    got = visualize.mean_score_by_distance(model, torch.zeros(1, 64, dtype=torch.long))
    slope = sum(model.pos.slopes) / 2
    torch.testing.assert_close(got[16:].diff(), torch.full((47,), -slope, dtype=torch.float64))


def test_one_command_draws_everything(tiny, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    runs = ["learnable", "t5", "transformer_xl", "rope"]
    for scheme in runs:
        train.main([f"--pos_scheme={scheme}", f"--out_dir=out/{scheme}", *tiny])
    capsys.readouterr()
    assert visualize.main([f"out/{scheme}" for scheme in runs]) == 0
    drawn = {p.stem for p in (tmp_path / "results" / "schemes").glob("*.png") if p.stat().st_size > 5000}
    assert drawn == {*visualize.PICTURES, "scores"}
    assert "left out" not in capsys.readouterr().out


def test_what_needs_a_run_is_named(tmp_path, capsys):
    assert visualize.main([f"--results_dir={tmp_path}"]) == 0
    out = capsys.readouterr().out
    assert "t5: left out, it needs a run of t5: python train.py config/t5.py" in out
    assert (tmp_path / "schemes" / "rope.png").exists() and not (tmp_path / "schemes" / "scores.png").exists()
