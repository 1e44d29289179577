import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import wandb
from conftest import ROOT, prepare, wandb_records, write_texts
from hypothesis import given
from hypothesis import strategies as st

import data
import eval_length
import train
from data import Split
from eval_length import choose_blocks, choose_lengths, score
from evaluation import rows
from evaluation.rows import Row
from evaluation.statistics import interval
from model import scheme_names
from run.checkpoint import load_checkpoint

pytestmark = pytest.mark.usefixtures("few_documents")
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def runs(trained, tmp_path_factory):
    """A folder with a run of every scheme, trained at 16 tokens for some steps, that only these tests measure."""
    root = tmp_path_factory.mktemp("runs")
    for scheme in scheme_names():
        shutil.copytree(trained(scheme), root / scheme, ignore=shutil.ignore_patterns("scores*"))
    return root


@pytest.fixture
def seeds(runs, trained, tmp_path):
    """seeds(scheme): the folders of three runs of a scheme that differ in their seed."""

    def folders(scheme):
        copies = [shutil.copytree(trained(scheme, seed=n), tmp_path / f"{scheme}-{n}") for n in (1, 2)]
        return [runs / scheme, *copies]

    return folders


def numbers(results, run, key="loss"):
    """{length: number} of a row, where its scheme is defined."""
    return {int(n): value[key] for n, value in results.rows[str(run)]["lengths"].items()}


# ----------------------------------------------------------------------------------------------------------
# What is scored


@pytest.mark.parametrize("trained, first", [(8, 2), (16, 4), (100, 25), (128, 32)])
def test_the_default_lengths_are_doubled_up_to_16_times_the_training_length(trained, first):
    lengths = choose_lengths(eval_length.EvalConfig(runs=("x",)), {trained})
    assert lengths == [first * 2**i for i in range(7)]


@given(
    st.lists(st.integers(1, 400), min_size=1, max_size=12),
    st.integers(4, 64),
    st.integers(1, 8),
    st.integers(2, 20),
    st.integers(0, 9),
)
def test_blocks_do_not_overlap_and_stay_in_their_document_where_they_can(sizes, longest, scored, n, seed):
    n_tokens = sum(sizes)
    starts = np.cumsum([0, *sizes[:-1]])
    split = Split(np.zeros(n_tokens, np.uint16), starts, 1)
    first = max(longest, n_tokens // 2 + scored)  # past the part by which settings are chosen
    candidates = np.arange(first, n_tokens, scored)
    if len(candidates) < 2:
        with pytest.raises(ValueError, match="--lengths"):
            choose_blocks(split, longest, scored, n, seed)
        return
    ends, documents = choose_blocks(split, longest, scored, n, seed)
    chosen = np.isin(candidates, ends)
    assert len(ends) == min(n, len(candidates)) == chosen.sum()
    begins = np.array([starts[starts <= end].max() for end in candidates])  # of their documents
    assert starts[documents].tolist() == begins[chosen].tolist()
    fits = candidates - longest >= begins
    if not fits[chosen].all():
        assert not fits[~chosen].any()


@pytest.mark.parametrize("scheme", scheme_names())
def test_losses_equal_one_plain_forward_pass_for_each_window(trained, dataset, scheme):
    model = load_checkpoint(trained(scheme)).model("cpu")
    split = data.load(dataset).val
    for length in (4, 16) if model.config.max_positions else (16, 64):
        windows = split.windows(np.array([100, 200, 333]), length)
        losses, right = score(model, windows, 3, CPU, torch.float32)
        for window, got, is_right in zip(windows, losses, right, strict=True):
            logits, _ = model(window[None, :-1], window[None, 1:])
            expected = F.cross_entropy(logits[0, -3:], window[-3:], reduction="none")
            np.testing.assert_allclose(got, expected.detach(), atol=1e-5)
            assert is_right.tolist() == (logits[0, -3:].argmax(-1) == window[-3:]).tolist()


def test_positions_are_sampled_as_densely_as_in_training(trained, dataset, monkeypatch):
    """A context of 8 tokens, half of the training length, lies among the first half of 16 positions below 64."""
    model = load_checkpoint(trained("rope")).model("cpu")
    hidden = model.hidden
    seen = []
    monkeypatch.setattr(model, "hidden", lambda idx, last, positions: seen.append(positions) or hidden(idx, last=last))
    for length in (8, 32):
        score(model, data.load(dataset).val.windows(np.array([0]), length), 2, CPU, torch.float32, max_position=64)
        assert torch.equal(seen.pop(), data.sampled_positions(max(length, 16), 64, (length, 0))[:length])


# ----------------------------------------------------------------------------------------------------------
# What is shown


def test_the_table_the_numbers_the_picture_and_the_losses_of_all_schemes(runs, evaluate, tmp_path):
    results = evaluate(*(runs / scheme for scheme in scheme_names()), f"--keep={tmp_path}/kept")
    assert results.rows.keys() == {str(runs / scheme) for scheme in scheme_names()}
    for scheme in scheme_names():
        means = numbers(results, runs / scheme)
        assert list(means) == ([4, 8, 16] if scheme == "learnable" else [4, 8, 16, 32, 64, 128, 256])
        deltas = numbers(results, runs / scheme, "delta")
        assert deltas == pytest.approx({n: loss - means[16] for n, loss in means.items()})
        assert f"{means[4]:.3f}" in results.out
    assert results.rows[str(runs / "learnable")]["rise"] is None
    assert list(results.rows)[-1] == str(runs / "learnable")  # undefined at the longest length
    assert [*(tmp_path / "results").glob("length-??????.png")]
    kept = Row.read(tmp_path / "kept" / "alibi.npz")
    assert kept.arrays["64"].shape == (1, 20) and kept.arrays["64-tokens"].shape == (1, 20, 1)
    assert numbers(results, runs / "alibi")[64] == pytest.approx(kept.arrays["64"].mean(), abs=1e-6)
    np.testing.assert_allclose(kept.arrays["64-tokens"].mean(axis=2), kept.arrays["64"], rtol=1e-3)


def test_the_first_run_named_is_the_reference_and_rows_of_the_same_models_are_paired(runs, seeds, evaluate, tmp_path):
    ropes = seeds("rope")
    for flag in ("--window=16", "--window=0"):
        evaluate(*ropes, flag, f"--keep={tmp_path}")
    paths = tmp_path / "rope.npz", tmp_path / "rope-window16.npz"
    plain, windowed = map(Row.read, paths)
    results = evaluate(*ropes, runs / "none", paths[1])
    assert f"minus {runs / 'rope'} at" in results.out and plain.models == windowed.models
    for n in (16, 256):
        shown = results.rows[str(paths[1])]["lengths"][str(n)]
        expected = interval([windowed.losses[n] - plain.losses[n]], plain.documents)
        assert (shown["minus"], shown["minus_width"]) == pytest.approx(expected, abs=1e-6)
    lowest = min(paths, key=lambda path: Row.read(path).losses[256].mean())
    assert f"minus {lowest} at" in evaluate(*paths).out  # without runs


def test_a_text_of_few_documents_has_no_interval_and_a_note_says_so(runs, evaluate, monkeypatch):
    monkeypatch.undo()  # intervals need 20 documents again
    results = evaluate(runs / "rope")
    assert numbers(results, runs / "rope", "delta_width")[64] is None
    assert "needs 20 documents" in results.out and "undecided" in results.out


def test_scalings_and_a_window(runs, evaluate):
    rope = runs / "rope"
    plain = numbers(evaluate(rope), rope)
    scaled = evaluate(rope, "--rope_scaling=yarn")
    assert "--rope_factor=8" in scaled.out  # by default, the factor follows the length
    scaled = numbers(scaled, f"{rope} rope_scaling=yarn")
    assert scaled[16] == plain[16] and scaled[64] != plain[64]
    fixed = evaluate(rope, "--rope_scaling=yarn", "--rope_factor=4")
    assert numbers(fixed, f"{rope} rope_scaling=yarn rope_factor=4.0")[16] != plain[16]
    windowed = numbers(evaluate(rope, "--window=8"), f"{rope} window=8")
    assert windowed[8] == pytest.approx(plain[8], abs=1e-6)  # a context of 8 fits into the window
    assert windowed[64] == pytest.approx(windowed[8], abs=1e-5)  # one layer sees no further
    assert plain[64] != pytest.approx(plain[8], abs=1e-4)


def test_wandb_has_the_curves_of_the_runs_and_not_of_kept_results(runs, evaluate, tmp_path, monkeypatch):
    evaluate(runs / "alibi", "--seed=3", f"--keep={tmp_path}")
    monkeypatch.delenv("WANDB_MODE")
    monkeypatch.chdir(tmp_path)
    wandb.teardown()  # it remembers the folder of an earlier test
    flags = "--seed=3", "--wandb_mode=offline"
    results = evaluate(runs / "sinusoidal", runs / "learnable", tmp_path / "alibi.npz", *flags)
    assert len([*tmp_path.glob("wandb/offline-run-*")]) == 2
    for name in ("sinusoidal", "learnable"):
        [log] = tmp_path.glob(f"wandb/offline-run-*{name}-length-*/*.wandb")
        records = wandb_records(log)
        items = [record["history"]["item"] for record in records if "history" in record]
        x = "x/log2 of the length"
        for key in ("loss", "delta"):
            curve = {2 ** item[x]: item[f"length/{key}"] for item in items if f"length/{key}" in item}
            assert curve == pytest.approx(numbers(results, runs / name, key))
        assert any(record.get("metric", {}).get("step_metric") == x for record in records)


# ----------------------------------------------------------------------------------------------------------
# Measurements are not repeated, lost or mixed up


def test_what_was_measured_is_kept_and_logged_before_it_is_drawn(runs, evaluate, tmp_path, monkeypatch):
    logged = []

    def publish(charts, *rest):
        assert (tmp_path / "kept" / "rope.npz").exists()
        logged.extend(charts)

    def fail(*args):
        assert logged == ["rope"]
        raise RuntimeError("no\nlatex")

    monkeypatch.setattr(eval_length.tracking, "publish", publish)
    monkeypatch.setattr(eval_length, "draw_losses", fail)
    out = evaluate(runs / "rope", f"--keep={tmp_path}/kept").out
    assert "cannot draw" in out.splitlines()[-1]


@pytest.fixture
def measured(monkeypatch):
    """The lengths that are measured, as they are measured."""
    lengths = []
    monkeypatch.setattr(
        eval_length,
        "score",
        lambda model, windows, *rest: lengths.append(windows.size(1) - 1) or score(model, windows, *rest),
    )
    return lengths


def test_nothing_is_measured_twice_unless_something_that_counts_has_changed(
    runs, evaluate, measured, tmp_path, monkeypatch
):
    alibi = shutil.copytree(runs / "alibi", tmp_path / "alibi", ignore=shutil.ignore_patterns("scores*"))
    before = evaluate(alibi, "--lengths=8,16,32").rows
    assert measured == [8, 16, 32]
    assert evaluate(alibi, "--lengths=8,16,32").rows == before
    assert len(measured) == 3
    for flag in ("--blocks=5", "--seed=2", "--attention_temperature=.1", "--window=8", "--dtype=bfloat16"):
        evaluate(alibi, "--lengths=8,16,32", flag)
    assert len(measured) == 3 + 5 * 3
    read_text = Path.read_text

    def edited(path, by="# a comment", **encoding):
        return read_text(path, **encoding) + by * (path.name == "model.py")

    monkeypatch.setattr(Path, "read_text", edited)
    n = len(measured)
    evaluate(alibi, "--lengths=8,16,32")
    assert len(measured) == n
    monkeypatch.setattr(Path, "read_text", lambda path, **encoding: edited(path, "\nx = 1", **encoding))
    evaluate(alibi, "--lengths=8,16,32")
    assert len(measured) == n + 3


def test_a_hash_covers_the_files_that_a_schemes_file_imports(trained, monkeypatch):
    config = load_checkpoint(trained("alibi_offset")).config
    before = rows.code_hash(config)
    read_text = Path.read_text
    for name, counts in {"key_offset.py": True, "alibi_offset.py": True, "fox.py": False}.items():
        monkeypatch.setattr(
            Path, "read_text", lambda path, name=name: read_text(path) + "\nx = 1" * (path.name == name)
        )
        assert (rows.code_hash(config) != before) == counts


def test_an_interrupted_measurement_resumes_and_a_damaged_file_is_named(runs, evaluate, measured, monkeypatch, refused):
    def interrupt(model, windows, *rest):
        if windows.size(1) == 65:
            raise KeyboardInterrupt
        return score(model, windows, *rest)

    flags = runs / "none", "--seed=11"
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(eval_length, "score", interrupt)
        evaluate(*flags)
    before = {*runs.glob("none/scores*")}
    evaluate(*flags)
    assert measured == [64, 128, 256]
    (path, *_) = {*runs.glob("none/scores*")} - before
    path.write_bytes(path.read_bytes()[:-9])
    assert str(path) in refused(eval_length.main, *flags, "--blocks=20")


def test_a_killed_evaluation_leaves_nothing_after_the_next_call(runs, evaluate, tmp_path):
    run = shutil.copytree(runs / "none", tmp_path / "none", ignore=shutil.ignore_patterns("scores*"))
    kill = "import os, sys, eval_length; os.fsync = lambda fd: os.kill(os.getpid(), 9)"
    flags = [run, f"--results_dir={tmp_path}", "--blocks=20"]
    command = [sys.executable, "-c", f"{kill}; eval_length.main(sys.argv[1:])", *flags]
    assert subprocess.run(command, cwd=ROOT, capture_output=True).returncode == -signal.SIGKILL
    assert {path.suffix for path in run.glob(".*")} == {".tmp"}
    evaluate(run)
    assert not [*run.glob(".*")]


# ----------------------------------------------------------------------------------------------------------
# Which runs are compared, and kept results


def test_runs_on_different_text_are_compared_only_on_a_named_one(runs, trained, evaluate, tmp_path, dataset, refused):
    other = prepare(tmp_path, write_texts(tmp_path / "texts", n=22)).name
    (tmp_path / "text.txt").write_text("another alphabet\n" * 200)
    foreign = prepare(tmp_path, tmp_path / "text.txt", name="foreign").name
    both = runs / "rope", trained("alibi", dataset=other)
    message = refused(eval_length.main, *both)
    assert str(trained("alibi", dataset=other)) in message and f"--dataset={dataset}" in message
    assert foreign in refused(eval_length.main, *both, f"--dataset={foreign}")
    assert evaluate(*both, f"--dataset={dataset}").text["name"] == dataset


def test_a_note_names_the_settings_in_which_rows_differ(runs, trained, evaluate):
    alibi = trained("alibi", max_iters=3)
    out = evaluate(runs / "rope", runs / "t5", alibi).out
    assert f"unlike {runs / 'rope'}, {alibi} has max_iters=3\n" in out and out.count("unlike") == 1


def test_seeds_of_one_experiment_are_one_row_and_so_is_its_kept_result(runs, seeds, evaluate, tmp_path, monkeypatch):
    ropes = seeds("rope")
    before = evaluate(*ropes, runs / "learnable", f"--keep={tmp_path}/kept").rows[str(runs / "rope")]
    assert before["seeds"] == [1337, 1, 2]
    monkeypatch.setattr(eval_length, "score", None)  # nothing is measured again
    path = tmp_path / "kept" / "rope.npz"
    after = evaluate(path, tmp_path / "kept" / "learnable.npz").rows[str(path)]
    for key, value in before["lengths"]["64"].items():
        if not key.startswith("minus"):
            assert after["lengths"]["64"][key] == pytest.approx(value, abs=1e-6)
    assert len(evaluate(*ropes, path).rows) == 2  # not pooled, although the settings are the same


def test_runs_that_start_from_runs_of_their_own_seed_are_one_row(runs, seeds, evaluate, tmp_path):
    _, *sources = seeds("rope")
    further = []
    for seed, source in enumerate([*sources, runs / "alibi"], start=1):
        further.append(tmp_path / f"more-{seed}")
        train.main([f"--init_from={source}", f"--seed={seed}", f"--out_dir={further[-1]}", "--max_iters=1"])
    assert sorted(row["seeds"] for row in evaluate(*further).rows.values()) == [[1, 2], [3]]


def test_a_kept_result_is_written_whole_and_named_by_what_was_changed(runs, seeds, evaluate, tmp_path, refused):
    paths = seeds("rope")
    keep = f"--keep={tmp_path}/kept"
    evaluate(*paths, keep)
    path = tmp_path / "kept" / "rope.npz"
    before = path.read_bytes()
    assert "seed 2" in refused(eval_length.main, *paths[:2], keep)
    layers = "--layers=window=1/2 temperature=.1"
    for flags in (["--window=8"], ["--max_position=300"], ["--rope_scaling=yarn"], [layers]):
        evaluate(paths[0], *flags, keep)
    names = {"rope.npz", "rope-window8.npz", "rope-max_position300.npz", "rope-yarn.npz"}
    names.add("rope-window1_2_temperature.1.npz")
    assert {path.name for path in (tmp_path / "kept").iterdir()} == names
    assert Row.read(tmp_path / "kept" / "rope-window8.npz").about["model"]["window"] == 8
    assert path.read_bytes() == before


def test_a_kept_result_of_other_targets_or_with_damage_is_refused(runs, evaluate, tmp_path, refused):
    path = tmp_path / "kept" / "alibi.npz"
    evaluate(runs / "alibi", f"--keep={tmp_path}/kept")

    def message(*flags):
        return refused(eval_length.main, path, "--blocks=20", *flags)

    for flag in ("--seed=2", "--lengths=8,16,32", "--blocks=10"):
        assert f"{path} was measured" in message(flag) and "--seed=1337" in message(flag)
    other = prepare(tmp_path, write_texts(tmp_path / "texts"))
    assert str(path) in message(f"--dataset={other.name}")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    for damaged in (content[:-9], content, b""):
        path.write_bytes(damaged)
        assert str(path) in message()
