"""No fault of the machine or the user costs work. The tests kill real processes and damage real files."""

import builtins
import os
import pty
import random
import resource
import shutil
import signal
import subprocess
import sys

import pytest
import torch
from conftest import ROOT

import train
from run.checkpoint import load_checkpoint
from run.tracking import RunLog, read_metrics

TRAIN = [sys.executable, str(ROOT / "train.py")]
FILES = ["best.pt", "latest.pt", "loss.png", "metrics.jsonl"]  # of a run, and nothing else


def script(text):
    return [sys.executable, "-c", text]


def run(command, **more):
    return subprocess.run([*map(str, command)], cwd=ROOT, capture_output=True, text=True, timeout=120, **more)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def assert_same(a, b, which="best"):
    """The checkpoints of two folders are equal."""
    a, b = load_checkpoint(a, which), load_checkpoint(b, which)
    assert (a.step, a.best_val_loss) == (b.step, b.best_val_loss) and a.weights.keys() == b.weights.keys()
    assert all(torch.equal(w, b.weights[name]) for name, w in a.weights.items())


@pytest.fixture(scope="module")
def whole(tiny, tmp_path_factory):
    """The folder of a run without interruption."""
    folder = tmp_path_factory.mktemp("whole") / "r"
    train.main([*tiny, f"--out_dir={folder}"])
    return folder


KILL = """if True:
    import os, sys
    replace, left = os.replace, int(sys.argv[1])
    def killing(*names):
        global left
        left -= 1
        if left == 0: os.kill(os.getpid(), 9)
        replace(*names)
    os.replace = killing
    import train
    train.main(sys.argv[2:])"""


@pytest.mark.parametrize("nth", [3, 4, 5, 6])
def test_a_kill_before_any_rename_loses_nothing_and_leaves_nothing(nth, tiny, whole, tmp_path):
    """The first rename is that of metrics.jsonl. Each evaluation renames best.pt and latest.pt; loss.png is the last."""
    flags = [*tiny, f"--out_dir={tmp_path}/r"]
    assert run([*script(KILL), nth, *flags]).returncode == -9
    left = set(names(tmp_path / "r")) - set(FILES)
    assert left == {".lock", {3: ".latest.pt.tmp", 4: ".best.pt.tmp", 5: ".latest.pt.tmp", 6: ".loss.png.tmp"}[nth]}
    train.main([*flags])  # the same command resumes
    for which in ("best", "latest"):
        assert_same(whole, tmp_path / "r", which)
    assert names(tmp_path / "r") == [name for name in FILES if nth < 6 or name != "loss.png"]  # the run was finished


def test_one_process_at_a_time_writes_into_a_folder(tiny, tmp_path, refused):
    folder = tmp_path / "r"
    hold = "import sys; from pathlib import Path; from run import files\nwith files.Lock(Path(sys.argv[1])): print(1, flush=True); input()"
    with subprocess.Popen([*script(hold), folder], cwd=ROOT, stdin=-1, stdout=-1) as process:
        process.stdout.readline()
        for name in (".latest.pt.tmp", ".metrics.jsonl.tmp", ".loss.png.tmp"):
            (folder / name).write_text("half")
        assert f"another process is writing into {folder}" in refused(train.main, *tiny, f"--out_dir={folder}")
        assert len(names(folder)) == 4
        process.kill()
    assert (folder / ".lock").exists()
    train.main([*tiny, f"--out_dir={folder}"])
    assert names(folder) == FILES


def test_a_full_disk_is_one_line_and_leaves_the_last_good_files(tiny, tmp_path):
    folder, flags = tmp_path / "r", [*tiny, f"--out_dir={tmp_path}/r"]
    train.main([*flags, "--max_iters=3"])
    good = (folder / "latest.pt").read_bytes()

    def limit():  # writing a larger file is an error, as on a full disk
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(good) // 2, len(good) // 2))

    done = run([*TRAIN, "--resume", f"--out_dir={folder}", "--max_iters=6"], preexec_fn=limit)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "error: step 6 could not be saved in" in done.stderr and "--resume" in done.stderr
    assert (folder / "latest.pt").read_bytes() == good
    assert names(folder) == FILES


@pytest.mark.parametrize("what", ["full", "vanished", "blocked"])
def test_training_continues_after_a_failed_save(what, tiny, whole, tmp_path, monkeypatch, capsys):
    folder, save, faults = tmp_path / "r", torch.save, iter([True])

    def saving(*given):
        if next(faults, False):
            if what == "full":
                raise OSError(28, "No space left on device")
            folder.rename(tmp_path / "gone") if what == "vanished" else (folder / "latest.pt").mkdir()
        elif what == "blocked":
            (folder / "latest.pt").rmdir()
        save(*given)

    monkeypatch.setattr(torch, "save", saving)
    train.main([*tiny, f"--out_dir={folder}"])
    assert "step 3 could not be saved" in capsys.readouterr().out
    assert_same(whole, folder)
    assert set(names(folder)) - set(FILES) == set()


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_after_a_signal_the_run_is_saved_and_the_process_dies_of_the_signal(signum, tiny, whole, tmp_path):
    folder, flags = tmp_path / "r", [*tiny, f"--out_dir={tmp_path}/r"]
    terminal, inside = pty.openpty()
    with subprocess.Popen([*TRAIN, *flags, "--max_iters=100000"], cwd=ROOT, stdout=inside, stderr=inside) as process:
        seen = b""
        while b"step 3/" not in seen:
            seen += os.read(terminal, 1000)
        process.send_signal(signum)
        if signum == signal.SIGHUP:  # the terminal is gone
            os.close(inside), os.close(terminal)
    assert process.returncode == -signum
    stopped = load_checkpoint(folder, "latest")
    assert stopped.step >= 3
    rows = [row["step"] for row in read_metrics(folder)]
    assert rows == [*range(0, stopped.step + 1, 3)]
    if signum != signal.SIGHUP:
        assert b"stopping: the run is saved first" in os.read(terminal, 10000)


def test_training_continues_when_the_reader_of_its_output_is_gone(tiny, whole, tmp_path):
    command = [*TRAIN, *tiny, f"--out_dir={tmp_path}/r"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0
    assert_same(whole, tmp_path / "r")


def test_metrics_without_a_checkpoint_are_kept(tiny, tmp_path):
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "metrics.jsonl").write_text('{"step": 0}\n')
    train.main([*tiny, f"--out_dir={tmp_path}/r"])
    [kept] = (tmp_path / "r").glob("metrics-*.jsonl")
    assert kept.read_text() == '{"step": 0}\n' and len(read_metrics(tmp_path / "r")) == 3


def test_results_are_written_when_the_terminal_lacks_a_letter(whole, tmp_path):
    env = os.environ | {"PYTHONIOENCODING": "ascii"}
    flags = ["--device=cpu", "--blocks=2", f"--results_dir={tmp_path}/results", "--lengths=8,16,32"]
    shutil.copytree(whole, tmp_path / "r")
    done = run([sys.executable, "eval_length.py", tmp_path / "r", *flags], env=env)
    assert done.returncode == 0 and "?" in done.stdout
    assert list((tmp_path / "results").glob("*.json"))


def test_values_that_are_not_finite_are_never_saved(tiny, tmp_path, refused):
    flags = [*tiny, f"--out_dir={tmp_path}/r"]
    train.main([*flags, "--max_iters=3"])
    before = (tmp_path / "r" / "latest.pt").read_bytes()
    loaded = load_checkpoint(tmp_path / "r", "latest")
    loaded.weights["transformer.h.0.ln_1.weight"][0] = torch.inf
    with pytest.raises(
        ValueError, match="transformer.h.0.ln_1.weight is not finite at step 3, so .*latest.pt was not replaced"
    ):
        loaded.save(tmp_path / "r", is_best=True)
    line = refused(train.main, "--resume", f"--out_dir={tmp_path}/r", "--max_iters=6", "--learning_rate=1e18")
    assert "not finite" in line
    assert (tmp_path / "r" / "latest.pt").read_bytes() == before


@pytest.mark.parametrize("flips", [60, pytest.param(400, marks=pytest.mark.slow)])
def test_every_flipped_bit_is_found(flips, whole, tmp_path, refused):
    folder, rng, found = tmp_path / "r", random.Random(0), 0
    shutil.copytree(whole, folder)
    content = (whole / "latest.pt").read_bytes()
    for _ in range(flips):
        changed = bytearray(content)
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
        (folder / "latest.pt").write_bytes(changed)
        try:
            assert_same(whole, folder, "latest")  # a bit without meaning, such as one of a time stamp or of padding
        except ValueError as error:
            assert f"{folder}/best.pt is intact: to use it instead, cp" in str(error)
            found += 1
    assert found > flips * 2 / 3
    for end in (0, 1, 100, len(content) // 2, len(content) - 1):
        (folder / "latest.pt").write_bytes(content[:end])
        assert "latest.pt cannot be loaded: it is damaged" in refused(train.main, "--resume", f"--out_dir={folder}")


def test_after_a_failed_save_a_worse_model_does_not_replace_the_best(tiny, tmp_path, monkeypatch):
    losses, save = iter([9, 3.0, 2.0, 1.5, 2.5, 2.4]), torch.save
    monkeypatch.setattr(train, "evaluate", lambda *given: next(losses))

    def saving(content, f):
        if content["best_val_loss"] == 1.5:
            raise OSError(28, "No space left on device")
        save(content, f)

    monkeypatch.setattr(torch, "save", saving)
    train.main([*tiny, f"--out_dir={tmp_path}/r", "--max_iters=5", "--eval_interval=1"])
    best, latest = (load_checkpoint(tmp_path / "r", which) for which in ("best", "latest"))
    assert (best.step, best.best_val_loss, latest.step, latest.best_val_loss) == (2, 2.0, 5, 2.0)


def test_a_renamed_folder_is_created_and_locked_again(tiny, whole, tmp_path, monkeypatch, refused):
    folder, evaluate, said = tmp_path / "r", train.evaluate, []

    def renaming(*given):
        if folder.exists() and (folder / "latest.pt").exists() and not (tmp_path / "moved").exists():
            folder.rename(tmp_path / "moved")
        elif (tmp_path / "moved").exists() and not said:
            said.append(run([*TRAIN, *tiny, f"--out_dir={folder}"]).stderr)
        return evaluate(*given)

    monkeypatch.setattr(train, "evaluate", renaming)
    train.main([*tiny, f"--out_dir={folder}", "--eval_interval=1"])
    assert "another process is writing into" in said[0]
    assert_same(whole, folder)
    assert load_checkpoint(folder, "latest").step == 6 and load_checkpoint(tmp_path / "moved", "latest").step == 1


def test_nohup_keeps_a_run_alive(tiny, whole, tmp_path):
    more = ["--log_interval=1", "--max_iters=300", "--eval_interval=150"]
    command = ["nohup", *TRAIN, *tiny, f"--out_dir={tmp_path}/r", *more]
    with subprocess.Popen(command, cwd=ROOT, stdout=-1, stderr=-1, text=True) as process:
        while "step 3/" not in process.stdout.readline():
            pass
        process.send_signal(signal.SIGHUP)
        process.communicate()
    assert process.returncode == 0 and load_checkpoint(tmp_path / "r", "latest").step == 300


def test_a_row_that_cannot_be_written_is_one_line_and_malformed_rows_are_skipped(tmp_path, monkeypatch, capsys):
    log, opened = RunLog(tmp_path), open

    def failing(path, *given, **more):
        with opened(path, *given, **more) as f:
            f.write('{"step": 1, "lo')
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(builtins, "open", failing)
    log(1, {"loss": 1}, "step 1")
    monkeypatch.undo()
    assert capsys.readouterr().out == f"step 1\ncannot write {tmp_path}/metrics.jsonl: No space left on device\n"
    log(2, {"loss": 2}, "step 2")
    with open(tmp_path / "metrics.jsonl", "ab") as f:
        f.write(b"\n".join([b"7", b'{"step": "x"}', b'{"loss": 2}', b"\xff\xfe", b"[" * 10_000, b'{"step": 3, "lo']))
    assert read_metrics(tmp_path) == [{"step": 2, "loss": 2}]
