"""The pictures show what the model computes."""

from pathlib import Path

import torch
from conftest import build

from benchmark import moving, scores
from benchmark.pictures import draw_decision, draw_onset, draw_tokens
from benchmark.results import read_row
from eval_length import numbers_of
from evaluation.pictures import draw_losses, line_styles
from model import alibi_slopes, scheme_names
from tools import pictures


def without_queries(scheme):
    """A model whose queries are zero, so that a score is what the scheme adds, and 64 tokens."""
    model = build(scheme, block_size=16)
    for block in model.transformer.h:
        torch.nn.init.zeros_(block.attn.c_attn.weight)
        torch.nn.init.zeros_(block.attn.c_attn.bias)
    return model, torch.zeros(1, 64, dtype=torch.long)


def test_scores_are_those_that_a_scheme_adds():
    model, idx = without_queries("t5")
    for layer in scores.attention_scores(model, idx):
        by_distance = layer[0, :, -1].flip(-1)  # (H, T)
        torch.testing.assert_close(by_distance[:, :16], 64 * model.pos.table[:16].T)


def test_the_mean_score_of_alibi_falls_along_one_line():
    model, idx = without_queries("alibi")
    got = scores.mean_score_by_distance(model, idx)
    slope = sum(alibi_slopes(2)) / 2
    torch.testing.assert_close(got[16:].diff(), torch.full((47,), -slope, dtype=torch.float64))


def test_the_commands_draw_their_pictures(trained, tmp_path, monkeypatch):
    runs = [str(trained(scheme)) for scheme in ("rope", "t5")]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(moving, "ROOT", tmp_path)
    Path("docs").mkdir()
    assert pictures.main([]) == scores.main(runs) == moving.main(runs[:1]) == 0
    drawn = {path.stem for path in Path("results/schemes").glob("*.png")}
    assert drawn == {"matrices", "sinusoidal", "arrows", "dials", "t5", "scores"}
    assert Path("docs/falls_apart.gif").exists()
    for draw in (draw_decision, draw_onset, draw_tokens):
        draw().savefig("picture.png")


def test_a_scheme_has_one_style_in_every_picture_and_no_two_lines_look_the_same():
    few = line_styles([("fox5", "fox"), ("mine", "mine"), ("mine-2", "rope")])
    many = line_styles([(name, "rope") for name in ("rope", "fox5", *scheme_names())])
    assert many[:2] == [few[2], few[0]]
    for styles in (few, many):
        assert not any(styles.count(style) > 1 for style in styles)


def drawn(rows, background=()):
    """The axes of the picture of these rows."""
    results = {name: numbers_of(row, row) for name, row in rows.items()}
    (axes,) = draw_losses(results, background=background).axes
    return axes


def test_a_kept_row_keeps_its_style_beside_a_run_of_its_scheme():
    names = ["out/mine", "out/rope", "benchmark/rope.npz"]
    axes = drawn(dict.fromkeys(names, read_row("rope")), names[2:])
    colors = [line.get_color() for line in axes.lines if ": 3.68 at 2,048" in line.get_label()]
    (kept_style,) = line_styles([("rope", "rope")])
    assert [color == kept_style["color"] for color in colors] == [False, False, True]


def test_the_picture_ends_above_the_losses_that_have_not_failed_and_labels_say_where_the_others_end():
    rows = {name: read_row(name) for name in ("rope", "alibi", "learnable")}
    rope = rows["rope"].losses
    axes = drawn(rows, ["alibi"])
    assert rope[128].mean() + 0.1 < axes.get_ylim()[1] < rope[256].mean()
    labels = {text.get_text() for text in axes.get_legend().texts}
    assert {"alibi", "learnable: undefined past 128", f"rope: {rope[2048].mean():.2f} at 2,048"} == labels
    whole = drawn({"rope": rows["rope"]})  # without another row, the failure is whole
    assert whole.get_ylim()[1] > rope[2048].mean()
