"""How a run starts: with new weights, with the weights of another model, or where an earlier call stopped.

`values` are the settings that the user gave, `run` is the Checkpoint in out_dir, and `source` that of --init_from.
"""

from dataclasses import asdict, replace
from pathlib import Path

import config
from model import find_scheme
from run.checkpoint import CALL_FIELDS, Checkpoint, load_checkpoint

# Resuming can change neither these nor the fields of the model.
FIXED = ("init_from", "seed", "optimizer", "dataset", "prepared text")


def find_run(values):
    """The checkpoint in out_dir that a call with these `values` resumes or evaluates; None for a new run."""
    folder = Path(values["out_dir"])
    if values.get("eval_only"):
        return load_checkpoint(folder)
    if values.get("resume") or not values.get("overwrite"):
        for path in (folder / "latest.pt", folder / "best.pt"):
            if path.exists():
                return load_checkpoint(path)
    if values.get("resume"):
        raise ValueError(f"there is no run to resume in {folder}")
    return None


def inherited_settings(cls, values, run, source):
    """The settings (fields of cls) that a call inherits unless its own `values` set them. --resume and --eval_only
    inherit all but the device."""
    if values.get("resume") or values.get("eval_only"):
        changes = {"dataset": values.get("dataset") or run.dataset_name(), "overwrite": False, "device": "auto"}
        return config.checked(cls, asdict(run.config) | run.settings | changes, run.path)
    return settings_from(source, values) if source else {}


def settings_from(source, values):
    """The settings of a run with --init_from that come from its source: the model's size, the text, and the length that
    a rope scheme was trained at, if the new run scales it. It trains with AdamW: Muon has its own rate, whose default
    quickly damages trained weights."""
    settings = asdict(source.config)
    settings |= {"dataset": values.get("dataset") or source.dataset_name(), "optimizer": "adamw"}
    scheme = settings["pos_scheme"]
    reads = find_scheme(scheme).reads
    if values.get("pos_scheme", scheme) != scheme:  # without the other scheme's own settings
        for name in (*reads, "pos_options", "layers"):
            del settings[name]
    elif values.get("rope_scaling", settings["rope_scaling"]) == "none":  # rope is trained at the new block_size
        settings["rope_block_size"] = 0
    elif "rope_block_size" in reads:  # from the length that rope was trained at to the new block_size
        length = settings["rope_block_size"] or settings["block_size"]
        reach = values.get("block_size", settings["block_size"]) / length
        settings |= {"rope_block_size": length, "rope_factor": max(settings["rope_factor"], reach)}
    return settings


def start(cfg, model, optimizer, dataset, run, source):
    """Loads the weights of `run` or `source`, if there is one, and frees their memory for training. Returns the
    Checkpoint of the first step, without tensors, and messages for the log. ValueError if they do not fit."""
    if run:
        return resume(run, cfg, model, optimizer, dataset)
    checkpoint = Checkpoint(
        {},
        model.config,
        step=0,
        settings=asdict(cfg),
        tokenizer_spec=dataset.tokenizer.spec,
        dataset_hash=dataset.hash,
    )
    if not source:
        return checkpoint, []
    if cfg.overwrite and source.folder.resolve() == Path(cfg.out_dir).resolve():
        raise ValueError(f"{cfg.out_dir} holds the weights to start with: choose another --out_dir")
    known = {"settings": source.settings, "dataset_hash": source.dataset_hash, "history": source.history}
    history = [[0, {"init_from": known if source.settings else source.hash}]]  # others' models have no settings
    return replace(checkpoint, history=history), initialise(model, source, dataset)


def resume(run, cfg, model, optimizer, dataset):
    """Loads a Checkpoint of this run and returns what `start` does. ValueError if it is another run."""
    changed = changed_settings(run, cfg, dataset)
    model.load_state_dict(run.weights)
    optimizer.load_state_dict(run.optimizer)
    run.weights.clear()
    run.optimizer.clear()
    messages = [f"resumed after step {run.step}", *(f"with {name}={value}" for name, value in changed.items())]
    history = [*run.history, [run.step, changed]] if changed else run.history
    return replace(run, settings=asdict(cfg), segment=run.segment + 1, history=history), messages


def changed_settings(run, cfg, dataset):
    """The settings that resuming a run changes, {name: new value}. ValueError if it is another run."""
    if not run.settings:
        raise ValueError(
            f"{run.folder} holds imported weights: start with --init_from={run.folder} in another --out_dir"
        )
    old = vars(run.config) | run.settings | {"prepared text": run.dataset_hash[:8]}
    new = asdict(cfg) | {"prepared text": dataset.hash[:8]}
    changed = {name: new[name] for name in new if name not in CALL_FIELDS and new[name] != old.get(name)}
    fixed = changed.keys() & {*vars(run.config), *FIXED}
    # without --resume nothing may change; with it, all but the model and what is FIXED
    if fixed or (changed and not cfg.resume):
        advice = "choose another --out_dir, --overwrite it" + ("" if fixed else ", or --resume it with this change")
        differences = ", ".join(f"{name}={old.get(name)!r}, now {value!r}" for name, value in changed.items())
        raise ValueError(f"{run.folder} holds another run ({differences}): {advice}")
    return changed


def initialise(model, source, dataset):
    """Copies a Checkpoint's weights into the model: the whole backbone, the scheme's parameters that both have, and the
    overlapping rows of the scheme's resized tables. Empties the Checkpoint. Returns messages for the log."""
    source.check_tokenizer(dataset.tokenizer, f"dataset {dataset.name!r}")
    if source.config.n_head != model.config.n_head:
        raise ValueError(f"{source.path} has n_head={source.config.n_head}: its heads cannot be regrouped")
    source.optimizer.clear()
    weights = source.weights
    messages = [f"initialised from {source.path}, step {source.step}"]
    for name, new in model.state_dict().items():
        old = weights.pop(name, None)
        in_scheme = name.startswith(("pos.", "pos_kinds."))
        if old is not None and old.shape == new.shape:
            new.copy_(old)
        elif old is None and in_scheme:
            messages.append(f"{name} starts untrained")
        elif in_scheme and old.shape[1:] == new.shape[1:]:
            n = min(len(old), len(new))
            new[:n] = old[:n]
            messages.append(f"{name} keeps its first {n} rows, {len(new) - n} start untrained")
        else:
            raise ValueError(f"{source.path} has another size: {name} does not fit the new model")
    schemes = (model.pos, *model.pos_kinds)
    for scheme, old_config in zip(schemes, dict.fromkeys(source.config.scheme_configs), strict=False):
        if scheme.config.pos_scheme == old_config.pos_scheme:
            scheme.start_from(old_config)
    for name in weights:
        if not name.startswith(("pos.", "pos_kinds.")):
            raise ValueError(f"{source.path} has weights that this model does not have, such as {name}")
        messages.append(f"{name} is not loaded")
    return messages
