import inspect
import io
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import wandb
from conftest import ROOT, prepare, wandb_records, write_texts

import eval_length
import train
from evaluation.lines import Line, measured_before
from evaluation.windows import Scorer
from model import scheme_names
from run import files
from run.checkpoint import load_checkpoint
from schemes import _rope_scaling

SCORE = "evaluation.windows.Scorer.score"

pytestmark = pytest.mark.usefixtures("few_documents")


@pytest.fixture(scope="module")
def runs(trained, tmp_path_factory):
    """A folder with a run of every scheme, trained at 16 tokens for some steps, that only these tests measure."""
    root = tmp_path_factory.mktemp("runs")
    for scheme in scheme_names():
        shutil.copytree(trained(scheme), root / scheme, ignore=shutil.ignore_patterns("length*"))
    return root


@pytest.fixture
def seeds(runs, trained, tmp_path):
    """seeds(scheme): the folders of three runs of a scheme that differ in their seed."""

    def folders(scheme):
        copies = [shutil.copytree(trained(scheme, seed=n), tmp_path / f"{scheme}-{n}") for n in (1, 2)]
        return [runs / scheme, *copies]

    return folders


def losses(results, run, key="loss"):
    """{length: mean}, without the lengths at which the scheme is undefined."""
    values = results.runs[run]["values"][key]
    return {int(n): value["mean"] for n, value in values.items() if value}


# ----------------------------------------------------------------------------------------------------------
# What is measured and shown


def test_the_table_the_numbers_the_picture_and_the_losses_of_all_schemes(runs, evaluate, tmp_path):
    results = evaluate(*(runs / scheme for scheme in scheme_names()))
    assert list(results.runs) == scheme_names()
    for scheme in scheme_names():
        means = losses(results, scheme)
        assert list(means) == ([4, 8, 16] if scheme == "learnable" else [4, 8, 16, 32, 64, 128, 256])
        assert losses(results, scheme, "delta") == pytest.approx({n: loss - means[16] for n, loss in means.items()})
    assert "rise" not in results.runs["learnable"]
    assert [*(tmp_path / "results").glob("length-??????.png")]
    [path] = (runs / "alibi").glob("length-*.npz")
    with np.load(path) as raw:
        assert raw["64"].shape == raw["ends"].shape == raw["documents"].shape == (20,)
        assert losses(results, "alibi")[64] == pytest.approx(raw["64"].mean())


@pytest.mark.parametrize("width", [200, 60])
def test_results_too_many_for_the_terminal_have_a_row_each(runs, evaluate, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    results = evaluate(*(runs / scheme for scheme in ("alibi", "none", "rope")))
    rows = [line.split() for line in results.out.splitlines()]
    printed = {str(n): f"{loss:.3f}" for n, loss in losses(results, "alibi").items()}
    if width == 60:
        assert ["loss", "at", *printed] in rows and ["alibi", *printed.values()] in rows
    else:
        assert ["context", "alibi", "Δ", "none", "Δ", "rope", "Δ"] in rows
        assert printed.items() <= {tuple(row[:2]) for row in rows}


def test_the_ranking_has_the_lowest_loss_first_and_differences_to_it(runs, seeds, evaluate, tmp_path):
    out = evaluate(*seeds("rope"), *seeds("alibi"), runs / "learnable", f"--keep={tmp_path}/kept").out
    arrays = {name: Line.read(tmp_path / "kept" / name).arrays for name in ("rope", "alibi")}
    best, other = sorted(arrays, key=lambda name: arrays[name]["256"].mean())
    _, first, second, third, *_ = out.split("minus first")[-1].splitlines()
    assert [row.split()[0] for row in (first, second, third)] == [best, other, "learnable"]
    for n in ("16", "256"):
        assert f"{arrays[other][n].mean() - arrays[best][n].mean():+.3f} ±" in second


def test_a_text_of_few_documents_has_no_interval_and_a_note_says_so(runs, evaluate, monkeypatch):
    monkeypatch.undo()  # intervals need 20 documents again
    results = evaluate(runs / "rope")
    assert results.runs["rope"]["values"]["delta"]["64"]["low"] is None
    assert "note: 2 documents" in results.out and "undecided" in results.out


@pytest.mark.parametrize(
    "protocol, extra",
    [("sliding", "delta"), ("nonoverlapping", "real"), ("position", "delta"), ("context", "over_shuffled")],
)
def test_every_other_protocol_runs_over_all_schemes_and_shades_what_it_draws(
    runs, evaluate, tmp_path, monkeypatch, protocol, extra
):
    shaded = []
    fill_between = "matplotlib.axes.Axes.fill_between"
    monkeypatch.setattr(fill_between, lambda axes, x, low, high, **style: shaded.append((low, high)))
    folders = [runs / scheme for scheme in scheme_names()]
    results = evaluate(*folders, f"--protocol={protocol}", "--blocks=6", "--lengths=8,16,32,64", "--delta")
    assert results.blocks == 6
    for scheme in scheme_names():
        for key in ("loss", extra):
            assert (32 in losses(results, scheme, key)) == (scheme != "learnable")
    if protocol != "context":  # which draws no loss
        for (low, high), scheme in zip(shaded, scheme_names(), strict=True):
            means = losses(results, scheme, "delta").values()
            assert all(a <= mean <= b for a, mean, b in zip(low, means, high, strict=True))
    assert [*(tmp_path / "results").glob(f"length-{protocol}-*.png")]


def test_scalings_and_a_window(runs, evaluate):
    plain = losses(evaluate(runs / "rope"), "rope")
    scaled = losses(evaluate(runs / "rope", "--rope_scaling=yarn"), "rope")
    assert scaled[16] == plain[16] and scaled[64] != plain[64]  # auto: nothing is scaled up to the training length
    windowed = losses(evaluate(runs / "rope", "--window=8"), "rope")
    assert windowed[8] == pytest.approx(plain[8], abs=1e-6)  # a context of 8 fits into the window
    assert windowed[64] == pytest.approx(windowed[8], abs=1e-5)  # one layer sees no further
    assert plain[64] != pytest.approx(plain[8], abs=1e-4)


def test_wandb_has_the_curves_of_all_runs(runs, evaluate, tmp_path, monkeypatch):
    monkeypatch.delenv("WANDB_MODE")
    monkeypatch.chdir(tmp_path)
    wandb.teardown()  # it remembers the folder of an earlier test
    results = evaluate(runs / "sinusoidal", runs / "learnable", "--seed=3", "--wandb_mode=offline")
    for name in results.runs:
        [log] = tmp_path.glob(f"wandb/offline-run-*-{name}-length-*/*.wandb")
        records = wandb_records(log)
        rows = [record["history"]["item"] for record in records if "history" in record]
        for key in ("loss", "delta"):
            curve = {row["x/context"]: row[f"length/{key}"] for row in rows if f"length/{key}" in row}
            assert curve == pytest.approx(losses(results, name, key))
        assert any(record.get("metric", {}).get("step_metric") == "x/context" for record in records)


# ----------------------------------------------------------------------------------------------------------
# Measurements are not repeated, lost or mixed up


@pytest.mark.parametrize("failing", ["run.files.locked", "eval_length.write_arrays"])
def test_a_run_is_measured_also_where_nothing_can_be_kept(failing, runs, evaluate, monkeypatch):
    before = evaluate(runs / "rope", "--seed=31").runs
    names = sorted(runs.glob("rope/*"))
    monkeypatch.setattr(failing, mock.Mock(side_effect=OSError(30, "Read-only")))
    out = evaluate(runs / "rope", "--seed=32").out
    assert out.count("Read-only") == 1 and "rope: 0:0" in out and names == sorted(runs.glob("rope/*"))
    monkeypatch.setattr(SCORE, None)
    assert evaluate(runs / "rope", "--seed=31").runs == before


def test_what_was_measured_is_kept_and_logged_before_it_is_drawn(runs, evaluate, tmp_path, monkeypatch):
    logged = []
    outcomes = iter([False, True])
    keep = f"--keep={tmp_path}/kept"

    def publish(charts, *rest):
        assert (tmp_path / "kept" / "rope.npz").exists()
        logged.extend(charts)
        return next(outcomes)

    def fail(*args):
        assert logged
        raise RuntimeError("no\nlatex")

    monkeypatch.setattr(eval_length.tracking, "publish", publish)
    monkeypatch.setattr(eval_length, "draw", fail)
    for n in (1, 2, 2):  # the first call does not reach wandb, and the third has nothing to log
        assert "cannot draw" in evaluate(runs / "rope", "--seed=33", keep).out.splitlines()[-1]
        assert logged == ["rope"] * n


def test_nothing_is_measured_twice(runs, evaluate, monkeypatch):
    flags = runs / "alibi", runs / "learnable", "--seed=21"
    fewer = [*flags, "--blocks=5"]
    before = evaluate(*flags)
    assert evaluate(*fewer).runs != before.runs
    monkeypatch.setattr(SCORE, None)  # a second computation would fail
    assert evaluate(*fewer).blocks == 5
    again = evaluate(*flags)
    assert again.runs == before.runs and again.out.count("measured before") == 2
    with pytest.raises(TypeError):
        evaluate(*flags, "--seed=22")

    def edited(module, getsource=inspect.getsource):
        return getsource(module) + "# edited" * (module is _rope_scaling)

    monkeypatch.setattr(inspect, "getsource", edited)
    with pytest.raises(TypeError):
        evaluate(*flags)


def test_an_interrupted_measurement_resumes(runs, evaluate, monkeypatch):
    flags = runs / "none", "--seed=11", "--block_tokens=1"
    lengths = []
    score = Scorer.score

    def interrupt(scorer, windows, scored):
        lengths.append(windows.size(1) - 1)
        if len(lengths) == 4:
            raise KeyboardInterrupt
        return score(scorer, windows, scored)

    monkeypatch.setattr(SCORE, interrupt)
    with pytest.raises(KeyboardInterrupt):
        evaluate(*flags)
    evaluate(*flags)
    assert lengths == [4, 8, 16, 32, 32, 64, 128, 256]
    evaluate(*flags, "--lengths=8,64,256")  # a part of what is there
    assert len(lengths) == 8


def test_a_killed_evaluation_leaves_nothing_after_the_next_call(runs, evaluate, tmp_path):
    run = shutil.copytree(runs / "none", tmp_path / "none", ignore=shutil.ignore_patterns("length*"))
    kill = "import os, sys, eval_length; os.fsync = lambda fd: os.kill(os.getpid(), 9)"
    command = [
        sys.executable,
        "-c",
        f"{kill}; eval_length.main(sys.argv[1:])",
        run,
        f"--results_dir={tmp_path}",
        "--blocks=20",
    ]
    assert subprocess.run(command, cwd=ROOT, capture_output=True).returncode == -signal.SIGKILL
    assert {path.suffix for path in run.glob(".*")} == {".lock", ".tmp"}
    evaluate(run)
    assert not [*run.glob(".*")]


def test_two_evaluations_of_one_run_wait_for_each_other(runs, tmp_path):
    command = [sys.executable, eval_length.__file__, runs / "rope", "--blocks=5", f"--results_dir={tmp_path}"]
    foreign = os.environ | {"MPLBACKEND": "module://of_a_notebook", "MATPLOTLIBRC": str(tmp_path)}
    (tmp_path / "matplotlibrc").write_text("text.usetex: True")
    with files.locked(runs / "rope", ".evaluation.lock"):
        process = subprocess.Popen(command, env=foreign, stdout=subprocess.PIPE, text=True)
        assert process.stdout.readline().startswith("waiting")
    out = process.communicate()[0]
    assert "rope: 0:0" in out and "picture " in out and process.returncode == 0


def test_every_comparison_has_files_of_its_own(runs, evaluate, tmp_path):
    none = runs / "none"
    elsewhere = shutil.copytree(none, tmp_path / "elsewhere" / "none")  # another run of the same name
    for others in ([runs / "rope"], [runs / "alibi"], [], ["--blocks=5"], ["--blocks=5"]):
        evaluate(none, *others)
    evaluate(elsewhere)
    assert len([*(tmp_path / "results").glob("length-??????.png")]) == 5


def archive(**arrays):
    """The bytes of an .npz file."""
    np.savez(file := io.BytesIO(), **arrays)
    return file.getvalue()


def test_losses_in_files_are_read_safely(tmp_path):
    path = tmp_path / "length.npz"
    assert measured_before(path, 8) == {}
    whole = archive(inputs="x", losses=np.arange(8.0))
    path.write_bytes(whole)
    assert measured_before(path, 8)["losses"].tolist() == [*range(8)]
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    invalid = np.array([object()]), np.ones(3), np.full(8, np.nan)
    for content in (whole[:-1], flipped, *(archive(losses=values) for values in invalid)):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=str(path)):
            measured_before(path, 8)


# ----------------------------------------------------------------------------------------------------------
# Which runs are compared, and kept results


def test_runs_on_different_text_are_compared_only_on_a_named_one(runs, trained, evaluate, tmp_path, dataset, refused):
    other = prepare(tmp_path, write_texts(tmp_path / "texts", n=22)).name
    (tmp_path / "text.txt").write_text("another alphabet\n" * 200)
    foreign = prepare(tmp_path, tmp_path / "text.txt", name="foreign").name
    both = runs / "rope", trained("alibi", dataset=other)
    message = refused(eval_length.main, *both)
    assert f"rope on {dataset}" in message and f"alibi on {other}" in message and "--dataset" in message
    assert foreign in refused(eval_length.main, *both, f"--dataset={foreign}")
    assert evaluate(*both, f"--dataset={dataset}").text["name"] == dataset


def test_a_note_names_the_settings_in_which_runs_differ(runs, trained, evaluate, tmp_path):
    alike = runs / "rope", runs / "t5"
    alibi = trained("alibi", max_iters=3)
    keep = f"--keep={tmp_path}/kept"
    note = "differ in max_iters: 4 in most, 3 in alibi\n"
    assert note in evaluate(*alike, alibi).out
    assert "differ in" not in evaluate(*alike, keep).out
    assert note in evaluate(alibi, keep).out  # it differs from the results in the folder


def test_seeds_of_one_experiment_are_one_row_and_so_is_its_kept_result(runs, seeds, evaluate, tmp_path, monkeypatch):
    ropes = seeds("rope")
    before = evaluate(*ropes, runs / "learnable", runs / "alibi", f"--keep={tmp_path}/kept")
    assert list(before.runs) == ["rope", "learnable", "alibi"] and before.runs["rope"]["seeds"] == [1337, 1, 2]
    monkeypatch.setattr(SCORE, None)  # nothing is measured again
    kept = [tmp_path / "kept" / name for name in ("rope.npz", "learnable", "alibi")]
    after = evaluate(*kept)
    for name in before.runs:
        assert losses(after, name) == pytest.approx(losses(before, name))
    for key, value in before.runs["rope"]["values"]["loss"]["64"].items():  # mean, low, high, seeds
        assert after.runs["rope"]["values"]["loss"]["64"][key] == pytest.approx(value)
    assert len(evaluate(*ropes, kept[0]).runs) == 2  # not pooled, although the settings are the same


def test_runs_that_start_from_runs_of_their_own_seed_are_one_row(runs, seeds, evaluate, tmp_path):
    _, *sources = seeds("rope")
    further = []
    for seed, source in enumerate([*sources, runs / "alibi"], start=1):
        further.append(tmp_path / f"more-{seed}")
        train.main([f"--init_from={source}", f"--seed={seed}", f"--out_dir={further[-1]}", "--max_iters=1"])
    assert [result["seeds"] for result in evaluate(*further).runs.values()] == [[1, 2], [3]]


def test_a_kept_result_is_written_whole(runs, seeds, evaluate, tmp_path, refused):
    paths = seeds("rope")
    keep = f"--keep={tmp_path}/kept"
    evaluate(*paths, keep)
    path = tmp_path / "kept" / "rope.npz"
    before = path.read_bytes()
    assert "seed 2" in refused(eval_length.main, *paths[:2], keep)
    stopped = replace(load_checkpoint(paths[0]), step=3)
    stopped.save(tmp_path / "stopped" / "latest.pt")
    assert "step 3 of 4" in refused(eval_length.main, tmp_path / "stopped", keep)
    assert f"{keep}\n" in refused(eval_length.main, paths[0], f"--keep={path}")
    layers = "--layers=window=1/2 temperature=.1"
    for flags in (["--window=8"], ["--max_position=300"], ["--rope_scaling=yarn", "--window=8"], [layers]):
        evaluate(paths[0], *flags, keep)
    names = {"rope.npz", "rope-window8.npz", "rope-max_position300.npz", "rope-window8-yarn.npz"}
    names.add("rope-window1_2_temperature.1.npz")
    assert {path.name for path in (tmp_path / "kept").iterdir()} == names
    assert Line.read(tmp_path / "kept" / "rope-window8").config.window == 8
    assert path.read_bytes() == before


def test_a_kept_result_of_other_blocks_or_with_damage_is_refused(runs, evaluate, tmp_path, refused):
    line = f"{tmp_path}/kept/alibi"
    evaluate(runs / "alibi", f"--keep={tmp_path}/kept")

    def message(*flags):
        return refused(eval_length.main, line, "--blocks=20", *flags)

    for flag, measured in {
        "--seed=2": "--seed=1337",
        "--lengths=8,16,32": "--lengths=4,8,16,32,64,128,256",
        "--blocks=10": "--blocks=20",
        "--protocol=sliding": "--protocol=fixed",
        "--window=4": "--window=4",  # changes the model
    }.items():
        assert line in message(flag) and measured in message(flag)
    other = prepare(tmp_path, write_texts(tmp_path / "texts"))
    assert line in message(f"--dataset={other.name}")
    content = Path(f"{line}.npz").read_bytes()
    empty = archive(about='{"runs": []}', ends=[1], documents=[1])
    for damaged in (content[:-9], archive(about="{}"), empty):
        Path(f"{line}.npz").write_bytes(damaged)
        assert f"{line}.npz" in message()
