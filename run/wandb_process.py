"""The process in which wandb runs, so that no fault in it can block or end the work. run/tracking.py starts it with its
options in JSON: it logs the lines of one or several files, each as a run, and finishes when stdin is closed."""

import contextlib
import json
import os
import sys
import threading


def start(wandb, mode, axes, init):
    """A wandb run. 'auto' is online with a login and offline without."""
    if mode == "auto":
        mode = "online" if wandb.login(prompt=False, verify=False) else "offline"
    init |= {"name": init["id"], "settings": wandb.Settings(silent=True, console="off", init_timeout=6)}
    try:
        run = wandb.init(mode=mode, **init)
    except wandb.errors.Error as error:  # no login, or no network
        if mode == "offline":
            raise
        print(f"wandb is not reachable ({type(error).__name__}), so it logs offline", file=sys.stderr)
        init["id"] += "-offline"  # wandb counts the first id as used
        run = wandb.init(mode="offline", **init)
    for prefix, x in axes.items():
        run.define_metric(x, hidden=True)
        run.define_metric(f"{prefix}/*", step_metric=x, summary="min,last" if prefix == "val" else None)
    return run


def follow(path, offset, closed):
    """Yields the lines of the file after `offset` as they are appended, until the event `closed`."""
    with open(path, "rb") as f:
        f.seek(offset)
        while not closed.wait(1.0):
            yield from f
        yield from f


def main(stdin, mode, axes, init, logs):
    import wandb

    wandb.setup(wandb.Settings(silent=True))
    closed = threading.Event()
    threading.Thread(target=lambda: (stdin.read(), closed.set()), daemon=True).start()
    for path, offset, more in logs:
        run = start(wandb, mode, axes, init | more)
        for line in follow(path, offset, closed):
            with contextlib.suppress(ValueError):  # half a line, left by a full disk
                run.log(json.loads(line))
        if run.settings._offline:
            mode = "offline"  # the network is tried once
        charts = run.url if len(logs) == 1 else run.project_url
        folder = os.path.relpath(run.settings.sync_dir + "/..")
        run.finish()
    if mode == "offline":
        charts = f"wandb leet {folder}   (Ctrl-A, then y, shows all runs in one chart)"
        charts += f"\nupload    wandb sync {folder}/*{init['id']}*"
    print(f"charts    {charts}")


if __name__ == "__main__":
    stdin = os.fdopen(os.dup(0))
    sys.stdout = os.fdopen(os.dup(1), "w", buffering=1, errors="replace")
    sys.stderr = os.fdopen(os.dup(2), "w", buffering=1, errors="replace")
    for fd in range(3):  # wandb's server inherits these, and would keep a pipe of the shell open
        os.dup2(os.open(os.devnull, os.O_RDWR), fd)
    try:
        main(stdin, **json.loads(sys.argv[1]))
    except Exception as error:
        print(f"wandb failed, and the run continues without it: {' '.join(str(error).split())}", file=sys.stderr)
        os._exit(1)  # wandb's own exit waits for a server that may be gone
