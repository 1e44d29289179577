"""How a run starts: with new weights, with the weights of another model, or where an earlier call stopped.

`values` are the settings that the user gave, `run` is the Checkpoint in out_dir, and `source` that of --init_from.
"""

from dataclasses import asdict, replace
from pathlib import Path

import torch

from model import GPTConfig
from run.checkpoint import CALL_FIELDS, Checkpoint, load_checkpoint, stretched

# Resuming can change neither these nor the fields of the model.
FIXED = ("init_from", "seed", "optimizer", "dataset", "unscored", "prepared text")


def find_run(values):
    """The checkpoint in out_dir that a call with these `values` resumes or evaluates; None for a new run."""
    folder = values["out_dir"]
    if values.get("eval_only"):
        return load_checkpoint(folder)
    is_there = any(Path(folder).glob("*.pt")) and not values.get("overwrite")
    if is_there or values.get("resume"):
        return load_checkpoint(folder, "latest")


def all_settings(values, run, source):
    """The settings of a call: its own `values`, and those that it inherits from a run or a source.
    --resume and --eval_only inherit all but the device."""
    settings = settings_from(source, values) if source else values  # the others have their defaults
    if values.get("resume") or values.get("eval_only"):
        changes = {"dataset": values.get("dataset") or run.dataset_name(), "overwrite": False, "device": "auto"}
        return asdict(run.config) | run.settings | changes | {name: settings[name] for name in values}
    return settings


def settings_from(source, values):
    """The settings of a run with --init_from: its own `values`, and those of its source. Training starts with the
    model that evaluating the source at this block_size would use: shares of block_size and temperatures refer to the
    length that they were trained at, and rope is stretched from there, if at all. The optimizer is AdamW: Muon has its
    own rate, whose default quickly damages trained weights."""
    trained = source.config
    settings = asdict(trained)
    if values.get("block_size", trained.block_size) != trained.block_size:
        settings["first_block_size"] = trained.first_length
    if values.get("pos_scheme", trained.pos_scheme) != trained.pos_scheme:  # without the other scheme's own settings
        for name in (*trained.scheme_class.reads, "pos_options", "layers"):
            del settings[name]
    stretch = ("rope_scaling", "rope_factor")
    settings |= {name: values[name] for name in values if name in vars(trained) and name not in stretch}
    c = GPTConfig(**settings)
    c = stretched(c, trained, c.block_size, *map(values.get, stretch), "layers" in values)
    own = {"dataset": values.get("dataset") or source.dataset_name(), "optimizer": "adamw"}
    return own | values | asdict(c)


def start(cfg, model, optimizer, dataset, run, source):
    """Loads the weights of `run` or `source`, if there is one. Returns the Checkpoint of the first step, and messages
    for the log. ValueError if they do not fit."""
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
    known = {"settings": source.settings, "dataset_hash": source.dataset_hash, "history": source.history}
    history = [[0, {"init_from": known if source.settings else source.hash}]]  # others' models have no settings
    return replace(checkpoint, history=history), initialise(model, source, dataset)


def resume(run, cfg, model, optimizer, dataset):
    """Loads a Checkpoint of this run and returns what `start` does. ValueError if it is another run."""
    changed = changed_settings(run, cfg, dataset)
    model.load_state_dict(run.weights)
    optimizer.load_state_dict(run.optimizer)
    messages = [f"resumed after step {run.step}", *(f"with {name}={value}" for name, value in changed.items())]
    history = [*run.history, [run.step, changed]] if changed else run.history
    return replace(run, settings=asdict(cfg), segment=run.segment + 1, history=history), messages


def changed_settings(run, cfg, dataset):
    """The settings that resuming a run changes, {name: new value}. ValueError if it is another run."""
    if not run.settings:
        raise ValueError(
            f"{run.folder} holds imported weights: start with --init_from={run.folder} in another --out_dir"
        )
    defaults = asdict(type(cfg)())  # which the run had of settings that are newer than it
    old = defaults | vars(run.config) | run.settings | {"prepared text": run.dataset_hash[:8]}
    new = asdict(cfg) | {"prepared text": dataset.hash[:8]}
    changed = {name: new[name] for name in new if name not in CALL_FIELDS and new[name] != old.get(name)}
    fixed = changed.keys() & {*vars(run.config), *FIXED}
    # without --resume nothing may change; with it, all but the model and what is FIXED
    if fixed or (changed and not cfg.resume):
        advice = "choose another --out_dir, or --overwrite it" + ("" if fixed else ", or --resume it with this change")
        differences = ", ".join(f"{name}={old.get(name)!r}, now {value!r}" for name, value in changed.items())
        raise ValueError(f"{run.folder} holds another run ({differences}): {advice}")
    return changed


def initialise(model, source, dataset):
    """Copies a Checkpoint's weights into the model: the whole backbone and, layer by layer, the
    weights of schemes that both models have. Returns messages for the log."""
    source.check_tokenizer(dataset.tokenizer, f"dataset {dataset.name!r}")
    sizes = {name: getattr(source.config, name) for name in ("n_layer", "n_head", "n_embd", "bias", "vocab_size")}
    other = [f"{name}={size}" for name, size in sizes.items() if size != getattr(model.config, name)]
    if other:
        raise ValueError(f"{source.path} has {', '.join(other)}: its weights do not fit another size")
    trained = source.model("cpu")
    names = {module: name for name, module in model.named_modules()}
    pairs = {model.transformer: trained.transformer}
    for new, old in zip(model.schemes, trained.schemes, strict=True):
        if pairs.setdefault(new, old) is not old and old.state_dict():
            raise ValueError(f"{source.path} has layers with different weights, which would share {names[new]} now")
    pairs.setdefault(model.pos, trained.pos)  # unless a layer has it
    messages = [f"initialised from {source.path}, step {source.step}"]
    for new, old in pairs.items():
        messages += copy_weights(new, old, names[new])
        if new is not model.transformer and type(new) is type(old):
            new.start_from(old.config)
    return messages


def copy_weights(new, old, name):
    """Copies the parameters that two modules have in common and the overlapping rows of resized ones. Returns messages.
    ValueError if one has another size."""
    weights = old.state_dict()
    messages = []
    try:
        for key, p in new.state_dict().items():
            w = weights.get(key, p)
            if len(w) != len(p):
                weights[key] = torch.cat((w[: len(p)].to(p), p[len(w) :]))
                messages.append(f"{name}.{key} keeps its first {min(len(w), len(p))} rows")
        keys = new.load_state_dict(weights, strict=False)
    except RuntimeError:
        raise ValueError(f"the weights of {name} have another size than those of the source") from None
    messages += [f"{name}.{key} starts untrained" for key in keys.missing_keys]
    messages += [f"{name}.{key} is not loaded" for key in keys.unexpected_keys]
    return messages
