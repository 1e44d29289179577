"""README, docs/results.md and docs/replications.md show what docs/evidence holds, and nothing else."""

import json
import re
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import ROOT, plain_protocol

import eval_length
from tools import claims, pages


@pytest.fixture(scope="module")
def evidence():
    return pages.Evidence(ROOT / "docs" / "evidence")


def test_every_table_and_picture_is_drawn_from_the_evidence(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "evidence").symlink_to(ROOT / "docs" / "evidence")
    for page in pages.PAGES:
        shutil.copy(ROOT / page, tmp_path / page)
    assert pages.main([f"--root={tmp_path}"]) == 0
    for page in pages.PAGES:
        assert (tmp_path / page).read_text() == (ROOT / page).read_text(), "run  python -m tools.pages"
    drawn = {path.name for path in (tmp_path / "docs").glob("*.png")}
    assert drawn == {path.name for path in (ROOT / "docs").glob("*.png")}


def test_every_table_has_its_place_and_no_loss_is_typed_by_hand():
    drawn = []
    for page in pages.PAGES:
        text = (ROOT / page).read_text()
        drawn += re.findall(r"<!-- (\w+) -->", text)
        by_hand = re.sub(r"<!-- \w+ -->\n.*?<!-- end -->", "", text, flags=re.DOTALL)
        assert "±0" not in by_hand and "±1" not in by_hand
    assert sorted(name for name in drawn if name != "end") == sorted(pages.TABLES)


def test_runs_are_taken_over_and_drawn(trained, tmp_path, few_documents):
    """The means of what was kept are those that the evaluation found."""
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
    with pytest.raises(claims.NotMeasured, match=r"has no length.npz of rope: evaluate the runs"):
        pages.Evidence(tmp_path / "docs" / "evidence").of("rope")
    kept = tmp_path / "docs" / "evidence" / "alibi" / "length.npz"
    with np.load(kept) as losses:
        np.savez(kept, **{key: losses[key] for key in losses if key != "32"})
    with pytest.raises(ValueError, match="is of an unfinished evaluation: finish it, and take it over"):
        pages.Evidence(tmp_path / "docs" / "evidence").of("alibi")
    known = tmp_path / "docs" / "evidence" / "alibi" / "run.json"
    known.write_text(json.dumps(json.loads(known.read_text()) | {"weights": "others"}))
    with pytest.raises(ValueError, match="is of other weights than run.json: evaluate the run, and take it over again"):
        pages.Evidence(tmp_path / "docs" / "evidence").of("alibi")


def planted(seeds):
    """Evidence in which a − b is 0.1 in every block but for noise of 0.02, which 50 documents make small; c − b is 0.1 as
    well, but for a noise of 2."""
    rng, documents = np.random.default_rng(0), np.repeat(np.arange(50), 4)
    b, known = rng.normal(1, 0.3, 200), {"documents": documents, "ends": np.arange(200)}
    runs = {name: {s: {8: b + by + rng.normal(0, noise, 200), 16: b} | known for s in range(seeds)}
            for name, by, noise in (("a", 0.1, 0.02), ("b", 0.0, 0.02), ("c", 0.1, 2.0))}  # fmt: skip
    runs["elsewhere"] = {0: runs["a"][0] | {"ends": np.arange(1, 201)}}

    def of(pattern, stem):
        assert [bool(re.fullmatch(pattern, name)) for name in ("a-1", "a-b")] == [pattern.startswith("a"), False]
        return plain_protocol(), None, runs

    return SimpleNamespace(of=of)


@pytest.mark.parametrize("seeds", [1, 3])
def test_a_verdict_needs_whole_intervals(seeds):
    a, b, c = (claims.At(name, 8) for name in "abc")

    def judged(side, edge, *pairs):
        return claims.verdict(planted(seeds), pairs, side, edge)[0]

    assert [judged("above", edge, (a, b)) for edge in (0.05, 0.1, 0.15)] == [True, None, False]
    assert [judged("below", edge, (a, b)) for edge in (0.05, 0.1, 0.15)] == [False, None, True]
    assert [judged("within", edge, (b, a)) for edge in (0.05, 0.1, 0.15)] == [False, None, True]
    assert judged("above", 0.05, (a, b), (c, b)) is None  # the second may not be
    assert judged("above", 0.15, (c, b), (a, b)) is False  # the second surely is not
    assert judged("below", 0.07, (claims.At("a", (8, 16)), claims.At("b", 16)))  # the mean of 0.1 and 0
    assert judged("above", 0.05, (a._replace(base=16), b._replace(base=16)))


@pytest.mark.parametrize("seeds", [1, 3])
def test_an_interval_of_many_pairs_is_wider_and_needs_the_same_blocks(seeds):
    a, b = claims.At("a", 8), claims.At("b", 8)
    _, (mean, width), n = claims.verdict(planted(seeds), [(a, b)], "above", 0)
    assert n == seeds and abs(mean - 0.1) < width < 0.05
    assert claims.verdict(planted(seeds), [(a, b)] * 8, "above", 0)[1][1] > 1.2 * width
    with pytest.raises(ValueError, match="did not score the same blocks"):
        claims.difference(planted(seeds), a, claims.At("elsewhere", 8))


def test_runs_that_are_not_seeds_of_one_experiment_are_not_pooled(evidence):
    runs = {"rope": evidence.runs["rope"], "rope-512": evidence.runs["rope512"]}
    other = SimpleNamespace(runs=runs)
    with pytest.raises(
        ValueError, match="rope and rope-512 should be seeds of one experiment, but differ in .*block_size"
    ):
        pages.Evidence.check_seeds(other, runs)
    with pytest.raises(ValueError, match="differ in nothing, and have one seed"):
        pages.Evidence.check_seeds(
            SimpleNamespace(runs={"rope": runs["rope"], "rope-9": runs["rope"]}), ["rope", "rope-9"]
        )


def test_the_table_of_tuning_has_a_place_for_each_rate_and_size():
    def run(loss, **settings):
        chosen = {"learning_rate": 4e-3, "muon_lr": 0.04, "t5_size": 64.0, "seed": 1337}
        return {"settings": chosen | settings, "best_val_loss": loss}

    runs = {"t5": run(1.0), "tune-t5-2e-3": run(1.1, learning_rate=2e-3), "tune-t5-muon0.02": run(1.2, muon_lr=0.02),
            "tune-t5-16-8e-3": run(1.3, learning_rate=8e-3, t5_size=16.0), "rope": run(1.4),
            "tune-t5-muon0.08": run(1.5, muon_lr=0.08),
            "tune-t5-16-8e-3-1": run(1.6, learning_rate=8e-3, t5_size=16.0, seed=1)}  # fmt: skip
    _, _, *rows = pages.tuning(SimpleNamespace(runs=runs))
    assert rows == [
        "| rope | 0.004 |  | 1.400 |  |  |  |",
        "| t5, t5_size 16 | 0.004 |  |  | 1.300 |  |  |",
        "| t5, t5_size 64 | 0.004 | 1.100 | 1.000 |  | 1.200 | 1.500 |",
    ]
