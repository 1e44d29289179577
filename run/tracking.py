"""How a run is followed: metrics.jsonl, progress lines, wandb and pictures. What was measured is written first, logged
second and drawn last."""

import contextlib
import json
import os
import re
import shlex
import sys
import time
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Literal

from run import files

WandbMode = Literal["auto", "online", "offline", "disabled"]


def read_metrics(folder):
    """The rows of metrics.jsonl, skipping malformed lines: a killed process may leave half of one."""
    path = folder / "metrics.jsonl"
    rows = []
    for line in path.read_text(errors="replace").splitlines() if path.is_file() else []:
        with contextlib.suppress(ValueError):
            rows.append(json.loads(line))
    return rows


class RunLog:
    """Reports a training run to metrics.jsonl, to the screen and to wandb. Only its first process reports."""

    # columns of the rows -> how they are printed
    words = {
        "train/loss": "train {:.4f}",
        "val/loss": "val {:.4f}",
        "train/lr": "lr {:.1e}",
        "train/tokens_per_s": "{:,.0f} tokens/s",
    }

    def __init__(self, cfg, rank, segment, step):
        """The log of a run from this step on."""
        self.reports = rank == 0
        self.folder = Path(cfg.out_dir)
        self.last = cfg.max_iters
        self.first = step
        if self.reports:
            self.open(cfg, segment)
        self.start = time.perf_counter()
        self.restart(step)

    def open(self, cfg, segment):
        """A new run (segment 0) clears away what an earlier one left in its folder; a resumed one drops the later rows
        of metrics.jsonl and writes them again."""
        if cfg.overwrite:
            for name in ("latest.pt", "best.pt", "loss.png"):
                (self.folder / name).unlink(missing_ok=True)
        init = {
            "project": cfg.wandb_project,
            "group": cfg.wandb_group or Path(cfg.dataset).name,
            "job_type": "train",
            "name": f"{self.folder.name}-{time.strftime('%Y%m%d-%H%M%S')}-r{segment}",
            "config": asdict(cfg),
        }
        self.charts = Charts(cfg.wandb_mode, {"train": "step", "val": "step"}, init)
        rows = read_metrics(self.folder) if segment else []
        earlier = [json.dumps(row) + "\n" for row in rows if row["step"] <= self.first]
        files.write(self.folder / "metrics.jsonl", "".join(earlier))

    def restart(self, step):
        """Measures speed from this step on."""
        self.step = step
        self.step_start = time.perf_counter()

    def steps_per_s(self, step):
        """The speed since the last row."""
        return (step - self.step) / (time.perf_counter() - self.step_start)

    def __call__(self, step, row):
        """Logs one row of metrics. Speed is measured from here on, so that it leaves out the time of an evaluation."""
        if self.reports:
            row = {"step": step} | row
            with open(self.folder / "metrics.jsonl", "a") as f:
                f.write(json.dumps(row) + "\n")
            self.charts.log(row)
        parts = [form.format(row[key]) for key, form in self.words.items() if key in row]
        if step > self.first:
            left = self.seconds() / (step - self.first) * (self.last - step)
            parts.append(f"{timedelta(seconds=round(left))} left")
        else:  # the validation before the first step is not a part of the steps' time
            self.start = time.perf_counter()
        self.say(" | ".join([f"step {step}/{self.last}", *parts]))
        self.restart(step)

    def say(self, *messages):
        """Prints each message on a line of its own."""
        if self.reports:
            print(*messages, sep="\n", flush=True)

    def seconds(self):
        """Since the first step of this call."""
        return time.perf_counter() - self.start

    def close(self, step, best_val_loss, evaluation):
        """Says where everything is and what to do next (`evaluation`: a script), waits for wandb and draws loss.png."""
        folder = shlex.quote(str(self.folder))
        if step < self.last:
            self.say(f"stopped and saved at step {step}. To resume:", f"  python train.py --resume --out_dir={folder}")
        else:
            self.say(
                f"{step - self.first} steps in {timedelta(seconds=round(self.seconds()))}",
                f"best      {self.folder}/best.pt, validation loss {best_val_loss:.4f}",
                f"sample    python sample.py {folder}",
                f"evaluate  python {evaluation} {folder}",
            )
        self.charts.close()
        self.charts.say_where()
        self.say(save_picture("curve", self.folder / "loss.png", draw_losses, self.folder))


def draw_losses(folder):
    """A figure of the losses in metrics.jsonl."""
    from matplotlib.figure import Figure  # slow to import, so only here

    figure = Figure(layout="constrained")
    axes = figure.subplots()
    rows = read_metrics(folder)
    for key in ("train/loss", "val/loss"):
        logged = [row for row in rows if key in row]
        axes.plot([row["step"] for row in logged], [row[key] for row in logged], ".-", label=key)
    axes.set(xlabel="step", ylabel="loss (nats per token)")
    axes.legend()
    return figure


class Charts:
    """A run of wandb. A fault of wandb costs one line and the charts, never a step."""

    def __init__(self, mode, axes, init):
        """wandb.init(**init), unless it is disabled. Mode 'auto' is what the user has set, or else online with a login
        and offline without. An empty project is the user's own, or lengthwise. axes: {prefix: x}: wandb draws every
        `prefix/*` against x."""
        self.run = None
        if mode != "disabled":
            self.run = self.attempt(start_wandb, mode, axes, init)

    def attempt(self, action, *arguments):
        try:
            return action(*arguments)
        except Exception as error:
            message = "wandb failed, and the command continues without charts:"
            print(message, *str(error).split(), file=sys.stderr)
            self.run = None

    def log(self, row):
        if self.run:
            self.attempt(self.run.log, row)

    def close(self):
        """Waits until wandb has everything."""
        if self.run:
            self.attempt(self.run.finish)

    def say_where(self):
        if self.run and self.run.url:
            print(f"charts    {self.run.url}")
        elif self.run:
            folder = shlex.quote(os.path.relpath(self.run.settings.sync_dir))
            print(f"charts    wandb leet {folder}   (Ctrl-A, then y, shows all)")
            print(f"upload    wandb sync {folder}")


def start_wandb(mode, axes, init):
    """See Charts. Returns None if wandb is disabled."""
    import wandb  # slow to import

    os.environ["WANDB_SILENT"] = "true"
    preset = wandb.setup().settings
    if mode == "auto":
        mode = preset.mode
        if mode == "online" and not wandb.login(prompt=False, verify=False):
            mode = "offline"
    name = re.sub(r"[^\w.-]", "-", init["name"])  # `wandb leet` lists runs by their ids
    ours = {"project": init["project"] or preset.project or "lengthwise", "id": f"{name}-{time.time_ns()}"}
    run = wandb.init(mode=mode, settings=wandb.Settings(console="off", init_timeout=6), **init | ours)
    for prefix, x in axes.items():
        run.define_metric(x, hidden=True)
        run.define_metric(f"{prefix}/*", step_metric=x)
    return None if run.disabled else run


def publish(runs, mode, axes, init):
    """Logs rows that are all known, {name: (settings, rows)}, as one wandb run for each name. init: what their
    arguments of wandb.init have in common. For axes, see Charts."""
    for name, (settings, rows) in runs.items():
        own = {"name": f"{name}-{init['name']}", "config": init["config"] | settings}
        charts = Charts(mode, axes, init | own)
        for row in rows:
            charts.log(row)
        charts.close()
    charts.say_where()


def save_picture(label, path, draw, *arguments):
    """Writes the figure that draw(*arguments) returns to a .png file. Returns a line that says where it is or why it is
    missing."""
    try:
        with files.replacing(path) as f:
            draw(*arguments).savefig(f, format="png")
    except Exception as error:  # a full disk, no matplotlib
        return f"cannot draw {path}: {' '.join(str(error).split())}"
    return f"{label:10}{path}"
