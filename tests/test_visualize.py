"""The pictures are drawn from what the model computes."""

import torch

from model import GPT, GPTConfig
from tools import visualize


def test_mean_score_by_distance_of_known_scores():
    """Without queries ALiBi's scores are −m·distance: their mean over heads, about the mean over a row's keys."""
    model = GPT(GPTConfig(16, 11, n_layer=2, n_head=2, n_embd=8, pos_scheme="alibi"))
    for block in model.transformer.h:
        torch.nn.init.zeros_(block.attn.c_attn.weight)
    got = visualize.mean_score_by_distance(model, torch.zeros(1, 64, dtype=torch.long))
    slope = sum(model.pos.slopes) / 2
    torch.testing.assert_close(got[16:].diff(), torch.full((47,), -slope, dtype=torch.float64))


def test_one_command_draws_everything(trained, tmp_path, capsys):
    runs = [str(trained(scheme)) for scheme in ("learnable", "t5", "transformer_xl", "rope")]
    assert visualize.main([*runs, f"--results_dir={tmp_path}"]) == 0
    drawn = {p.stem for p in (tmp_path / "schemes").glob("*.png") if p.stat().st_size > 5000}
    assert drawn == {*visualize.PICTURES, "scores"}
    assert "left out" not in capsys.readouterr().out


def test_what_needs_a_run_is_named(tmp_path, capsys):
    assert visualize.main([f"--results_dir={tmp_path}"]) == 0
    out = capsys.readouterr().out
    assert "t5: left out, it needs a t5 run: python train.py config/t5.py" in out
    assert (tmp_path / "schemes" / "rope.png").exists() and not (tmp_path / "schemes" / "scores.png").exists()
