"""The pages hold the tables and figures that benchmark/ gives."""

import json
import re

import numpy as np
import pytest
from conftest import ROOT

from benchmark import results, tables, tokens
from model import GPTConfig


def test_the_pages_hold_the_tables_and_figures_of_the_benchmark():
    drawn = "".join(tables.drawn(page) for page in tables.PAGES)
    assert drawn == "".join((ROOT / page).read_text() for page in tables.PAGES)
    generated = "".join(re.findall(r"<!-- (?!end).*?<!-- end -->", drawn, re.S))
    text = re.sub(r"- \*\*Seen before\.\*\*.*?(?=\n- |\n\n|$)", "", drawn, flags=re.S)  # a card keeps what it said
    for figure in re.findall(r"[+-]?\d\.\d{3}\s+±\d\.\d{3}", text):  # even across lines
        assert " ".join(figure.split()) in generated, figure


def test_an_expression_is_the_mean_of_the_losses_it_names():
    def loss(name, n):
        return np.load(ROOT / f"benchmark/{name}.npz")[str(n)].astype(float).mean()

    window = "window/rope-window128"
    for expression, expected in {
        "alibi - rope@16": loss("alibi", 2048) - loss("rope", 2048),
        "Δrope@16/2": loss("rope", 2048) - loss("rope", 256),
        f"alibi - {window}@2,4": (loss("alibi", 256) + loss("alibi", 512) - loss(window, 256) - loss(window, 512)) / 2,
        "Δalibi - Δrope@16": loss("alibi", 2048) - loss("alibi", 128) - loss("rope", 2048) + loss("rope", 128),
    }.items():
        assert results.value_of(expression).mean == pytest.approx(expected, abs=1e-6), expression
    assert results.value_of("window/rope-window128 - rope@1").width < 1e-6  # the same models are paired
    with pytest.raises(ValueError, match="different blocks"):
        results.value_of("t256/rope - rope@16")


def test_reach_and_exact_answers_are_those_of_the_models_and_tell_who_learned_the_task():
    with np.load(ROOT / "benchmark/tasks/sort/none.npz") as kept:
        exact = {n: kept[f"exact-{n}"] for n in (5, 10, 20, 25, 30, 40)}
    learned = np.mean([exact[n] for n in (5, 10, 20)], axis=(0, 2)) >= 0.99
    assert list(learned) == [True, False, True]  # by looking
    assert tables.reach_cell("sort/none") == "30, (30), 30"
    assert tables.reach_cell("copy/fox5") == "30, 30, 30"
    expected = np.mean([exact[n][learned] for n in (25, 30, 40)], axis=(0, 2))
    assert tables.exact("sort/none") == f"{expected[0]:.2f}, {expected[1]:.2f}"
    assert list(results.task_of("sort/none")[0]) == [5, 10, 20, 25, 30, 40, 80]  # ascending, as a curve needs them


def test_the_claims_with_which_few_files_agree_are_known():
    """Their means are clear by their ±, and their pages should say how many files agree."""
    known = {
        "models/baseline/alibi_offset - dape@16",
        "models3400/baseline/alibi_offset - steps/dape@16",
        "steps6900/baseline/fox5 - steps6900/baseline/rope-window128@16",
        "Δalibi@16",
        "Δlarger/rope-yarn@4 without 671,672",
    }
    values = {expression: results.value_of(expression) for expression in tables.claims()}
    clear = {expression: value for expression, value in values.items() if abs(value.mean) > value.width}
    assert {name for name, value in clear.items() if value.agreeing < 0.6 * len(value.by_file)} <= known


def test_files_can_be_left_out_and_counted():
    row = results.read_row("larger/fox5")
    deltas = (row.losses[2048] - row.losses[512]).mean(axis=0)
    written = ~np.isin(row.documents, (671, 672))
    assert np.sum(~written) == 13
    value = results.value_of("Δlarger/fox5@4 without 671,672")
    assert value.mean == pytest.approx(deltas[written].mean(), abs=1e-6)
    means = [deltas[row.documents == file].mean() for file in set(row.documents[written])]
    assert (value.agreeing, len(value.by_file)) == (np.sum(np.array(means) < 0), len(means))


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


def test_a_kept_result_says_only_what_differs_from_the_defaults():
    """So a new field of the model makes no file unreadable."""
    for path in (ROOT / "benchmark").rglob("*.npz"):
        with np.load(path) as arrays:
            if "about" not in arrays:  # of benchmark.clock
                continue
            about = json.loads(str(arrays["about"]))
        config = vars(GPTConfig(**about["model"]))
        assert not about["model"].items() & vars(GPTConfig()).items()
        assert not about["settings"].items() & config.items()
