"""Checkpoints: what is known about a trained model, its file, and what may be changed when it is used."""

import hashlib
import json
import zipfile
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import torch

from config import checked, matches, one_of
from data import tokenizer_from
from model import GPT, GPTConfig
from run import files, foreign
from run.device import DTYPES

# These may differ in every call that goes on with a run. The other settings, but for the seed, identify the experiment.
CALL_FIELDS = (
    "out_dir", "resume", "overwrite", "eval_only", "eval_interval", "log_interval", "device", "dtype", "compile",
    "compile_mode", "wandb_mode", "wandb_project", "wandb_group",
)  # fmt: skip

# How runs were trained before these settings existed.
BEFORE = {"init_from": "", "optimizer": "adamw", "muon_lr": 0.02, "decay": "cosine", "compile_mode": "default"}


@dataclass(frozen=True)
class Overrides:
    """Where evaluation and sampling compute, and what they may change in a trained model."""

    window: int | None = None  # a query sees only the last `window` keys, whatever the run was trained with; 0: all
    rope_scaling: str = ""  # for a rope run: none, linear, ntk, yarn
    rope_factor: str = "auto"  # how many times the training length the scaling reaches; auto: as far as needed
    rope_theta: float | None = None  # for a rope run: its base
    device: str = "auto"  # auto, cpu, cuda, cuda:1, mps
    dtype: str = "auto"  # float32, bfloat16; auto: bfloat16 on a GPU that has it

    def __post_init__(self):
        one_of(DTYPES, self, "dtype")
        try:
            self.rope_factor == "auto" or float(self.rope_factor)
        except ValueError:
            raise ValueError(f"rope_factor={self.rope_factor!r} must be a number, or auto") from None


@dataclass(frozen=True)
class Checkpoint:
    """A trained model. One that other code wrote (run/foreign.py) has no tokenizer, no settings and no text."""

    weights: dict  # the state dict of a GPT
    config: GPTConfig
    step: int
    optimizer: dict = field(default_factory=dict)  # its state dict
    settings: dict = field(default_factory=dict)  # the run's TrainConfig as plain types
    best_val_loss: float = float("inf")  # nats per token, up to this step
    tokenizer_spec: dict | None = None
    dataset_hash: str | None = None  # identifies the text that the model was trained on
    segment: int = 0  # how often the run was resumed
    path: str = ""  # the file, folder or hub name that it was read from
    folder: Path = Path()  # where an evaluation of it puts its files

    @property
    def experiment(self):
        """Equal for runs that differ in their seed alone. Other code's model is an experiment of its own."""
        if not self.settings:
            return self.path
        same = {key: value for key, value in self.settings.items() if key not in (*CALL_FIELDS, "seed")}
        return json.dumps([same, self.dataset_hash], sort_keys=True)

    @property
    def hash(self):
        """sha256 of the model: its tensors, and what its config has other than the defaults. Not of its file, which
        training may have replaced since it was read."""
        digests = {name: hashlib.sha256(t.numpy()).hexdigest() for name, t in self.weights.items()}
        unlike = {key: value for key, value in asdict(self.config).items() if value != getattr(GPTConfig, key)}
        return files.json_hash([unlike, digests])

    def save(self, folder, is_best):
        """Writes latest.pt, and best.pt too where is_best. Each is replaced whole or not at all, best.pt first: a kill
        between the two leaves a best.pt that the resumed run writes again. The file holds tensors and plain types only.
        ValueError where a tensor is not finite, OSError where the file cannot be written."""
        content = {key: getattr(self, name) for key, (name, _) in FILE.items()} | {"experiment": self.experiment}
        content["model_args"] = asdict(self.config)
        content["tokenizer"] = self.tokenizer_spec | {"hash": files.json_hash(self.tokenizer_spec)}
        for name, t in tensors({"model": self.weights, "optimizer": self.optimizer}):
            if not t.isfinite().all():
                raise ValueError(f"{name} is not finite at step {self.step}, so {folder}/latest.pt stays as it is")
        with files.replacing(folder / "latest.pt") as f:
            torch.save(content, f)
            if is_best:
                files.also(f, folder / "best.pt")

    def model(self, device):
        """The model, in evaluation mode."""
        model = GPT(self.config)
        model.load_state_dict(self.weights)  # they fit: see check_weights
        return model.to(device).eval()

    def under(self, overrides, length):
        """The GPTConfig under Overrides, for use up to `length` tokens. ValueError where they do not fit the model."""
        c, given = self.config, {"window": overrides.window, "rope_theta": overrides.rope_theta}
        new = {name: value for name, value in given.items() if value is not None}
        if overrides.rope_scaling:
            new |= {"rope_scaling": overrides.rope_scaling, "rope_factor": 1.0}
        if overrides.rope_factor != "auto":
            new["rope_factor"] = float(overrides.rope_factor)
        elif (overrides.rope_scaling or c.rope_scaling) != "none":
            new["rope_factor"] = max(c.rope_factor, length / (c.rope_block_size or c.block_size))
        try:
            return replace(c, **new)
        except ValueError as error:
            raise ValueError(f"{self.path}: {error}") from None

    def tokenizer(self, dataset=None, kind=""):
        """The tokenizer of the dataset, or of a kind, where one is given; else the model's own. ValueError where the
        model has another, or too few ids."""
        own, n_vocab = self.tokenizer_spec, self.config.vocab_size
        if not (dataset or kind):
            if own is None:
                raise ValueError(f"{self.path} carries no tokenizer: give --tokenizer=gpt2, or --dataset=NAME")
            tokenizer = tokenizer_from(own)
            if tokenizer.n_vocab > n_vocab:
                raise ValueError(f"{self.path} is damaged: its tokenizer has more ids than its {n_vocab:,}")
            return tokenizer
        given = dataset.tokenizer if dataset else tokenizer_from({"kind": kind})
        whose = f"dataset {dataset.name!r}" if dataset else f"--tokenizer={kind}"
        if own is None and given.n_vocab > n_vocab:
            raise ValueError(f"{self.path} has {n_vocab:,} ids, too few for the {given.n_vocab:,} of {whose}")
        if own not in (None, given.spec):
            raise ValueError(f"{self.path} was trained with another tokenizer than that of {whose}")
        return given

    def dataset_name(self, named=""):
        """The dataset that was `named`, or else the one that the model was trained on."""
        if not (named or self.settings):
            raise ValueError(f"{self.path} does not say which text it was trained on: name one with --dataset=NAME")
        return named or self.settings["dataset"]


FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
FILE = {  # key in a file -> the field of Checkpoint that it becomes, its type in the file
    "model": ("weights", dict),
    "optimizer": ("optimizer", dict),
    "model_args": ("config", dict),
    "config": ("settings", dict),
    "step": ("step", int),
    "best_val_loss": ("best_val_loss", float),
    "tokenizer": ("tokenizer_spec", dict),
    "dataset_hash": ("dataset_hash", str),
    "segment": ("segment", int),
}


def load(path, which="best"):
    """Loads a Checkpoint. `path`: a run folder (its best.pt, or latest.pt), a .pt file, nanoGPT's ckpt.pt, a GPT-2
    folder in Hugging Face's format, or a hub name. ValueError for anything else."""
    name, path = str(path), Path(path)
    if path.is_dir():
        candidates = [path / file for file in (f"{which}.pt", "latest.pt", "best.pt", "ckpt.pt", "config.json")]
        path = next((p for p in candidates if p.is_file()), candidates[0])
    if name.startswith("hf:") or (name in foreign.HUB and not Path(name).exists()):
        known, folder = foreign.from_hugging_face(name), Path("results/hub", name.removeprefix("hf:"))
    elif path.name == "config.json" and path.is_file():
        path = folder = path.parent
        known = foreign.from_hugging_face(str(path))
    else:
        content, folder = read(path), path.parent
        known = foreign.from_nanogpt(content) or from_content(content, path)
    try:
        config = GPTConfig(**checked(GPTConfig, known["config"], path))
    except ValueError as error:
        raise ValueError(f"{path} does not fit model.py: {error}") from None
    check_weights(known["weights"], config, path)
    if "settings" in known:  # a file that is older than a setting lacks it
        known["settings"] = asdict(config) | BEFORE | known["settings"]
    return Checkpoint(**known | {"config": config, "path": str(path), "folder": folder})


def read(path):
    """The dict in a file of plain tensors. ValueError where there is none."""
    if not path.is_file():
        raise ValueError(f"there is no checkpoint {path}: train one with  python train.py config/rope.py")
    try:
        if not is_whole(path):
            raise ValueError
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception:  # whatever a damaged or hostile file provokes
        why = "it is damaged, of another kind, or contains code"
        other = path.with_name({"latest.pt": "best.pt", "best.pt": "latest.pt"}.get(path.name, path.name))
        hint = f"; {other} is whole: to use it instead, cp {other} {path}" if other != path and is_whole(other) else ""
        raise ValueError(f"{path} is not a checkpoint of plain tensors ({why}); nothing was loaded{hint}") from None
    return content if isinstance(content, dict) else {}


def is_whole(path):
    """Whether a file is an archive that matches its own checksums: torch does not look at them."""
    try:
        with zipfile.ZipFile(path) as archive:
            stored = all(member.compress_type == zipfile.ZIP_STORED for member in archive.infolist())  # as torch has it
            return stored and archive.testzip() is None
    except Exception:
        return False


def tensors(value, name=""):
    """(name, tensor) of every tensor in nested dicts."""
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from tensors(inner, f"{name}.{key}".lstrip("."))


def is_dense(value):
    """Whether a value from a file is an ordinary tensor."""
    return isinstance(value, torch.Tensor) and value.layout == torch.strided and value.device.type == "cpu"


def check_weights(weights, config, path):
    """ValueError unless the weights are plain finite tensors with the names and sizes of a model of this config. So a
    model as large as the config claims is built only where the file itself is that large."""
    layers = {name.split(".")[2] for name in weights if isinstance(name, str) and name.startswith("transformer.h.")}
    if config.block_size > 2**24:  # ALiBi's positions are exact up to there
        raise ValueError(f"{path} does not fit model.py: block_size={config.block_size} is too large")
    if len(layers) != config.n_layer:
        raise ValueError(f"{path} does not fit model.py: n_layer={config.n_layer}, but weights of {len(layers)} layers")
    try:
        with torch.device("meta"):  # takes no memory
            expected = {name: w.shape for name, w in GPT(config).state_dict().items()}
    except (RuntimeError, OverflowError):
        raise ValueError(f"{path} does not fit model.py: n_embd={config.n_embd} is too large") from None
    for name in [*expected, *weights]:
        w, shape = weights.get(name), expected.get(name)
        if not is_dense(w) or w.shape != shape or w.dtype not in FLOATS or not w.is_contiguous():
            found = f"{w.dtype} {tuple(w.shape)}" if is_dense(w) else type(w).__name__
            wanted = "nothing" if shape is None else f"floats {tuple(shape)}"
            raise ValueError(f"{path} does not fit model.py: {str(name)[:80]} is {found} instead of {wanted}")
        if not w.isfinite().all():
            raise ValueError(f"{path}: {name} is not finite everywhere, so nothing can be computed with it")


def from_content(content, path):
    """The fields of a Checkpoint in what train.py wrote, `config` still as plain types."""
    if lacking := [key for key, (_, kind) in FILE.items() if not isinstance(content.get(key), kind)]:
        raise ValueError(f"{path} is not a checkpoint of train.py: it lacks {', '.join(lacking)}")
    settings, form = content["config"], {"dataset": str, "max_iters": int, "wandb_group": str}
    plain = all(isinstance(key, str) and isinstance(value, str | int | float | None) for key, value in settings.items())
    if not plain or not matches({"max_iters": 0, "wandb_group": ""} | settings, form):
        raise ValueError(f"{path} is damaged: its settings are not those of a run")
    if not (content["best_val_loss"] > -1e9 and content["step"] >= 0 and content["segment"] >= 0):  # nor is it NaN
        raise ValueError(f"{path} is damaged: its step or its best loss is none")
    spec = {key: value for key, value in content["tokenizer"].items() if key != "hash"}
    try:
        whole = files.json_hash(spec) == content["tokenizer"].get("hash")
    except (TypeError, ValueError, RecursionError):
        whole = False
    if not whole:
        raise ValueError(f"{path}: its tokenizer does not match its hash; the file is damaged")
    return {name: content[key] for key, (name, _) in FILE.items()} | {"tokenizer_spec": spec}
