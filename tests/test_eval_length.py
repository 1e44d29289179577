import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import wandb
from conftest import prepare, wandb_records, write_texts
from hypothesis import given
from hypothesis import strategies as st

import data
import eval_length
from data import Split
from eval_length import choose_blocks, choose_lengths, score
from evaluation import rows
from evaluation.rows import Row
from evaluation.statistics import interval
from model import find_scheme, scheme_names
from run.checkpoint import load_checkpoint

pytestmark = pytest.mark.usefixtures("few_documents")


def copied(run, path):
    """A copy of a run, without what was measured."""
    return shutil.copytree(run, path, ignore=shutil.ignore_patterns("scores*"))


@pytest.fixture(scope="module")
def runs(trained, tmp_path_factory):
    """A folder with a run of every scheme, trained at 16 tokens for some steps, that only these tests measure."""
    root = tmp_path_factory.mktemp("runs")
    for scheme in scheme_names():
        copied(trained(scheme), root / scheme)
    return root


@pytest.fixture
def ropes(runs, trained, tmp_path):
    """The folders of three runs of RoPE that differ in their seed."""
    more = [copied(trained("rope", seed=seed), tmp_path / f"rope-{seed}") for seed in (1, 2)]
    return [runs / "rope", *more]


def numbers(results, run, key="loss"):
    """{length: number} of a row, where its scheme is defined."""
    lengths = results.rows[str(run)]["lengths"]
    return {int(n): value[key] for n, value in lengths.items()}


# ----------------------------------------------------------------------------------------------------------
# What is scored


def test_the_default_lengths_are_doubled_up_to_16_times_the_training_length():
    cfg = eval_length.EvalConfig(runs=("x",))
    assert choose_lengths(cfg, {100}) == [25, 50, 100, 200, 400, 800, 1600]


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
    assert fits[chosen].all() or not fits[~chosen].any()


@pytest.mark.parametrize("scheme", scheme_names())
def test_losses_equal_those_of_a_plain_forward_pass(trained, dataset, scheme):
    """Sampled positions are as dense as in training: a context of 8 tokens, half of the training length, lies among the
    first half of 16 positions below 64."""
    model = load_checkpoint(trained(scheme)).model("cpu")
    split = data.load(dataset).val
    cases = [(8, 0)]
    if not model.config.max_positions:
        cases.append((64, 0))
        if find_scheme(scheme).gaps:
            cases += [(8, 64), (32, 64)]
    for length, below in cases:
        windows = split.windows(np.array([100, 200, 333]), length)
        losses, right = score(model, windows, 3, torch.device("cpu"), torch.float32, below)
        positions = data.sampled_positions(max(length, 16), below, (length, 0))
        if below:
            positions = positions[:length]
        hidden = model.hidden(windows[:, :-1], positions=positions)
        last = model.lm_head(hidden)[:, -3:]
        targets = windows[:, -3:]
        expected = F.cross_entropy(last.mT, targets, reduction="none")
        np.testing.assert_allclose(losses, expected.detach(), atol=1e-5)
        assert (right == (last.argmax(-1) == targets).numpy()).all()


# ----------------------------------------------------------------------------------------------------------
# What is shown


def test_the_table_and_the_numbers_of_all_schemes(runs, evaluate):
    results = evaluate(*(runs / scheme for scheme in scheme_names()))
    for scheme in scheme_names():
        means = numbers(results, runs / scheme)
        assert [*means] == ([4, 8, 16] if scheme == "learnable" else [4, 8, 16, 32, 64, 128, 256])
        deltas = {n: loss - means[16] for n, loss in means.items()}
        assert numbers(results, runs / scheme, "delta") == pytest.approx(deltas)
        assert f"{means[4]:.3f}" in results.out
    assert [*results.rows][-1] == str(runs / "learnable")  # undefined at the longest length
    assert results.rows[str(runs / "learnable")]["rise"] is None


def test_the_first_run_named_is_the_reference_and_rows_of_the_same_models_are_paired(runs, ropes, evaluate, tmp_path):
    for flag in ("--window=16", "--window=0"):
        evaluate(*ropes, flag, f"--keep={tmp_path}")
    paths = tmp_path / "rope.npz", tmp_path / "rope-window16.npz"
    plain, windowed = map(Row.read, paths)
    results = evaluate(*ropes, runs / "none", paths[1])
    assert f"minus {runs / 'rope'} at" in results.out
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
    assert "needs 20 documents" in results.out


# ----------------------------------------------------------------------------------------------------------
# Measurements are not repeated, lost or mixed up


def test_what_was_measured_is_kept_and_logged_before_it_is_drawn(runs, evaluate, tmp_path, monkeypatch):
    """wandb has the curves of the runs and not of kept results."""
    evaluate(runs / "alibi", f"--keep={tmp_path}")
    monkeypatch.delenv("WANDB_MODE")
    monkeypatch.chdir(tmp_path)
    wandb.teardown()  # it remembers the folder of an earlier test
    logs = []

    def fail(*args):
        assert (tmp_path / "learnable.npz").exists()
        logs.extend(tmp_path.glob("wandb/offline-run-*/*.wandb"))
        raise RuntimeError("no\nlatex")

    monkeypatch.setattr(eval_length, "draw_losses", fail)
    flags = "--wandb_mode=offline", f"--keep={tmp_path}"
    results = evaluate(runs / "learnable", tmp_path / "alibi.npz", *flags)
    assert "cannot draw" in results.out.splitlines()[-1]
    [log] = logs
    items = [record["history"]["item"] for record in wandb_records(log) if "history" in record]
    for key in ("loss", "delta"):
        curve = {2 ** item["x/log2 of the length"]: item[f"length/{key}"] for item in items}
        assert curve == pytest.approx(numbers(results, runs / "learnable", key))


def test_each_length_is_kept_as_it_is_measured_and_measured_again_only_if_something_that_counts_has_changed(
    runs, evaluate, refused, tmp_path, monkeypatch
):
    measured = []

    def interrupted(model, windows, *rest):
        measured.append(windows.size(1) - 1)
        if measured == [4, 8, 16, 32]:
            raise KeyboardInterrupt
        return score(model, windows, *rest)

    monkeypatch.setattr(eval_length, "score", interrupted)
    alibi = copied(runs / "alibi", tmp_path / "alibi")
    with pytest.raises(KeyboardInterrupt):
        evaluate(alibi)
    first = evaluate(alibi).rows
    assert evaluate(alibi).rows == first
    assert measured == [4, 8, 16, 32, 32, 64, 128, 256]
    changes = "--blocks=20", "--blocks=5", "--seed=2", "--attention_temperature=.1", "--window=8", "--dtype=bfloat16"
    for flag in changes:
        evaluate(alibi, "--lengths=16", flag)
    monkeypatch.setattr(eval_length, "code_hash", lambda config: "other code")
    evaluate(alibi, "--lengths=16")
    assert measured[8:] == [16] * 7
    for path in alibi.glob("scores*"):
        path.write_bytes(path.read_bytes()[:-9])
    assert f"{alibi}/scores-" in refused(eval_length.main, alibi, "--lengths=16", "--blocks=20")


IMPORT = "\nfrom schemes.alibi_offset import AlibiOffset"  # in alibi_offset.py, of itself


def test_a_hash_of_the_code_covers_what_a_schemes_file_imports_and_no_comments(trained, monkeypatch):
    config = load_checkpoint(trained("alibi_offset")).config
    first = rows.code_hash(config)
    read_text = Path.read_text
    changed = set()
    for name in ("model.py", "key_offset.py", "alibi_offset.py", "fox.py"):
        for text in ("# a comment", IMPORT):

            def edited(path, name=name, text=text):
                return read_text(path) + text * (path.name == name)

            monkeypatch.setattr(Path, "read_text", edited)
            if rows.code_hash(config) != first:
                changed.add(name + text)
    assert changed == {name + IMPORT for name in ("model.py", "key_offset.py", "alibi_offset.py")}


# ----------------------------------------------------------------------------------------------------------
# Which runs are compared, and kept results


def test_runs_on_different_text_are_compared_only_on_a_named_one(runs, trained, evaluate, tmp_path, dataset, refused):
    other = prepare(tmp_path, write_texts(tmp_path / "texts", n=22)).name
    alibi = trained("alibi", dataset=other)
    message = refused(eval_length.main, runs / "rope", alibi)
    assert str(alibi) in message and f"--dataset={dataset}" in message
    results = evaluate(runs / "rope", alibi, f"--dataset={dataset}")
    assert results.text["name"] == dataset


def test_a_note_names_the_settings_in_which_rows_differ(runs, trained, evaluate):
    alibi = trained("alibi", max_iters=3)
    out = evaluate(runs / "rope", runs / "t5", alibi).out
    assert f"unlike {runs / 'rope'}, {alibi} has max_iters=3\n" in out and out.count("unlike") == 1


def test_seeds_of_one_experiment_are_one_row_and_so_is_its_kept_result(
    runs, ropes, evaluate, tmp_path, monkeypatch, refused
):
    keep = f"--keep={tmp_path}/kept"
    path = tmp_path / "kept" / "rope.npz"
    first = evaluate(*ropes, runs / "learnable", keep).rows[str(runs / "rope")]
    assert first["seeds"] == [1337, 1, 2]
    content = path.read_bytes()
    assert "seed 2" in refused(eval_length.main, *ropes[:2], "--blocks=20", keep)
    assert path.read_bytes() == content
    monkeypatch.setattr(eval_length, "score", None)  # nothing is measured again
    after = evaluate(path, tmp_path / "kept" / "learnable.npz").rows[str(path)]
    for key in ("loss", "width", "delta", "delta_width", "by_seed"):
        assert after["lengths"]["64"][key] == first["lengths"]["64"][key]
    assert len(evaluate(*ropes, path).rows) == 2  # not pooled, although the settings are the same


def test_runs_that_differ_in_their_seed_and_in_those_of_their_sources_are_one_row():
    def run(seed, source, steps=850):
        settings = {"seed": seed, "init_from": f"out/a-{source}", "max_iters": steps}
        history = [[0, {"init_from": {"settings": {"seed": source}}}]]
        return SimpleNamespace(settings=settings, dataset_hash="", history=history)

    runs = {"b-1": run(1, 1), "b-2": run(2, 2), "b-3": run(3, 1), "b": run(5, 5, steps=99), "c-1": run(1, 1)}
    groups = {name: len(group) for name, group in rows.group_seeds(runs).items()}
    assert groups == {"b": 2, "b-3": 1, "b+": 1, "c-1": 1}


def test_a_row_is_named_and_kept_by_what_was_changed(runs, evaluate, tmp_path):
    def losses(name, *flags):
        results = evaluate(runs / "rope", f"--keep={tmp_path}", *flags)
        assert [*results.rows] == [f"{runs}/{name}"]
        kept = Row.read(tmp_path / f"{name}.npz")
        tokens = kept.arrays["64-tokens"]
        np.testing.assert_allclose(tokens.mean(axis=2), kept.losses[64], rtol=1e-3)
        return numbers(results, runs / name)

    plain = losses("rope")
    scaled = losses("rope-yarn", "--rope_scaling=yarn")
    assert scaled[16] == plain[16] and scaled[64] != plain[64]
    fixed = losses("rope-yarn-rope_factor4.0", "--rope_scaling=yarn", "--rope_factor=4")
    assert fixed[16] != plain[16]
    windowed = losses("rope-window8", "--window=8")
    assert windowed[8] == pytest.approx(plain[8], abs=1e-6)  # a context of 8 fits into the window
    assert windowed[64] == pytest.approx(windowed[8], abs=1e-5)  # one layer sees no further
    assert plain[64] != pytest.approx(plain[8], abs=1e-4)
    losses("rope-window1_2_temperature.1", "--layers=window=1/2 temperature=.1")


def test_a_kept_result_of_other_targets_or_with_damage_is_refused(runs, evaluate, tmp_path, refused):
    path = tmp_path / "alibi.npz"
    evaluate(runs / "alibi", f"--keep={tmp_path}")
    other = prepare(tmp_path, write_texts(tmp_path / "texts"))
    for flag in ("--seed=2", "--lengths=8,16,32", "--blocks=10", f"--dataset={other.name}"):
        message = refused(eval_length.main, path, "--blocks=20", flag)
        assert f"{path} was measured" in message and "--seed=1337" in message
    content = bytearray(path.read_bytes())
    content[200] ^= 1
    for damaged in (content[:-9], content, b""):
        path.write_bytes(damaged)
        assert str(path) in refused(eval_length.main, path, "--blocks=20")
