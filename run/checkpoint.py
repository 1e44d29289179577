"""Checkpoints: what is known about a trained model, its file, and what may be changed when it is used."""

import hashlib
import zipfile
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import groupby
from pathlib import Path
from typing import Literal

import torch

from config import check_values, checked
from model import GPT, GPTConfig, LayerConfig, RopeScaling
from run import files
from run.device import DType

# A resumed run may change these settings. All others except the seed identify the experiment.
CALL_FIELDS = (
    "out_dir", "resume", "overwrite", "eval_only", "eval_interval", "log_interval", "device", "dtype", "compile",
    "wandb_mode", "wandb_project", "wandb_group",
)  # fmt: skip

VERSION = 1  # raise it when the content of the files changes


@dataclass(frozen=True)
class Overrides:
    """The device for evaluation and sampling, and what they may change in a trained model."""

    # changes to the trained model
    window: int = 0  # a query sees only the last `window` keys, or fewer if its layer was trained so; 0: as trained
    layers: str | None = None  # other kinds of layers, with the same weights
    rope_scaling: Literal["", RopeScaling] = ""  # stretches rope past the training length; default: as trained
    rope_factor: float = 0.0  # by how much, at every length, as servers do; 0: as far as each length needs
    # this call
    device: str = "auto"  # auto, cpu, cuda, cuda:1, mps
    dtype: DType = "auto"  # auto: bfloat16 on a GPU that has it

    def __post_init__(self):
        check_values(self)

    def changed(self, names):
        """Which of these settings differ from their defaults, in words."""
        return [f"{name}={getattr(self, name)}" for name in names if getattr(self, name) != getattr(type(self), name)]


def can_stretch(kind, trained):
    """Does a layer have rope, and does it meet longer distances than in training? Under a window it does not."""
    return "rope_scaling" in kind.scheme_class.reads and kind.n_keys > trained.block_size


def stretched(config, trained, length, scaling, factor, has_new_layers):
    """The GPTConfig for up to `length` tokens, in an evaluation or when training goes on. trained: the one that the
    model was trained with. To reach the length, rope takes another scaling or a larger factor: one that was trained at
    128 tokens with YaRN by 2 has a factor of 8 at 512, unless new layers name a factor."""
    kinds = []
    for kind, old in zip(config.kinds, trained.kinds, strict=False):
        first = old.block_size  # the length that rope was trained at without scaling
        if old.rope_scaling != "none":
            first = old.rope_block_size or first
        if can_stretch(kind, old):
            reach = max(old.block_size, min(kind.n_keys, length))
            is_fixed = has_new_layers and kind.rope_factor != config.rope_factor
            growth = 1.0 if is_fixed else reach / old.block_size
            factors = {kind.rope_scaling: kind.rope_factor * growth, "none": 1.0}
            law = scaling or kind.rope_scaling
            kind = replace(kind, rope_scaling=law, rope_factor=factor or factors.get(law, reach / first))
        if kind.rope_block_size in (0, old.rope_block_size):  # otherwise this call gives another one
            is_other = kind.rope_scaling != "none" and first != kind.block_size
            kind = replace(kind, rope_block_size=first if is_other else 0)
        kinds.append(kind)
    return with_kinds(config, kinds)


def with_kinds(config, kinds):
    """The GPTConfig with these configs of its layers."""
    if kinds == config.kinds:
        return config
    names = [f.name for f in fields(LayerConfig)]
    parts = []
    for kind, layers in groupby(kinds):
        settings = {name: getattr(kind, name) for name in names if getattr(kind, name) != getattr(config, name)}
        parts.append(" ".join([*(f"{name}={value}" for name, value in settings.items()), f"*{len([*layers])}"]))
    if len(parts) == 1 and not config.layers:
        return replace(config, **settings)  # those of the only kind
    return replace(config, layers=" | ".join(parts))


def own_settings(config):
    """The fields of a GPTConfig that differ from their defaults, as plain types."""
    return {name: value for name, value in asdict(config).items() if value != getattr(GPTConfig, name)}


@dataclass(frozen=True)
class Checkpoint:
    """A trained model. One from other code (tools/import_weights.py) has no settings and no text."""

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
    def hash(self):
        """sha256 of the model: its tensors and the non-default fields of its config. The file itself is not hashed,
        because training may have replaced it since it was read."""
        digests = {name: hashlib.sha256(t.numpy()).hexdigest() for name, t in self.weights.items()}
        return files.json_hash([own_settings(self.config), digests])

    def save(self, path):
        """Writes the file completely or not at all. ValueError if a weight is not finite."""
        for name, t in self.weights.items():
            if not t.isfinite().all():
                raise ValueError(f"{name} is not finite at step {self.step}, so {path} was not replaced")
        content = vars(self) | {"version": VERSION, "config": asdict(self.config)}
        del content["path"], content["folder"]  # they change when the file is moved
        with files.replacing(path) as f:
            torch.save(content, f)

    def model(self, device):
        """The model, in evaluation mode. On a CPU it shares its memory with the checkpoint."""
        return GPT.from_weights(self.config, self.weights).to(device).eval()

    def config_with(self, overrides, length, temperature=None):
        """The GPTConfig with Overrides and an attention temperature, for up to `length` tokens. ValueError if they do
        not fit the model."""
        trained = self.config
        try:
            c = trained if overrides.layers is None else replace(trained, layers=overrides.layers)
            if [kind.sink for kind in c.kinds] != [kind.sink for kind in trained.kinds]:
                raise ValueError("a model learns its sinks, so that layers cannot add or remove them")
            flags = overrides.changed(("rope_scaling", "rope_factor"))
            if flags and not any(map(can_stretch, c.kinds, trained.kinds)):
                raise ValueError(f"{', '.join(flags)} needs a layer with rope and without a window")
            kinds = []
            for kind in c.kinds:
                if 0 < overrides.window < kind.n_keys:  # a window only ever narrows
                    kind = replace(kind, window=overrides.window)
                if temperature is not None:
                    kind = replace(kind, temperature=temperature)
                kinds.append(kind)
            c = with_kinds(c, kinds)
            has_new_layers = overrides.layers is not None
            return stretched(c, trained, length, overrides.rope_scaling, overrides.rope_factor, has_new_layers)
        except ValueError as error:
            raise ValueError(f"{self.path}: {error}") from None

    def check_tokenizer(self, tokenizer, owner):
        """ValueError unless the model was trained with the tokenizer of this owner or, if the model's is unknown, has
        enough ids for it."""
        n_vocab = self.config.vocab_size
        if self.tokenizer_spec not in (None, tokenizer.spec):
            raise ValueError(f"{self.path} was trained with another tokenizer than that of {owner}")
        if tokenizer.n_vocab > n_vocab:
            raise ValueError(f"{self.path} has {n_vocab:,} ids, too few for the {tokenizer.n_vocab:,} of {owner}")

    def check_dataset(self, dataset, named):
        """ValueError unless the model has the dataset's tokenizer and was trained on its text; a user who `named` the
        dataset may choose another text."""
        self.check_tokenizer(dataset.tokenizer, f"dataset {dataset.name!r}")
        if not named and self.dataset_hash not in (None, dataset.hash):
            raise ValueError(
                f"{self.path} was not trained on the text that dataset {dataset.name!r} now holds; "
                f"to use that text anyway, name it: --dataset={dataset.name}"
            )

    def dataset_name(self):
        """The dataset that the model was trained on. ValueError if it is unknown."""
        if not self.settings:
            raise ValueError(f"{self.path} does not say which text it was trained on: name one with --dataset=NAME")
        return self.settings["dataset"]


def load_checkpoint(name, which="best"):
    """Loads a Checkpoint. `name` is a run folder (its best.pt, or latest.pt) or a .pt file. ValueError for anything
    else."""
    path = find_checkpoint(Path(name), which)
    try:
        with zipfile.ZipFile(path) as archive:
            if archive.testzip():  # torch does not verify its checksums
                raise ValueError("it is damaged; of a run's latest.pt and best.pt, try the other one")
        content = dict(torch.load(path, map_location="cpu", weights_only=True))
        if "iter_num" in content:
            raise ValueError(f"it is nanoGPT's: python -m tools.import_weights {path} out/NAME")
        if content.pop("version", None) != VERSION:
            raise ValueError(f"its version is not {VERSION}, the only one that this code reads: train the run again")
        content["config"] = GPTConfig(**checked(GPTConfig, content["config"], path))
        checkpoint = Checkpoint(**content, path=str(path), folder=path.parent)
        model = checkpoint.model("cpu")
        if not torch.equal(model.lm_head.weight, checkpoint.weights["lm_head.weight"]):
            raise ValueError("its output layer (lm_head) is not tied to the token embedding (wte)")
        return checkpoint
    except Exception as error:  # whatever a damaged file provokes
        raise ValueError(f"{path} cannot be loaded: {' '.join(str(error).split())[:500]}") from None


def find_checkpoint(path, which):
    """The path of a .pt file. ValueError if there is no such checkpoint."""
    for file in (path, path / f"{which}.pt", path / "latest.pt", path / "best.pt"):
        if file.is_file():
            return file
    raise ValueError(
        f"there is no checkpoint {str(path)!r}: give a run's folder or a .pt file (or, to be evaluated, "
        "NAME.npz or hf:NAME). tools.import_weights makes one of GPT-2's weights; a run resumes with --resume alone"
    )


def save_run(folder, checkpoint, val_loss):
    """Saves a checkpoint with this validation loss as latest.pt in a folder and, if no earlier loss was lower, as
    best.pt. Returns it with the lowest loss."""
    # best.pt first: after a kill between the two, the resumed run writes the same best.pt again
    if val_loss < checkpoint.best_val_loss:
        checkpoint = replace(checkpoint, best_val_loss=val_loss)
        checkpoint.save(folder / "best.pt")
    checkpoint.save(folder / "latest.pt")
    return checkpoint
