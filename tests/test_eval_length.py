import io
import itertools
import json
import math
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import write_texts

import eval_length as E
import train
from data import prepare
from evaluation.protocols import PROTOCOLS
from evaluation.report import contrast_table, verdict
from evaluation.statistics import contrasts
from evaluation.windows import score
from model import scheme_names
from run import files
from run.checkpoint import load_checkpoint

SCORE = "evaluation.protocols.score"

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


def read(tmp_path, name="length-"):
    """The newest results whose file name starts with `name`."""
    path = max((tmp_path / "results").glob(f"{name}*.json"), key=lambda path: path.stat().st_mtime_ns)
    return json.loads(path.read_text(), parse_constant=pytest.fail)  # no NaN


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
    assert "—" in with_learnable.split("    256  ")[1].splitlines()[0]
    answer = out.split("loss at 16 ")[1].split("\n\n")[0].splitlines()[1:]  # the lowest loss first, undefined ones last
    order = sorted(found, key=lambda name: (found[name]["256"] or {"loss": math.inf})["loss"])
    assert [line.split()[0] for line in answer] == order and "—" in answer[-1]
    assert "the same 20 blocks of 1 tokens at every length" in out and "L*" in out
    assert "tiny: blocks from 2 documents; 0% of the longest contexts cross documents; bytes per token: 1" in out
    [picture] = (tmp_path / "results").glob("length-??????.png")
    assert picture.read_bytes()[:4] == b"\x89PNG"
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
    monkeypatch.setattr(SCORE, None)  # a second computation would fail
    for more, blocks in ((["--blocks=5"], 5), ([], 20)):
        E.main([*full, *more])
        assert read(tmp_path)["blocks"] == blocks and capsys.readouterr().out.count("measured before") == 2
    assert read(tmp_path) == before
    with pytest.raises(TypeError):
        E.main([*full, "--seed=22"])


def archive(**arrays):
    """The bytes of an .npz file."""
    np.savez(file := io.BytesIO(), **arrays)
    return file.getvalue()


def test_kept_losses_are_read_safely(tmp_path):
    path, losses = tmp_path / "length.npz", np.arange(8.0)
    assert E.kept(path, {}, 8) == {}
    path.write_bytes(whole := archive(key="x", **{"64": losses}))
    assert list(E.kept(path, {"key"}, 8).values()) == [pytest.approx(losses)]
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    claim = str({"descr": "<f8", "fortran_order": False, "shape": (2**40,)}).ljust(117) + "\n"  # 8 TB
    with zipfile.ZipFile(huge := io.BytesIO(), "w") as file:
        file.writestr("64.npy", b"\x93NUMPY\x01\x00v\x00" + claim.encode())
    others = [np.array([object()]), np.ones(3), np.full(8, np.nan), np.ones(8, complex), np.array(["x"] * 8)]
    damaged = [b"", whole[:-1], flipped, huge.getvalue(), *(archive(**{"64": values}) for values in others)]
    for content in damaged:
        path.write_bytes(content)
        with pytest.raises(ValueError, match=f"{path} is damaged: delete it"):
            E.kept(path, {"key"}, 8)


def test_a_kept_line_stands_for_its_runs(runs, tmp_path, capsys, monkeypatch):
    second = shutil.copytree(runs / "rope", tmp_path / "rope-1338")  # as if trained with another seed
    content = torch.load(second / "best.pt")
    content["config"]["seed"] += 1
    torch.save(content, second / "best.pt")
    ropes, alibi, common = [str(runs / "rope"), str(second)], str(runs / "alibi"), flags(tmp_path)
    E.main([*ropes, str(runs / "learnable"), alibi, *common, f"--keep={tmp_path}/kept"])
    before, table = read(tmp_path)["runs"], capsys.readouterr().out.split("Each cell")[1]
    assert f"kept      {tmp_path}/kept/rope.npz (seeds 1337, 1338)\n" in table
    monkeypatch.setattr(SCORE, None)  # nothing is measured again
    lines = [f"{tmp_path}/kept/{name}" for name in ("rope.npz", "learnable")]
    E.main([*lines, alibi, *common])
    after = read(tmp_path)["runs"]
    assert list(after) == list(before) == ["rope", "learnable", "alibi"] and len(after["rope"]["seeds"]) == 2
    for name, result in before.items():
        for n, row in result["rows"].items():
            assert (row is None) == (after[name]["rows"][n] is None)
            assert after[name]["rows"][n] == pytest.approx(row, abs=1e-5, nan_ok=True) if row else True
    shown = capsys.readouterr().out
    assert shown.split("Each cell")[1].split("picture")[0] == table.split("picture")[0]
    E.main([*ropes, lines[0], *common])  # not pooled, although the settings are the same
    assert len(read(tmp_path)["runs"]) == 2
    shutil.copy(lines[0], tmp_path / "kept" / "rope2.npz")
    E.main([lines[0], f"{tmp_path}/kept/rope2", alibi, *common])
    assert "No pairs at context 16: they need two runs of your own" in capsys.readouterr().out
    with pytest.raises(ValueError, match=f"rope' is a line: name its folder, --keep={tmp_path}/kept"):
        E.EvalConfig(runs=(alibi,), keep=f"{tmp_path}/kept/rope")


def test_a_kept_line_grows_by_new_seeds(runs, trained, tmp_path, monkeypatch):
    paths = [shutil.copytree(runs / "rope", tmp_path / "mine")]
    paths += [shutil.copytree(trained("rope", seed=n), tmp_path / f"mine-{n}") for n in (3, 4)]

    def keep(*chosen, more=()):
        E.main([*map(str, chosen), *flags(tmp_path, f"--keep={tmp_path}/kept", *more)])
        [path] = (tmp_path / "kept").iterdir()
        with np.load(path) as line:
            return path.name, [run["seed"] for run in json.loads(str(line["about"]))["runs"]], line["64"].tolist()

    keep(*paths[1:])
    assert read(tmp_path)["runs"].keys() == {"mine"}
    name, seeds, losses = keep(paths[1], paths[0])
    assert (name, seeds) == ("mine.npz", [3, 4, 1337])
    shutil.rmtree(tmp_path / "kept")
    assert [keep(path) for path in (*paths[1:], paths[0])][-1] == (name, seeds, losses)
    other = shutil.copytree(trained("rope", max_iters=3), tmp_path / "other" / "mine-1337")
    monkeypatch.setattr(SCORE, None)  # it is refused before anything is measured
    for run, unlike, *more in (
        (paths[0], "lengths is 4,8,16,32,64,128,256 there and 8,16,32 here", "--lengths=8,16,32"),
        (paths[0], "blocks is 20 there and 10 here", "--blocks=10"),
        (paths[0], "seed is 1337 there and 2 here", "--seed=2"),
        (paths[0], "protocol is fixed there and sliding here", "--protocol=sliding"),
        (other, "max_iters is 4 there and 3 here"),
    ):
        with pytest.raises(ValueError, match=f"cannot join {tmp_path}/kept/mine.npz: {unlike}"):
            keep(run, more=more)
    for file in ("best.pt", "latest.pt"):
        content = torch.load(other / file)
        content["config"]["max_iters"] = 9
        torch.save(content, other / file)
    with pytest.raises(ValueError, match=f"{other} stopped at step 3 of 9: finish it before --keep"):
        keep(other)
    monkeypatch.undo()
    assert keep(paths[2]) == (name, seeds, losses)
    for changed in (["--window=8"], ["--max_position=300"], ["--rope_scaling=yarn", "--window=8"]):
        E.main([str(paths[0]), *flags(tmp_path), *changed, f"--keep={tmp_path}/kept"])  # other measurements
    names = {"mine.npz", "mine-window8.npz", "mine-max_position300.npz", "mine-window8-yarn.npz"}
    assert {path.name for path in (tmp_path / "kept").iterdir()} == names
    with np.load(tmp_path / "kept" / name) as line:
        assert line["64"].tolist() == losses  # no measurement touched the line of the others


def test_a_kept_line_of_other_targets_or_with_damage_is_refused(runs, trained, tmp_path):
    alibi, folder = str(runs / "alibi"), tmp_path / "kept"
    E.main([alibi, *flags(tmp_path, f"--keep={folder}")])
    line = f"{folder}/alibi"
    for more, flag in (
        ("--seed=2", "--seed=1337"), ("--lengths=8,16,32", "--lengths=4,8,16,32,64,128,256"),
        ("--blocks=10", "--blocks=20"), ("--protocol=sliding", "--protocol=fixed"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f"{line} cannot be compared: it was measured with {flag}"):
            E.main([line, alibi, *flags(tmp_path), more])
    for more in ("--window=4", "--max_position=300"):
        with pytest.raises(ValueError, match=f"{line} stays as it was measured"):
            E.main([line, alibi, *flags(tmp_path), more])
    E.main([str(runs / "rope"), *flags(tmp_path), "--window=8", f"--keep={folder}"])
    E.main([f"{folder}/rope-window8", line, *flags(tmp_path)])
    name = str(tmp_path / "other")
    prepare.main([str(write_texts(tmp_path / "texts", n=11)), f"--name={name}", "--glob=*"])
    with pytest.raises(ValueError, match=f"{line} was measured on another text"):
        E.main([line, *flags(tmp_path), f"--dataset={name}"])
    content = Path(f"{line}.npz").read_bytes()
    for damaged in (content[:-9], archive(about="{}"), archive(about='{"runs": []}', ends=[1], documents=[1])):
        Path(f"{line}.npz").write_bytes(damaged)
        with pytest.raises(ValueError, match=f"{line}.npz (is damaged|cannot stand for runs)"):
            E.main([line, *flags(tmp_path)])


def test_an_interrupted_measurement_resumes(runs, tmp_path, capsys, monkeypatch):
    arguments, lengths = [str(runs / "none"), *flags(tmp_path, "--seed=11")], []

    def interrupt(subject, starts, length, *rest):
        lengths.append(length)
        if len(lengths) == 4:
            raise KeyboardInterrupt
        return score(subject, starts, length, *rest)

    monkeypatch.setattr(SCORE, interrupt)
    with pytest.raises(KeyboardInterrupt):
        E.main(arguments)
    assert "stopped; finished measurements are kept" in capsys.readouterr().out
    E.main(arguments)
    assert lengths == [4, 8, 16, 32, 32, 64, 128, 256]
    monkeypatch.setattr(SCORE, None)
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
        names = {re.sub("-[0-9a-f]{6}[.]", ".", str(p.relative_to(folder))) for p in folder.rglob("*")}
        found.append((names, read(folder)["runs"]))
    assert found[0] == found[1]


def test_two_evaluations_of_one_run_wait_for_each_other(runs, tmp_path):
    command = [sys.executable, E.__file__, runs / "rope", *flags(tmp_path, "--seed=9")]
    with files.locked(runs / "rope", ".evaluation.lock"):
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
    shown = f"{-difference:+.3f}" if contrast["significant"] else "·"
    assert out.split("loss at context 256: row")[1].splitlines()[4].split() == ["alibi", "2", shown] and seen > width
    for pair in (read(tmp_path)["contrasts"][length]["rope - alibi"] for length in ("16", "256")):
        minus_better = math.copysign(1, difference) * pair["difference"]
        assert f"{minus_better:+.3f} ±{pair['half_width']:.3f}" in out.split("loss at 16 ")[1]


def test_holm_decides_at_least_what_bonferroni_does():
    protocol = PROTOCOLS["fixed"](E.EvalConfig(runs=("x",)), {8}, 10**6)
    rng, documents = np.random.default_rng(0), np.repeat(np.arange(50), 4)
    text, above = rng.normal(1, 0.3, 200), {"a": 0.0, "b": 0.045, "c": 0.3, "d": 0.3}

    def run(x):
        return text + x + rng.normal(0, 0.02) + rng.normal(0, 0.02, 200)

    values = {name: np.stack([run(x) for _ in range(4)]) for name, x in above.items()}
    found, beside = contrasts(values, documents, 1337), contrasts(values, documents, 1337, kept="bcd")
    assert set(found) == set(itertools.combinations("abcd", 2)) and set(beside) == {("a", "b"), ("a", "c"), ("a", "d")}
    significant = {pair for pair, contrast in found.items() if contrast["significant"]}
    assert significant >= {("a", "c"), ("a", "d"), ("b", "c"), ("b", "d")} and ("c", "d") not in significant
    assert all(contrast["detectable"] > contrast["half_width"] for contrast in found.values())
    lines = contrast_table(protocol, found, 8).splitlines()
    assert lines[0] == "loss at context 8: row − column, shown only where significant"
    shown = [f"{-found[name, 'd']['difference']:+.3f}" for name in "ab"]
    assert lines[2].split() == [*"123"] and lines[6].split() == ["d", "4", *shown, "·"]


def test_a_text_of_few_documents_has_no_band_and_a_line_says_so(runs, tmp_path, capsys, monkeypatch):
    for module in ("statistics", "report"):
        monkeypatch.setattr(f"evaluation.{module}.FEWEST_DOCUMENTS", 20)
    E.main([str(runs / "rope"), *flags(tmp_path)])
    out, row = capsys.readouterr().out, read(tmp_path)["runs"]["rope"]["rows"]["64"]
    assert row["band"] is None and "±0" not in out
    assert "note: blocks from 2 documents are too few for ±: at least 20 are needed.\nChoose more --blocks" in out
    assert out.split("past training\n")[1].splitlines()[0].endswith("unknown")


@pytest.mark.parametrize("protocol", [name for name in PROTOCOLS if name not in ("fixed", "recall")])
def test_every_other_protocol_runs_over_all_schemes_also_on_a_named_text(runs, tmp_path, protocol, capsys, dataset):
    argv = [f"--protocol={protocol}", "--blocks=6", "--lengths=8,16,32,64", f"--results_dir={tmp_path}/results"]
    argv += ["--block_tokens=4"] if protocol == "sliding" else []
    argv += [f"--dataset={dataset}"] if protocol == "nonoverlapping" else []
    E.main([*(str(runs / scheme) for scheme in scheme_names()), *argv, "--device=cpu"])
    name = f"length-{protocol}"
    assert read(tmp_path, name)["blocks"] == 6 and len([*(runs / "none").glob(f"{name}-????????????.npz")]) == 1
    rows = {scheme: r["rows"] for scheme, r in read(tmp_path, name)["runs"].items()}
    assert list(rows) == scheme_names() and rows.pop("learnable")["32"] is None
    extra = {"nonoverlapping": "real", "context": "gain_over_shuffled", "entropy": "entropy_band"}.get(protocol, "band")
    main = PROTOCOLS[protocol].headline
    assert all(row["32"][main] > 0 and math.isfinite(row["32"][extra]) for row in rows.values())
    assert [*(tmp_path / "results").glob(f"{name}-*.png")] and ("L*" in capsys.readouterr().out) == (main == "loss")


def test_scalings_and_a_window(runs, tmp_path):
    E.main([str(runs / "rope"), *flags(tmp_path)])
    plain = read(tmp_path)["runs"]["rope"]["rows"]
    for scaling in ("linear", "ntk", "yarn"):  # auto: nothing is scaled up to the training length
        E.main([str(runs / "rope"), *flags(tmp_path, f"--rope_scaling={scaling}")])
        rows = read(tmp_path)["runs"]["rope"]["rows"]
        assert rows["16"]["loss"] == plain["16"]["loss"] and rows["64"]["loss"] != plain["64"]["loss"]
    E.main([str(runs / "rope"), *flags(tmp_path, "--window=8")])
    rows = read(tmp_path)["runs"]["rope"]["rows"]
    assert rows["8"]["loss"] == pytest.approx(plain["8"]["loss"], abs=1e-6)  # a context of 8 fits into the window
    assert rows["64"]["loss"] == pytest.approx(rows["8"]["loss"], abs=1e-5)  # one layer sees no further
    assert plain["64"]["loss"] != pytest.approx(plain["8"]["loss"], abs=1e-4)


def test_wandb_has_the_curves_of_all_runs_and_the_picture(runs, tmp_path):
    argv = [runs / "sinusoidal", runs / "learnable", *flags(tmp_path, "--seed=3")]
    env = {k: v for k, v in os.environ.items() if not k.startswith("WANDB")}
    command = [sys.executable, E.__file__, *argv, "--wandb_mode=offline"]
    subprocess.run(command, cwd=tmp_path, env=env, check=True, capture_output=True)
    for name, result in read(tmp_path)["runs"].items():
        [log] = tmp_path.glob(f"wandb/offline-run-*-{name}-length-*/*.wandb")
        command = [Path(sys.executable).parent / "wandb", "leet", "inspect", "--json", log]
        lines = subprocess.check_output(command, stdin=subprocess.DEVNULL, text=True).splitlines()
        records = list(map(json.loads, lines))
        rows = [r["history"]["item"] for r in records if "history" in r]
        curve = {row["x/context"]: row["length/delta"] for row in rows if "length/delta" in row}
        assert curve == pytest.approx({int(n): row["delta"] for n, row in result["rows"].items() if row})
        assert any(r.get("metric", {}).get("step_metric", "") == "x/context" for r in records)
        assert any("length/picture.path" in row for row in rows) == (name == "sinusoidal")


def test_runs_on_different_text_are_compared_only_on_a_named_one(runs, trained, tmp_path, dataset, refused):
    other, foreign = f"{tmp_path}/other", f"{tmp_path}/foreign"
    (tmp_path / "text.txt").write_text("another alphabet\n" * 200)
    prepare.main([str(write_texts(tmp_path / "texts", n=30, words=200)), f"--name={other}"])
    prepare.main([f"{tmp_path}/text.txt", f"--name={foreign}"])
    both = [str(runs / "rope"), str(trained("alibi", dataset=other)), *flags(tmp_path)]
    assert f"the runs were trained on different texts (rope on {dataset}, alibi on {other})" in refused(E.main, *both)
    assert "another tokenizer than that of dataset" in refused(E.main, *both, f"--dataset={foreign}")
    E.main([*both, f"--dataset={dataset}"])
    assert list(read(tmp_path)["datasets"]) == [dataset]


def test_a_line_names_the_settings_in_which_runs_differ(runs, trained, tmp_path, capsys):
    both = [str(runs / "rope"), str(trained("alibi", max_iters=3))]
    E.main([*both, *flags(tmp_path)])
    note = "note: besides scheme and seed, these runs differ in max_iters: 4 in rope, 3 in alibi\n"
    assert note in capsys.readouterr().out
    E.main([*both, *(str(runs / name) for name in ("t5", "none", "learnable")), *flags(tmp_path)])
    assert "these runs differ in max_iters: 4 in the others, 3 in alibi\n" in capsys.readouterr().out
    E.main([str(runs / "rope"), str(runs / "t5"), *flags(tmp_path, f"--keep={tmp_path}/kept")])
    assert "note: besides" not in capsys.readouterr().out
    E.main([both[1], *flags(tmp_path, f"--keep={tmp_path}/kept")])  # one that is unlike the lines in the folder
    assert "these runs differ in max_iters: 4 in rope, t5, 3 in alibi\n" in capsys.readouterr().out


@pytest.mark.parametrize("delta, band, breakdown, words", [
    (-0.1, 0.02, None, "flat"), (0.03, 0.01, None, "flat"), (0.03, 0.03, None, "nearly flat"),
    (0.06, 0.05, None, "rises"), (0.06, 0.07, None, "undecided"), (0.3, 0.1, 32, "climbs: L* 32"),
    (0.0, np.nan, None, "unknown"), (None, None, None, "undefined"),
])  # fmt: skip
def test_the_ranking_says_how_each_loss_behaves(delta, band, breakdown, words):
    protocol = PROTOCOLS["fixed"](E.EvalConfig(runs=("x",), lengths="16,64"), {16}, 10**6)
    row = None if delta is None else {"delta": delta, "band": band}
    assert verdict(protocol, {"rows": {64: row}, "L_star": breakdown}) == words


def test_every_comparison_has_files_of_its_own(runs, tmp_path):
    for schemes in (["none", "rope"], ["none", "alibi"], ["none"]):
        E.main([*(str(runs / scheme) for scheme in schemes), *flags(tmp_path)])
    shutil.copytree(runs / "none", tmp_path / "elsewhere" / "none")
    E.main([str(runs / "none"), str(tmp_path / "elsewhere" / "none"), *flags(tmp_path)])
    E.main([str(tmp_path / "elsewhere" / "none"), *flags(tmp_path)])  # another run of a known name
    for _ in range(2):
        E.main([str(runs / "none"), *flags(tmp_path, "--blocks=5")])
    assert len([*(tmp_path / "results").glob("length-??????.png")]) == 6


def test_a_run_of_very_short_windows_is_measured_without_further_flags(trained, tmp_path):
    E.main([str(trained("alibi", block_size=8)), f"--results_dir={tmp_path}/results", "--device=cpu", "--blocks=3"])
    assert list(read(tmp_path)["runs"]["alibi"]["rows"]) == ["4", "8", "16", "32", "64", "128"]


def test_a_run_that_goes_on_while_it_is_measured_is_not_mixed_up(runs, trained, tmp_path, monkeypatch):
    shutil.copytree(trained("rope"), tmp_path / "r")
    opened = E.open_runs

    def opening(cfg):
        found = opened(cfg)
        shutil.copyfile(trained("rope", seed=5) / "best.pt", tmp_path / "r" / "best.pt")
        return found

    monkeypatch.setattr(E, "open_runs", opening)
    E.main([str(tmp_path / "r"), *flags(tmp_path)])
    first = read(tmp_path)["runs"]["r"]["rows"]["16"]["loss"]
    monkeypatch.undo()
    E.main([str(tmp_path / "r"), *flags(tmp_path)])
    assert read(tmp_path)["runs"]["r"]["rows"]["16"]["loss"] != first


def test_a_run_trained_with_scaling_is_measured_with_the_factor_it_was_trained_with(runs, tmp_path):
    flags_ = [f"--init_from={runs}/rope", "--block_size=32", "--rope_scaling=linear", "--max_iters=1", "--device=cpu"]
    for name, more, factor in (("auto", [], 2.0), ("own", ["--rope_factor=3"], 3.0)):
        train.main([*flags_, *more, f"--out_dir={tmp_path}/{name}"])
        run = load_checkpoint(tmp_path / name)
        assert run.config.rope_factor == factor
        factors = [run.under(E.EvalConfig(runs=("r",)), n).rope_factor for n in (8, 32, 64)]
        assert factors == [factor, factor, 2 * factor]
        assert run.under(E.EvalConfig(runs=("r",), rope_scaling="yarn"), 64).rope_factor == 4


def test_a_difference_between_several_seeds_and_one_run_has_no_interval(runs, trained, tmp_path, capsys):
    several = [str(runs / "rope"), str(trained("rope", seed=1)), str(trained("rope", seed=2))]
    E.main([*several, str(runs / "alibi"), str(runs / "t5"), *flags(tmp_path)])
    rows = capsys.readouterr().out.split("loss at 16 ")[1].split("\n\n")[0].splitlines()[1:]
    seeds, single = [row for row in rows if "(3 seeds)" in row], [row.count("±") for row in rows if "seeds" not in row]
    assert len(seeds) == 1 and (sorted(single), seeds[0].count("±")) in (([1, 3], 1), ([1, 1], 1))
