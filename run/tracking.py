"""How a run is followed: metrics.jsonl, progress lines, loss.png and wandb."""

import contextlib
import json
import os
import re
import secrets
import shlex
import sys
import time
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Literal

from run import files
from run.drawing import save_picture
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


def json_lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


class RunLog:
    """Reports a training run to metrics.jsonl, to the screen and to wandb. Only its first process reports. A failure
    never ends the run."""

    def __init__(self, cfg, rank, segment, step):
        """The log of a run that starts after `step`. A new run (segment 0) clears away what an earlier one left in its
        folder; a resumed one drops the later rows of metrics.jsonl and writes them again."""
        self.reports = rank == 0
        self.folder = Path(cfg.out_dir)
        self.metrics = self.folder / "metrics.jsonl"
        self.quoted = shlex.quote(str(self.folder))  # in the commands that are printed
        if not self.reports:
            return
        if cfg.overwrite:
            for name in ("latest.pt", "best.pt", "loss.png"):
                (self.folder / name).unlink(missing_ok=True)
        rows = read_metrics(self.folder) if segment else []
        earlier = json_lines(row for row in rows if row["step"] <= step)
        files.write(self.metrics, earlier)
        init = {
            "project": cfg.wandb_project,
            "group": cfg.wandb_group or Path(cfg.dataset).name,
            "job_type": "train",
            "id": f"{self.folder.name}-{time.strftime('%Y%m%d-%H%M%S')}-r{segment}",
            "config": asdict(cfg),
        }
        self.wandb = start_wandb(cfg.wandb_mode, {"train": "step", "val": "step"}, init)

    def __call__(self, step, row, text):
        """Logs one row of metrics and prints its text."""
        if self.reports:
            row = {"step": step} | row
            try:
                with open(self.metrics, "a") as f:
                    f.write(json_lines([row]))
            except OSError as error:
                text += f"\ncannot write {self.metrics}: {error.strerror}"
            self.wandb = log_wandb(self.wandb, [row])
        self.say(text)

    def say(self, *messages):
        """Prints each message on a line of its own."""
        if self.reports:
            try:
                print(*messages, sep="\n", flush=True)
            except OSError:  # the terminal, or the reader of our output, is gone
                silence_stdout()

    def say_results(self, step, pace, best_val_loss):
        """Says where everything is and what to do next."""
        if step < pace.last:
            self.say(
                f"stopped and saved at step {step}. To resume:", f"  python train.py --resume --out_dir={self.quoted}"
            )
            return
        self.say(
            f"{step - pace.first} steps in {format_seconds(pace.seconds())}",
            f"best      {self.folder}/best.pt, validation loss {best_val_loss:.4f}",
            f"sample    python sample.py {self.quoted}",
            f"evaluate  python eval_length.py {self.quoted}",
        )

    def close(self):
        """Draws loss.png and waits for wandb."""
        self.say(save_picture("curve", self.folder / "loss.png", draw_losses, self.folder))
        if self.wandb:
            self.say(finish_wandb(self.wandb))


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


def start_wandb(mode, axes, init):
    """A run of wandb.init(**init), or None if it is disabled or fails. Mode 'auto' is what the user has set, or
    else online with a login and offline without. axes: {prefix: x}: wandb draws every `prefix/*` against x."""
    if mode == "disabled" or os.environ.get("WANDB_DISABLED") == "true":
        return None
    try:
        import wandb  # slow to import

        os.environ["WANDB_SILENT"] = "true"
        if mode == "auto":
            mode = wandb.setup().settings.mode
            if mode == "online" and not wandb.login(prompt=False, verify=False):
                mode = "offline"
        name = init["id"].encode(errors="replace").decode()[:128]  # as long as wandb's server accepts
        id = re.sub(r"[^\w.-]", "-", name[:48]) + f"-{secrets.token_hex(4)}"  # no id is ever used twice
        settings = wandb.Settings(console="off", init_timeout=6)
        run = wandb.init(mode=mode, **init | {"name": name, "id": id, "settings": settings})
        for prefix, x in axes.items():
            run.define_metric(x, hidden=True)
            run.define_metric(f"{prefix}/*", step_metric=x, summary="min,last" if prefix == "val" else None)
        return None if run.disabled else run
    except Exception as error:
        print(f"wandb does not start, and the run continues without it: {error}", file=sys.stderr)


def log_wandb(run, rows):
    """Logs rows to a wandb run, if there is one. Returns it, or None after a fault."""
    try:
        for row in rows if run else ():
            run.log(row)
        return run
    except Exception as error:
        print(f"wandb failed, and the run continues without it: {error}", file=sys.stderr)


def finish_wandb(run):
    """Waits until wandb has everything. Returns where the charts are."""
    run.finish()
    if run.url:
        return f"charts    {run.url}"
    folder = shlex.quote(os.path.relpath(run.settings.sync_dir))
    return f"charts    wandb leet {folder}   (Ctrl-A, then y, shows all)\nupload    wandb sync {folder}"


def publish(runs, mode, axes, init):
    """Logs rows that are all known, {name: (settings, rows)}, as one wandb run for each name. init: what their
    arguments of wandb.init have in common. For axes, see start_wandb. Returns whether wandb took everything."""
    for name, (settings, rows) in runs.items():
        own = {"id": f"{name}-{init['id']}", "config": init["config"] | settings}
        run = log_wandb(start_wandb(mode, axes, init | own), rows)
        if not run:
            return False
        charts = finish_wandb(run)
    print(charts)
    return True
