"""The pages hold the tables and figures that benchmark/ gives."""

import json
import re

import numpy as np
import pytest
from conftest import ROOT

from benchmark import results, tables
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


def test_exact_answers_are_those_of_the_models_that_learned_the_task():
    with np.load(ROOT / "benchmark/tasks/sort/none.npz") as kept:
        exact = {n: kept[f"exact-{n}"] for n in (5, 10, 20, 25, 30, 40)}
    learned = np.mean([exact[n] for n in (5, 10, 20)], axis=(0, 2)) >= 0.99
    assert list(learned) == [True, False, True]  # by looking
    expected = np.mean([exact[n][learned] for n in (25, 30, 40)])
    assert results.exact_value("sort/none").mean == pytest.approx(expected, abs=1e-6)
    with pytest.raises(ValueError, match="fewer than two models"):
        results.exact_value("sort/none - sort/rope")
    assert list(results.task_of("sort/none")[0]) == [5, 10, 20, 25, 30, 40, 80]  # ascending, as a curve needs them
    assert tables.exact("sort/none").startswith(f"{expected:.2f} ±")


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
