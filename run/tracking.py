"""How a run is followed: metrics.jsonl, progress lines, loss.png and wandb."""

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Literal

from run import files
from run.script import silence_stdout

WandbMode = Literal["auto", "online", "offline", "disabled"]
PATIENCE = 10  # seconds to wait for a wandb run at the end


def read_metrics(folder):
    """The rows of metrics.jsonl, skipping malformed lines: a killed process may leave half of one."""
    path, rows = folder / "metrics.jsonl", []
    for line in path.read_text(errors="replace").splitlines() if path.is_file() else []:
        with contextlib.suppress(ValueError, RecursionError):
            rows.append(json.loads(line))
    return [row for row in rows if isinstance(row, dict) and isinstance(row.get("step"), int)]


class RunLog:
    """Reports a training run to metrics.jsonl, to the screen and, through a process that follows metrics.jsonl, to
    wandb. Only a run's first process reports. A failure never ends the run."""

    def __init__(self, cfg, rank, segment, step):
        """The log of a run that starts after `step`. A new run (segment 0) clears away what an earlier one left in its
        folder; a resumed one drops the later rows of metrics.jsonl and writes them again."""
        self.folder, self.process = Path(cfg.out_dir) if rank == 0 else None, None
        if rank > 0:
            return
        if cfg.overwrite and segment == 0:
            for name in ("latest.pt", "best.pt", "loss.png"):
                (self.folder / name).unlink(missing_ok=True)
        metrics, rows = self.folder / "metrics.jsonl", read_metrics(self.folder) if segment else []
        kept = "".join(json.dumps(row) + "\n" for row in rows if row["step"] <= step)
        files.write(metrics, kept)
        resumed = f"-r{segment}" if segment else ""
        names = {
            "project": cfg.wandb_project, "group": cfg.wandb_group or Path(cfg.dataset).name, "job_type": "train",
            "id": f"{self.folder.name}-{time.strftime('%Y%m%d-%H%M%S')}{resumed}",  # wandb ids are never reused
            "config": dataclasses.asdict(cfg),
        }  # fmt: skip
        axes, followed = {"train": "step", "val": "step"}, (str(metrics), len(kept), {})
        self.process = start_wandb(cfg.wandb_mode, axes, names, [followed])

    def __call__(self, step, row, text):
        """Logs one row of metrics and prints its text."""
        if self.folder:
            try:
                with open(self.folder / "metrics.jsonl", "a") as f:
                    f.write(json.dumps({"step": step} | row) + "\n")
            except OSError as error:
                text += f"\ncannot write {self.folder}/metrics.jsonl: {error.strerror}"
            self.say([text])

    def say(self, lines):
        if self.folder and lines:
            try:
                print("\n".join(lines), flush=True)
            except OSError:  # the terminal, or the reader of our output, is gone
                silence_stdout()

    def close(self, step, pace, best_val_loss, unsaved):
        """Draws loss.png, says where everything is, and waits for wandb."""
        folder, took = self.folder, format_seconds(pace.seconds())
        try:
            draw_losses(folder)
        except Exception as error:  # a full disk, or no matplotlib
            self.say([f"cannot draw {folder}/loss.png: {' '.join(str(error).split())[:200]}"])
        lines = [f"stopped and saved at step {step}. To resume:", f"  python train.py --resume --out_dir={folder}"]
        if step == pace.last:
            lines = [
                f"{step - pace.first} steps in {took}, best validation loss {best_val_loss:.4f}: {folder}/best.pt",
                f"curve     {folder}/loss.png",
                f"sample    python sample.py {folder}",
                f"evaluate  python eval_length.py {folder}",
            ]
        self.say([] if unsaved else lines)
        if self.process:
            finish_wandb(self.process, PATIENCE)


def draw_losses(folder):
    """Draws the losses in metrics.jsonl as loss.png."""
    from matplotlib.figure import Figure  # 0.7 s, so only here

    figure = Figure(figsize=(7, 4.5), dpi=120, layout="constrained")
    axes, rows = figure.subplots(), read_metrics(folder)
    for key, style in (("train/loss", {"alpha": 0.7, "linewidth": 1}), ("val/loss", {"marker": "o", "markersize": 4})):
        points = [(row["step"], row[key]) for row in rows if key in row]
        axes.plot(*zip(*points, strict=True), label=key.replace("/", " "), **style) if points else None
    axes.set(title=folder.resolve().name, xlabel="step", ylabel="loss (nats per token)")
    axes.grid(alpha=0.25)
    axes.legend(frameon=False)
    with files.replacing(folder / "loss.png") as f:
        figure.savefig(f, format="png")


class Pace:
    """Speed and remaining time of a run from step `first` to step `last`, with this many tokens and FLOPs a step, on
    hardware with a peak of `peak` FLOP/s."""

    def __init__(self, first, last, tokens, flops, peak):
        self.first, self.last, self.tokens, self.flops, self.peak = first, last, tokens, flops, peak
        self.start = time.perf_counter()
        self.restart(first)

    def restart(self, step):
        """Measures speed from here on, so that it leaves out the time of an evaluation."""
        self.step, self.at = step, time.perf_counter()

    def row(self, step):
        steps_per_s = (step - self.step) / (time.perf_counter() - self.at)
        return {"train/tokens_per_s": steps_per_s * self.tokens, "train/mfu": steps_per_s * self.flops / self.peak}

    def seconds(self):
        return time.perf_counter() - self.start

    def line(self, step, row):
        """A row of metrics in words."""
        val = f" | val {row['val/loss']:.4f}" if "val/loss" in row else ""
        left = self.seconds() / (step - self.first) * (self.last - step)
        return (
            f"step {step}/{self.last} | train {row['train/loss']:.4f}{val} | lr {row['train/lr']:.1e} | "
            f"{row['train/tokens_per_s'] / 1e3:.1f}k tok/s | {row['train/mfu']:.0%} MFU | {format_seconds(left)} left"
        )


def format_seconds(seconds):
    minutes, s = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{s:02}" if minutes >= 60 else f"{minutes}:{s:02}"


def start_wandb(mode, axes, names, runs):
    """Starts run/wandb_process.py, unless mode is disabled. It logs the lines of each (path, offset, its own names) in
    runs, and finishes when its stdin is closed, even if that is because this process died. Mode 'auto' is WANDB_MODE,
    or else online with a login and offline without. axes: {prefix: x}: wandb draws every `prefix/*` against x."""
    if mode == "auto":
        mode = os.environ.get("WANDB_MODE") or "auto"
    if mode == "disabled":
        return None
    options = json.dumps({"mode": mode, "axes": axes, "names": names, "runs": runs})
    command = [sys.executable, "-P", Path(__file__).with_name("wandb_process.py"), options]
    return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)


def finish_wandb(process, patience):
    """Waits until wandb has logged everything, or for `patience` seconds."""
    try:
        process.communicate(timeout=patience)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        print(f"wandb did not finish within {patience} s and was ended", file=sys.stderr)


def publish(runs, mode, axes, names):
    """Logs rows that are all known, {name: (settings, rows)}, as one wandb run for each name. A row {"image": {key:
    path}} is a picture."""
    with tempfile.TemporaryDirectory() as folder:
        followed = []
        for name, (settings, rows) in runs.items():
            path = Path(folder, str(len(followed)))
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
            own = {"id": f"{name.replace('/', '-')}-{names['id']}", "config": names["config"] | settings}
            followed.append((str(path), 0, own))
        if process := start_wandb(mode, axes, names, followed):
            finish_wandb(process, PATIENCE * len(runs))
