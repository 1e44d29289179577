"""The process in which wandb runs, so that no fault in it can block or end the work. run/tracking.py starts it with its
options in JSON: it logs the lines of one or several files, each as a run, and finishes when stdin is closed."""

import contextlib
import json
import os
import re
import secrets
import select
import shlex
import sys


def start(wandb, mode, axes, init, suffix):
    """A wandb run. Its name is init["id"]; its id is that in characters that wandb accepts, and a suffix."""
    name = init["id"].encode(errors="replace").decode()[:128]  # as long as wandb's server accepts
    init |= {
        "name": name,
        "id": re.sub(r"[^\w.-]", "-", name[:48]) + suffix,
        "settings": wandb.Settings(console="off", init_timeout=6),
    }
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


def follow(path, offset, stdin):
    """Yields the lines of the file after `offset` as they are appended, until stdin is closed."""
    with open(path, "rb") as f:
        f.seek(offset)
        while not select.select([stdin], [], [], 1.0)[0]:
            yield from f
        yield from f


def main(stdin, mode, axes, logs):
    import wandb

    os.environ["WANDB_SILENT"] = "true"
    if mode == "auto":
        mode = wandb.setup().settings.mode  # from the user's environment, `wandb offline` or `wandb disabled`
        if mode == "online" and not wandb.login(prompt=False, verify=False):
            mode = "offline"
    if mode == "disabled":
        return
    batch = secrets.token_hex(4)  # no id is ever used twice
    for n, (path, offset, init) in enumerate(logs):
        run = start(wandb, mode, axes, init, f"-{batch}-{n}")
        for line in follow(path, offset, stdin):
            with contextlib.suppress(ValueError):  # half a line, left by a full disk
                run.log(json.loads(line))
        if run.settings._offline:
            mode = "offline"  # the network is tried once
        charts = run.url if len(logs) == 1 else run.project_url
        folder = shlex.quote(os.path.relpath(run.settings.sync_dir + "/.."))
        run.finish()
    if mode == "offline":
        charts = f"wandb leet {folder}   (Ctrl-A, then y, shows all runs in one chart)"
        charts += f"\nupload    wandb sync {folder}/*{batch}*"
    print(f"charts    {charts}")


if __name__ == "__main__":
    stdin = os.dup(0)
    sys.stdout = os.fdopen(os.dup(1), "w", buffering=1, errors="replace")
    sys.stderr = os.fdopen(os.dup(2), "w", buffering=1, errors="replace")
    for fd in range(3):  # wandb's server inherits these, and would keep a pipe of the shell open
        os.dup2(os.open(os.devnull, os.O_RDWR), fd)
    try:
        main(stdin, *json.loads(sys.argv[1]))
    except Exception as error:
        print(f"wandb failed, and the run continues without it: {' '.join(str(error).split())}", file=sys.stderr)
        os._exit(1)  # wandb's own exit waits for a server that may be gone
