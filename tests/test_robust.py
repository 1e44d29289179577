"""What a machine or a user does to a run costs no work: real processes that are killed, real files that are damaged."""

import os
import pty
import resource
import shutil
import signal
import subprocess
import sys

import pytest
import torch
from conftest import ROOT

import train
from run import checkpoint as checkpoints
from run.tracking import RunLog, Wandb, read_metrics

TRAIN = [sys.executable, str(ROOT / "train.py")]


def script(text):
    return [sys.executable, "-c", text]


def run(command, **more):
    return subprocess.run([*map(str, command)], cwd=ROOT, capture_output=True, text=True, timeout=120, **more)


def same(a, b):
    assert torch.equal(
        torch.cat([w.flatten() for w in checkpoints.load(a).weights.values()]),
        torch.cat([w.flatten() for w in checkpoints.load(b).weights.values()]),
    )


@pytest.fixture(scope="module")
def whole(tiny, tmp_path_factory):
    """The folder of a run that nothing interrupted."""
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


@pytest.mark.parametrize("nth", [3, 4, 5])
def test_a_kill_between_any_two_renames_loses_nothing(nth, tiny, whole, tmp_path):
    """The first rename is metrics.jsonl's; an evaluation that is the best renames best.pt, then latest.pt."""
    flags = [*tiny, f"--out_dir={tmp_path}/r"]
    assert run([*script(KILL), nth, *flags]).returncode == -9
    train.main([*flags])  # the same command goes on
    for which in ("best", "latest"):
        ends = [checkpoints.load(folder, which) for folder in (whole, tmp_path / "r")]
        assert ends[0].step == ends[1].step and ends[0].best_val_loss == ends[1].best_val_loss
    same(whole, tmp_path / "r")
    assert sorted(p.name for p in (tmp_path / "r").iterdir()) == ["best.pt", "latest.pt", "metrics.jsonl"]


def test_one_process_at_a_time_writes_into_a_folder(tiny, tmp_path, refused):
    folder = tmp_path / "r"
    hold = "import sys; from pathlib import Path; from run import files\nwith files.Lock(Path(sys.argv[1])): print(1, flush=True); input()"
    with subprocess.Popen([*script(hold), folder], cwd=ROOT, stdin=-1, stdout=-1) as process:
        process.stdout.readline()
        (folder / ".latest.pt.tmp").write_text("half")
        assert f"another process is writing into {folder}" in refused(train.main, *tiny, f"--out_dir={folder}")
        process.kill()
    train.main([*tiny, f"--out_dir={folder}"])
    assert not (folder / ".latest.pt.tmp").exists()


def test_a_full_disk_is_one_line_and_leaves_the_last_good_files(tiny, tmp_path):
    folder, flags = tmp_path / "r", [*tiny, f"--out_dir={tmp_path}/r"]
    train.main([*flags, "--max_iters=3"])
    good = (folder / "latest.pt").read_bytes()

    def limit():  # no file larger than this: the kernel refuses as a full disk does
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(good) // 2, len(good) // 2))

    done = run([*TRAIN, "--resume", f"--out_dir={folder}", "--max_iters=6"], preexec_fn=limit)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "error: step 6 could not be saved in" in done.stderr and "--resume" in done.stderr
    assert (folder / "latest.pt").read_bytes() == good
    assert sorted(p.name for p in folder.iterdir()) == ["best.pt", "latest.pt", "metrics.jsonl"]


@pytest.mark.parametrize("what", ["full", "vanished", "blocked"])
def test_training_goes_on_where_a_folder_comes_back(what, tiny, whole, tmp_path, monkeypatch, capsys):
    folder, save, faults = tmp_path / "r", torch.save, iter([True])

    def saving(*given):
        if next(faults, False):
            if what == "full":
                raise OSError(28, "No space left on device")
            if what == "vanished":
                folder.rename(tmp_path / "gone")
            else:
                (folder / "latest.pt").mkdir()
        elif what == "blocked":
            (folder / "latest.pt").rmdir()
        save(*given)

    monkeypatch.setattr(torch, "save", saving)
    train.main([*tiny, f"--out_dir={folder}"])
    assert "step 3 could not be saved" in capsys.readouterr().out
    same(whole, folder)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_saves_and_the_process_dies_of_it(signum, tiny, whole, tmp_path):
    folder, flags = tmp_path / "r", [*tiny, f"--out_dir={tmp_path}/r"]
    terminal, inside = pty.openpty()
    with subprocess.Popen([*TRAIN, *flags, "--max_iters=100000"], cwd=ROOT, stdout=inside, stderr=inside) as process:
        seen = b""
        while b"step 3/" not in seen:
            seen += os.read(terminal, 1000)
        process.send_signal(signum)
        if signum == signal.SIGHUP:  # the terminal is gone, and with it stdout and stderr
            os.close(inside), os.close(terminal)
    assert process.returncode == -signum
    stopped = checkpoints.load(folder, "latest")
    assert stopped.step >= 3
    rows = [row["step"] for row in read_metrics(folder)]
    assert rows == [*range(0, stopped.step + 1, 3)]
    if signum != signal.SIGHUP:
        assert b"stopping: the run is saved first" in os.read(terminal, 10000)


def test_a_reader_of_the_output_that_goes_does_not_end_training(tiny, whole, tmp_path):
    command = [*TRAIN, *tiny, f"--out_dir={tmp_path}/r"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0
    same(whole, tmp_path / "r")


def test_a_line_of_metrics_that_cannot_be_written_does_not_end_training(tmp_path, capsys):
    log = RunLog(tmp_path, 0, Wandb("disabled", "p", "g", "id", "train", {}, {}))
    (tmp_path / "metrics.jsonl").unlink()
    (tmp_path / "metrics.jsonl").mkdir()
    log(1, {"loss": 1}, "step 1")
    assert capsys.readouterr().out == f"step 1\nnot written to {tmp_path}/metrics.jsonl: Is a directory\n"


def test_odd_lines_of_metrics_are_left_out(tmp_path):
    lines = [b'{"step": 1}', b"7", b'{"step": "x"}', b'{"loss": 2}', b"\xff\xfe", b"[" * 10_000, b'{"step": 2, "lo']
    (tmp_path / "metrics.jsonl").write_bytes(b"\n".join(lines))
    assert read_metrics(tmp_path) == [{"step": 1}]


def test_metrics_without_a_checkpoint_are_kept(tiny, tmp_path):
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "metrics.jsonl").write_text('{"step": 0}\n')
    train.main([*tiny, f"--out_dir={tmp_path}/r"])
    [kept] = (tmp_path / "r").glob("metrics-*.jsonl")
    assert kept.read_text() == '{"step": 0}\n' and len(read_metrics(tmp_path / "r")) == 3


def test_a_terminal_that_cannot_show_a_letter_does_not_cost_the_results(whole, tmp_path):
    env = os.environ | {"PYTHONIOENCODING": "ascii"}
    flags = ["--device=cpu", "--blocks=2", f"--results_dir={tmp_path}/results", "--lengths=8,16,32"]
    shutil.copytree(whole, tmp_path / "r")
    done = run([sys.executable, "eval_length.py", tmp_path / "r", *flags], env=env)
    assert done.returncode == 0 and "?" in done.stdout
    assert list((tmp_path / "results").glob("*.json"))


def test_weights_that_are_not_finite_are_never_saved(tiny, tmp_path, refused):
    flags = [*tiny, f"--out_dir={tmp_path}/r"]
    train.main([*flags, "--max_iters=3"])
    before = (tmp_path / "r" / "latest.pt").read_bytes()
    loaded = checkpoints.load(tmp_path / "r", "latest")
    loaded.optimizer["adamw"]["transformer.h.0.ln_1.weight"]["exp_avg"][0] = torch.inf
    with pytest.raises(ValueError, match="exp_avg is not finite at step 3, so .*latest.pt stays as it is"):
        loaded.save(tmp_path / "r", is_best=True)
    line = refused(train.main, "--resume", f"--out_dir={tmp_path}/r", "--max_iters=6", "--learning_rate=1e18")
    assert "not finite" in line
    assert (tmp_path / "r" / "latest.pt").read_bytes() == before


def test_every_flipped_bit_is_found(whole, tmp_path, refused):
    import random

    shutil.copytree(whole, tmp_path / "r")
    content, rng = (whole / "latest.pt").read_bytes(), random.Random(0)
    found = 0
    for _ in range(60):
        changed = bytearray(content)
        at = rng.randrange(len(changed))
        changed[at] ^= 1 << rng.randrange(8)
        (tmp_path / "r" / "latest.pt").write_bytes(changed)
        try:
            loaded = checkpoints.load(tmp_path / "r", "latest")
        except ValueError as error:
            assert f"{tmp_path}/r/best.pt is whole: to use it instead, cp" in str(error)
            found += 1
        else:  # a bit that nothing reads, such as a time stamp or padding
            for name, w in loaded.weights.items():
                assert torch.equal(w, checkpoints.load(whole, "latest").weights[name])
    assert found > 40
    for end in (0, 1, 100, len(content) // 2, len(content) - 1):
        (tmp_path / "r" / "latest.pt").write_bytes(content[:end])
        line = refused(train.main, "--resume", f"--out_dir={tmp_path}/r")
        assert "nothing was loaded" in line


def test_a_worse_model_does_not_replace_the_best_after_a_save_that_failed(tiny, tmp_path, monkeypatch):
    losses, save = iter([9, 3.0, 2.0, 1.5, 2.5, 2.4]), torch.save
    monkeypatch.setattr(train, "evaluate", lambda *given: next(losses))

    def saving(content, f):
        if content["best_val_loss"] == 1.5:
            raise OSError(28, "No space left on device")
        save(content, f)

    monkeypatch.setattr(torch, "save", saving)
    train.main([*tiny, f"--out_dir={tmp_path}/r", "--max_iters=5", "--eval_interval=1"])
    best, latest = (checkpoints.load(tmp_path / "r", which) for which in ("best", "latest"))
    assert (best.step, best.best_val_loss, latest.step, latest.best_val_loss) == (2, 2.0, 5, 2.0)


def test_a_renamed_folder_is_made_again_and_held(tiny, whole, tmp_path, monkeypatch, refused):
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
    same(whole, folder)
    assert checkpoints.load(folder, "latest").step == 6 and checkpoints.load(tmp_path / "moved", "latest").step == 1


def test_a_mistake_beside_overwrite_costs_nothing(whole, tiny, tmp_path, monkeypatch, refused):
    shutil.copytree(whole, tmp_path / "r")
    monkeypatch.setenv("WANDB_MODE", "loud")
    assert "WANDB_MODE='loud'" in refused(train.main, *tiny, f"--out_dir={tmp_path}/r", "--overwrite")
    same(whole, tmp_path / "r")


def test_nohup_keeps_a_run_alive(tiny, whole, tmp_path):
    command = [
        "nohup",
        *TRAIN,
        *tiny,
        f"--out_dir={tmp_path}/r",
        "--log_interval=1",
        "--max_iters=300",
        "--eval_interval=150",
    ]
    with subprocess.Popen(command, cwd=ROOT, stdout=-1, stderr=-1, text=True) as process:
        while "step 3/" not in process.stdout.readline():
            pass
        process.send_signal(signal.SIGHUP)
        process.communicate()
    assert process.returncode == 0 and checkpoints.load(tmp_path / "r", "latest").step == 300


def test_a_scheme_that_acts_nowhere_is_resumed(tiny, tmp_path):
    flags = [*tiny, "--pos_scheme=t5", "--pos_pattern=0", f"--out_dir={tmp_path}/r"]
    train.main([*flags, "--max_iters=3"])
    train.main(["--resume", f"--out_dir={tmp_path}/r", "--max_iters=6"])
    assert checkpoints.load(tmp_path / "r", "latest").step == 6


def test_a_line_after_one_that_was_cut_short_is_whole(tmp_path, monkeypatch):
    import builtins

    log, opened = RunLog(tmp_path, 0, Wandb("disabled", "p", "g", "id", "train", {}, {})), open

    def failing(path, *given, **more):
        f = opened(path, *given, **more)
        f.write('{"step": 1, "lo')
        f.close()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(builtins, "open", failing)
    log(1, {"loss": 1}, "step 1")
    monkeypatch.undo()
    log(2, {"loss": 2}, "step 2")
    assert read_metrics(tmp_path) == [{"step": 2, "loss": 2}]


def test_output_that_is_closed_is_no_traceback():
    done = subprocess.run(f"{sys.executable} train.py --help >&-", shell=True, cwd=ROOT, capture_output=True, text=True)
    assert "Traceback" not in done.stderr
