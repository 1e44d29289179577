"""The pages hold the tables and figures that benchmark/ gives."""

import re

import numpy as np
import pytest
from conftest import ROOT, in_one_line

from benchmark import results, tables, tokens


def test_the_pages_hold_the_tables_and_figures_of_the_benchmark():
    drawn = "".join(tables.drawn(page) for page in tables.PAGES)
    assert drawn == "".join((ROOT / page).read_text() for page in tables.PAGES)
    generated = "".join(re.findall(r"<!-- (?!end).*?<!-- end -->", drawn, re.S))
    text = re.sub(r"- \*\*Seen before\.\*\*.*?(?=\n- |\n\n|$)", "", drawn, flags=re.S)  # a card keeps what it said
    for figure in re.findall(r"[+-]?\d\.\d{3}\s+±\d\.\d{3}", text):  # even across lines
        assert " ".join(figure.split()) in generated, figure


def test_an_expression_is_the_mean_of_the_losses_it_names():
    """As a program that shares no code with ours found in the files."""
    for expression, expected in {
        "alibi - rope@16": -2.560717,
        "Δrope@16/2": 1.901383,
        "alibi - window/rope-window128@2,4": -0.021793,
        "Δalibi - Δrope@16": -2.565910,
        "Δlarger/fox5@4 without 671,672": -0.089098,
    }.items():
        value = results.value_of(expression)
        assert value.mean == pytest.approx(expected, abs=1e-6), expression
    assert (value.agreeing, len(value.by_file)) == (70, 103)  # of the last
    assert results.value_of("window/rope-window128 - rope@1").width < 1e-6  # the same models are paired
    with pytest.raises(ValueError, match="different blocks"):
        results.value_of("t256/rope - rope@16")


def test_reach_and_exact_answers_are_those_of_the_models_and_tell_who_learned_the_task():
    """As a program that shares no code with ours found in the files."""
    exact, has_learned = results.task_of("sort/none")
    assert has_learned.tolist() == [True, False, True]
    assert tables.reach_cell("sort/none") == "30, (30), 30"
    assert tables.exact("sort/none") == "0.91, 0.90"
    assert list(exact) == [5, 10, 20, 25, 30, 40, 80]  # ascending, as a curve needs them


def test_a_reach_of_twice_the_training_length_grows_in_proportion():
    reached = {10: np.array([20, 20, 20]), 20: np.array([40] * 5), 40: np.array([80, 80, 80])}
    assert results.growth_of(reached) == pytest.approx((1, 0), abs=1e-6)
    reached[40] = np.array([80, 160, 0])  # below: as np.linalg.lstsq and a table of t have it
    assert results.growth_of(reached) == pytest.approx((0.11301, 1.78631), abs=1e-5)


def test_card_18_has_each_mean_reach_as_a_multiple_of_the_training_length():
    card = in_one_line("benchmark/replications.md")
    sentences = {
        "sort/fox5": "`fox5` trained on up to 10, 20 and 40 symbols sorts {}, {} and {} times as many",
        "sort/none": "and `none` {}, {} and {}.",
        "copy/fox5": "on average, it copies {}, {} and {} times as many",
    }
    for name, sentence in sentences.items():
        times = [f"{np.mean(reached) / n:.1f}" for n, (reached, _) in tables.reaches_of(name).items()]
        assert sentence.format(*times) in card
    words = "{1} times as many, not {0}, and trained on 40, {2} times".format(*times)
    assert words in in_one_line("docs/tasks.md")


def multiples_of(name):
    """The reach of each model that learned a task, as a multiple of its training length."""
    return np.concatenate([reached[learned] / n for n, (reached, learned) in tables.reaches_of(name).items()])


def test_card_18_has_the_reach_of_the_rows_without_a_claim():
    card = in_one_line("benchmark/replications.md")
    alibi = np.concatenate([multiples_of("sort/alibi"), multiples_of("copy/alibi")])
    assert f"{len(alibi)} of 22 models reach {alibi.min():.1f} to {alibi.max():.1f} times" in card

    sampled = "rope_sampled-max_position512"
    times = [multiples_of(f"{task}/{sampled}") for task in ("sort", "copy", "sort_behind", "copy_behind")]
    ranges = [f"{of_models.min():.1f} to {of_models.max():.1f}" for of_models in times]
    assert "They reach {} and {} times their training length alone.".format(*ranges[:2]) in card
    assert "they reach {} and {} times.".format(*ranges[2:]) in card
    at_0 = [multiples_of(f"{task}/rope_sampled") for task in ("sort", "copy")]
    for words, sort, copy in ("sampled positions", *times[:2]), ("0, 1, 2, …", *at_0):
        counts = f"{len(sort)} of 11 models learned to sort and {len(copy)} of 11 learned to copy"
        assert f"cored at {words}, {counts}" in card

    page = in_one_line("docs/tasks.md")
    new, fox5 = [tables.reaches_of(f"copy_behind/{name}")[20][0] for name in (sampled, "fox5")]
    assert f"reach {new.min()} to {new.max()}, and `fox5` reaches {fox5.min()} to {fox5.max()}." in page
    alone, _ = tables.reaches_of(f"copy/{sampled}")[20]
    assert f"(new: {alone.min()} to {alone.max()})" in page
    cells = [tables.bracketed(*tables.reaches_of(f"{task}/rope_sampled")[20]) for task in ("copy", "copy_behind")]
    assert cells == ["(10), (42), 66, (24), 28", "(0), (0), 0, (0), 28"]
    assert "they reach 66 and 28, and behind others 0 and 28." in page


def test_the_claims_with_which_few_files_agree_are_known():
    """Their means are clear by their ±, and their pages should say how many files agree."""
    known = {
        "models/baseline/alibi_offset - dape@16",
        "models3400/baseline/alibi_offset - steps/dape@16",
        "steps6900/baseline/fox5 - steps6900/baseline/rope-window128@16",
        "Δalibi@16",
        "Δlarger/rope-yarn@4 without 671,672",
        "Δclock/characters/128-step6900-window128@4",
        "Δclock/characters/512-step3400-window512@4",
        "Δqknorm/rope_nope - Δrope_nope@2",
    }
    values = {expression: results.value_of(expression) for expression in tables.claims()}
    clear = {expression: value for expression, value in values.items() if abs(value.mean) > value.width}
    assert {name for name, value in clear.items() if value.agreeing < 0.6 * len(value.by_file)} == known


def test_a_token_was_seen_if_it_and_the_four_before_it_stand_in_the_context():
    #         far: 1 2 3 4 5     near: 2 3 4 5 6             scored
    window = [1, 2, 3, 4, 5, 9, 0, 2, 3, 4, 5, 6, 8, 1, 2, 3, 4, 5, 6, 7]
    classes = tokens.seen(np.array([window]), near=13, scored=3)
    assert [tokens.CLASSES[i] for i in classes[0]] == ["seen only farther", "seen at 1×", "never seen"]


def test_the_parts_of_the_classes_add_up():
    parts = results.parts_of("tokens/larger", 4)["alibi"]
    whole, *others = [mean for mean, _ in parts.values()]
    assert sum(others) == pytest.approx(whole, abs=1e-6)
    expected = results.value_of("Δtokens/larger/alibi@4").mean
    assert whole == pytest.approx(expected, abs=1e-3)  # the losses of tokens are float16
