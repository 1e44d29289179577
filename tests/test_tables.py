"""The pages hold the tables and figures that benchmark/ gives."""

import json
import re

import numpy as np
import pytest
from conftest import ROOT

from benchmark import results, tables
from evaluation.lines import Line
from model import GPTConfig


def test_the_pages_hold_the_tables_and_figures_of_the_benchmark():
    drawn = "".join(tables.drawn(page) for page in tables.PAGES)
    assert drawn == "".join((ROOT / page).read_text() for page in tables.PAGES)
    generated = "".join(re.findall(r"<!-- (?!end).*?<!-- end -->", drawn, re.S))
    text = re.sub(r"- \*\*Seen before\.\*\*.*?(?=\n- |\n\n|$)", "", drawn, flags=re.S)  # a card keeps what it said
    for figure in re.findall(r"[+-]?\d\.\d{3}\s+±\d\.\d{3}", text):  # even across lines
        assert " ".join(figure.split()) in generated, figure


def test_an_expression_is_the_mean_of_the_losses_it_names():
    arrays = {name: np.load(ROOT / f"benchmark/{name}.npz") for name in ("alibi", "rope", "window/rope-window128")}
    alibi, rope, window = (
        {n: array[n].astype(float).mean() for n in ("128", "256", "512", "2048")} for array in arrays.values()
    )
    for expression, expected in {
        "alibi - rope@16": alibi["2048"] - rope["2048"],
        "Δrope@2": rope["256"] - rope["128"],
        "Δrope@16/2": rope["2048"] - rope["256"],
        "alibi - window/rope-window128@2,4": (alibi["256"] + alibi["512"] - window["256"] - window["512"]) / 2,
        "Δalibi - Δrope@16": alibi["2048"] - alibi["128"] - rope["2048"] + rope["128"],
    }.items():
        assert results.value_of(expression).mean == pytest.approx(expected, abs=1e-6), expression
    with pytest.raises(ValueError, match="different blocks"):
        results.value_of("t256/rope - rope@16")


def test_a_kept_result_says_only_what_differs_from_the_defaults():
    """So a new field of the model makes no file unreadable."""
    for path in (ROOT / "benchmark").rglob("*.npz"):
        line = Line.read(path)
        with np.load(path) as arrays:
            about = json.loads(str(arrays["about"]))
        assert all(value != getattr(GPTConfig, key) for key, value in about["model"].items())
        assert not about["settings"].items() & vars(line.config).items()
