"""The process in which wandb runs, so that no fault in it can block or end the work. run/tracking.py starts it with its
options in JSON. It logs each line of a file, or of its stdin, and finishes when stdin is closed. On stdin, a line
{"run": names} starts a run for the lines after it."""

import contextlib
import json
import os
import sys
import threading


def start(wandb, mode, axes, run):
    """The wandb run. 'auto' is online with a login and offline without."""
    wandb.setup(wandb.Settings(silent=True))
    if mode == "auto":
        mode = "online" if wandb.login(prompt=False, verify=False) else "offline"
    settings = wandb.Settings(silent=True, console="off", init_timeout=6)
    try:
        started = wandb.init(mode=mode, settings=settings, **run)
    except wandb.errors.Error as error:  # no login, or no network
        if mode == "offline":
            raise
        say(f"wandb is not reachable ({type(error).__name__}), so it logs offline", sys.stderr)
        id = run["id"] + "-offline"  # wandb counts the first id as used
        started = wandb.init(mode="offline", settings=settings, **run | {"id": id, "name": id})
    for prefix, x in axes.items():
        started.define_metric(x, hidden=True)
        started.define_metric(f"{prefix}/*", step_metric=x, summary="min,last" if prefix == "val" else None)
    return started


def follow(path, offset, stdin):
    """Yields the lines of the file after `offset` as they are appended, until stdin is closed."""
    closed = threading.Event()
    threading.Thread(target=lambda: (stdin.read(), closed.set()), daemon=True).start()
    with open(path, "rb") as f:
        f.seek(offset)
        rest, last = b"", False
        while not last:
            last = closed.wait(1.0)
            *lines, rest = (rest + f.read()).split(b"\n")
            yield from lines


def say(text, stream):
    with contextlib.suppress(OSError):  # nobody may be left to read it
        print(text, file=stream, flush=True)


def main(stdin, path=None, offset=0, **options):
    import wandb

    runs = [start(wandb, **options)] if path else []
    for line in follow(path, offset, stdin) if path else stdin:
        with contextlib.suppress(ValueError):  # half a line, left by a full disk
            row = json.loads(line)
            if "run" in row:  # the rows that follow belong to a run of their own
                if runs:
                    runs[-1].finish()
                    options["mode"] = "offline" if runs[-1].settings._offline else options["mode"]
                runs.append(start(wandb, **options | {"run": options["run"] | row["run"]}))
            elif "image" in row:
                runs[-1].log({key: wandb.Image(image) for key, image in row["image"].items()})
            else:
                runs[-1].log(row)
    last, folders = runs[-1], [os.path.relpath(run.settings.sync_dir) for run in runs]
    is_offline, url = last.settings._offline, last.url if len(runs) == 1 else last.project_url
    last.finish()
    if not is_offline:
        say(f"charts    {url}", sys.stdout)
        return
    folder, shared, all_in_one = os.path.dirname(folders[0]), folders[0], ""
    if len(runs) > 1:
        ending = os.path.commonprefix([name[::-1] for name in folders])[::-1]
        shared, all_in_one = f"{folder}/*{ending}", "   (Ctrl-A, then y, shows all runs in one chart)"
    say(f"charts    wandb leet {folder}{all_in_one}\nupload    wandb sync {shared}", sys.stdout)


if __name__ == "__main__":
    stdin = os.fdopen(os.dup(0))
    sys.stdout, sys.stderr = (os.fdopen(os.dup(fd), "w", buffering=1, errors="replace") for fd in (1, 2))
    for fd in range(3):  # wandb's server inherits these, and would keep a pipe of the shell open
        os.dup2(os.open(os.devnull, os.O_RDWR), fd)
    try:
        main(stdin, **json.loads(sys.argv[1]))
    except Exception as error:
        say(f"wandb failed, and the run continues without it: {' '.join(str(error).split())[:300]}", sys.stderr)
        os._exit(1)  # wandb's own exit waits for a server that may be gone
