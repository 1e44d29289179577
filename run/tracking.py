"""How a person follows a run: metrics.jsonl, progress lines and wandb."""

import contextlib
import dataclasses
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from subprocess import PIPE

from run.script import silence_stdout
from run import files

WANDB_MODES = ("auto", "online", "offline", "disabled")
PATIENCE = 10  # seconds that a run waits for wandb at its end


def read_metrics(folder):
    """The rows of metrics.jsonl, without what is none, such as a line that was cut short when a process was killed."""
    path, rows = folder / "metrics.jsonl", []
    for line in path.read_text(errors="replace").splitlines() if path.is_file() else []:
        with contextlib.suppress(ValueError, RecursionError):
            rows.append(json.loads(line))
    return [row for row in rows if isinstance(row, dict) and isinstance(row.get("step"), int)]


class RunLog:
    """Where a training run reports: metrics.jsonl in its folder, wandb and the screen. Without a folder it is silent,
    for the other processes of a run. None of the three ends the run when it fails."""

    def __init__(self, folder=None, after_step=0, tracker=None):
        """Drops the rows of metrics.jsonl after `after_step`: a resumed run writes them again."""
        self.folder, self.tracker, self.failed = folder, tracker, False
        if folder:
            kept = [row for row in read_metrics(folder) if row["step"] <= after_step]
            files.write(folder / "metrics.jsonl", "".join(json.dumps(row) + "\n" for row in kept))

    @classmethod
    def open(cls, cfg, world, segment, step):
        """The log of a run that begins after `step`. A new run first clears away what another left in its folder. Only
        the first process prints and writes."""
        if not world.is_first:
            return cls()
        folder = Path(cfg.out_dir)
        group = cfg.wandb_group or Path(cfg.dataset).name
        id = f"{folder.name}-{stamp()}" + (f"-r{segment}" if segment else "")  # no id is ever used twice
        axes = {"train": "step", "val": "step"}
        tracker = Wandb(cfg.wandb_mode, cfg.wandb_project, group, id, "train", dataclasses.asdict(cfg), axes)
        if segment == 0 and cfg.overwrite:
            for name in ("latest.pt", "best.pt", "metrics.jsonl"):
                (folder / name).unlink(missing_ok=True)
        elif segment == 0 and (folder / "metrics.jsonl").is_file():  # of a run that ended before its first checkpoint
            (folder / "metrics.jsonl").replace(folder / f"metrics-{stamp()}.jsonl")
        return cls(folder, step, tracker)

    def __call__(self, step, row, text):
        """Logs one row of metrics and prints its text."""
        if self.folder:
            row = {"step": step} | row
            try:
                with open(self.folder / "metrics.jsonl", "a") as f:
                    f.write("\n" * self.failed + json.dumps(row) + "\n")
                self.failed = False
            except OSError as error:
                self.failed = True  # perhaps in the middle of a line
                text += f"\nnot written to {self.folder}/metrics.jsonl: {error.strerror}"
            self.tracker.log(row)
            self.say([text])

    def say(self, lines):
        if self.folder and lines:
            try:
                print("\n".join(lines), flush=True)
            except OSError:  # the terminal, or whatever read our output, is gone
                silence_stdout()

    def close(self, summary):
        if self.folder:
            self.tracker.summary(summary)
            self.say(self.tracker.finish())


class Pace:
    """How fast steps are done: tokens a second, the share of the peak that they use, and the time left."""

    def __init__(self, step, last, tokens, flops, peak):
        """From `step` to `last`, steps of so many tokens and FLOPs, where `peak` FLOP/s would be possible."""
        self.first, self.last, self.tokens, self.mfu = step, last, tokens, flops / tokens / peak
        self.begin = time.perf_counter()
        self.restart(step)

    def restart(self, step):
        """Leaves out what was done since the last step: an evaluation, say."""
        self.step, self.at = step, time.perf_counter()

    def row(self, step):
        rate = (step - self.step) * self.tokens / (time.perf_counter() - self.at)
        return {"train/tokens_per_s": rate, "train/mfu": rate * self.mfu}

    def seconds(self):
        return time.perf_counter() - self.begin

    def line(self, step, row):
        """A row in words."""
        val = f" | val {row['val/loss']:.4f}" if "val/loss" in row else ""
        left = self.seconds() / (step - self.first) * (self.last - step)
        return (
            f"step {step}/{self.last} | train {row['train/loss']:.4f}{val} | lr {row['train/lr']:.1e} | "
            f"{row['train/tokens_per_s'] / 1e3:.1f}k tok/s | {row['train/mfu']:.0%} MFU | {format_seconds(left)} left"
        )


def format_seconds(seconds):
    minutes, s = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{s:02}" if minutes >= 60 else f"{minutes}:{s:02}"


def stamp():
    """The time, to make an id that is used once."""
    return time.strftime("%Y%m%d-%H%M%S")


class Wandb:
    """One wandb run, in a process of its own (run/wandb_process.py): it never prompts, and the work never waits for it
    but for PATIENCE seconds at the end. 'auto' is WANDB_MODE, else online with a login and offline without."""

    def __init__(self, mode, project, group, id, job_type, config, axes):
        """mode: one of WANDB_MODES. axes: {prefix: step metric}: wandb draws every `prefix/*` against that metric.
        ValueError where WANDB_MODE is none of them."""
        if mode == "auto":
            mode = os.environ.get("WANDB_MODE") or "auto"
            if mode not in WANDB_MODES:
                raise ValueError(f"WANDB_MODE={mode!r} is not one of: {', '.join(WANDB_MODES[1:])}")
        self.process = None
        if mode == "disabled":
            return
        command = [sys.executable, "-P", Path(__file__).with_name("wandb_process.py")]
        self.process = subprocess.Popen(command, stdin=PIPE, stdout=PIPE, text=True, start_new_session=True)
        self.calls = queue.SimpleQueue()
        threading.Thread(target=self._send, daemon=True).start()  # a full pipe must not hold the work either
        names = dict(project=project, group=group, id=id, name=id, job_type=job_type)
        self.calls.put(names | dict(mode=mode, axes=axes, config=config))

    def _send(self):
        with contextlib.suppress(OSError), self.process.stdin as pipe:  # OSError: it has ended, and said why
            while (call := self.calls.get()) is not None:
                pipe.write(json.dumps(call) + "\n")
                pipe.flush()

    def _call(self, method, argument):
        if self.process:
            self.calls.put((method, argument))

    def log(self, row):
        self._call("log", row)

    def image(self, key, path):
        self._call("image", {key: str(path)})

    def summary(self, values):
        self._call("summary", values)

    def finish(self):
        """Ends the run. Returns the lines that say where its charts are."""
        if not self.process:
            return []
        self.calls.put(None)
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")  # its server
            for pid in [self.process.pid, *map(int, children.read_text().split() if children.exists() else [])]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.process.wait()
            print(f"wandb did not finish within {PATIENCE} s and was ended", file=sys.stderr)
        place = self.process.stdout.readline()
        if not place:
            return []
        place = json.loads(place)
        folder = os.path.relpath(place["folder"])
        if place["url"] and self.process.returncode == 0:
            return [f"charts    {place['url']}"]
        return [f"charts    wandb leet {Path(folder).parent}", f"upload    wandb sync {folder}"]
