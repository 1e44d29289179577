"""The pages say what benchmark/ holds, and the statistics are right on texts and seeds like those kept there."""

import re
import shutil

import numpy as np
import pytest
from conftest import ROOT

from docs import benchmark, tables
from evaluation.statistics import contrasts, mean_intervals


def test_the_pages_hold_the_tables_and_figures_of_the_benchmark():
    drawn = "".join(tables.drawn(page) for page in tables.PAGES)
    assert drawn == "".join((ROOT / page).read_text() for page in tables.PAGES)
    generated = "".join(re.findall(r"<!-- (?!end).*?<!-- end -->", drawn, re.S))
    for figure in re.findall(r"[+-]?\d\.\d{3}\s+±\d\.\d{3}", drawn):  # even across lines
        assert " ".join(figure.split()) in generated, figure


@pytest.mark.parametrize("piece, k", [(".", 5), ("stdlib/baseline", 9)])
@pytest.mark.parametrize("multiple", [1, 16])
def test_intervals_and_all_pairs_cover_on_layouts_like_those_kept(piece, k, multiple):
    """Repetitions draw documents from those of the text, and three seeds with the spread of the k kept, while all means
    are 0. Means the share of intervals that contain 0, and of repetitions in which no pair is significant."""
    kept = {name: line for name, line in tables.lines(piece).items() if multiple in line.losses and line.seeds == k}
    documents, rng, covered = kept["alibi"].documents, np.random.default_rng(1), []
    blocks_of = [np.flatnonzero(documents == d) for d in np.unique(documents)]
    for _ in range(60):
        drawn = [blocks_of[d] for d in rng.integers(len(blocks_of), size=len(blocks_of))]
        of_each = np.repeat(np.arange(len(drawn)), [len(blocks) for blocks in drawn])
        values = {}
        for name, line in kept.items():
            losses = line.losses[multiple] - (line.losses[1] if multiple > 1 else 0)
            text, means = losses.mean(axis=0) - losses.mean(), losses.mean(axis=1)
            both = (losses - text - means[:, None])[rng.integers(k, size=3)] * rng.choice([-1, 1], size=(3, 1))
            seeds = means.std(ddof=1) * rng.standard_normal((3, 1))
            values[name] = seeds + (text + both * np.sqrt(k / (k - 1)))[:, np.concatenate(drawn)]
        intervals = [mean_intervals([losses[..., None]], of_each) for losses in values.values()]
        alone = [abs(mean[0]) <= width[0] for mean, width, _ in intervals]
        significant = [pair["significant"] for pair in contrasts(values, of_each, seed=0).values()]
        covered.append((np.mean(alone), not any(significant)))
    assert min(np.mean(covered, axis=0)) >= 0.93


def test_a_run_is_added_to_the_list_once(trained, tmp_path, monkeypatch):
    shutil.copytree(trained("rope"), tmp_path / "out/mine")
    monkeypatch.setattr(benchmark, "RUNS", tmp_path / "runs.csv")
    benchmark.RUNS.write_text("piece,name,seed,tuning_loss\nbaseline,rope,1,1.5\n")
    for _ in range(2):
        benchmark.main([tmp_path / "out/mine"])
    added = benchmark.read_runs()["baseline", "mine", "1337"]
    assert set(added) == {"piece", "name", "seed", "tuning_loss"} and 0 < float(added["tuning_loss"]) < 10
    assert list(benchmark.read_runs()) == [("baseline", "mine", "1337"), ("baseline", "rope", "1")]
