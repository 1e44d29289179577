"""The pictures show what the model computes."""

from pathlib import Path

import pytest
import torch
from conftest import build
from PIL import Image

from benchmark import moving, scores
from benchmark.pictures import draw_decision, draw_onset, draw_tokens, spread
from benchmark.results import read_row
from eval_length import numbers_of
from evaluation.pictures import COLORS, draw_losses, figure_of, length_axis, line_styles
from model import alibi_slopes, scheme_names
from tools import pictures


def test_mean_score_by_distance_of_known_scores():
    """With zero queries ALiBi's scores are −m·distance, and their mean over heads falls along one line."""
    model = build("alibi", block_size=16)
    for block in model.transformer.h:
        torch.nn.init.zeros_(block.attn.c_attn.weight)
    got = scores.mean_score_by_distance(model, torch.zeros(1, 64, dtype=torch.long))
    slope = sum(alibi_slopes(2)) / 2
    torch.testing.assert_close(got[16:].diff(), torch.full((47,), -slope, dtype=torch.float64))


@pytest.mark.parametrize("scheme", scheme_names())
def test_scores_give_the_models_own_attention(scheme):
    model = build(scheme)
    idx = torch.randint(11, (3, 16))
    future = torch.ones(16, 16, dtype=torch.bool).triu(1)
    x, layers = model.enter(idx)
    for block, positions, layer in zip(model.transformer.h, layers, scores.attention_scores(model, idx), strict=True):
        normed = block.ln_1(x)
        _, _, v = block.attn.project(normed, positions, {})
        weights = layer.masked_fill(future, -torch.inf).softmax(-1)
        mixed = (weights @ v).transpose(1, 2)  # (B, T, H, D)
        expected = block.attn.c_proj(mixed.flatten(-2))
        torch.testing.assert_close(expected, block.attn(normed, positions), rtol=1e-4, atol=1e-5)
        x = block(x, positions)


def test_one_command_draws_everything(trained, tmp_path, monkeypatch):
    runs = [str(trained(scheme)) for scheme in ("t5", "rope")]
    monkeypatch.chdir(tmp_path)
    assert pictures.main([]) == scores.main(runs) == 0
    drawn = {path.stem for path in Path("results/schemes").glob("*.png")}
    assert drawn == {"matrices", "sinusoidal", "arrows", "dials", "t5", "scores"}
    for picture in (draw_decision, draw_onset, draw_tokens):
        picture().savefig(tmp_path / "picture.png")


def test_a_title_names_the_runs_whose_scores_rise_again():
    falls = -torch.arange(64.0)
    rises = falls.clone()
    rises[40] = 0
    title = scores.rising({"mine": falls, "rope": rises})
    assert "rope" in title and "mine" not in title
    assert "no scores" in scores.rising({"mine": falls})


def test_the_moving_picture_shows_a_model_write_past_its_training_length(trained, tmp_path, monkeypatch):
    monkeypatch.setattr(moving, "ROOT", tmp_path)
    (tmp_path / "docs").mkdir()
    assert moving.main([str(trained("rope"))]) == 0
    with Image.open(tmp_path / "docs" / "falls_apart.gif") as picture:
        assert picture.n_frames == moving.LENGTH // moving.STEP


def test_a_scheme_has_one_style_in_every_picture_and_no_two_lines_look_the_same():
    names = [*scheme_names(), "rope_nope", "fox5"]
    lines = [(name, "rope") for name in names]
    everywhere = dict(zip(names, line_styles(lines), strict=True))
    few = line_styles([("fox5", "fox"), ("mine", "mine"), ("mine-2", "rope"), ("rope", "rope")])
    assert [few[0], few[2]] == [everywhere["fox5"], everywhere["rope"]]
    assert len({style["color"] for style in few}) >= 3
    full = line_styles([*lines, ("mine", "rope"), ("mine", "rope")])
    assert len({tuple(style.values()) for style in full}) == len(full) > len(COLORS)


def test_the_training_length_has_a_tick_and_its_neighbours_none():
    _, (axes,) = figure_of(1, "")
    length_axis(axes, [32, 64, 127, 128, 129, 256], [128])
    assert sorted(axes.get_xticks()) == [32, 64, 128, 256]


def test_labels_are_far_enough_apart_and_otherwise_where_they_belong():
    assert spread([0.9, 0.5, 0.5, 0.49, 0.1], 0.05) == pytest.approx([0.9, 0.5, 0.45, 0.4, 0.1])
    assert spread([3, 0.03, 0.02, 0.01], 0.05) == pytest.approx([0.975, 0.1, 0.05, 0])


def picture(*names):
    """The highest loss in view, and the labels, of the picture of kept results."""
    rows = {name: read_row(name) for name in names}
    results = {name: numbers_of(row, rows[names[0]]) for name, row in rows.items()}
    (axes,) = draw_losses(results, "title", background=["alibi"]).axes
    return axes.get_ylim()[1], [text.get_text() for text in axes.get_legend().texts]


def test_the_picture_ends_above_the_losses_that_have_not_failed_and_labels_say_where_the_others_end():
    rope = read_row("rope").losses
    top, labels = picture("rope", "alibi", "learnable")
    assert rope[128].mean() + 0.1 < top < rope[256].mean()
    assert {"alibi", "learnable: undefined past 128", f"rope: {rope[2048].mean():.2f} at 2,048"} == {*labels}
    top, _ = picture("rope")  # without another row, the failure is whole
    assert top > rope[2048].mean()
