"""The pictures are drawn from what the model computes."""

import torch
from test_model import build

from evaluation.pictures import COLORS, scheme_styles
from model import SCHEMES
from tools import visualize


def test_mean_score_by_distance_of_known_scores():
    """Without queries ALiBi's scores are −m·distance: their mean over heads, about the mean over a row's keys."""
    model = build("alibi", block_size=16)
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


def test_a_scheme_has_one_style_in_every_picture_and_no_two_lines_are_alike():
    everywhere = dict(zip(SCHEMES, scheme_styles(list(SCHEMES)), strict=True))
    assert scheme_styles(["rope", "alibi"]) == [everywhere["rope"], everywhere["alibi"]]
    grid = scheme_styles(["rope", "alibi", "rope", "rope", "rope"])
    assert grid[:2] == [everywhere["rope"], everywhere["alibi"]]
    assert len({style["color"] for style in grid}) == 5  # there are colours enough to tell them apart
    full = scheme_styles([*SCHEMES, "rope", "rope"])
    assert len({tuple(style.values()) for style in full}) == len(full) > len(COLORS)
