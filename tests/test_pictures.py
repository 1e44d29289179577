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
from evaluation.pictures import draw_losses, figure_of, length_axis, line_styles
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


def test_the_commands_draw_their_pictures(trained, tmp_path, monkeypatch):
    runs = [str(trained(scheme)) for scheme in ("rope", "t5")]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(moving, "ROOT", tmp_path)
    Path("docs").mkdir()
    assert pictures.main([]) == scores.main(runs) == moving.main(runs[:1]) == 0
    drawn = {path.stem for path in Path("results/schemes").glob("*.png")}
    assert drawn == {"matrices", "sinusoidal", "arrows", "dials", "t5", "scores"}
    with Image.open("docs/falls_apart.gif") as picture:
        assert picture.n_frames == moving.LENGTH // moving.STEP
    for draw in (draw_decision, draw_onset, draw_tokens):
        draw().savefig("picture.png")


def test_a_scheme_has_one_style_in_every_picture_and_no_two_lines_look_the_same():
    few = line_styles([("fox5", "fox"), ("mine", "mine"), ("mine-2", "rope"), ("rope", "rope")])
    names = ["rope", "fox5", *scheme_names()]
    many = line_styles([(name, "rope") for name in names])
    assert [few[2], few[0]] == many[:2]
    for styles in (few, many):
        assert len({tuple(style.values()) for style in styles}) == len(styles)


def test_a_kept_row_keeps_its_style_beside_a_run_of_its_scheme():
    row = read_row("rope")
    result = numbers_of(row, row)
    names = ["out/mine", "out/rope", "benchmark/rope.npz"]
    (axes,) = draw_losses(dict.fromkeys(names, result), background=[names[-1]]).axes
    colors = {line.get_label(): line.get_color() for line in axes.lines}
    (kept_style,) = line_styles([("rope", "rope")])
    assert colors[f"{names[-1]}: 3.68 at 2,048"] == kept_style["color"]
    assert kept_style["color"] not in [colors[f"{name}: 3.68 at 2,048"] for name in names[:2]]


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
    (axes,) = draw_losses(results, background=["alibi"]).axes
    labels = {text.get_text() for text in axes.get_legend().texts}
    return axes.get_ylim()[1], labels


def test_the_picture_ends_above_the_losses_that_have_not_failed_and_labels_say_where_the_others_end():
    rope = read_row("rope").losses
    top, labels = picture("rope", "alibi", "learnable")
    assert rope[128].mean() + 0.1 < top < rope[256].mean()
    assert {"alibi", "learnable: undefined past 128", f"rope: {rope[2048].mean():.2f} at 2,048"} == labels
    top, _ = picture("rope")  # without another row, the failure is whole
    assert top > rope[2048].mean()
