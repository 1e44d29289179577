"""A line is one entry of the comparison: the losses, on the same blocks, of runs that differ only in their seed. It is
measured now or read from a kept result, an .npz file that can be named instead of the runs:

    python eval_length.py out/mine benchmark/alibi

The file, NAME.npz, has the arrays of the protocol, with the seeds as first dimension; `ends` and `documents`, the place
of each block in the validation text; and `about`, which is JSON with everything else.
"""

import contextlib
import json
import platform
import re
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from config import checked
from evaluation.windows import Blocks
from model import GPTConfig
from run import files
from run.checkpoint import CALL_FIELDS, own_settings


@dataclass
class Line:
    """It answers what a command asks of a Checkpoint, too: `config`, `folder`, dataset_name and check_dataset."""

    config: GPTConfig  # of the model as it was measured
    settings: dict  # those of its runs' settings that differ from `config` or are not in it
    dataset_hash: str
    measured: dict  # the settings of the protocol
    runs: list  # for each seed: its "seed", "step", "tuning_loss", "checkpoint" (a hash) and "machine"
    blocks: Blocks
    arrays: dict  # name -> (seeds, blocks, …)
    path: str = ""  # of the file that it was read from, without .npz

    @property
    def folder(self):
        return Path(self.path)

    @property
    def trained(self):
        """The training length."""
        return self.config.block_size

    def dataset_name(self):
        return self.settings["dataset"]

    def check_dataset(self, dataset, named):
        """ValueError unless the dataset is the text that was measured."""
        if dataset.hash != self.dataset_hash:
            raise ValueError(f"{self.path} was measured on another text than that of dataset {dataset.name!r}")

    def check_measured(self, protocol, changes):
        """ValueError unless the line was measured by this protocol on its blocks, without changes to the models."""
        if changes:
            flags = " ".join(f"--{change}" for change in changes)
            raise ValueError(f"{self.path} is a kept result: to measure with {flags}, name its run folders")
        settings = protocol.settings()
        other = [key for key, value in self.measured.items() if value != settings.get(key)]
        # blocks and lengths are compared by what came of them; max_position may differ
        is_same = not {"protocol", "version", "block_tokens", "seed"} & {*other}
        has_blocks = np.array_equal(self.blocks.ends, protocol.blocks.ends)
        if is_same and has_blocks and protocol.jobs(self.config).keys() <= self.arrays.keys():
            return
        flags = [f"--{key}={self.measured[key]}" for key in other if key != "version"]
        how = f"with {' '.join(flags)}, so give the same" if flags else "by another version of this code"
        raise ValueError(f"{self.path} cannot be compared: it was measured {how}")

    @classmethod
    def of_runs(cls, runs, model_config, protocol, arrays):
        """The line of Checkpoints that differ only in their seed, whose models were measured with model_config."""
        config = asdict(model_config)
        settings = shared_settings(runs[0].settings)
        further = {key: value for key, value in settings.items() if (key, value) not in config.items()}
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
        return cls(model_config, further, protocol.dataset.hash, protocol.settings(), seeds, protocol.blocks, arrays)

    @classmethod
    def read(cls, path):
        """The line in a file. ValueError if it is damaged."""
        path = str(path).removesuffix(".npz")
        arrays = read_arrays(Path(f"{path}.npz"))
        try:
            about = json.loads(str(arrays.pop("about")))
            blocks = Blocks(arrays.pop("ends"), arrays.pop("documents"))
            arrays = {name: values.astype(float) for name, values in arrays.items()}
            config = GPTConfig(**checked(GPTConfig, about.pop("model"), path))
            return cls(config=config, blocks=blocks, arrays=arrays, path=path, **about)
        except (KeyError, TypeError, ValueError) as error:
            reason = f"{error} is missing" if isinstance(error, KeyError) else error
            raise ValueError(f"{path}.npz cannot be read: {reason}") from None

    def write(self, path):
        """Writes the line to a file, which it replaces."""
        about = {
            "model": own_settings(self.config),
            "settings": self.settings,
            "dataset_hash": self.dataset_hash,
            "measured": self.measured,
            "runs": self.runs,
        }
        arrays = {name: values.astype(np.float32) for name, values in self.arrays.items()}
        write_arrays(Path(f"{path}.npz"), self.blocks, arrays, about=json.dumps(about))


def shared_settings(settings):
    """The settings of a run without its seed, which is also cut from the name in init_from."""
    shared = {key: value for key, value in settings.items() if key not in (*CALL_FIELDS, "seed")}
    return shared | {"init_from": without_seed(settings.get("init_from", ""), settings)}


def without_seed(name, settings):
    """The name of a folder without the seed of its run: out/rope-1 becomes out/rope."""
    return name.removesuffix(f"-{settings.get('seed')}")


def is_line(path):
    """Whether a path, with or without .npz, names a kept result. A folder is a run."""
    return not Path(path).is_dir() and Path(f"{str(path).removesuffix('.npz')}.npz").is_file()


# ----------------------------------------------------------------------------------------------------------
# Files of losses


def read_arrays(path):
    """All arrays of an .npz file, by name. ValueError if it is damaged, or if a loss is not finite."""
    with contextlib.suppress(Exception), np.load(path) as archive:  # whatever a damaged file provokes
        arrays = dict(archive)
        if all(np.isfinite(values).all() for values in arrays.values() if values.dtype.kind == "f"):
            return arrays
    raise ValueError(f"{path} is damaged")


def measured_before(path, n_blocks):
    """The arrays (n_blocks, …) in the file of an earlier evaluation, {name: array}; none if there is no such file.
    ValueError if it is damaged."""
    if not path.exists():
        return {}
    with contextlib.suppress(ValueError):
        arrays = read_arrays(path)
        losses = {name: values for name, values in arrays.items() if name not in ("inputs", "ends", "documents")}
        if all(values.shape[:1] == (n_blocks,) for values in losses.values()):
            return losses
    raise ValueError(f"{path} is damaged: delete it, and its losses are measured again")


def write_arrays(path, blocks, arrays, **about):
    """Writes an .npz file with arrays by name, the place of each block, and texts about them."""
    with files.replacing(path) as file:
        np.savez_compressed(file, **about, ends=blocks.ends, documents=blocks.documents, **arrays)


def machine():
    """Where losses are measured, in words: processor, versions, and the commit of this code."""
    name = platform.machine()
    with contextlib.suppress(OSError, TypeError):  # another system, or a processor without a name
        name = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())[1]
    if torch.cuda.is_available():
        name = torch.cuda.get_device_name()
    commit = ""
    with contextlib.suppress(OSError):  # no git
        git = ["git", "-C", Path(__file__).parent, "describe", "--always", "--dirty"]
        commit = subprocess.run(git, capture_output=True, text=True).stdout.strip()
    return f"{name}; Python {platform.python_version()}, torch {torch.__version__}; commit {commit or 'unknown'}"
