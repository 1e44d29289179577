"""How a run starts: from new weights, from the weights of another run, or where an earlier call stopped."""

import dataclasses
import math
from pathlib import Path

import config
from model import find_scheme
from run import files
from run.checkpoint import CALL_FIELDS, load_checkpoint

FIXED = ("init_from", "seed", "optimizer", "dataset", "the prepared text")  # a resumed run cannot change these


class Origin:
    """What a call starts from: the Checkpoint `run` in its out_dir, which is then resumed or evaluated, or `source`,
    that of --init_from. Either may be None."""

    def __init__(self, values):
        """Loads them for the `values` of a command line. ValueError if they are missing or in each other's way."""
        self.values, self.run, self.source, folder = values, None, None, Path(values["out_dir"])
        has_run = (folder / "latest.pt").exists() or (folder / "best.pt").exists()
        if values.get("eval_only"):
            self.run = load_checkpoint(folder)
        elif has_run and (values.get("resume") or not values.get("overwrite")):
            self.run = load_checkpoint(folder, "latest")
        elif values.get("resume"):
            raise ValueError(f"there is no run to resume in {folder}")
        if values.get("init_from"):
            self.source = load_checkpoint(values["init_from"])
            if self.source.folder.resolve() == folder.resolve():
                raise ValueError(f"{self.source.path} lies in --out_dir={folder}: choose another --out_dir")

    def settings(self, cls):
        """The settings (fields of cls) that the call takes from there unless its own values set them. --resume and
        --eval_only take all but the device. --init_from takes the model's size, the text, and the length that a rope
        scheme was trained at, if the new run scales it. It trains with AdamW: Muon's rate is another setting, and its
        default soon spoils trained weights."""
        values, named = self.values, self.values.get("dataset")
        if values.get("resume") or values.get("eval_only"):
            saved = dataclasses.asdict(self.run.config) | self.run.settings | {"dataset": self.run.dataset_name(named)}
            saved = {k: v for k, v in saved.items() if k not in ("resume", "overwrite", "device")}
            return config.checked(cls, saved, self.run.path)
        if not self.source:
            return {}
        args = dataclasses.asdict(self.source.config)
        args |= {"dataset": self.source.dataset_name(named), "optimizer": "adamw"}
        reads = find_scheme(args["pos_scheme"]).reads
        if values.get("pos_scheme", args["pos_scheme"]) != args["pos_scheme"]:
            return {k: v for k, v in args.items() if k not in (*reads, "pos_options", "pos_pattern")}
        if values.get("rope_scaling", args["rope_scaling"]) == "none":
            args["rope_block_size"] = 0  # the new run is trained without scaling, at its own block_size
        elif "rope_block_size" in reads:
            args["rope_block_size"] = args["rope_block_size"] or args["block_size"]
            reach = values.get("block_size", args["block_size"]) / args["rope_block_size"]
            args["rope_factor"] = max(args["rope_factor"], reach)
        return args

    def start(self, cfg, model, optimizer, dataset):
        """Loads it into the model and the optimizer. Returns the step, best validation loss, segment and history, as in
        a Checkpoint, and lines for the log. ValueError if it does not fit."""
        run, source = self.run, self.source
        self.run = self.source = None  # training needs their memory
        if run:
            changed = changed_settings(run, cfg, dataset)
            model.load_state_dict(run.weights)
            try:
                optimizer.load_state_dict(run.optimizer)
            except Exception:  # whatever a damaged file provokes
                raise ValueError(f"{run.path} cannot be resumed: its optimizer state does not fit") from None
            history = run.history + ([[run.step, changed]] if changed else [])
            now = f" with {', '.join(f'{k}={v}' for k, v in changed.items())}" if changed else ""
            return run.step, run.best_val_loss, run.segment + 1, history, [f"resumed after step {run.step}{now}"]
        if source:
            known = source.experiment if source.settings else source.hash  # its path may hold another model later
            history = [[0, {"init_from": files.json_hash(known)}]]
            return 0, math.inf, 0, history, initialise(model, source, dataset)
        return 0, math.inf, 0, [], []


def changed_settings(run, cfg, dataset):
    """The settings that resuming a run changes, {name: new value}. ValueError if it is another run."""
    old, new = run.settings, dataclasses.asdict(cfg)
    changed = [k for k in new if k not in CALL_FIELDS and new[k] != old.get(k)]
    if run.dataset_hash != dataset.hash and "dataset" not in changed:
        changed.append("the prepared text")
    fixed = ", ".join(k for k in changed if k in vars(run.config) or k in FIXED)
    if cfg.resume and fixed:
        raise ValueError(f"{run.folder} cannot be resumed after a change of {fixed}: choose another --out_dir")
    if changed and not cfg.resume:
        what = ", ".join(f"{k} {old.get(k)!r} there, {new[k]!r} now" if k in new else k for k in changed[:4])
        ways = "" if fixed else "resume that run with these settings (--resume), "
        raise ValueError(f"{run.folder} holds another run ({what}): choose another --out_dir, {ways}or --overwrite it")
    return {k: new[k] for k in changed}


def initialise(model, source, dataset):
    """Copies a Checkpoint's weights into the model: the whole backbone, the scheme's parameters that both have, and the
    overlapping rows of the scheme's resized tables. Returns lines for the log."""
    source.check_tokenizer(dataset.tokenizer, f"dataset {dataset.name!r}")
    weights, lines = dict(source.weights), [f"initialised from {source.path}, step {source.step}"]
    if source.config.n_head != model.config.n_head:
        raise ValueError(f"{source.path} has n_head={source.config.n_head}: its heads cannot be regrouped")
    for name, own in model.state_dict().items():
        other, is_schemes = weights.pop(name, None), name.startswith("pos.")
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
            raise ValueError(f"{source.path} has another size ({name}: {shapes})")
    if source.config.pos_scheme == model.config.pos_scheme:
        model.pos.start_from(source.config)
    for name in weights:
        if not name.startswith("pos."):
            raise ValueError(f"{source.path} has weights that this model does not have, such as {name}")
        lines.append(f"{name} is not loaded")
    return lines
