"""How a run is followed: metrics.jsonl, progress lines, wandb and pictures. What was measured is written first, logged
second and drawn last."""

import contextlib
import json
import os
import re
import secrets
import shlex
import sys
import time
import warnings
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Literal

from run import files
from run.script import silence_stdout

WandbMode = Literal["auto", "online", "offline", "disabled"]


def check_project(name):
    """ValueError unless wandb accepts the name of a project."""
    if not re.fullmatch(r"[^/\\#?%:]{,128}", name):
        raise ValueError(f"--wandb_project={name}: at most 128 characters are allowed, and none of / \\ # ? % :")


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

    def __init__(self, cfg, rank, segment, pace):
        """The log of a run from the step of its Pace on. A new run (segment 0) clears away what an earlier one left in
        its folder; a resumed one drops the later rows of metrics.jsonl and writes them again."""
        self.pace = pace
        self.reports = rank == 0
        self.folder = Path(cfg.out_dir)
        self.metrics = self.folder / "metrics.jsonl"
        if not self.reports:
            return
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
        self.wandb = start_wandb(cfg.wandb_mode, {"train": "step", "val": "step"}, init)
        pace.restart(pace.first)
        rows = read_metrics(self.folder) if segment else []
        earlier = [json.dumps(row) + "\n" for row in rows if row["step"] <= pace.first]
        files.write(self.metrics, "".join(earlier))

    def __call__(self, step, row, text):
        """Logs one row of metrics and prints its text. Speed is measured from here on."""
        if self.reports:
            row = {"step": step} | row
            with open(self.metrics, "a") as f:
                f.write(json.dumps(row) + "\n")
            self.wandb = log_wandb(self.wandb, [row])
        self.say(text)
        self.pace.restart(step)

    def say(self, *messages):
        """Prints each message on a line of its own."""
        if self.reports:
            try:
                print(*messages, sep="\n", flush=True)
            except OSError:  # the terminal, or the reader of our output, is gone
                silence_stdout()

    def close(self, step, best_val_loss, evaluation):
        """Says where everything is and what to do next (`evaluation`: a script), waits for wandb and draws loss.png."""
        folder = shlex.quote(str(self.folder))
        if step < self.pace.last:
            self.say(f"stopped and saved at step {step}. To resume:", f"  python train.py --resume --out_dir={folder}")
        else:
            self.say(
                f"{step - self.pace.first} steps in {format_seconds(self.pace.seconds())}",
                f"best      {self.folder}/best.pt, validation loss {best_val_loss:.4f}",
                f"sample    python sample.py {folder}",
                f"evaluate  python {evaluation} {folder}",
            )
        charts = finish_wandb(self.wandb)
        if charts:
            self.say(charts)
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


@dataclass
class Pace:
    """Speed and remaining time of a run from step `first` to step `last`."""

    first: int
    last: int
    tokens: int  # of a step
    flops_per_token: float
    peak: float  # FLOP/s of the hardware

    def __post_init__(self):
        self.start = time.perf_counter()
        self.restart(self.first)

    def restart(self, step):
        """Measures speed from here on, so that it leaves out the time of an evaluation."""
        self.step = step
        self.step_start = time.perf_counter()

    def row(self, step):
        tokens_per_s = (step - self.step) * self.tokens / (time.perf_counter() - self.step_start)
        mfu = min(1.0, tokens_per_s * self.flops_per_token / self.peak)  # the peak may be that of a busy moment
        return {"train/tokens_per_s": tokens_per_s, "train/mfu": mfu}

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
    """hours:minutes:seconds"""
    return str(timedelta(seconds=round(seconds)))


def guarded(action):
    """A call of wandb: a fault costs one line and the charts, never a step. Then it returns None."""

    def attempt(*arguments):
        try:
            return action(*arguments)
        except Exception as error:
            reason = " ".join(str(error).split())
            print(f"wandb failed, and the command continues without charts: {reason}", file=sys.stderr)

    return attempt


@guarded
def start_wandb(mode, axes, init):
    """A run of wandb.init(**init), or None if it is disabled. Mode 'auto' is what the user has set, or else online with
    a login and offline without; so is an empty project. axes: {prefix: x}: wandb draws every `prefix/*` against x."""
    if mode == "disabled" or os.environ.get("WANDB_DISABLED") == "true":
        return None
    import wandb  # slow to import

    os.environ["WANDB_SILENT"] = "true"
    preset = wandb.setup().settings
    if mode == "auto":
        mode = preset.mode
        if mode == "online" and not wandb.login(prompt=False, verify=False):
            mode = "offline"
    project = init["project"] or preset.project or "lengthwise"
    settings = wandb.Settings(console="off", init_timeout=6)
    safe = re.sub(r"[^\w.-]", "-", init["name"][-100:]).strip("-")  # `wandb leet` lists runs by their ids
    id = f"{safe}-{secrets.token_hex(4)}"
    run = wandb.init(mode=mode, settings=settings, **init | {"project": project, "id": id})
    for prefix, x in axes.items():
        run.define_metric(x, hidden=True)
        run.define_metric(f"{prefix}/*", step_metric=x, summary="min,last" if prefix == "val" else None)
    return None if run.disabled else run


@guarded
def log_wandb(run, rows):
    """Logs rows to a wandb run, if there is one. Returns it."""
    for row in rows if run else ():
        run.log(row)
    return run


@guarded
def finish_wandb(run):
    """Waits until wandb has everything. Returns where the charts are, or None without a run."""
    if not run:
        return None
    run.finish()
    if run.url:
        return f"charts    {run.url}"
    folder = shlex.quote(os.path.relpath(run.settings.sync_dir))
    return f"charts    wandb leet {folder}   (Ctrl-A, then y, shows all)\nupload    wandb sync {folder}"


def publish(runs, mode, axes, init):
    """Logs rows that are all known, {name: (settings, rows)}, as one wandb run for each name. init: what their
    arguments of wandb.init have in common. For axes, see start_wandb. Returns whether wandb took everything."""
    for name, (settings, rows) in runs.items():
        own = {"name": f"{name}-{init['name']}", "config": init["config"] | settings}
        charts = finish_wandb(log_wandb(start_wandb(mode, axes, init | own), rows))
        if not charts:
            return False
    print(charts)
    return True


def save_picture(label, path, draw, *arguments):
    """Writes the figure that draw(*arguments) returns to a .png file. Returns a line that says where it is or why it is
    missing. The user's settings of matplotlib do not apply, and a $ in a name is a $."""
    message = f"{label:10}{path}"
    try:
        import matplotlib.style  # slow to import, so only here

        style = matplotlib.style.context(["default", {"text.parse_math": False}])
        with style, warnings.catch_warnings(record=True) as caught, files.replacing(path) as f:
            draw(*arguments).savefig(f, format="png")
        if caught:  # a warning for each character that the font lacks
            message += f" (may look wrong: {caught[0].message})"
    except Exception as error:  # a full disk, no matplotlib
        message = f"cannot draw {path}: {' '.join(str(error).split())[:200]}"
    return message
