"""Kept losses: those of a run in its own folder, so that nothing is measured twice, and those of a line of the table in
one file, which stands wherever a run can:  python eval_length.py out/mine benchmark/alibi

The file of a line, NAME.npz, has `about`, which is JSON with everything but the losses; `ends` and `documents`, the
place of each block in the validation text; and the arrays of the protocol, with the line's seeds as first dimension.
"""

import contextlib
import dataclasses
import io
import json
import platform
import re
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from config import checked
from model import GPTConfig
from run import files
from run.checkpoint import Checkpoint, is_whole


@dataclass(frozen=True)
class KeptRun(Checkpoint):
    """One seed of a kept line: a Checkpoint with losses instead of weights. Its path is that of the line's file,
    without the ending, and its folder only has its name."""

    experiment: str = ""  # the line: it is not pooled with other runs of the same settings
    hash: str = ""  # of the checkpoint that was measured
    machine: str = ""  # where it was measured
    measured: dict = field(default_factory=dict)  # what `measured_as` returned
    found: dict = field(default_factory=dict)  # the targets and the arrays of this seed, by name

    def check_dataset(self, dataset, named):
        """ValueError unless the dataset is the text that was measured."""
        if dataset.hash != self.dataset_hash:
            raise ValueError(f"{self.path} was measured on another text than that of dataset {dataset.name!r}")

    def losses(self, protocol, targets):
        """The targets and the arrays. ValueError unless they are those of this protocol."""
        now, jobs = measured_as(protocol), protocol.jobs(self.config.block_size, self.config.max_positions)
        other = [key for key, value in self.measured.items() if value != now.get(key)]
        if {"protocol", "block_tokens", "seed", "identity"} & {*other} or not (
            np.array_equal(self.found["ends"], targets["ends"]) and jobs.keys() <= self.found.keys()
        ):
            flags = " ".join(f"--{key}={self.measured[key]}" for key in other if key != "identity")
            how = f"with {flags}, so give the same" if flags else "by another version of this code"
            raise ValueError(f"{self.path} cannot be compared: it was measured {how}")
        return targets | self.found


def measured_as(protocol):
    """The settings that define what a protocol measures, as plain types."""
    return {
        "protocol": protocol.name, "lengths": ",".join(map(str, protocol.lengths)), "blocks": protocol.blocks,
        "block_tokens": protocol.block_tokens, "seed": protocol.seed, "max_position": protocol.max_position,
        "identity": protocol.identity,
    }  # fmt: skip


def read_arrays(path):
    """All arrays of an .npz file, by name. ValueError if it is damaged."""
    if is_whole(path):  # it may still provoke any exception
        with contextlib.suppress(Exception), np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive}
    raise ValueError(f"{path} is damaged")


def are_losses(arrays, *shape):
    """Whether all arrays hold finite numbers, and their first dimensions are `shape`."""
    return all(a.dtype.kind in "bf" and a.shape[: len(shape)] == shape and np.isfinite(a).all() for a in arrays)


def kept(path, known, rows):
    """What was measured before, {name: array}: all arrays of an .npz file but the known ones; none if there is no file.
    ValueError if it is damaged."""
    with contextlib.suppress(ValueError):
        found = {name: a for name, a in (read_arrays(path) if path.exists() else {}).items() if name not in known}
        if are_losses(found.values(), rows):
            return found
    raise ValueError(f"{path} is damaged: delete it, and its losses are measured again")


def is_line(path):
    return Path(f"{path.removesuffix('.npz')}.npz").is_file()


def load_line(path):
    """The runs of a kept line, {name: KeptRun}. ValueError if it is damaged."""
    path, runs = path.removesuffix(".npz"), {}
    arrays = read_arrays(Path(f"{path}.npz"))
    try:
        about, ends, documents = json.loads(str(arrays.pop("about"))), arrays.pop("ends"), arrays.pop("documents")
        if not are_losses(arrays.values(), len(about["runs"]), len(ends)):
            raise ValueError("invalid losses")
        about["model"].pop("sinks", None)
        config = GPTConfig(**checked(GPTConfig, about["model"], path))
        for i, run in enumerate(about["runs"]):
            found = {name: a[i].astype(float) for name, a in arrays.items()} | {"ends": ends, "documents": documents}
            settings, name = about["settings"] | {"seed": run["seed"]}, f"{path}-{run['seed']}" if i else path
            runs[name] = KeptRun(
                weights={}, config=config, step=run["step"], settings=settings, best_val_loss=run["tuning_loss"],
                dataset_hash=about["dataset_hash"], path=path, folder=Path(name), experiment=path,
                hash=run["checkpoint"], machine=run["machine"], measured=about["measured"], found=found,
            )  # fmt: skip
    except (KeyError, TypeError, ValueError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else error
        raise ValueError(f"{path}.npz cannot stand for runs: {reason}") from None
    return runs


def line_of(cfg, protocol, dataset, run, changed):
    """The kept line that a run belongs to: its path without an ending, what defines it, as plain types, and its seeds,
    {seed: KeptRun}. It is named by the run's folder, without the seed, and by what the evaluation `changed` in the
    model, in words: rope-window128. ValueError if the line is another experiment or measurement."""
    if not run.settings:
        raise ValueError(f"--keep is for runs of train.py, not for {run.path}")
    settings, model = run.shared_settings, dataclasses.asdict(run.under(cfg, protocol.longest))
    measured = measured_as(protocol)
    about = {"dataset_hash": dataset.hash, "measured": measured, "model": model, "settings": settings}
    words = [re.sub(r"\w+=(?=[a-z])|=", "", change) for change in changed]  # window128, yarn
    name = run.without_seed(run.folder.resolve().name)
    path = str(Path(cfg.keep, "-".join([name, *words])))
    seeds = {old.settings["seed"]: old for old in load_line(path).values()} if is_line(path) else {}
    if seeds:
        old, unlike = next(iter(seeds.values())), {}
        for there, here in (
            ({"text": old.dataset_hash}, {"text": dataset.hash}), (old.measured, measured),
            (dataclasses.asdict(old.config), model), (old.settings, settings),
        ):  # fmt: skip
            for key in there.keys() & here.keys():  # a kept line may lack settings that are newer
                if there[key] != here[key]:
                    unlike[key] = f"{key} is {there[key]} there and {here[key]} here"
        if unlike:
            words = ", ".join(unlike[key] for key in sorted(unlike))
            raise ValueError(f"{run.path} cannot join {path}.npz: {words}. Choose another --keep=FOLDER")
    return path, about, seeds


def keep_run(cfg, protocol, dataset, run, found, changed):
    """Writes what was `found` of a run to its line in the folder cfg.keep: a new seed comes last, one that is there
    already is replaced. Returns {file: seeds}."""
    path, about, seeds = line_of(cfg, protocol, dataset, run, changed)
    seeds = {seed: (old, old.found, old.machine) for seed, old in seeds.items()}
    seeds[run.settings["seed"]] = run, found, machine()
    about["runs"] = [
        {"seed": seed, "step": run.step, "tuning_loss": run.best_val_loss, "checkpoint": run.hash, "machine": where}
        for seed, (run, _, where) in seeds.items()
    ]
    targets = ("ends", "documents")
    common = set.intersection(*(set(own) for _, own, _ in seeds.values()))  # older seeds may lack some arrays
    arrays = {name: np.stack([own[name] for _, own, _ in seeds.values()]).astype(np.float32) for name in sorted(common)
              if name not in targets and np.shape(found[name])[:1] == found["ends"].shape}  # fmt: skip
    np.savez_compressed(file := io.BytesIO(), about=json.dumps(about), **{k: found[k] for k in targets}, **arrays)
    files.write(Path(f"{path}.npz"), file.getvalue())
    return {f"{path}.npz": list(seeds)}


def machine():
    """Where losses are measured, in words: processor, versions, and the commit of this code."""
    cpu = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    [name, *_] = re.findall(r"model name\s*: (.*)", cpu) or [platform.machine()]
    if torch.cuda.is_available():
        name = torch.cuda.get_device_name()
    git = ["git", "-C", Path(__file__).parent, "describe", "--always", "--dirty"]
    commit = subprocess.run(git, capture_output=True, text=True).stdout.strip() if shutil.which("git") else ""
    return f"{name}; Python {platform.python_version()}, torch {torch.__version__}; commit {commit or 'unknown'}"
