"""Checkpoints: what is known about a trained model, its file, and what may be changed when it is used."""

import hashlib
import json
import zipfile
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import torch

from config import check_choices, checked, matches
from model import GPT, GPTConfig
from run import files, foreign
from run.device import DType

# A resumed run may change these settings. All others except the seed identify the experiment.
CALL_FIELDS = (
    "out_dir", "resume", "overwrite", "eval_only", "eval_interval", "log_interval", "device", "dtype", "compile",
    "compile_mode", "wandb_mode", "wandb_project", "wandb_group",
)  # fmt: skip

# The values of settings for runs that are older than the setting.
BEFORE = {"init_from": "", "optimizer": "adamw", "muon_lr": 0.02, "decay": "cosine", "compile_mode": "default"}


@dataclass(frozen=True)
class Overrides:
    """The device for evaluation and sampling, and what they may change in a trained model."""

    window: int | None = None  # a query sees only the last `window` keys, in all layers; 0: all; default: as trained
    rope_scaling: str = ""  # for a rope run: none, linear, ntk, yarn
    rope_factor: str = "auto"  # how many times the training length the scaling reaches; auto: as far as needed
    rope_theta: float | None = None  # for a rope run: its base
    device: str = "auto"  # auto, cpu, cuda, cuda:1, mps
    dtype: DType = "auto"  # auto: bfloat16 on a GPU that has it

    def __post_init__(self):
        check_choices(self)
        try:
            self.rope_factor == "auto" or float(self.rope_factor)
        except ValueError:
            raise ValueError(f"rope_factor={self.rope_factor!r} must be a number or auto") from None


@dataclass(frozen=True)
class Checkpoint:
    """A trained model. One from other code (run/foreign.py) has no tokenizer, no settings and no text."""

    weights: dict  # the state dict of a GPT
    config: GPTConfig
    step: int
    optimizer: dict = field(default_factory=dict)  # the optimizer's state dict
    settings: dict = field(default_factory=dict)  # the run's TrainConfig as plain types
    best_val_loss: float = float("inf")  # nats per token, up to this step
    tokenizer_spec: dict | None = None
    dataset_hash: str | None = None  # identifies the text that it was trained on
    segment: int = 0  # how many times the run was resumed
    history: list = field(default_factory=list)  # [step, {setting: new value}] for each resume that changed settings
    path: str = ""  # the file, folder or hub name that it was read from
    folder: Path = Path()  # where evaluations put their files

    @property
    def experiment(self):
        """Equal for runs that differ only in their seed: what resumes have changed, and when, counts as well. A model
        from other code is an experiment of its own."""
        if not self.settings:
            return self.path
        same = {key: value for key, value in self.settings.items() if key not in (*CALL_FIELDS, "seed")}
        return json.dumps([same, self.dataset_hash, self.history], sort_keys=True)

    @property
    def hash(self):
        """sha256 of the model: its tensors and the non-default fields of its config. Its file does not count: training
        may have replaced it since it was read."""
        digests = {name: hashlib.sha256(t.numpy()).hexdigest() for name, t in self.weights.items()}
        unlike = {key: value for key, value in asdict(self.config).items() if value != getattr(GPTConfig, key)}
        return files.json_hash([unlike, digests])

    def save(self, folder, is_best):
        """Writes latest.pt and, if is_best, best.pt. Each is replaced completely or not at all, best.pt first: after a
        kill between the two, the resumed run writes the same best.pt again. Files hold only tensors and plain types.
        ValueError if a tensor is not finite, OSError if a file cannot be written."""
        content = {key: getattr(self, name) for key, (name, _) in FILE.items()} | {"experiment": self.experiment}
        content["model_args"] = asdict(self.config)
        content["tokenizer"] = self.tokenizer_spec | {"hash": files.json_hash(self.tokenizer_spec)}
        for name, t in tensors({"model": self.weights, "optimizer": self.optimizer}):
            if not t.isfinite().all():
                raise ValueError(f"{name} is not finite at step {self.step}, so {folder}/latest.pt was not replaced")
        with files.replacing(folder / ("best.pt" if is_best else "latest.pt")) as f:
            torch.save(content, f)
        if is_best:
            files.link(folder / "best.pt", folder / "latest.pt")

    def model(self, device):
        """The model, in evaluation mode. On a CPU it shares its memory with the checkpoint."""
        return GPT.from_weights(self.config, self.weights).to(device).eval()

    def under(self, overrides, length):
        """The GPTConfig with Overrides applied, for up to `length` tokens. ValueError if they do not fit the model."""
        c, given = self.config, {"window": overrides.window, "rope_theta": overrides.rope_theta}
        new = {name: value for name, value in given.items() if value is not None}
        if overrides.window is not None:
            new["window_pattern"] = ""  # the window is meant for all layers
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

    def check_tokenizer(self, given, whose):
        """ValueError unless the model was trained with this tokenizer or, if its own is unknown, has enough ids."""
        own, n_vocab = self.tokenizer_spec, self.config.vocab_size
        if own not in (None, given.spec):
            raise ValueError(f"{self.path} was trained with another tokenizer than that of {whose}")
        if given.n_vocab > n_vocab:
            raise ValueError(f"{self.path} has {n_vocab:,} ids, too few for the {given.n_vocab:,} of {whose}")

    def check_dataset(self, dataset, named):
        """ValueError unless the model has the dataset's tokenizer and was trained on its text; a user who `named` the
        dataset may choose another text."""
        self.check_tokenizer(dataset.tokenizer, f"dataset {dataset.name!r}")
        if not named and dataset.hash != self.dataset_hash:
            changed = f"dataset {dataset.name!r} is no longer the text that {self.path} was trained on"
            raise ValueError(f"{changed}; to use it anyway, name it: --dataset={dataset.name}")

    def own_tokenizer_spec(self):
        """The spec of the tokenizer that the model was trained with. ValueError if it is unknown."""
        if self.tokenizer_spec is None:
            raise ValueError(f"{self.path} carries no tokenizer: add --tokenizer=gpt2, or data:NAME for that of a text")
        return self.tokenizer_spec

    def dataset_name(self, named=""):
        """The dataset `named` or, by default, the one that the model was trained on."""
        if not (named or self.settings):
            raise ValueError(f"{self.path} does not say which text it was trained on: name one with --dataset=NAME")
        return named or self.settings["dataset"]


FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
FILE = {  # key in a file -> its field of Checkpoint, its type in the file
    "model": ("weights", dict),
    "optimizer": ("optimizer", dict),
    "model_args": ("config", dict),
    "config": ("settings", dict),
    "step": ("step", int),
    "best_val_loss": ("best_val_loss", float),
    "tokenizer": ("tokenizer_spec", dict),
    "dataset_hash": ("dataset_hash", str),
    "segment": ("segment", int),
    "history": ("history", list),
}


def load(path, which="best"):
    """Loads a Checkpoint. `path` is a run folder (its best.pt, or latest.pt), a .pt file, nanoGPT's ckpt.pt, a GPT-2
    folder in Hugging Face's format, or a name on its hub. ValueError for anything else."""
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
    settings = known.get("settings")
    for fields in (known["config"], *([settings] if settings else [])):
        rename_options(fields)
    try:
        config = GPTConfig(**checked(GPTConfig, known["config"], path))
        known["weights"] = checked_weights(known["weights"], config)
    except ValueError as error:
        raise ValueError(f"{path} does not fit model.py: {error}") from None
    if settings:
        known["settings"] = asdict(config) | BEFORE | settings
    return Checkpoint(**known | {"config": config, "path": str(path), "folder": folder})


def rename_options(fields):
    """Files older than pos_options have a field for t5's option."""
    size = fields.pop("t5_size", 64.0)
    if fields.get("pos_scheme") == "t5" and size != 64.0:
        fields["pos_options"] = f"size={size}"


def read(path):
    """The dict in a file of plain tensors. ValueError if there is none."""
    if not path.is_file():
        raise ValueError(f"there is no checkpoint {path}: train one with  python train.py config/rope.py")
    try:
        if not is_whole(path):
            raise ValueError
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception:  # anything that a damaged or hostile file raises
        why = "it is damaged, of another kind, or contains code"
        other = path.with_name({"latest.pt": "best.pt", "best.pt": "latest.pt"}.get(path.name, path.name))
        hint = f"; {other} is intact: to use it instead, cp {other} {path}" if other != path and is_whole(other) else ""
        raise ValueError(f"{path} is not a checkpoint of plain tensors ({why}); nothing was loaded{hint}") from None
    return content if isinstance(content, dict) else {}


def is_whole(path):
    """Whether a file is an archive that matches its own checksums, which torch does not verify."""
    try:
        with zipfile.ZipFile(path) as archive:
            stored = all(member.compress_type == zipfile.ZIP_STORED for member in archive.infolist())
            return stored and archive.testzip() is None  # torch.save does not compress
    except Exception:
        return False


def tensors(value, name=""):
    """Yields (name, tensor) for each tensor in nested dicts."""
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from tensors(inner, f"{name}.{key}".lstrip("."))


def is_dense(value):
    """Whether a value from a file is an ordinary, contiguous tensor."""
    return isinstance(value, torch.Tensor) and (
        value.layout == torch.strided and value.device.type == "cpu" and value.is_contiguous()
    )


def checked_weights(weights, config):
    """The weights in float32. ValueError unless they are finite and fit a model of this config. The model that they are
    compared with takes no memory, and is only built if the file itself has as many layers as the config claims."""
    layers = {name.split(".")[2] for name in weights if isinstance(name, str) and name.startswith("transformer.h.")}
    if config.block_size > 2**24:  # ALiBi's positions are exact up to there
        raise ValueError(f"block_size={config.block_size} is too large")
    if len(layers) != config.n_layer:
        raise ValueError(f"n_layer={config.n_layer}, but weights of {len(layers)} layers")
    for name, w in weights.items():
        if not isinstance(name, str):
            raise ValueError(f"{str(name)[:80]} is not the name of a weight")
        if not is_dense(w) or w.dtype not in FLOATS:
            found = f"a tensor of {w.dtype}" if isinstance(w, torch.Tensor) else type(w).__name__
            raise ValueError(f"{str(name)[:80]} is {found}, not an ordinary tensor of floats")
        if not w.isfinite().all():
            raise ValueError(f"{name} is not finite everywhere")
    weights = {name: w.detach().float() for name, w in weights.items()}
    try:
        model = GPT.from_weights(config, weights)
        if not torch.equal(model.lm_head.weight, weights["lm_head.weight"]):
            raise ValueError("its output layer (lm_head) is not tied to the token embedding (wte)")
    except (RuntimeError, OverflowError, TypeError) as error:
        raise ValueError(" ".join(str(error).split())[:300]) from None
    return weights


def is_plain(settings):
    """Whether a value from a file is a dict of settings."""
    return isinstance(settings, dict) and all(
        isinstance(key, str) and isinstance(value, str | int | float | None) for key, value in settings.items()
    )


def from_content(content, path):
    """The fields of a Checkpoint in a file of train.py, with `config` still as plain types."""
    content = {"history": []} | content  # older files have none
    if lacking := [key for key, (_, kind) in FILE.items() if not isinstance(content.get(key), kind)]:
        raise ValueError(f"{path} is not a checkpoint of train.py: it lacks {', '.join(lacking)}")
    settings, form = content["config"], {"dataset": str, "max_iters": int, "wandb_group": str}
    if not is_plain(settings) or not matches({"max_iters": 0, "wandb_group": ""} | settings, form):
        raise ValueError(f"{path} is damaged: its settings are not those of a run")
    history = content["history"]
    if not all(isinstance(e, list) and [type(v) for v in e] == [int, dict] and is_plain(e[1]) for e in history):
        raise ValueError(f"{path} is damaged: invalid history of its settings")
    if not (content["best_val_loss"] > -1e9 and content["step"] >= 0 and content["segment"] >= 0):  # false for NaN
        raise ValueError(f"{path} is damaged: invalid step or best loss")
    spec = {key: value for key, value in content["tokenizer"].items() if key != "hash"}
    try:
        whole = files.json_hash(spec) == content["tokenizer"].get("hash")
    except (TypeError, ValueError, RecursionError):
        whole = False
    if not whole:
        raise ValueError(f"{path}: its tokenizer does not match its hash; the file is damaged")
    return {name: content[key] for key, (name, _) in FILE.items()} | {"tokenizer_spec": spec}
