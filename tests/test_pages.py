"""README and docs/results.md show what docs/evidence holds, and nothing else."""

import re
import shutil

import numpy as np
import pytest
from conftest import ROOT

import eval_length
from tools import pages


@pytest.fixture(scope="module")
def evidence():
    return pages.Evidence(ROOT / "docs" / "evidence")


@pytest.mark.parametrize("page", pages.PAGES)
def test_every_table_is_drawn_from_the_evidence(page, evidence):
    text = (ROOT / page).read_text()
    assert pages.redraw(text, evidence) == text, "run  python -m tools.pages"


def test_every_table_has_its_place_and_no_loss_is_typed_by_hand():
    drawn = []
    for page in pages.PAGES:
        text = (ROOT / page).read_text()
        drawn += re.findall(r"<!-- (\w+) -->", text)
        by_hand = re.sub(r"<!-- \w+ -->\n.*?<!-- end -->", "", text, flags=re.DOTALL)
        assert "±0" not in by_hand and "±1" not in by_hand
    assert sorted(name for name in drawn if name != "end") == sorted(pages.TABLES)


def test_runs_are_taken_over_and_drawn(trained, tmp_path, monkeypatch, few_documents, refused):
    """The means of what was kept are those that the evaluation found."""
    monkeypatch.setattr(pages, "BASELINE", r"(alibi|learnable)")
    names = ("alibi", "learnable")
    for name in names:
        shutil.copytree(trained(name), tmp_path / "out" / name)
    runs = [str(tmp_path / "out" / name) for name in names]
    eval_length.main([*runs, "--lengths=8,16,32", "--blocks=20", "--device=cpu", f"--results_dir={tmp_path}/results"])
    (tmp_path / "docs").mkdir()
    for name in names:
        pages.take_over(tmp_path / "out" / name, tmp_path / "docs" / "evidence")
    protocol, results, _ = pages.Evidence(tmp_path / "docs" / "evidence").of(r"\w+")
    assert protocol.lengths == [8, 16, 32] and results["learnable"]["rows"][32] is None
    with np.load(tmp_path / "out" / "alibi" / "length.npz") as losses:
        rows = results["alibi"]["rows"]
        assert {n: rows[n]["loss"] for n in rows} == pytest.approx({n: losses[str(n)].mean() for n in rows}, abs=1e-6)
    page = "before\n<!-- tuning -->\nold\n<!-- end -->\nafter"
    drawn = pages.redraw(page, pages.Evidence(tmp_path / "docs" / "evidence"))
    assert drawn.startswith("before\n<!-- tuning -->\n|  | rate |") and "\n| alibi | 0.004 |" in drawn
    with pytest.raises(ValueError, match="there is no table 'nothing'; there are: main_table"):
        pages.redraw(page.replace("tuning", "nothing"), None)
    with pytest.raises(ValueError, match=r"has no length.npz of rope: evaluate the runs"):
        pages.Evidence(tmp_path / "docs" / "evidence").of("rope")
