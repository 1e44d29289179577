from evaluation.pictures import COLORS, scheme_styles
from model import SCHEMES


def test_a_scheme_has_one_style_in_every_picture_and_no_two_lines_are_alike():
    everywhere = dict(zip(SCHEMES, scheme_styles(list(SCHEMES)), strict=True))
    assert scheme_styles(["rope", "alibi"]) == [everywhere["rope"], everywhere["alibi"]]
    grid = scheme_styles(["rope", "alibi", "rope", "rope", "rope"])
    assert grid[:2] == [everywhere["rope"], everywhere["alibi"]]
    assert len({style["color"] for style in grid}) == 5  # there are colours enough to tell them apart
    full = scheme_styles([*SCHEMES, "rope", "rope"])
    assert len({tuple(style.values()) for style in full}) == len(full) > len(COLORS)
