"""Rows of a comparison: runs that differ only in their seed, measured now or read from a kept result.

A kept result, NAME.npz, has the arrays of a row, with the seeds as first dimension; `ends` and `documents`, the place
of each block in the validation text; and `about`, which is JSON with everything else.
"""

import ast
import functools
import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

import config
import data
import model
import schemes
from evaluation.huggingface import HuggingFaceRun
from model import GPTConfig
from run import files
from run.checkpoint import CALL_FIELDS, Overrides, load_checkpoint, own_settings

TOKENS = "-tokens"  # behind a length, in the name of an array: the losses of single tokens


@dataclass(frozen=True)
class RunsConfig(Overrides):
    # which runs
    runs: tuple = ()  # given without a flag: run folders, kept results (NAME.npz), or hf:NAME_OR_FOLDER (transformers)
    attention_temperature: float | None = None  # scores grow by this, times ln(1 + position // block_size)
    max_position: int = 0  # positions are sampled below it, as in train.py; 0: positions 0, 1, 2, …
    dataset: config.PathName = ""  # whose validation text is used; default: the one that the first run was trained on
    keep: config.PathName = ""  # also save the losses of each row here, as NAME.npz, to be named instead of the runs
    results_dir: config.PathName = "results"  # where the picture and the numbers go

    def __post_init__(self):
        super().__post_init__()
        if not self.runs:
            raise ValueError("which runs? Name their folders, such as out/rope out/alibi")

    def changes(self):
        """What this call changes in the trained models, in words."""
        names = ("window", "layers", "attention_temperature", "rope_scaling", "rope_factor", "max_position")
        return self.changed(names)


@dataclass(frozen=True)
class Targets:
    """What every model predicts at every length. Of a block that ends at e, the targets are tokens[e − scored + 1 :
    e + 1], and the window is tokens[e − length : e + 1]."""

    lengths: list  # of the context, ascending
    scored: int  # targets in a block
    seed: int  # by which the blocks were chosen
    ends: np.ndarray  # (blocks,): the place of each block's last target
    documents: np.ndarray  # (blocks,): the document of each block

    def flags(self):
        """What the command line says about them."""
        return {"lengths": ",".join(map(str, self.lengths)), "block_tokens": self.scored, "seed": self.seed}


@dataclass(frozen=True)
class Row:
    """Runs that differ only in their seed: the losses of each, and everything that is known about them."""

    about: dict  # plain types: "model", "settings" of training, "dataset_hash", "measured", "runs" (one for each seed)
    ends: np.ndarray  # (blocks,): the place of each block's last target
    documents: np.ndarray  # (blocks,): the document of each block
    arrays: dict  # name -> (seeds, blocks, …)

    @property
    def losses(self):
        """{length: the mean loss of each block in nats (seeds, blocks)}, where the scheme is defined."""
        return by_number(self.arrays)

    @property
    def scheme(self):
        return self.about["model"].get("pos_scheme", GPTConfig.pos_scheme)

    @property
    def trained(self):
        """The training length."""
        return self.about["model"].get("block_size", GPTConfig.block_size)

    @property
    def seeds(self):
        return [run["seed"] for run in self.about["runs"]]

    @property
    def models(self):
        """The hashes of its models: equal in two rows of the same models."""
        return tuple(run["checkpoint"] for run in self.about["runs"])

    def dataset_name(self):
        return self.about["settings"]["dataset"]

    @classmethod
    def read(cls, path):
        """The row in a kept result. ValueError if it is damaged."""
        try:
            with np.load(path) as archive:  # it verifies checksums
                arrays = dict(archive)
            about = json.loads(str(arrays.pop("about")))
            ends = arrays.pop("ends")
            documents = arrays.pop("documents")
            return cls(about, ends, documents, {name: values.astype(float) for name, values in arrays.items()})
        except Exception as error:  # whatever a damaged file provokes
            raise ValueError(f"{path} is missing or damaged: {error!r}") from None

    def write(self, path):
        """Writes a kept result, which replaces the file there. ValueError if that has further seeds."""
        missing = {*Row.read(path).seeds} - {*self.seeds} if path.exists() else ()
        for seed in missing:
            raise ValueError(f"{path} also has seed {seed}: name the runs of all its seeds")
        about = json.dumps(self.about)
        with files.replacing(path) as file:
            np.savez_compressed(file, about=about, ends=self.ends, documents=self.documents, **self.arrays)

    def check(self, path, dataset, targets):
        """ValueError unless these targets of the dataset were measured."""
        measured = self.about["measured"]
        # a scheme that ends at its training length has no longer ones
        defined = [n for n in targets.lengths if n <= self.trained or max(self.losses) > self.trained]
        is_same = np.array_equal(self.ends, targets.ends) and measured["block_tokens"] == targets.scored
        if not is_same or self.about["dataset_hash"] != dataset.hash or not {*defined} <= {*self.losses}:
            flags = " ".join(f"--{name}={measured[name]}" for name in targets.flags())
            raise ValueError(f"{path} was measured on other tokens: on {self.dataset_name()}, {flags}")


def by_number(arrays, prefix=""):
    """Those of the arrays {name: array} that are named by a prefix and a number: {number: array}, ascending."""
    matches = [re.fullmatch(rf"{prefix}(\d+)", name) for name in arrays]
    return dict(sorted((int(match[1]), arrays[match[0]].astype(float)) for match in matches if match))


# ----------------------------------------------------------------------------------------------------------
# Runs, and which of them are seeds of one experiment


def open_runs(cfg):
    """The runs {path: Checkpoint} and the kept results {path: Row} that cfg names, and the dataset. ValueError if a run
    was trained on another text."""
    runs = {}
    kept = {}
    for path in cfg.runs:
        if path.startswith("hf:"):
            runs[path] = HuggingFaceRun(path.removeprefix("hf:"), Path(cfg.results_dir))
        elif path.endswith(".npz"):
            kept[path] = Row.read(path)
        else:
            runs[path] = load_checkpoint(path)
    first = next(iter((runs | kept).values()))
    dataset = data.load(cfg.dataset or first.dataset_name())
    for run in runs.values():
        run.check_dataset(dataset, cfg.dataset)
    return runs, kept, dataset


@functools.cache
def syntax_tree(code):
    """As text, without comments. Kept, because every length of every run asks for it."""
    return ast.dump(ast.parse(code))


def code_hash(model_config):
    """A hash of the syntax trees of model.py, of the files of the config's schemes, and of those of schemes/ that they
    import. Comments do not change it."""
    folder = Path(schemes.__file__).parent
    paths = [Path(model.__file__), *folder.glob("_*.py")]
    paths += [folder / f"{kind.pos_scheme}.py" for kind in model_config.kinds]
    trees = set()
    for path in filter(Path.exists, paths):  # it also reaches what the loop adds
        text = path.read_text()
        trees.add(syntax_tree(text))
        imported = [folder / f"{name}.py" for name in re.findall(r"from schemes\.(\w+)", text)]
        paths += [path for path in imported if path not in paths]
    return files.json_hash(sorted(trees))


def without_seed(settings):
    """The settings of training without the seed, which is also cut from the names of folders: out/rope-1 becomes
    out/rope."""
    end = f"-{settings.get('seed')}"
    shared = {name: value for name, value in settings.items() if name not in (*CALL_FIELDS, "seed")}
    return {name: value.removesuffix(end) if isinstance(value, str) else value for name, value in shared.items()}


def group_seeds(runs):
    """{name of a row: [Checkpoint, …]} of runs {path: Checkpoint}. Runs that differ only in their seed, and in that of
    the run that they started from, are one row, named without it. A second run with the same seed is a row of its own,
    and so is each model from other code."""
    groups = {}  # experiment as JSON, or the path of a run that is alone -> {seed: path}
    for path, run in runs.items():
        known = json.dumps([run.settings, run.dataset_hash, run.history], sort_keys=True)
        key = json.dumps(json.loads(known, object_hook=without_seed))
        seed = run.settings.get("seed")
        if seed in groups.get(key, {}):
            key = path
        groups.setdefault(key, {})[seed] = path
    rows = {}
    for paths in groups.values():
        seed, name = next(iter(paths.items()))
        if len(paths) > 1:
            name = name.removesuffix(f"-{seed}")
        while name in rows:
            name += "+"
        rows[name] = [runs[path] for path in paths.values()]
    return rows


def rows_of(cfg, runs, dataset, targets, measure_run):
    """{name: Row} of runs {path: Checkpoint}: a row for those that differ only in their seed. measure_run(run) gives
    the arrays {name: (blocks, …)} of one run. With cfg.keep, the rows become kept results."""
    rows = {}
    words = [re.sub(r"\w+=(?=[a-z])|=", "", change) for change in cfg.changes()]  # window128, yarn
    suffix = re.sub(r"[^\w.-]+", "_", "-".join(["", *words]))
    for name, group in group_seeds(runs).items():
        first = group[0]
        changed = first.config_with(cfg, targets.lengths[-1], cfg.attention_temperature)
        if cfg.max_position:
            changed.check_positions(cfg.max_position, with_gaps=True)
        measured = []
        for run in group:
            try:
                measured.append(measure_run(run))
            except KeyboardInterrupt:
                print("stopped: what was measured is kept, and the same command resumes", flush=True)
                raise
            print(f"measured  {run.path}", flush=True)
        settings = without_seed(first.settings)
        about = {
            "model": own_settings(changed),
            "settings": {key: value for key, value in settings.items() if key not in vars(changed)},
            "dataset_hash": dataset.hash,
            "measured": targets.flags() | {"torch": torch.__version__},
            "runs": [{"seed": run.settings.get("seed"), "step": run.step, "checkpoint": run.hash} for run in group],
        }
        arrays = {key: np.stack([each[key] for each in measured]) for key in measured[0]}
        row = Row(about, targets.ends, targets.documents, arrays)
        rows[name + suffix] = row
        if cfg.keep:
            base = Path(name).name.removesuffix(f"-{first.settings.get('seed')}")
            path = Path(cfg.keep, f"{base}{suffix}.npz")
            row.write(path)
            print(f"kept      {path}")
    return rows


# ----------------------------------------------------------------------------------------------------------
# Results


def print_unlike(rows, reference):
    """Prints in which settings, besides the scheme, rows differ from the reference row."""
    settings = {name: row.about["settings"] | row.about["model"] for name, row in rows.items()}
    rows_with = {}  # other settings -> the names of rows
    for name, values in settings.items():
        names = [key for key in values if not key.startswith(("pos_", "rope_"))]
        changed = [f"{key}={values[key]}" for key in names if values[key] != settings[reference].get(key, values[key])]
        rows_with.setdefault(", ".join(changed), []).append(name)
    for changed, names in rows_with.items():
        if changed:
            print(f"note: unlike {reference}, {', '.join(names)} has {changed}")


def save_results(cfg, stem, dataset, results):
    """Writes results (plain types) as JSON, with what was measured. Returns the path, which is named by that."""
    settings = asdict(cfg)
    path = Path(cfg.results_dir, f"{stem}-{files.json_hash([settings, dataset.hash])[:6]}.json")
    content = {"settings": settings, "text": {"name": dataset.name, "hash": dataset.hash}, "rows": results}
    no_nan = json.loads(json.dumps(content), parse_constant=lambda name: None)
    files.write(path, json.dumps(no_nan, indent=1))
    print(f"numbers   {path}")
    return path
