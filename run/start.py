"""How a run starts: from new weights, from the weights of another run, or where an earlier call stopped."""

import dataclasses
import math
from pathlib import Path

import config
from model import find_scheme
from run.checkpoint import CALL_FIELDS, load_checkpoint

FIXED = ("init_from", "seed", "optimizer", "dataset", "the prepared text")  # a resumed run cannot change these


def start(cfg, model, optimizer, dataset):
    """Loads what the run starts from into the model and the optimizer. Returns its step, best validation loss, segment
    and history, as in a Checkpoint, and lines for the log. ValueError if it does not fit."""
    checkpoint, changed = open_folder(cfg, dataset)
    if checkpoint is None:
        if not cfg.init_from:
            return 0, math.inf, 0, [], ()
        source, lines = initialise_from(cfg.init_from, model, dataset)
        return 0, math.inf, 0, [[0, {"init_from": source.hash}]], lines  # its path may hold other weights later
    model.load_state_dict(checkpoint.weights)
    if checkpoint.step < cfg.max_iters:
        try:
            optimizer.load_state_dict(checkpoint.optimizer)
        except Exception:  # whatever a damaged or hostile file provokes
            raise ValueError(f"{checkpoint.path} cannot be resumed: its optimizer state does not fit") from None
    history = checkpoint.history + ([[checkpoint.step, changed]] if changed else [])
    now = f" with {', '.join(f'{k}={v}' for k, v in changed.items())}" if changed else ""
    note = f"resumed after step {checkpoint.step}{now}"
    return checkpoint.step, checkpoint.best_val_loss, checkpoint.segment + 1, history, (note,)


def open_folder(cfg, dataset):
    """The Checkpoint to resume, or None for a new run, and the settings that the resume changes, {name: new value}.
    ValueError if out_dir holds another run."""
    folder, source = Path(cfg.out_dir), Path(cfg.init_from).resolve()
    if cfg.init_from and folder.resolve() in (source, source.parent):
        raise ValueError(f"--init_from={cfg.init_from} lies in --out_dir={folder}: choose another --out_dir")
    if cfg.overwrite or not any((folder / name).exists() for name in ("latest.pt", "best.pt")):
        if cfg.resume:
            raise ValueError(f"there is no run to resume in {folder}")
        return None, {}
    checkpoint = load_checkpoint(folder, "latest")
    old, new = checkpoint.settings, dataclasses.asdict(cfg)
    changed = [k for k in new if k not in CALL_FIELDS and new[k] != old.get(k)]
    if checkpoint.dataset_hash != dataset.hash and "dataset" not in changed:
        changed.append("the prepared text")
    fixed = [k for k in changed if k in vars(checkpoint.config) or k in FIXED]
    if cfg.resume and fixed:
        raise ValueError(f"{folder} cannot be resumed after a change of {', '.join(fixed)}: choose another --out_dir")
    if changed and not cfg.resume:
        what = ", ".join(f"{k} {old.get(k)!r} there, {new[k]!r} now" if k in new else k for k in changed[:4])
        ways = "resume that run with these settings (--resume), or discard it (--overwrite)"
        raise ValueError(f"{folder} holds another run ({what}): choose another --out_dir, or {ways}")
    return checkpoint, {k: new[k] for k in changed}


def initialise_from(path, model, dataset):
    """Copies another run's weights into the model: the whole backbone, the scheme's parameters that both runs have, and
    the overlapping rows of the scheme's resized tables. Returns its Checkpoint and lines for the log."""
    checkpoint = load_checkpoint(path)
    checkpoint.check_tokenizer(dataset.tokenizer, f"dataset {dataset.name!r}")
    source, lines = dict(checkpoint.weights), [f"initialised from {checkpoint.path}, step {checkpoint.step}"]
    for name, own in model.state_dict().items():
        other, is_schemes = source.pop(name, None), name.startswith("pos.")
        if other is not None and other.shape == own.shape:
            own.copy_(other)
        elif other is None and is_schemes:
            lines.append(f"{name} starts untrained")
        elif is_schemes and other.shape[1:] == own.shape[1:]:
            n = min(len(other), len(own))
            own[:n] = other[:n]
            lines.append(f"{name} keeps its first {n} rows, {len(own) - n} start untrained")
        else:
            shapes = f"{tuple(own.shape)} here, {None if other is None else tuple(other.shape)} there"
            raise ValueError(f"init_from={path} has another size ({name}: {shapes})")
    if checkpoint.config.pos_scheme == model.config.pos_scheme:
        model.pos.start_from(checkpoint.config)
    for name in source:
        if not name.startswith("pos."):
            raise ValueError(f"init_from={path} has weights that this model does not have, such as {name}")
        lines.append(f"{name} is not loaded")
    return checkpoint, tuple(lines)


def inherited(cls, values):
    """The settings (fields of cls) that a call takes from an earlier run unless its own `values` set them. --resume and
    --eval_only take all but the device. --init_from takes the model's size, the text, and the length that a rope scheme
    was trained at, if the new run scales it."""
    if values.get("resume") or values.get("eval_only"):
        checkpoint = load_checkpoint(values["out_dir"], "latest")
        saved = checkpoint.settings | {"dataset": checkpoint.dataset_name(values.get("dataset"))}
        saved = {k: v for k, v in saved.items() if k not in ("resume", "overwrite", "device")}
        return config.checked(cls, saved, checkpoint.path)
    if not values.get("init_from"):
        return {}
    checkpoint = load_checkpoint(values["init_from"])
    args = dataclasses.asdict(checkpoint.config) | {"dataset": checkpoint.dataset_name(values.get("dataset"))}
    reads = find_scheme(args["pos_scheme"]).reads
    if values.get("pos_scheme", args["pos_scheme"]) != args["pos_scheme"]:
        return {k: v for k, v in args.items() if k not in (*reads, "pos_options")}
    if values.get("rope_scaling", args["rope_scaling"]) == "none":
        args["rope_block_size"] = 0  # the new run is trained without scaling, at its own block_size
    elif "rope_block_size" in reads:
        args["rope_block_size"] = args["rope_block_size"] or args["block_size"]
    return args
