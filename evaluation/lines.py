"""A line is one row of the table: what the runs of one experiment, which differ only in their seed, lose on the same
blocks. It is measured now, or read from a file, which can be named instead of the runs:

    python eval_length.py out/mine benchmark/alibi

The file, NAME.npz, has the arrays of the protocol, with the seeds as first dimension; `ends` and `documents`, the place
of each block in the validation text; and `about`, which is JSON with everything else.
"""

import contextlib
import io
import json
import platform
import re
import shutil
import subprocess
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import torch

from config import checked
from evaluation.windows import Blocks
from model import SCHEMES, GPTConfig
from run import files
from run.checkpoint import CALL_FIELDS, is_whole


@dataclass
class Line:
    config: GPTConfig  # of the model as it was measured
    settings: dict  # those of its runs' settings that differ from `config` or are not in it
    dataset_hash: str
    measured: dict  # the settings of the protocol
    runs: list  # for each seed: its "seed", "step", "tuning_loss", "checkpoint" (a hash) and "machine"
    blocks: Blocks
    arrays: dict = field(default_factory=dict)  # name -> (seeds, blocks, …)
    path: str = ""  # of the file that it was read from, without .npz

    @property
    def folder(self):
        return Path(self.path)

    @property
    def trained(self):
        """The training length."""
        return self.config.block_size

    def dataset_name(self, named=""):
        return named or self.settings["dataset"]

    def check_dataset(self, dataset, named):
        """ValueError unless the dataset is the text that was measured."""
        if dataset.hash != self.dataset_hash:
            raise ValueError(f"{self.path} was measured on another text than that of dataset {dataset.name!r}")

    def check_measured(self, protocol, blocks):
        """ValueError unless the line was measured by this protocol on these blocks."""
        settings = protocol.settings()
        jobs = protocol.jobs(self.trained, self.config.max_positions)
        other = [key for key, value in self.measured.items() if value != settings.get(key)]
        is_same = not {"protocol", "version", "block_tokens", "seed"} & {*other}
        if not (is_same and np.array_equal(self.blocks.ends, blocks.ends) and jobs.keys() <= self.arrays.keys()):
            flags = " ".join(f"--{key}={self.measured[key]}" for key in other if key != "version")
            how = f"with {flags}, so give the same" if flags else "by another version of this code"
            raise ValueError(f"{self.path} cannot be compared: it was measured {how}")

    @classmethod
    def of_runs(cls, runs, model, protocol, dataset, blocks, arrays):
        """The line of Checkpoints that differ only in their seed, measured with the config `model`."""
        config = asdict(model)
        settings = shared_settings(runs[0].settings)
        where = machine()
        seeds = [
            {
                "seed": run.settings.get("seed"),
                "step": run.step,
                "tuning_loss": run.best_val_loss,
                "checkpoint": run.hash,
                "machine": where,
            }
            for run in runs
        ]
        further = {key: value for key, value in settings.items() if key not in config or config[key] != value}
        return cls(model, further, dataset.hash, protocol.settings(), seeds, blocks, arrays)

    @classmethod
    def read(cls, path):
        """The line in a file. ValueError if it is damaged."""
        path = str(path).removesuffix(".npz")
        arrays = read_arrays(Path(f"{path}.npz"))
        try:
            about = json.loads(str(arrays.pop("about")))
            blocks = Blocks(arrays.pop("ends"), arrays.pop("documents"))
            if not are_losses(arrays.values(), len(about["runs"]), len(blocks.ends)):
                raise ValueError("invalid losses")
            arrays = {name: values.astype(float) for name, values in arrays.items()}
            config = GPTConfig(**checked(GPTConfig, about.pop("model"), path))
            return cls(config=config, blocks=blocks, arrays=arrays, path=path, **about)
        except (KeyError, TypeError, ValueError) as error:
            reason = f"{error} is missing" if isinstance(error, KeyError) else error
            raise ValueError(f"{path}.npz cannot be read: {reason}") from None

    def write(self, path):
        """Writes the line to a file, which it replaces."""
        defaults = asdict(GPTConfig())
        about = {
            "model": {key: value for key, value in asdict(self.config).items() if value != defaults[key]},
            "settings": self.settings,
            "dataset_hash": self.dataset_hash,
            "measured": self.measured,
            "runs": self.runs,
        }
        arrays = {name: values.astype(np.float32) for name, values in self.arrays.items()}
        write_arrays(Path(f"{path}.npz"), self.blocks, arrays, about=json.dumps(about))


def is_line(path):
    return Path(f"{str(path).removesuffix('.npz')}.npz").is_file()


def line_path(folder, name, changes):
    """Where a line is kept, without .npz: it is named by its runs, and by what the evaluation changes in their models,
    in words (window=128): rope-window128."""
    words = [re.sub(r"\w+=(?=[a-z])|=", "", change) for change in changes]  # window128, yarn
    return Path(folder, "-".join([name, *words]))


# ----------------------------------------------------------------------------------------------------------
# Which runs are seeds of one experiment


def experiment(settings, dataset_hash, history):
    """What runs have in common if they differ only in their seed, as plain types: their settings, their text, and what
    resuming changed at which step. A run that starts from another has the experiment of that one in its history."""
    events = []
    for step, changes in history:
        source = changes.get("init_from")
        if isinstance(source, dict):
            changes = changes | {"init_from": experiment(**source)}
        events.append([step, changes])
    return [shared_settings(settings), dataset_hash, events]


def shared_settings(settings):
    """The settings of a run without its seed, also without that in the name of the run that it starts from."""
    shared = {key: value for key, value in settings.items() if key not in (*CALL_FIELDS, "seed")}
    if "init_from" in shared:
        shared["init_from"] = without_seed(shared["init_from"], settings)
    return shared


def without_seed(name, settings):
    """The name of a folder without the seed of its run: out/rope-1 becomes out/rope."""
    return name.removesuffix(f"-{settings.get('seed')}")


def group_seeds(runs):
    """{name of a line: {name: Checkpoint}} of runs {name: Checkpoint}. Runs that differ only in their seed are one
    line, named without it. A second run with the same seed, and a model from other code, are lines of their own."""
    groups = []  # (experiment, {seed: name})
    for name, run in runs.items():
        key = experiment(run.settings, run.dataset_hash, run.history)
        seed = run.settings.get("seed")
        for other, by_seed in groups:
            if run.settings and other == key and seed not in by_seed:
                by_seed[seed] = name
                break
        else:
            groups.append((key, {seed: name}))
    lines = {}
    for _, by_seed in groups:
        names = list(by_seed.values())
        line = min(names, key=len)
        short = without_seed(line, runs[line].settings)
        if len(names) > 1 and short not in {*runs, *lines}:
            line = short
        lines[line] = {name: runs[name] for name in names}
    return lines


def note_differences(runs, kept, folder):
    """Says in which settings besides scheme and seed one of the runs (or, without runs, of the kept results) differs
    from most, counting kept results and those in `folder`."""
    beside = dict(kept)
    if folder:
        beside |= {path.stem: Line.read(path) for path in sorted(Path(folder).glob("*.npz"))}
    known = {name: asdict(line.config) | line.settings for name, line in beside.items()}
    known |= {name: asdict(run.config) | shared_settings(run.settings) for name, run in runs.items()}
    expected = {"vocab_size", "pos_scheme", "pos_options"}
    expected.update(name for scheme in SCHEMES.values() for name in scheme.reads)
    differences = []
    for key in sorted(set.intersection(*map(set, known.values())) - expected):
        values = {name: str(settings[key]) for name, settings in known.items()}
        [(common, _)] = Counter(values.values()).most_common(1)
        others = [f"{values[name] or repr('')} in {name}" for name in runs or kept if values[name] != common]
        if others:
            differences.append(f"{key}: {common or repr('')} in most, {', '.join(others)}")
    if differences:
        print(f"note: besides scheme and seed, these runs differ in {'; '.join(differences)}")


# ----------------------------------------------------------------------------------------------------------
# Files of losses


def read_arrays(path):
    """All arrays of an .npz file, by name. ValueError if it is damaged."""
    if is_whole(path):  # it may still provoke any exception
        with contextlib.suppress(Exception), np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive}
    raise ValueError(f"{path} is damaged")


def are_losses(arrays, *shape):
    """Whether all arrays hold finite numbers, and their first dimensions are `shape`."""
    return all(a.dtype.kind in "bf" and a.shape[: len(shape)] == shape and np.isfinite(a).all() for a in arrays)


def measured_before(path, n_blocks):
    """The arrays (n_blocks, …) in the file of an earlier evaluation, {name: array}; none if there is no such file.
    ValueError if it is damaged."""
    if not path.exists():
        return {}
    try:
        arrays = read_arrays(path)
    except ValueError:
        arrays = {}
    losses = {name: values for name, values in arrays.items() if name not in ("inputs", "ends", "documents")}
    if not losses or not are_losses(losses.values(), n_blocks):
        raise ValueError(f"{path} is damaged: delete it, and its losses are measured again")
    return losses


def write_arrays(path, blocks, arrays, **about):
    """Writes an .npz file with arrays by name, the place of each block, and texts about them."""
    np.savez_compressed(file := io.BytesIO(), **about, ends=blocks.ends, documents=blocks.documents, **arrays)
    files.write(path, file.getvalue())


def machine():
    """Where losses are measured, in words: processor, versions, and the commit of this code."""
    cpu = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    [name, *_] = re.findall(r"model name\s*: (.*)", cpu) or [platform.machine()]
    if torch.cuda.is_available():
        name = torch.cuda.get_device_name()
    git = ["git", "-C", Path(__file__).parent, "describe", "--always", "--dirty"]
    commit = subprocess.run(git, capture_output=True, text=True).stdout.strip() if shutil.which("git") else ""
    return f"{name}; Python {platform.python_version()}, torch {torch.__version__}; commit {commit or 'unknown'}"
