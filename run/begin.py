"""Where a run begins: anew, from other weights, or where an earlier call stopped."""

import dataclasses
import math
from pathlib import Path
from typing import NamedTuple

import config
from model import SCHEMES
from run import checkpoint as checkpoints
from run.checkpoint import CALL_FIELDS


class Start(NamedTuple):
    step: int = 0
    best_val_loss: float = math.inf
    segment: int = 0  # how often the run was resumed
    notes: tuple = ()  # lines for the log


def start(cfg, model, optimizer, dataset):
    """Loads into the model and the optimizer what the run starts from. ValueError where that does not fit."""
    checkpoint = open_folder(cfg, dataset)
    if checkpoint is None:
        return Start(notes=begin_from(cfg.init_from, model, dataset)) if cfg.init_from else Start()
    model.load_state_dict(checkpoint.weights)
    if checkpoint.step < cfg.max_iters:
        try:
            optimizer.load_state_dict(checkpoint.optimizer)
        except ValueError as error:
            raise ValueError(f"{checkpoint.path} cannot be resumed: {error}") from None
    notes = (f"going on after step {checkpoint.step}",)
    return Start(checkpoint.step, checkpoint.best_val_loss, checkpoint.segment + 1, notes)


def open_folder(cfg, dataset):
    """The Checkpoint to go on from, or None for a new run. ValueError where out_dir holds something else."""
    folder = Path(cfg.out_dir)
    if cfg.overwrite or not any((folder / name).exists() for name in ("latest.pt", "best.pt")):
        if cfg.resume:
            raise ValueError(f"there is no run to resume in {folder}")
        return None
    checkpoint = checkpoints.load(folder, "latest")
    old, new = checkpoint.settings, dataclasses.asdict(cfg)
    if missing := sorted(new.keys() - old.keys()):
        raise ValueError(f"{checkpoint.path} is damaged: its settings lack {missing[0]}")
    changed = [k for k in new if k not in CALL_FIELDS and new[k] != old[k]]
    if checkpoint.dataset_hash != dataset.hash and "dataset" not in changed:
        changed.append("the prepared text")
    begun = ("init_from", "seed", "optimizer", "dataset", "the prepared text")  # what a run began with
    fixed = [k for k in changed if k in vars(checkpoint.config) or k in begun]
    if cfg.resume and fixed:
        raise ValueError(f"{folder} cannot be resumed with another {', '.join(fixed)}: choose another --out_dir")
    if changed and not cfg.resume:
        what = ", ".join(f"{k} {old[k]!r} there, {new[k]!r} now" if k in new else k for k in changed[:4])
        ways = "go on with that run under these settings (--resume), or discard it (--overwrite)"
        raise ValueError(f"{folder} holds another run ({what}): choose another --out_dir, or {ways}")
    checkpoint.tokenizer(dataset)  # must be the same
    return checkpoint


def begin_from(path, model, dataset):
    """Loads another run's weights into the model: the whole backbone, the scheme's parameters that both runs have, and
    of a table of another length the rows that both have. Returns lines for the log."""
    checkpoint = checkpoints.load(path)
    checkpoint.tokenizer(dataset)  # must be the same
    source, lines = dict(checkpoint.weights), [f"begun from {checkpoint.path}, step {checkpoint.step}"]
    for name, own in model.state_dict().items():
        theirs, is_schemes = source.pop(name, None), name.startswith("pos.")
        if theirs is not None and theirs.shape == own.shape:
            own.copy_(theirs)
        elif theirs is None and is_schemes:
            lines.append(f"{name} starts untrained")
        elif is_schemes and theirs.shape[1:] == own.shape[1:]:
            n = min(len(theirs), len(own))
            own[:n] = theirs[:n]
            lines.append(f"{name} keeps its first {n} rows, {len(own) - n} start untrained")
        else:
            shapes = f"{tuple(own.shape)} here, {None if theirs is None else tuple(theirs.shape)} there"
            raise ValueError(f"init_from={path} is of another size ({name}: {shapes})")
    if checkpoint.config.pos_scheme == model.config.pos_scheme:
        model.pos.begin_from(checkpoint.config)
    for name in source:
        if not name.startswith("pos."):
            raise ValueError(f"init_from={path} has weights that this model does not have, such as {name}")
        lines.append(f"{name} is not loaded")
    return tuple(lines)


def inherited(cls, values):
    """The settings that a call takes from an earlier run, where its own `values` do not say otherwise. --resume and
    --eval_only take all but the device; --init_from takes the model's size, the text, and the length that a scheme was
    trained at before it is stretched."""
    if values.get("resume") or values.get("eval_only"):
        checkpoint = checkpoints.load(values["out_dir"], "latest")
        saved = checkpoint.settings | {"dataset": checkpoint.dataset_name(values.get("dataset"))}
        saved = {k: v for k, v in saved.items() if k not in ("resume", "overwrite", "device")}
        return config.checked(cls, saved, checkpoint.path)
    if not values.get("init_from"):
        return {}
    checkpoint = checkpoints.load(values["init_from"])
    args = dataclasses.asdict(checkpoint.config) | {"dataset": checkpoint.dataset_name(values.get("dataset"))}
    options = SCHEMES[args["pos_scheme"]].options
    if values.get("pos_scheme", args["pos_scheme"]) != args["pos_scheme"]:
        return {k: v for k, v in args.items() if k not in options}
    if "rope_block_size" in options:
        args["rope_block_size"] = args["rope_block_size"] or args["block_size"]
    return args
