"""How a person follows a run: metrics.jsonl, progress lines and wandb."""

import contextlib
import json
import os
import sys
import time
from pathlib import Path

from data import write_atomically

WANDB_MODES = ("auto", "online", "offline", "disabled")


def read_metrics(folder):
    """The rows of metrics.jsonl, without a line that was cut short when a process was killed."""
    path, rows = folder / "metrics.jsonl", []
    for line in path.read_text().splitlines() if path.is_file() else []:
        with contextlib.suppress(json.JSONDecodeError):
            rows.append(json.loads(line))
    return rows


class RunLog:
    """Where a training run reports: metrics.jsonl in its folder, wandb and the screen. Without a folder it is silent,
    for the other processes of a run."""

    def __init__(self, folder=None, after_step=0, tracker=None):
        """Drops the rows of metrics.jsonl after `after_step`: a resumed run writes them again."""
        self.folder, self.tracker = folder, tracker
        if folder:
            kept = [row for row in read_metrics(folder) if row["step"] <= after_step]
            write_atomically(folder / "metrics.jsonl", "".join(json.dumps(row) + "\n" for row in kept))

    def __call__(self, step, row, text):
        """Logs one row of metrics and prints its text."""
        if self.folder:
            row = {"step": step} | row
            with open(self.folder / "metrics.jsonl", "a") as f:
                f.write(json.dumps(row) + "\n")
            self.tracker.log(row)
            self.say([text])

    def say(self, lines):
        if self.folder and lines:
            print("\n".join(lines), flush=True)

    def close(self, summary):
        if self.folder:
            self.tracker.summary(summary)
            self.say(self.tracker.finish())


def format_seconds(seconds):
    minutes, s = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{s:02}" if minutes >= 60 else f"{minutes}:{s:02}"


def stamp():
    """The time, to make an id that is used once."""
    return time.strftime("%Y%m%d-%H%M%S")


class Wandb:
    """One wandb run that never prompts, never blocks for long and never stops the work: it reports a fault once, on
    stderr, and then logs nothing. 'auto' is WANDB_MODE, else online with a login and offline without."""

    def __init__(self, mode, project, group, id, job_type, config, axes):
        """mode: one of WANDB_MODES. axes: {prefix: step metric}: wandb draws every `prefix/*` against that metric."""
        self.run = None
        if mode == "auto":
            mode = os.environ.get("WANDB_MODE") or "auto"
        if mode == "disabled":
            return
        import wandb  # half a second, so only where it is used

        self.wandb = wandb
        options = dict(project=project, group=group, id=id, name=id, job_type=job_type, config=config)
        options["settings"] = dict(silent=True, console="off", init_timeout=20)
        try:
            if mode == "auto":
                wandb.setup(wandb.Settings(silent=True))
                mode = "online" if wandb.login(prompt=False, verify=False) else "offline"
            try:
                self.run = wandb.init(mode=mode, **options)
            except wandb.errors.Error as error:  # no login, or no network
                if mode == "offline":
                    raise
                print(f"wandb is not reachable ({type(error).__name__}), so it logs offline", file=sys.stderr)
                self.run = wandb.init(mode="offline", **options)
            for prefix, step_metric in axes.items():
                self.run.define_metric(step_metric, hidden=True)
                self.run.define_metric(f"{prefix}/*", step_metric=step_metric)
        except Exception as error:
            self._give_up(error)

    def log(self, row):
        self._do(lambda: self.run.log(row))

    def image(self, key, path):
        self._do(lambda: self.run.log({key: self.wandb.Image(str(path))}))

    def summary(self, values):
        self._do(lambda: self.run.summary.update(values))

    def finish(self):
        """Ends the run. Returns the lines that say where its charts are."""
        run = self.run
        if run is None:
            return []
        folder = os.path.relpath(Path(run.settings.sync_dir).parent)
        offline = [f"charts    wandb leet {folder}", f"upload    wandb sync {folder}/offline-run-*"]
        lines = offline if run.settings._offline else [f"charts    {run.url}"]
        self._do(run.finish)
        return lines

    def _do(self, action):
        if self.run is not None:
            try:
                action()
            except Exception as error:
                self._give_up(error)

    def _give_up(self, error):
        print(f"wandb failed and is left out from here on: {error}", file=sys.stderr)
        self.run = None
