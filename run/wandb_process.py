"""The process in which wandb runs, so that nothing that becomes of it can hold or end the work. run.tracking starts it.

It reads JSON, a line a call: first what wandb.init takes, then [method of Run, argument]. It prints where the run is,
and finishes it when the input ends, be it that the other process was killed."""

import contextlib
import json
import os
import sys


def begin(wandb, mode, axes, **options):
    """The wandb run. 'auto' is online with a login, else offline."""
    wandb.setup(wandb.Settings(silent=True))
    if mode == "auto":
        mode = "online" if wandb.login(prompt=False, verify=False) else "offline"
    settings = wandb.Settings(silent=True, console="off", init_timeout=6)
    try:
        run = wandb.init(mode=mode, settings=settings, **options)
    except wandb.errors.Error as error:  # no login, or no network
        if mode == "offline":
            raise
        print(f"wandb is not reachable ({type(error).__name__}), so it logs offline", file=sys.stderr)
        id = options["id"] + "-offline"  # the first one counts as used
        run = wandb.init(mode="offline", settings=settings, **options | {"id": id, "name": id})
    for prefix, step_metric in axes.items():
        run.define_metric(step_metric, hidden=True)
        run.define_metric(f"{prefix}/*", step_metric=step_metric)
    return run


def main(calls, answer):
    calls = map(json.loads, calls)
    options = next(calls)
    import wandb

    run = begin(wandb, **options)
    place = {"folder": run.settings.sync_dir, "url": None if run.settings._offline else run.url}
    with contextlib.suppress(OSError):  # nobody is left to read it
        os.write(answer, json.dumps(place).encode() + b"\n")
    for method, argument in calls:
        if method == "image":
            run.log({key: wandb.Image(path) for key, path in argument.items()})
        elif method == "summary":
            run.summary.update(argument)
        else:
            run.log(argument)
    run.finish()


if __name__ == "__main__":
    calls, answer = os.fdopen(os.dup(0)), os.dup(1)
    sys.stderr = os.fdopen(os.dup(2), "w", buffering=1, errors="replace")
    for fd in range(3):  # wandb's server inherits these: it must not hold a pipe of ours, or of the shell, open
        os.dup2(os.open(os.devnull, os.O_RDWR), fd)
    try:
        main(calls, answer)
    except Exception as error:
        print(f"wandb failed and is left out from here on: {' '.join(str(error).split())[:300]}", file=sys.stderr)
        sys.stderr.flush()
        os._exit(1)  # wandb's own exit waits for a server that may be gone
