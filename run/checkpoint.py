"""Checkpoints: what is known about a trained model, its file, and what may be changed when it is used."""

import difflib
import hashlib
import json
import math
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
    "wandb_mode", "wandb_project", "wandb_group",
)  # fmt: skip

# The values of settings for runs that are older than the setting.
BEFORE = {"init_from": "", "optimizer": "adamw", "muon_lr": 0.02, "decay": "cosine", "max_position": 0}


@dataclass(frozen=True)
class Overrides:
    """The device for evaluation and sampling, and what they may change in a trained model."""

    # changes to the trained model
    window: int | None = None  # a query sees only the last `window` keys, in all layers; 0: all; default: as trained
    rope_scaling: str = ""  # for a rope run: none, linear, ntk, yarn
    rope_factor: str = "auto"  # how many times the training length the scaling reaches; auto: as far as needed
    rope_theta: float | None = None  # for a rope run: its base
    # this call
    device: str = "auto"  # auto, cpu, cuda, cuda:1, mps
    dtype: DType = "auto"  # auto: bfloat16 on a GPU that has it

    def __post_init__(self):
        check_choices(self)


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
    history: list = field(default_factory=list)  # [step, {setting: new value}]: changes at a resume, and the source
    path: str = ""  # the file, folder or hub name that it was read from
    folder: Path = Path()  # where evaluations put their files

    @property
    def experiment(self):
        """Equal for runs that differ only in their seed. Runs also differ if a resume changed a setting, or changed it
        at another step, or if they started from other experiments. A model from other code is one of its own."""
        if not self.settings:
            return self.path
        return json.dumps([self.shared_settings, self.dataset_hash, self.history], sort_keys=True)

    @property
    def shared_settings(self):
        """The settings that runs share if they differ only in their seed. Where init_from is a run of the same seed
        (out/rope-1), it counts without the seed."""
        same = {key: value for key, value in self.settings.items() if key not in (*CALL_FIELDS, "seed")}
        if "init_from" in same:
            same["init_from"] = self.without_seed(same["init_from"])
        return same

    def without_seed(self, name):
        """The name of a folder without this run's seed: out/rope-1 becomes out/rope."""
        return name.removesuffix(f"-{self.settings.get('seed')}")

    @property
    def hash(self):
        """sha256 of the model: its tensors and the non-default fields of its config. The file itself is not hashed,
        because training may have replaced it since it was read."""
        digests = {name: hashlib.sha256(t.numpy()).hexdigest() for name, t in self.weights.items()}
        unlike = {key: value for key, value in asdict(self.config).items() if value != getattr(GPTConfig, key)}
        return files.json_hash([unlike, digests])

    def save(self, folder, is_best):
        """Writes latest.pt and, if is_best, best.pt. Each is replaced completely or not at all, best.pt first: after a
        kill between the two, the resumed run writes the same best.pt again. ValueError if a tensor is not finite."""
        content = {key: getattr(self, name) for key, (name, _) in FILE.items()} | {"model_args": asdict(self.config)}
        moments = {f"{p}.{key}": t for part in self.optimizer.values() for p in part for key, t in part[p].items()}
        for name, t in (self.weights | moments).items():
            if not t.isfinite().all():
                raise ValueError(f"{name} is not finite at step {self.step}, so {folder}/latest.pt was not replaced")
        for name in ("best.pt", "latest.pt") if is_best else ("latest.pt",):
            with files.replacing(folder / name) as f:
                torch.save(content, f)

    def model(self, device):
        """The model, in evaluation mode. On a CPU it shares its memory with the checkpoint."""
        return GPT.from_weights(self.config, self.weights).to(device).eval()

    def under(self, overrides, length):
        """The GPTConfig with Overrides applied, for up to `length` tokens. ValueError if they do not fit the model."""
        c, new = self.config, {}
        if overrides.window is not None:
            new |= {"window": overrides.window, "window_pattern": ""}  # the window is meant for all layers
        if overrides.rope_theta is not None:
            new["rope_theta"] = overrides.rope_theta
        if overrides.rope_scaling:
            new |= {"rope_scaling": overrides.rope_scaling, "rope_factor": 1.0}
        try:
            if overrides.rope_factor != "auto":
                new["rope_factor"] = float(overrides.rope_factor)
            elif overrides.rope_scaling not in ("", "none", c.rope_scaling):
                new["rope_factor"] = max(1.0, length / (c.rope_block_size or c.block_size))
            elif c.rope_scaling != "none" and overrides.rope_scaling != "none":  # as trained, and more past block_size
                new["rope_factor"] = c.rope_factor * max(1.0, length / c.block_size)
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
        if not named and self.dataset_hash not in (None, dataset.hash):
            other = f"{self.path} was not trained on the text that dataset {dataset.name!r} now holds"
            raise ValueError(f"{other}; to use that text anyway, name it: --dataset={dataset.name}")

    def dataset_name(self, named=""):
        """The dataset `named` or, by default, the one that the model was trained on."""
        if not (named or self.settings):
            raise ValueError(f"{self.path} does not say which text it was trained on: name one with --dataset=NAME")
        return named or self.settings["dataset"]


FILE = {  # key in a file -> its field of Checkpoint, its form in the file (config.matches)
    "model": ("weights", {}),
    "optimizer": ("optimizer", {}),
    "model_args": ("config", {}),
    "config": ("settings", {"dataset": str}),
    "step": ("step", int),
    "best_val_loss": ("best_val_loss", float),
    "tokenizer": ("tokenizer_spec", {}),
    "dataset_hash": ("dataset_hash", str),
    "segment": ("segment", int),
    "history": ("history", list),
}


def load_checkpoint(path, which="best"):
    """Loads a Checkpoint. `path` is a run folder (its best.pt, or latest.pt), a .pt file, nanoGPT's ckpt.pt, a GPT-2
    folder in Hugging Face's format, or a name on its hub. ValueError for anything else."""
    name, path = str(path), Path(path)
    if path.is_dir():
        candidates = [path / file for file in (f"{which}.pt", "latest.pt", "best.pt", "ckpt.pt", "config.json")]
        path = next((p for p in candidates if p.is_file()), candidates[0])
    known, folder = None, path.parent
    if name.startswith("hf:") or (name in foreign.HUB and not path.exists()):
        known, folder = foreign.from_hugging_face(name), Path("results/hub", name.removeprefix("hf:"))
    elif path.name == "config.json" and path.is_file():
        known, path = foreign.from_hugging_face(str(folder)), folder
    elif not path.is_file():
        given, allowed = Path(name), "a run's folder, a .pt file, gpt2 or hf:OWNER/NAME"
        how = f"give {allowed}, or train a run with  python train.py config/rope.py"
        beside = {p.stem for kind in ("*/", "*.npz") for p in given.parent.glob(kind)} - {given.name}
        if near := difflib.get_close_matches(given.name, beside, n=1):
            how = f"did you mean {given.with_name(near[0])}?"
        raise ValueError(f"there is no checkpoint {name or repr(name)}: {how}")
    try:
        known = known or from_file(path)
        config = GPTConfig(**checked(GPTConfig, known["config"], path))
        weights = {key: w.detach().float() for key, w in known["weights"].items()}
        model = GPT.from_weights(config, weights)
        if odd := [key for key, w in weights.items() if not w.isfinite().all()]:
            raise ValueError(f"{odd[0]} is not finite")
        if not torch.equal(model.lm_head.weight, weights["lm_head.weight"]):
            raise ValueError("its output layer (lm_head) is not tied to the token embedding (wte)")
    except Exception as error:  # whatever a damaged file provokes
        raise ValueError(f"{path} cannot be loaded: {' '.join(str(error).split())[:500]}") from None
    if "settings" in known:
        known["settings"] = asdict(config) | BEFORE | known["settings"]
    return Checkpoint(**known | {"config": config, "weights": weights}, path=str(path), folder=folder)


def from_file(path):
    """The fields of a Checkpoint in a file of train.py or of nanoGPT, with `config` still as plain types."""
    try:
        if not is_whole(path):
            raise ValueError
        content = dict(torch.load(path, map_location="cpu", weights_only=True))
    except Exception:  # whatever a damaged file provokes
        other = path.with_name({"latest.pt": "best.pt", "best.pt": "latest.pt"}.get(path.name, path.name))
        hint = f"; {other} is intact: to use it instead, cp {other} {path}" if is_whole(other) else ""
        raise ValueError(f"it is damaged, of another kind, or contains code{hint}") from None
    if "iter_num" in content:  # nanoGPT's
        return foreign.fields_of(content["model"], content["model_args"], content["iter_num"])
    content = {"history": []} | content  # older files have none
    if lacking := [key for key, (_, form) in FILE.items() if not matches(content.get(key), form)]:
        raise ValueError(f"missing or invalid: {', '.join(lacking)}")
    content["tokenizer"].pop("hash", None)  # older files have these four
    for name in ("sample_every", "compile_mode"):
        content["config"].pop(name, None)
    for settings in (content["model_args"], content["config"]):
        size = settings.pop("t5_size", 64.0)
        if settings.get("pos_scheme") == "t5" and size != 64.0:
            settings["pos_options"] = f"size={size}"
    return {name: content[key] for key, (name, _) in FILE.items()}


def is_whole(path):
    """Whether an archive matches its own checksums, which torch does not verify."""
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.testzip() is None
    except Exception:  # whatever a damaged file provokes
        return False


def save_run(log, checkpoint, val_loss):
    """Saves a checkpoint with this validation loss in the log's folder, also as best.pt if no earlier loss was lower.
    Returns the best loss that is saved and, because a full disk does not end training, why saving failed, or ""."""
    folder, best, before = log.folder, log.folder / "best.pt", checkpoint.best_val_loss
    is_best = val_loss < before or (val_loss < math.inf and not best.exists())
    after = val_loss if is_best else before
    try:
        replace(checkpoint, best_val_loss=after).save(folder, is_best)
        return after, ""
    except OSError as error:
        after = load_checkpoint(best).best_val_loss if best.is_file() else before  # best.pt may have been replaced
        unsaved = f"step {checkpoint.step} could not be saved in {folder}: {error.strerror or error}"
        log.say([f"{unsaved}. The last checkpoint is kept; training continues and will try again"])
        return after, unsaved
