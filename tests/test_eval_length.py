import io
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
from evaluation.lines import Line, measured_before
from evaluation.protocols import PROTOCOLS
from evaluation.windows import Scorer
from model import scheme_names
from run import files
from run.checkpoint import load_checkpoint

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
        others = [trained(scheme, seed=n) for n in (1, 2)]
        copies = [shutil.copytree(run, tmp_path / f"{scheme}-{n}") for n, run in zip((1, 2), others, strict=True)]
        return [str(runs / scheme), *map(str, copies)]

    return folders


def flags(tmp_path, *more):
    return ["--block_tokens=1", "--blocks=20", f"--results_dir={tmp_path}/results", "--device=cpu", *more]


def read(tmp_path, name="length-"):
    """The newest results whose file name starts with `name`."""
    path = max((tmp_path / "results").glob(f"{name}*.json"), key=lambda path: path.stat().st_mtime_ns)
    return json.loads(path.read_text(), parse_constant=pytest.fail)  # no NaN


def losses(tmp_path, run, name="length-", key="loss"):
    """{length: mean}, without the lengths at which the scheme is undefined."""
    values = read(tmp_path, name)["runs"][run]["values"][key]
    return {int(n): value["mean"] for n, value in values.items() if value}


def kept_line(path):
    """The arrays of a kept result, and the seeds of its runs."""
    with np.load(path) as arrays:
        return dict(arrays), [run["seed"] for run in json.loads(str(arrays["about"]))["runs"]]


def test_the_table_the_numbers_the_picture_and_the_losses_of_all_schemes(runs, tmp_path, capsys):
    assert E.main([*(str(runs / scheme) for scheme in scheme_names()), *flags(tmp_path)]) == 0
    out = capsys.readouterr().out
    results = read(tmp_path)["runs"]
    assert list(results) == scheme_names()
    for scheme in scheme_names():
        means, deltas = losses(tmp_path, scheme), losses(tmp_path, scheme, key="delta")
        assert list(means) == ([4, 8, 16] if scheme == "learnable" else [4, 8, 16, 32, 64, 128, 256])
        assert deltas == pytest.approx({n: loss - means[16] for n, loss in means.items()})
    assert "rise" not in results["learnable"] and results["learnable"]["values"]["loss"]["32"] is None
    ranking = out[out.index("minus first") :].split("\n\n")[0].splitlines()[1:]  # the lowest loss first
    order = sorted(results, key=lambda name: losses(tmp_path, name).get(256, math.inf))
    assert [row.split()[0] for row in ranking] == order and "—" in ranking[-1]
    [picture] = (tmp_path / "results").glob("length-??????.png")
    assert picture.read_bytes()[:4] == b"\x89PNG"
    [path] = (runs / "alibi").glob("length-*.npz")
    with np.load(path) as raw:
        assert raw["64"].shape == raw["ends"].shape == raw["documents"].shape == (20,)
        assert losses(tmp_path, "alibi", key="delta")[64] == pytest.approx((raw["64"] - raw["16"]).mean())


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


def test_losses_in_files_are_read_safely(tmp_path):
    path = tmp_path / "length.npz"
    values = np.arange(8.0)
    assert measured_before(path, 8) == {}
    whole = archive(inputs="x", **{"64": values})
    path.write_bytes(whole)
    assert list(measured_before(path, 8).values()) == [pytest.approx(values)]
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    claim = str({"descr": "<f8", "fortran_order": False, "shape": (2**40,)}).ljust(117) + "\n"  # 8 TB
    with zipfile.ZipFile(huge := io.BytesIO(), "w") as file:
        file.writestr("64.npy", b"\x93NUMPY\x01\x00v\x00" + claim.encode())
    invalid = [np.array([object()]), np.ones(3), np.full(8, np.nan), np.ones(8, complex), np.array(["x"] * 8)]
    for content in [b"", whole[:-1], flipped, huge.getvalue(), *(archive(**{"64": values}) for values in invalid)]:
        path.write_bytes(content)
        with pytest.raises(ValueError, match=str(path)):
            measured_before(path, 8)


def test_seeds_of_one_experiment_are_one_row_and_so_is_its_kept_result(runs, seeds, tmp_path, capsys, monkeypatch):
    ropes, alibi, common = seeds("rope"), str(runs / "alibi"), flags(tmp_path)
    E.main([*ropes, str(runs / "learnable"), alibi, *common, f"--keep={tmp_path}/kept"])
    before = read(tmp_path)["runs"]
    tables = capsys.readouterr().out.split("\ncontext")[1].split("kept  ")[0]
    assert list(before) == ["rope", "learnable", "alibi"] and before["rope"]["seeds"] == [1337, 1, 2]
    value = before["rope"]["values"]["loss"]["64"]
    assert value["mean"] == pytest.approx(np.mean(value["seeds"])) and len(value["seeds"]) == 3
    assert kept_line(tmp_path / "kept/rope.npz")[1] == [1337, 1, 2]

    monkeypatch.setattr(SCORE, None)  # nothing is measured again
    kept = [f"{tmp_path}/kept/{name}" for name in ("rope.npz", "learnable", "alibi")]
    E.main([*kept, *common])
    after = read(tmp_path)["runs"]
    for name, result in before.items():
        for n, value in result["values"]["loss"].items():
            again = after[name]["values"]["loss"][n]
            assert again == value or [again[k] for k in ("mean", "low")] == pytest.approx([value["mean"], value["low"]])
    assert capsys.readouterr().out.split("\ncontext")[1].split("picture")[0].strip() == tables.strip()
    E.main([*ropes, kept[0], *common])  # not pooled, although the settings are the same
    assert len(read(tmp_path)["runs"]) == 2


def test_a_kept_result_is_written_whole(runs, trained, seeds, tmp_path, monkeypatch, refused):
    paths = seeds("rope")
    keep = f"--keep={tmp_path}/kept"
    E.main([*paths, *flags(tmp_path, keep)])
    line = tmp_path / "kept" / "rope.npz"
    before = line.read_bytes()
    with monkeypatch.context() as patch:  # refused before anything is measured
        patch.setattr(SCORE, None)
        assert "seed 2" in refused(E.main, *paths[:2], *flags(tmp_path, keep))
        other = shutil.copytree(trained("rope", max_iters=3), tmp_path / "other" / "rope")
        for file in ("best.pt", "latest.pt"):
            content = torch.load(other / file)
            content["settings"]["max_iters"] = 9
            torch.save(content, other / file)
        assert "step 3 of 9" in refused(E.main, other, *flags(tmp_path, keep))
        assert f"--keep={tmp_path}/kept" in refused(E.main, paths[0], *flags(tmp_path, f"--keep={line}"))
    assert line.read_bytes() == before
    for changed in (["--window=8"], ["--max_position=300"], ["--rope_scaling=yarn", "--window=8"]):
        E.main([paths[0], *flags(tmp_path), *changed, keep])
    names = {"rope.npz", "rope-window8.npz", "rope-max_position300.npz", "rope-window8-yarn.npz"}
    assert {path.name for path in (tmp_path / "kept").iterdir()} == names
    assert Line.read(tmp_path / "kept" / "rope-window8").config.window == 8
    assert line.read_bytes() == before


def test_a_kept_result_of_other_blocks_or_with_damage_is_refused(runs, tmp_path, refused):
    alibi = str(runs / "alibi")
    E.main([alibi, *flags(tmp_path, f"--keep={tmp_path}/kept")])
    line = f"{tmp_path}/kept/alibi"
    for more, flag in (
        ("--seed=2", "--seed=1337"), ("--lengths=8,16,32", "--lengths=4,8,16,32,64,128,256"),
        ("--blocks=10", "--blocks=20"), ("--protocol=sliding", "--protocol=fixed"),
    ):  # fmt: skip
        message = refused(E.main, line, alibi, *flags(tmp_path), more)
        assert line in message and flag in message
    for more in ("--window=4", "--max_position=300"):
        assert more in refused(E.main, line, alibi, *flags(tmp_path), more)
    name = str(tmp_path / "other")
    prepare.main([str(write_texts(tmp_path / "texts", n=11)), f"--name={name}", "--glob=*"])
    assert line in refused(E.main, line, *flags(tmp_path), f"--dataset={name}")
    content = Path(f"{line}.npz").read_bytes()
    for damaged in (content[:-9], archive(about="{}"), archive(about='{"runs": []}', ends=[1], documents=[1])):
        Path(f"{line}.npz").write_bytes(damaged)
        assert f"{line}.npz" in refused(E.main, line, *flags(tmp_path))


def test_an_interrupted_measurement_resumes(runs, tmp_path, capsys, monkeypatch):
    arguments = [str(runs / "none"), *flags(tmp_path, "--seed=11")]
    lengths = []
    score = Scorer.score

    def interrupt(scorer, starts, length, *rest):
        lengths.append(length)
        if len(lengths) == 4:
            raise KeyboardInterrupt
        return score(scorer, starts, length, *rest)

    monkeypatch.setattr(SCORE, interrupt)
    with pytest.raises(KeyboardInterrupt):
        E.main(arguments)
    assert "stopped" in capsys.readouterr().out
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
    outcomes = []
    for folder in (killed, whole):
        E.main([str(folder / "none"), *flags(folder)])
        names = {re.sub("-[0-9a-f]{6}[.]", ".", str(p.relative_to(folder))) for p in folder.rglob("*")}
        outcomes.append((names, read(folder)["runs"]))
    assert outcomes[0] == outcomes[1]


def test_two_evaluations_of_one_run_wait_for_each_other(runs, tmp_path):
    command = [sys.executable, E.__file__, runs / "rope", *flags(tmp_path, "--seed=9")]
    with files.locked(runs / "rope", ".evaluation.lock"):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout.readline().startswith("waiting")
    assert "rope: 0:0" in process.communicate()[0] and process.returncode == 0


def test_differences_in_the_ranking_are_paired_over_blocks(runs, seeds, tmp_path, capsys):
    E.main([*seeds("rope"), *seeds("alibi"), *flags(tmp_path, f"--keep={tmp_path}/kept")])
    out = capsys.readouterr().out
    arrays = {name: kept_line(tmp_path / f"kept/{name}.npz")[0] for name in ("rope", "alibi")}
    first, second = sorted(arrays, key=lambda name: arrays[name]["256"].mean())
    row = out[out.index("minus first") :].splitlines()[2]
    for n in ("16", "256"):
        assert f"{(arrays[second][n] - arrays[first][n]).mean():+.3f} ±" in row


def test_a_text_of_few_documents_has_no_interval_and_a_note_says_so(runs, tmp_path, capsys, monkeypatch):
    for module in ("statistics", "report"):
        monkeypatch.setattr(f"evaluation.{module}.FEWEST_DOCUMENTS", 20)
    E.main([str(runs / "rope"), *flags(tmp_path)])
    out = capsys.readouterr().out
    assert read(tmp_path)["runs"]["rope"]["values"]["delta"]["64"]["low"] is None and "±0" not in out
    assert "note: 2 documents" in out and "--split_on" in out and "undecided" in out


@pytest.mark.parametrize("protocol, extra", [
    ("sliding", "delta"), ("nonoverlapping", "real"), ("position", "delta"), ("context", "over_shuffled"),
])  # fmt: skip
def test_every_other_protocol_runs_over_all_schemes_also_on_a_named_text(runs, tmp_path, protocol, extra, dataset):
    assert {name for name, p in PROTOCOLS.items() if p.ranked} == {
        "fixed",
        "sliding",
        "nonoverlapping",
        "position",
        "context",
    }
    argv = [f"--protocol={protocol}", "--blocks=6", "--lengths=8,16,32,64", f"--results_dir={tmp_path}/results"]
    argv += ["--block_tokens=4"] if protocol == "sliding" else []
    argv += [f"--dataset={dataset}"] if protocol == "nonoverlapping" else []
    E.main([*(str(runs / scheme) for scheme in scheme_names()), *argv, "--device=cpu"])
    name = f"length-{protocol}"
    assert read(tmp_path, name)["blocks"] == 6 and len([*(runs / "none").glob(f"{name}-????????????.npz")]) == 1
    for scheme in scheme_names():
        for key in ("loss", extra):
            assert (32 in losses(tmp_path, scheme, name, key)) == (scheme != "learnable")
    assert [*(tmp_path / "results").glob(f"{name}-*.png")]


@pytest.mark.parametrize("protocol", ["sliding", "nonoverlapping", "position"])
def test_a_picture_shades_around_what_it_draws(runs, seeds, tmp_path, protocol, monkeypatch):
    shaded = []
    monkeypatch.setattr(
        "matplotlib.axes.Axes.fill_between", lambda axes, x, low, high, **style: shaded.append((low, high))
    )
    argv = [f"--protocol={protocol}", "--blocks=6", "--lengths=8,16,32", f"--results_dir={tmp_path}/results"]
    E.main([*seeds("rope"), *argv, "--device=cpu"])
    [(low, high)] = shaded
    means = losses(tmp_path, "rope", f"length-{protocol}").values()
    assert all(a < mean < b for a, mean, b in zip(low, means, high, strict=True))  # also at the training length


def test_scalings_and_a_window(runs, tmp_path):
    E.main([str(runs / "rope"), *flags(tmp_path)])
    plain = losses(tmp_path, "rope")
    for scaling in ("linear", "ntk", "yarn"):  # auto: nothing is scaled up to the training length
        E.main([str(runs / "rope"), *flags(tmp_path, f"--rope_scaling={scaling}")])
        scaled = losses(tmp_path, "rope")
        assert scaled[16] == plain[16] and scaled[64] != plain[64]
    E.main([str(runs / "rope"), *flags(tmp_path, "--window=8")])
    windowed = losses(tmp_path, "rope")
    assert windowed[8] == pytest.approx(plain[8], abs=1e-6)  # a context of 8 fits into the window
    assert windowed[64] == pytest.approx(windowed[8], abs=1e-5)  # one layer sees no further
    assert plain[64] != pytest.approx(plain[8], abs=1e-4)


def test_wandb_has_the_curves_of_all_runs_and_the_picture(runs, tmp_path):
    argv = [runs / "sinusoidal", runs / "learnable", *flags(tmp_path, "--seed=3")]
    env = {k: v for k, v in os.environ.items() if not k.startswith("WANDB")}
    command = [sys.executable, E.__file__, *argv, "--wandb_mode=offline"]
    subprocess.run(command, cwd=tmp_path, env=env, check=True, capture_output=True)
    for name in read(tmp_path)["runs"]:
        [log] = tmp_path.glob(f"wandb/offline-run-*-{name}-length-*/*.wandb")
        command = [Path(sys.executable).parent / "wandb", "leet", "inspect", "--json", log]
        lines = subprocess.check_output(command, stdin=subprocess.DEVNULL, text=True).splitlines()
        records = list(map(json.loads, lines))
        rows = [r["history"]["item"] for r in records if "history" in r]
        for key in ("loss", "delta"):
            curve = {row["x/context"]: row[f"length/{key}"] for row in rows if f"length/{key}" in row}
            assert curve == pytest.approx(losses(tmp_path, name, key=key))
        assert any(r.get("metric", {}).get("step_metric", "") == "x/context" for r in records)
        assert any("length/picture.path" in row for row in rows) == (name == "sinusoidal")


def test_runs_on_different_text_are_compared_only_on_a_named_one(runs, trained, tmp_path, dataset, refused):
    other, foreign = f"{tmp_path}/other", f"{tmp_path}/foreign"
    (tmp_path / "text.txt").write_text("another alphabet\n" * 200)
    prepare.main([str(write_texts(tmp_path / "texts", n=30, words=200)), f"--name={other}"])
    prepare.main([f"{tmp_path}/text.txt", f"--name={foreign}"])
    both = [str(runs / "rope"), str(trained("alibi", dataset=other)), *flags(tmp_path)]
    message = refused(E.main, *both)
    assert f"rope on {dataset}" in message and f"alibi on {other}" in message and "--dataset" in message
    assert foreign in refused(E.main, *both, f"--dataset={foreign}")
    E.main([*both, f"--dataset={dataset}"])
    assert read(tmp_path)["text"]["name"] == dataset


def test_a_note_names_the_settings_in_which_runs_differ(runs, trained, tmp_path, capsys):
    rope, alibi = str(runs / "rope"), str(trained("alibi", max_iters=3))
    E.main([rope, str(runs / "t5"), alibi, *flags(tmp_path)])
    assert "differ in max_iters: 4 in most, 3 in alibi\n" in capsys.readouterr().out
    E.main([rope, str(runs / "t5"), *flags(tmp_path, f"--keep={tmp_path}/kept")])
    assert "note: besides" not in capsys.readouterr().out
    E.main([alibi, *flags(tmp_path, f"--keep={tmp_path}/kept")])  # one that differs from the results in the folder
    assert "differ in max_iters: 4 in most, 3 in alibi\n" in capsys.readouterr().out


def test_every_comparison_has_files_of_its_own(runs, tmp_path):
    for schemes in (["none", "rope"], ["none", "alibi"], ["none"]):
        E.main([*(str(runs / scheme) for scheme in schemes), *flags(tmp_path)])
    elsewhere = shutil.copytree(runs / "none", tmp_path / "elsewhere" / "none")
    E.main([str(runs / "none"), str(elsewhere), *flags(tmp_path)])
    E.main([str(elsewhere), *flags(tmp_path)])  # another run of a known name
    for _ in range(2):
        E.main([str(runs / "none"), *flags(tmp_path, "--blocks=5")])
    assert len([*(tmp_path / "results").glob("length-??????.png")]) == 6


def test_a_run_of_very_short_windows_is_measured_without_further_flags(trained, tmp_path):
    E.main([str(trained("alibi", block_size=8)), f"--results_dir={tmp_path}/results", "--device=cpu", "--blocks=3"])
    assert list(losses(tmp_path, "alibi")) == [4, 8, 16, 32, 64, 128]


def test_a_run_that_is_trained_while_it_is_measured_is_not_mixed_up(trained, tmp_path, monkeypatch):
    shutil.copytree(trained("rope"), tmp_path / "r")
    open_runs = E.open_runs

    def opening(cfg):
        opened = open_runs(cfg)
        shutil.copyfile(trained("rope", seed=5) / "best.pt", tmp_path / "r" / "best.pt")
        return opened

    monkeypatch.setattr(E, "open_runs", opening)
    E.main([str(tmp_path / "r"), *flags(tmp_path)])
    first = losses(tmp_path, "r")
    monkeypatch.undo()
    E.main([str(tmp_path / "r"), *flags(tmp_path)])
    assert losses(tmp_path, "r")[16] != first[16]


def test_a_run_trained_with_scaling_is_measured_with_the_factor_it_was_trained_with(runs, tmp_path):
    argv = [f"--init_from={runs}/rope", "--block_size=32", "--rope_scaling=linear", "--max_iters=1", "--device=cpu"]
    for name, more, factor in (("auto", [], 2.0), ("own", ["--rope_factor=3"], 3.0)):
        train.main([*argv, *more, f"--out_dir={tmp_path}/{name}"])
        run = load_checkpoint(tmp_path / name)
        assert run.config.rope_factor == factor
        factors = [run.config_with(E.EvalConfig(runs=("r",)), n).rope_factor for n in (8, 32, 64)]
        assert factors == [factor, factor, 2 * factor]
        assert run.config_with(E.EvalConfig(runs=("r",), rope_scaling="yarn"), 64).rope_factor == 4


def test_runs_that_start_from_runs_of_their_own_seed_are_one_row(runs, seeds, tmp_path):
    sources = seeds("rope")[1:]
    argv = ["--max_iters=1", "--device=cpu", "--learning_rate=1e-4"]
    for n, source in zip((1, 2), sources, strict=True):
        train.main([*argv, f"--init_from={source}", f"--seed={n}", f"--out_dir={tmp_path}/more-{n}"])
    other = ["--init_from=" + str(runs / "alibi"), "--seed=3", f"--out_dir={tmp_path}/more-3"]
    train.main([*argv, *other])
    E.main([*(f"{tmp_path}/more-{n}" for n in (1, 2, 3)), *flags(tmp_path)])
    assert [result["seeds"] for result in read(tmp_path)["runs"].values()] == [[1, 2], [3]]
