import contextlib
import json
import math
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from conftest import plain_protocol, write_texts

import eval_length as E
from data import prepare
from evaluation.protocols import PROTOCOLS
from evaluation.report import contrast_table, contrasts
from evaluation.windows import window_losses
from model import scheme_names
from run import files

WINDOW_LOSSES = "evaluation.protocols.window_losses"

pytestmark = pytest.mark.usefixtures("few_documents")


@pytest.fixture(scope="module")
def runs(trained, tmp_path_factory):
    """A folder with a run of every scheme, trained at 16 tokens for some steps, that only these tests measure."""
    root = tmp_path_factory.mktemp("runs")
    for scheme in scheme_names():
        shutil.copytree(trained(scheme), root / scheme, ignore=shutil.ignore_patterns("length*"))
    return root


def flags(tmp_path, *more):
    return ["--block_tokens=1", "--blocks=20", f"--results_dir={tmp_path}/results", "--device=cpu", *more]


def read(tmp_path, name="length"):
    return json.loads((tmp_path / "results" / f"{name}.json").read_text(), parse_constant=pytest.fail)  # no NaN


def test_the_table_the_numbers_the_picture_and_the_kept_losses_of_all_schemes(runs, tmp_path, capsys):
    assert E.main([*(str(runs / scheme) for scheme in scheme_names()), *flags(tmp_path)]) == 0
    out = capsys.readouterr().out
    found = {name: result["rows"] for name, result in read(tmp_path)["runs"].items()}
    assert list(found) == scheme_names()
    for name, rows in found.items():
        assert list(rows) == ["4", "8", "16", "32", "64", "128", "256"]
        assert rows["16"]["delta"] == rows["16"]["band"] == 0
        undefined = [n for n, row in rows.items() if row is None]
        assert undefined == (["32", "64", "128", "256"] if name == "learnable" else [])
        for row in filter(None, rows.values()):
            assert row["loss"] > 0 and math.isfinite(row["loss"])
            assert row["delta"] == pytest.approx(row["loss"] - rows["16"]["loss"])
    [with_learnable] = [t for t in out.split("\ncontext  ")[1:] if "learnable" in t.splitlines()[0]]
    last = with_learnable.split("    256  ")[1].splitlines()[0]
    assert "—" in last and "±" in out
    assert "the same 20 blocks of 1 tokens at every length" in out and "L*" in out
    assert "tiny: 2 documents; 0% of the longest contexts cross documents; bytes per token: 1" in out
    assert (tmp_path / "results" / "length.png").read_bytes()[:4] == b"\x89PNG"
    [path] = (runs / "alibi").glob("length-*.npz")
    with np.load(path) as raw:
        assert set(raw) == {"key", "ends", "documents", "bytes_per_token", "crossing", *found["alibi"]}
        assert raw["64"].shape == raw["ends"].shape == raw["documents"].shape == (20,)
        assert found["alibi"]["64"]["delta"] == pytest.approx((raw["64"] - raw["16"]).mean())


def test_nothing_is_measured_twice(runs, tmp_path, capsys, monkeypatch):
    full = [str(runs / "alibi"), str(runs / "learnable"), *flags(tmp_path, "--seed=21")]
    E.main(full)
    before = read(tmp_path)
    E.main([*full, "--blocks=5"])
    assert read(tmp_path) != before and "measured before" not in capsys.readouterr().out
    monkeypatch.setattr(WINDOW_LOSSES, None)  # a second computation would fail
    for more, blocks in ((["--blocks=5"], 5), ([], 20)):
        E.main([*full, *more])
        assert read(tmp_path)["blocks"] == blocks and capsys.readouterr().out.count("measured before") == 2
    assert read(tmp_path) == before
    with pytest.raises(TypeError):
        E.main([*full, "--seed=22"])


def test_kept_losses_are_read_safely(tmp_path):
    """Changed and cut files are either refused or read as they were; objects, NaN and wrong shapes are refused."""
    path, rng, arrays = tmp_path / "length.npz", np.random.default_rng(0), {"16": np.ones(8), "64": np.arange(8.0)}
    refusal = pytest.raises(ValueError, match=f"{path} is damaged: delete it")
    assert E.kept(path, {}, 8) == {}
    np.savez(path, **arrays, key="x", ends=np.arange(3))
    whole = path.read_bytes()
    for n in range(200):
        changed = bytearray(whole)
        changed[rng.integers(len(whole))] ^= 1 << rng.integers(8)
        path.write_bytes(changed if n % 2 else whole[: rng.integers(len(whole))])
        with contextlib.suppress(ValueError):
            found = E.kept(path, {"key", "ends"}, 8)
            assert all(np.array_equal(arrays[name], values) for name, values in found.items())
            continue
        with refusal:
            E.kept(path, {"key", "ends"}, 8)
    for damage in (np.array([object()]), np.ones(3), np.full(8, np.nan), np.ones(8, complex), np.array(["x"] * 8)):
        np.savez(path, **arrays | {"64": damage})
        with refusal:
            E.kept(path, {}, 8)
    np.savez_compressed(path, **arrays)  # may inflate to any size
    with refusal:
        E.kept(path, {}, 8)
    claim = str({"descr": "<f8", "fortran_order": False, "shape": (2**40,)}).ljust(117) + "\n"  # 8 TB
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("64.npy", b"\x93NUMPY\x01\x00v\x00" + claim.encode())
    with refusal:
        E.kept(path, {}, 8)


def test_an_interrupted_measurement_resumes(runs, tmp_path, capsys, monkeypatch):
    arguments, lengths = [str(runs / "none"), *flags(tmp_path, "--seed=11")], []

    def interrupt(subject, starts, length, *rest):
        lengths.append(length)
        if len(lengths) == 4:
            raise KeyboardInterrupt
        return window_losses(subject, starts, length, *rest)

    monkeypatch.setattr(WINDOW_LOSSES, interrupt)
    with pytest.raises(KeyboardInterrupt):
        E.main(arguments)
    assert "stopped; finished measurements are kept" in capsys.readouterr().out
    E.main(arguments)
    assert lengths == [4, 8, 16, 32, 32, 64, 128, 256]
    monkeypatch.setattr(WINDOW_LOSSES, None)
    E.main([*arguments, "--lengths=8,64,256"])  # a part of what is there
    assert "measured before" in capsys.readouterr().out


def test_a_killed_evaluation_leaves_nothing_after_the_next_call(runs, tmp_path):
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    for folder in (killed, whole):
        shutil.copytree(runs / "none", folder / "none", ignore=shutil.ignore_patterns("length*"))
    kill = "import os, signal, sys, eval_length; os.fsync = lambda fd: os.kill(os.getpid(), signal.SIGKILL)"
    command = [sys.executable, "-c", f"{kill}; eval_length.main(sys.argv[1:])", killed / "none", *flags(killed)]
    assert subprocess.run(command, cwd=Path(E.__file__).parent, capture_output=True).returncode == -9
    litter = {path.name for path in killed.rglob("*")} - {path.name for path in whole.rglob("*")} - {"results"}
    assert ".evaluation.lock" in litter and any(name.endswith(".tmp") for name in litter), litter
    found = []
    for folder in (killed, whole):
        E.main([str(folder / "none"), *flags(folder)])
        found.append(({p.relative_to(folder) for p in folder.rglob("*")}, read(folder, "length-none")))
    assert found[0] == found[1]


def test_two_evaluations_of_one_run_wait_for_each_other(runs, tmp_path):
    command = [sys.executable, E.__file__, runs / "rope", *flags(tmp_path, "--seed=9")]
    with files.Lock(runs / "rope", ".evaluation.lock"):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout.readline().startswith("waiting: another process is writing into")
    assert "rope: 0:0" in process.communicate()[0] and process.returncode == 0


def test_seeds_of_one_experiment_are_one_line_and_schemes_are_compared_over_seeds(runs, trained, tmp_path, capsys):
    paths = [str(runs / "rope"), str(runs / "alibi")]
    for seed in (1, 2):
        for scheme in ("rope", "alibi"):
            shutil.copytree(trained(scheme, seed=seed), tmp_path / f"{scheme}-{seed}")
            paths.append(f"{tmp_path}/{scheme}-{seed}")
    E.main([*paths, *flags(tmp_path)])
    found, out = read(tmp_path)["runs"], capsys.readouterr().out
    assert list(found) == ["rope", "alibi"] and set(found["rope"]["seeds"]) == {"rope", "rope-1", "rope-2"}
    row = found["rope"]["rows"]["64"]
    assert row["delta"] == pytest.approx(np.mean([rows["64"]["delta"] for rows in found["rope"]["seeds"].values()]))
    assert f"{row['delta']:+.3f} ±{row['band']:.3f}" in out and "± of several seeds: the 95% interval" in out
    contrast = read(tmp_path)["contrasts"]["256"]["rope - alibi"]
    difference, width, seen = (contrast[name] for name in ("difference", "half_width", "detectable"))
    assert difference == pytest.approx(found["rope"]["rows"]["256"]["loss"] - found["alibi"]["rows"]["256"]["loss"])
    shown = f"{-difference:+.3f}" if abs(difference) > width else "·"
    assert f"\nalibi  {shown:>6}\n" in out.split("loss at context 256: row")[1] and seen > width
    assert f"in 80% of repetitions: {seen:.2f} to {seen:.2f}." in out and contrast["seeds"] == 3


def test_contrasts_use_the_seeds_that_both_have_and_cover_all_pairs_simultaneously():
    rng, known = np.random.default_rng(0), {"documents": np.repeat(np.arange(50), 4), "ends": np.arange(200)}
    text, seeds = rng.normal(1, 0.3, 200), {"a": range(9), "b": range(3), "c": range(2, 5), "d": [9, 10]}
    losses = {name: {s: known | {8: text + rng.normal(0, 0.02, 200)} for s in of} for name, of in seeds.items()}
    losses["elsewhere"] = {s: run | {"ends": np.arange(1, 201)} for s, run in losses["a"].items()}
    protocol = plain_protocol()
    found, alone = (contrasts(protocol, {name: losses[name] for name in of}, 8) for of in (losses, "ab"))
    assert {pair: contrast["seeds"] for pair, contrast in found.items()} == {("a", "b"): 3, ("a", "c"): 3}
    found, alone = found["a", "b"], alone["a", "b"]
    assert found["difference"] == alone["difference"] and found["half_width"] > 1.2 * alone["half_width"]


def test_a_table_of_contrasts_shows_what_is_significant_and_has_gaps():
    known = {("a", "c"): (1.0, 0.5, 0.7), ("b", "c"): (5.0, 0.1, 0.2), ("a", "d"): (0.0, 0.5, 0.4)}
    names = "difference", "half_width", "detectable"
    found = {pair: dict(zip(names, values, strict=True)) for pair, values in known.items()}
    lines = contrast_table(PROTOCOLS["fixed"], found, 64).splitlines()
    assert lines[0] == "loss at context 64: row − column, shown only where significant"
    assert [line.split() for line in lines[2:6]] == [["a", "b", "c"], ["b"], ["c", "-1.000", "-5.000"], ["d", "·"]]
    assert lines[6].endswith("repetitions: 0.20 to 0.70.")


def test_a_text_of_few_documents_has_no_band_and_a_line_says_so(runs, tmp_path, capsys, monkeypatch):
    for module in ("statistics", "protocols"):
        monkeypatch.setattr(f"evaluation.{module}.FEWEST_DOCUMENTS", 20)
    E.main([str(runs / "rope"), *flags(tmp_path)])
    out, row = capsys.readouterr().out, read(tmp_path, "length-rope")["runs"]["rope"]["rows"]["64"]
    assert row["band"] is None and row["level"] is None and "±0" not in out
    assert "note: 2 documents are too few for ±: at least 20 are needed; choose a --dataset of more" in out
    assert "L* unknown" in out


@pytest.mark.parametrize("protocol", [name for name in PROTOCOLS if name not in ("fixed", "recall")])
def test_every_other_protocol_runs_over_all_schemes_also_on_a_named_text(runs, tmp_path, protocol, capsys, dataset):
    argv = [f"--protocol={protocol}", "--blocks=6", "--lengths=8,16,32,64", f"--results_dir={tmp_path}/results"]
    argv += ["--block_tokens=4"] if protocol == "sliding" else []
    argv += [f"--dataset={dataset}"] if protocol == "nonoverlapping" else []
    E.main([*(str(runs / scheme) for scheme in scheme_names()), *argv, "--device=cpu"])
    name = "length-nonoverlapping-tiny" if protocol == "nonoverlapping" else f"length-{protocol}"
    assert read(tmp_path, name)["blocks"] == 6 and len([*(runs / "none").glob(f"{name}-????????????.npz")]) == 1
    rows = {scheme: r["rows"] for scheme, r in read(tmp_path, name)["runs"].items()}
    assert list(rows) == scheme_names() and rows.pop("learnable")["32"] is None
    extra = {"nonoverlapping": "real", "context": "gain_over_shuffled", "entropy": "entropy_band"}.get(protocol, "band")
    main = PROTOCOLS[protocol].headline
    assert all(row["32"][main] > 0 and math.isfinite(row["32"][extra]) for row in rows.values())
    assert (tmp_path / "results" / f"{name}.png").exists() and ("L*" in capsys.readouterr().out) == (main == "loss")


def test_a_grid_of_scalings_and_a_window(runs, tmp_path):
    E.main([str(runs / "rope"), *flags(tmp_path, "--rope_scaling=none,linear,ntk,yarn")])
    found = {name: r["rows"] for name, r in read(tmp_path, "length-none-linear-ntk-yarn-rope")["runs"].items()}
    assert list(found) == ["rope none", "rope linear", "rope ntk", "rope yarn"]
    plain = found.pop("rope none")
    for rows in found.values():  # auto: nothing is scaled up to the training length
        assert rows["16"]["loss"] == plain["16"]["loss"] and rows["64"]["loss"] != plain["64"]["loss"]
    E.main([str(runs / "rope"), *flags(tmp_path)])
    assert read(tmp_path, "length-rope")["runs"]["rope"]["rows"] == plain
    E.main([str(runs / "rope"), *flags(tmp_path, "--window=8")])
    rows = read(tmp_path, "length-window8-rope")["runs"]["rope"]["rows"]
    assert rows["8"]["loss"] == pytest.approx(plain["8"]["loss"], abs=1e-6)  # a context of 8 fits into the window
    assert rows["64"]["loss"] == pytest.approx(rows["8"]["loss"], abs=1e-5)  # one layer sees no further
    assert plain["64"]["loss"] != pytest.approx(plain["8"]["loss"], abs=1e-4)


def test_every_length_is_scaled_from_the_checkpoint_and_not_from_the_length_before(runs, tmp_path, monkeypatch):
    factors = []

    def noting(subject, *rest):
        factors.append(subject.model.config.rope_factor)
        return window_losses(subject, *rest)

    monkeypatch.setattr(WINDOW_LOSSES, noting)
    E.main([str(runs / "rope"), *flags(tmp_path, "--protocol=context", "--rope_scaling=yarn", "--lengths=16,32,64")])
    assert factors == [1, 2, 4, 2, 4, 2, 4]  # the true context, foreign, shuffled


def test_wandb_has_the_curves_of_all_runs_and_the_picture(runs, tmp_path, refused, monkeypatch):
    argv = [runs / "sinusoidal", runs / "learnable", *flags(tmp_path, "--seed=3")]
    env = {k: v for k, v in os.environ.items() if not k.startswith("WANDB")}
    command = [sys.executable, E.__file__, *argv, "--wandb_mode=offline"]
    subprocess.run(command, cwd=tmp_path, env=env, check=True, capture_output=True)
    [log] = tmp_path.glob("wandb/offline-run-*-length-*/*.wandb")
    command = [Path(sys.executable).parent / "wandb", "leet", "inspect", "--json", log]
    lines = subprocess.check_output(command, stdin=subprocess.DEVNULL, text=True).splitlines()
    records = list(map(json.loads, lines))
    rows, results = [r["history"]["item"] for r in records if "history" in r], read(tmp_path)["runs"]
    for name, result in results.items():
        curve = {row["x/context"]: row[f"delta/{name}"] for row in rows if f"delta/{name}" in row}
        assert curve == pytest.approx({int(n): row["delta"] for n, row in result["rows"].items() if row})
    assert any(r.get("metric", {}).get("step_metric", "") == "x/context" for r in records)
    assert any({"L_star/sinusoidal", "L_star/learnable"} <= row.keys() for row in rows)
    assert any("delta/picture.path" in row for row in rows)
    monkeypatch.setenv("WANDB_MODE", "on")
    monkeypatch.setattr(E, "measure", None)  # nothing is measured
    assert "WANDB_MODE='on' is not one of: online, offline, disabled" in refused(E.main, *argv)


@pytest.mark.parametrize(
    "more, message",
    [
        (["{root}/no_such"], "there is no checkpoint {root}/no_such"),
        (["--lengths=a"], "lengths='a' must be ascending positive numbers"),
        (["--block_tokens=2"], "the shortest length, 4, must be at least four times block_tokens=2"),
        (["--block_tokens=5", "--protocol=sliding"], "the shortest length, 4, must be at least the stride"),
        (["--lengths=16,2048", "--block_tokens=1", "--blocks=2000"], "text has 2,345 tokens, too few for 2000 blocks"),
        (["--protocol=slide"], "protocol='slide' is not one of: fixed, sliding, nonoverlapping, position, context"),
        (["--wandb_mode=on"], "wandb_mode='on' is not one of: auto, online, offline, disabled"),
        (["--block_tokens=1", "--protocol=position"], "has no option --block_tokens; these have: fixed, sliding"),
        (["--threshold=1", "--protocol=recall"], "--protocol=recall has no option --threshold"),
        (["--lengths=16,24,64", "--protocol=nonoverlapping"], "all lengths must divide the longest"),
        (["--threshold=-1"], "threshold=-1.0 must be at least 0"),
        (["--dataset=no_such"], "dataset 'no_such' is not prepared"),
        (["--window=-1"], "rope/best.pt: window=-1 must be at least 0"),
        (["{root}/alibi", "--rope_scaling=yarn"], "is an option of pos_scheme rope and ssmax, not of alibi"),
    ],
)
def test_mistakes_are_named_before_anything_is_measured(runs, tmp_path, monkeypatch, more, message, refused):
    monkeypatch.setattr(E, "measure", None)
    argv = ["--device=cpu", f"--results_dir={tmp_path}/results", *(m.format(root=runs) for m in more)]
    assert message.format(root=runs) in refused(E.main, runs / "rope", *argv)
    assert not (tmp_path / "results").exists()


def test_mistake_of_naming_no_run(refused):
    assert "which runs" in refused(E.main)


@pytest.mark.parametrize("folder, message", [("file", "File exists"), ("file/more", "Not a directory")])
def test_a_results_dir_that_cannot_be_written_is_found_first(runs, tmp_path, monkeypatch, refused, folder, message):
    monkeypatch.setattr(E, "measure", None)  # nothing is measured
    (tmp_path / "file").write_text("")
    assert message in refused(E.main, runs / "rope", *flags(tmp_path), f"--results_dir={tmp_path}/{folder}")


def test_runs_on_different_text_are_compared_only_on_a_named_one(runs, trained, tmp_path, dataset, refused):
    other, foreign = f"{tmp_path}/other", f"{tmp_path}/foreign"
    (tmp_path / "text.txt").write_text("another alphabet\n" * 200)
    prepare.main([str(write_texts(tmp_path / "texts", n=30, words=200)), f"--name={other}"])
    prepare.main([f"{tmp_path}/text.txt", f"--name={foreign}"])
    both = [str(runs / "rope"), str(trained("alibi", dataset=other)), *flags(tmp_path)]
    assert f"the text that {both[1]}/best.pt was trained on" in refused(E.main, *both)
    assert "another tokenizer than that of dataset" in refused(E.main, *both, f"--dataset={foreign}")
    E.main([*both, f"--dataset={dataset}"])
    assert list(read(tmp_path, "length-tiny")["datasets"]) == [dataset]


def test_a_run_that_goes_on_while_it_is_measured_is_not_mixed_up(runs, trained, tmp_path, monkeypatch):
    shutil.copytree(trained("rope"), tmp_path / "r")
    opened = E.open_runs

    def opening(cfg):
        found = opened(cfg)
        shutil.copyfile(trained("rope", seed=5) / "best.pt", tmp_path / "r" / "best.pt")
        return found

    monkeypatch.setattr(E, "open_runs", opening)
    E.main([str(tmp_path / "r"), *flags(tmp_path)])
    first = read(tmp_path, "length-r")["runs"]["r"]["rows"]["16"]["loss"]
    monkeypatch.undo()
    E.main([str(tmp_path / "r"), *flags(tmp_path)])
    assert read(tmp_path, "length-r")["runs"]["r"]["rows"]["16"]["loss"] != first
