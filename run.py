"""A run and its folder: device, checkpoints, metrics and wandb — what the scripts share."""

import contextlib
import json
import logging
import math
import netrc
import os
import shutil
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

import torch

from data import spec_hash, tokenizer_from
from model import GPT, SCHEMES, GPTConfig, PositionScheme

# ----------------------------------------------------------------------------------------------------------
# Device


def pick_device(name):
    """'auto' is cuda, then mps, then cpu. ValueError where the device named is not there."""
    present = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        name = next(kind for kind, there in present.items() if there)
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError):
        there = ", ".join(kind for kind, there in present.items() if there)
        raise ValueError(f"device={name!r} is not available here; there are: auto, {there}") from None
    return device


DTYPES = ("auto", "float32", "bfloat16")


def pick_dtype(name, device):
    """One of DTYPES; 'auto' is bfloat16 on a GPU that has it, else float32."""
    if name == "auto":
        name = "bfloat16" if device.type == "cuda" and torch.cuda.is_bf16_supported() else "float32"
    return getattr(torch, name)


def autocast(device, dtype):
    """Matrix products in dtype; losses, norms and positions stay in float32."""
    return torch.autocast(device.type, dtype) if dtype != torch.float32 else contextlib.nullcontext()


# ----------------------------------------------------------------------------------------------------------
# Checkpoints: tensors and plain types only


CHECKPOINT = {
    "model": dict,
    "optimizer": dict,
    "model_args": dict,
    "config": dict,
    "step": int,
    "best_val_loss": float,
    "tokenizer": dict,
    "dataset_hash": str,
    "segment": int,
}
NANOGPT = {"model": dict, "model_args": dict, "iter_num": int}  # of its ckpt.pt
HUB = ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")  # on the Hugging Face hub; any other GPT-2: hf:OWNER/NAME


def save_checkpoint(folder, checkpoint, is_best):
    """Writes latest.pt, and best.pt alike where is_best. Either is replaced whole or not at all."""
    latest, best = folder / "latest.pt", folder / "best.pt"
    temporary = folder / "latest.pt.tmp"
    with open(temporary, "wb") as f:
        torch.save(checkpoint, f)
        f.flush()
        os.fsync(f.fileno())
    os.replace(temporary, latest)
    if is_best:  # a second name of the same file: latest.pt is replaced, never written into
        second = folder / "best.pt.tmp"
        second.unlink(missing_ok=True)
        try:
            os.link(latest, second)
        except OSError:
            shutil.copyfile(latest, second)
        os.replace(second, best)


def load_checkpoint(path, which="best"):
    """The dict in a checkpoint file, or in best.pt or latest.pt of a run folder; and the like of it from nanoGPT's
    ckpt.pt or a GPT-2 in Hugging Face's format, a folder or a name on the hub. ValueError for anything else.

    Its `path` and `folder` say where it lies; what comes from other code has no tokenizer and knows no text."""
    name, path = str(path), Path(path)
    if path.is_dir():
        candidates = [path / file for file in (f"{which}.pt", "latest.pt", "best.pt", "ckpt.pt", "config.json")]
        path = next((p for p in candidates if p.is_file()), candidates[0])
    if name.startswith("hf:") or (name in HUB and not Path(name).exists()):
        checkpoint, folder = from_hugging_face(name), Path("results/hub", name.removeprefix("hf:"))
    elif path.name == "config.json" and path.is_file():
        path = folder = path.parent
        checkpoint = from_hugging_face(str(path))
    else:
        checkpoint, folder = read_checkpoint(path), path.parent
    try:
        args = asdict(GPTConfig(**checkpoint["model_args"]))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path} does not fit model.py: {error}") from None
    return checkpoint | {"model_args": args, "path": str(path), "folder": folder}


def read_checkpoint(path):
    if not path.is_file():
        raise ValueError(f"there is no checkpoint {path}: train one with  python train.py config/rope.py")
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except Exception:  # whatever a damaged or hostile file provokes
        raise ValueError(
            f"{path} is no checkpoint of plain tensors (damaged, another kind, or with code in it): nothing was loaded"
        ) from None
    given = checkpoint if isinstance(checkpoint, dict) else {}
    if all(isinstance(given.get(key), kind) for key, kind in NANOGPT.items()):
        return foreign(given["model"], given["model_args"], given["iter_num"])
    if lacking := [key for key, kind in CHECKPOINT.items() if not isinstance(given.get(key), kind)]:
        raise ValueError(f"{path} is no checkpoint of train.py: it lacks {', '.join(lacking)}")
    return checkpoint


def foreign(weights, args, step):
    """A checkpoint with nanoGPT's names, in the form of ours."""
    own = {  # a compiled model's names have a prefix; the causal masks of old versions are not learned
        k.removeprefix("_orig_mod.").replace("transformer.wpe.", "pos.wpe."): v
        for k, v in weights.items()
        if not k.endswith(".attn.bias")
    }
    args = args | {"pos_scheme": "learnable"}
    return {"model": own, "model_args": args, "config": {}, "step": step, "tokenizer": None, "dataset_hash": None}


def import_transformers():
    """Hugging Face's package, which is optional, made to tell nothing but errors."""
    try:
        import transformers
    except ImportError:
        raise ValueError("Hugging Face's format needs a package that is not there: pip install transformers") from None
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    return transformers


def from_hugging_face(name):
    """A GPT-2 in Hugging Face's format, a folder or a name on the hub, in the form of our checkpoints."""
    transformers, source, model = import_transformers(), name.removeprefix("hf:"), None
    if not Path(source).is_dir():  # a download shows how far it is
        transformers.utils.logging.enable_progress_bar()
    try:
        architecture = transformers.GPT2Config.get_config_dict(source)[0].get("model_type")
        if architecture == "gpt2":
            model, loading = transformers.GPT2LMHeadModel.from_pretrained(
                source, dtype=torch.float32, weights_only=True, output_loading_info=True
            )
    except Exception as error:  # whatever the hub, the network or a damaged file provokes
        advice = "" if Path(source).is_dir() else ": connect, or name a folder that holds it"
        told = " ".join(str(error).split()).split(". ")[0][:200]
        raise ValueError(f"{name} could not be loaded ({told}){advice}") from None
    if model is None:
        raise ValueError(f"{name} is of architecture {architecture!r}: of Hugging Face's, only 'gpt2' can be loaded")
    c = model.config
    computed = {
        "activation_function": ("gelu", "gelu_new", "gelu_pytorch_tanh"),
        "n_inner": (None, 4 * c.n_embd),
        "layer_norm_epsilon": (1e-5,),
        "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,),
        "reorder_and_upcast_attn": (False,),
        "add_cross_attention": (False,),
        "tie_word_embeddings": (True,),
    }
    for key, values in computed.items():
        if getattr(c, key) not in values:
            allowed = " or ".join(map(repr, values))
            raise ValueError(f"{name} has {key}={getattr(c, key)!r}, and model.py computes only {allowed}")
    if lacking := sorted(loading["missing_keys"]):
        raise ValueError(f"{name} lacks {len(lacking)} of its weights, such as {lacking[0]}")
    args = dict(block_size=c.n_positions, vocab_size=c.vocab_size, n_layer=c.n_layer, n_head=c.n_head, n_embd=c.n_embd)
    weights = {
        f"transformer.{k}": v.T.contiguous() if k.startswith("h.") and v.dim() == 2 else v  # (in, out) there
        for k, v in model.transformer.state_dict().items()
    }
    weights["lm_head.weight"] = weights["transformer.wte.weight"]
    return foreign(weights, args | {"gelu_tanh": c.activation_function != "gelu"}, step=0)


@dataclass(frozen=True)
class Overrides:
    """What evaluation and sampling may change of a trained model."""

    window: int | None = None  # a query sees only the last `window` keys, whatever the run was trained with; 0: all
    rope_scaling: str = ""  # of a rope run: none, linear, ntk, yarn
    rope_factor: str = "auto"  # how many times the training length the scaling reaches; auto: as far as is needed
    rope_theta: float | None = None  # of a rope run: its base

    def __post_init__(self):
        try:
            self.rope_factor == "auto" or float(self.rope_factor)
        except ValueError:
            raise ValueError(f"rope_factor={self.rope_factor!r} must be a number, or auto") from None


def overridden(checkpoint, changes, length):
    """The GPTConfig of a checkpoint under `changes`, Overrides, for use up to `length` tokens. ValueError where they do
    not fit it."""
    c, new = GPTConfig(**checkpoint["model_args"]), {}
    if changes.window is not None:
        new["window"] = changes.window
    if changes.rope_theta is not None:
        new["rope_theta"] = changes.rope_theta
    if changes.rope_scaling:
        new |= {"rope_scaling": changes.rope_scaling, "rope_factor": 1.0}
    if changes.rope_factor != "auto":
        new["rope_factor"] = float(changes.rope_factor)
    elif (changes.rope_scaling or c.rope_scaling) != "none":
        new["rope_factor"] = max(c.rope_factor, length / (c.rope_block_size or c.block_size))
    try:
        c = replace(c, **new)
        SCHEMES[c.pos_scheme](c)  # checks its own
    except ValueError as error:
        raise ValueError(f"{checkpoint['path']}: {error}") from None
    return c


def override(model, checkpoint, changes, length):
    """The model of a checkpoint, itself, under the config that `overridden` returns: whatever it was used under before
    leaves no trace."""
    return model.override(**asdict(overridden(checkpoint, changes, length)))


def load_model(checkpoint, device):
    """The model of a checkpoint, in evaluation mode."""
    try:
        model = GPT(GPTConfig(**checkpoint["model_args"]))
        model.load_state_dict(checkpoint["model"])
    except RuntimeError as error:
        raise ValueError(f"{checkpoint['path']} does not fit model.py: {' '.join(str(error).split())[:300]}") from None
    return model.to(device).eval()


def load_tokenizer(checkpoint, given=None, whose=""):
    """The tokenizer that a checkpoint carries, or the one `given`, that of `whose`, where it carries none. ValueError
    where the two are not the same, and where the model does not have as many ids."""
    path, own, n_vocab = checkpoint["path"], checkpoint["tokenizer"], checkpoint["model_args"]["vocab_size"]
    if own is None:
        if given is None:
            raise ValueError(
                f"{path} carries no tokenizer: give --tokenizer=gpt2, or --dataset=NAME for that of a prepared text"
            )
        if given.n_vocab > n_vocab:
            raise ValueError(f"{path} has {n_vocab:,} ids, too few for the {given.n_vocab:,} of {whose}")
        return given
    spec = {k: v for k, v in own.items() if k != "hash"}
    if spec_hash(spec) != own.get("hash"):
        raise ValueError(f"{path}: its tokenizer does not match its hash; the file is damaged")
    if given is not None and given.spec != spec:
        raise ValueError(f"{path} was trained with another tokenizer than that of {whose}")
    return given or tokenizer_from(spec)


def dataset_of(checkpoint, named=""):
    """The dataset `named`, or else the one that a checkpoint was trained on. ValueError where neither is known."""
    if not (named or checkpoint["config"]):
        raise ValueError(f"{checkpoint['path']} does not say on what text it was trained: name one with --dataset=NAME")
    return named or checkpoint["config"]["dataset"]


@torch.no_grad()
def attention_scores(model, idx, last=None):
    """Yields the scores of each layer before the mask and the softmax, of the tokens idx (B, T), the `last` of them as
    queries (None: all): (B, H, last, T). What `rotate` returns is noted down while the model runs."""
    c, T, noted = model.config, idx.size(1), []

    def noting(scheme, rotate):
        def rotate_and_note(q, k, prepared):
            noted.append((scheme, *rotate(q, k, prepared), prepared))
            return noted[-1][1:3]

        return rotate_and_note

    schemes = (model.pos, model.no_pos)
    for scheme in schemes:
        scheme.rotate = noting(scheme, scheme.rotate)
    try:
        model.hidden(idx, last=1)
    finally:
        for scheme in schemes:
            del scheme.rotate
    pos = torch.arange(T, device=idx.device)
    for layer, (scheme, q, k, prepared) in enumerate(noted):
        q, q_pos = q[:, :, -(last or T) :], pos[-(last or T) :]
        scores = q @ k.mT / math.sqrt(c.n_embd // c.n_head)
        if type(scheme).bias is not PositionScheme.bias:
            scores = scores + scheme.bias(q, k, q_pos, pos, prepared, layer)
        yield scores


def attention_entropy(model, idx, last):
    """Mean entropy, in nats, of the attention of the `last` of the tokens idx (B, T), over layers and heads."""
    c, T = model.config, idx.size(1)
    pos, total = torch.arange(T, device=idx.device), 0.0
    distance = pos[-last:, None] - pos
    for scores, windowed in zip(attention_scores(model, idx, last), c.layers(c.window_pattern), strict=True):
        seen = (distance >= 0) & (distance < (c.window if windowed and c.window else T))
        log_p = scores.float().masked_fill(~seen, -torch.inf).log_softmax(-1)
        total += -(log_p.exp() * log_p.masked_fill(~seen, 0)).sum(-1).mean().item() / c.n_layer
    return total


# ----------------------------------------------------------------------------------------------------------
# Metrics


def read_metrics(folder):
    """The lines of metrics.jsonl; one that was cut short when a process was killed is left out."""
    path, rows = folder / "metrics.jsonl", []
    for line in path.read_text().splitlines() if path.is_file() else []:
        with contextlib.suppress(json.JSONDecodeError):
            rows.append(json.loads(line))
    return rows


def keep_metrics_until(folder, step):
    """Drops the lines after `step`: a resumed run writes them again."""
    kept = [row for row in read_metrics(folder) if row["step"] <= step]
    write_atomically(folder / "metrics.jsonl", "".join(json.dumps(row) + "\n" for row in kept))


def write_atomically(path, content):
    """The whole of content, text or bytes, or the file that was there before: it is never found half-written. Makes
    its folder where there is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_bytes(content.encode() if isinstance(content, str) else content)
    os.replace(temporary, path)


def format_seconds(seconds):
    minutes, s = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{s:02}" if minutes >= 60 else f"{minutes}:{s:02}"


class Progress:
    """The share done and the time left, on one line of stderr where that is a terminal."""

    def __init__(self, label, total):
        self.label, self.total, self.done, self.begin = label, total, 0, time.perf_counter()
        self.shown = sys.stderr.isatty()

    def __call__(self, more):
        self.done += more
        elapsed = time.perf_counter() - self.begin
        left = format_seconds(elapsed / self.done * (self.total - self.done))
        if self.shown:
            print(f"\r{self.label}: {self.done / self.total:4.0%}, {left} left ", end="", file=sys.stderr, flush=True)

    def close(self):
        if self.shown:
            print("\r" + " " * 70 + "\r", end="", file=sys.stderr)


# ----------------------------------------------------------------------------------------------------------
# wandb

WANDB_MODES = ("auto", "online", "offline", "disabled")


def stamp():
    """The time, to make an id that is used once."""
    return time.strftime("%Y%m%d-%H%M%S")


class Wandb:
    """One wandb run that never prompts, never blocks for long and never stops the work: a fault is told once, on
    stderr, and then there is no run. 'auto' is WANDB_MODE, else online with a login and offline without."""

    def __init__(self, mode, project, group, id, job_type, config, axes):
        """mode: one of WANDB_MODES. axes: {prefix: step metric}; every `prefix/*` is drawn against its step metric."""
        self.run = None
        if mode == "auto":
            mode = os.environ.get("WANDB_MODE") or ("online" if _has_login() else "offline")
        if mode == "disabled":
            return
        import wandb  # half a second, so only where it is used

        self.wandb = wandb

        def start(mode):
            settings = wandb.Settings(silent=True, console="off", init_timeout=20)
            return wandb.init(mode=mode, project=project, group=group, id=id, name=id, job_type=job_type, config=config,
                              settings=settings)  # fmt: skip

        try:
            try:
                self.run = start(mode)
            except wandb.errors.Error as error:  # no login, or no network
                if mode == "offline":
                    raise
                self._tell(f"wandb is not reachable ({type(error).__name__}), so it logs offline")
                self.run = start("offline")
            for prefix, step_metric in axes.items():
                self.run.define_metric(step_metric, hidden=True)
                self.run.define_metric(f"{prefix}/*", step_metric=step_metric)
        except Exception as error:
            self._give_up(error)

    def log(self, row):
        self._do(lambda: self.run.log(row))

    def image(self, key, path):
        self._do(lambda: self.run.log({key: self.wandb.Image(str(path))}))

    def summary(self, values):
        self._do(lambda: self.run.summary.update(values))

    def finish(self):
        """Ends the run; returns the lines that say where its charts are."""
        run = self.run
        if run is None:
            return []
        folder = os.path.relpath(run.settings.sync_dir)
        charts = None if run.settings._offline else f"charts    {run.url}"
        self._do(run.finish)
        if charts:
            return [charts]
        return [
            f"charts    wandb leet {Path(folder).parent}",
            f"upload    wandb sync {Path(folder).parent}/offline-run-*",
        ]

    def _do(self, action):
        if self.run is not None:
            try:
                action()
            except Exception as error:
                self._give_up(error)

    def _give_up(self, error):
        self._tell(f"wandb failed and is left out from here on: {error}")
        self.run = None

    def _tell(self, text):
        print(text, file=sys.stderr)


def _has_login():
    """Whether an API key lies in the environment or in netrc, where `wandb login` puts it."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    host = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).netloc
    try:
        return netrc.netrc(os.environ.get("NETRC")).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False
