"""Loss as the context grows past the training length:  python eval_length.py out/rope out/alibi

Scores the same tokens of the validation text at every context length, for every run, and prints the difference to the
loss at the training length, with a 95% band. The numbers and the picture go to results/. Measurements are kept in the
run folders and not repeated; after Ctrl-C, the same command resumes. Protocols:

"""

import dataclasses
import functools
import io
import itertools
import json
import tempfile
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tqdm import tqdm

import config
import data
from evaluation import attention, recall  # noqa: F401  (they register their protocols)
from evaluation.protocols import PROTOCOLS
from evaluation.report import pool_seeds, publish_comparison, publish_run, report, result_of
from evaluation.windows import Subject
from run import checkpoint as checkpoints
from run import files, tracking
from run.checkpoint import Checkpoint, Overrides
from run.device import pick_device, pick_dtype
from run.script import script

__doc__ += "\n".join(f"{name:14}  {protocol.question}" for name, protocol in PROTOCOLS.items())


@dataclass(frozen=True)
class EvalConfig(Overrides):
    runs: tuple = ()  # given without a flag: run folders, or anything else that sample.py accepts
    protocol: str = "fixed"  # what is scored; see above
    lengths: str = ""  # comma-separated, ascending; default: 1/4 to 16 times the training length
    blocks: int = 0  # of targets (default 256; sliding 128; nonoverlapping, position, entropy 64); questions (200)
    block_tokens: int = 0  # targets in a block (default 8), or the stride of sliding (default: the shortest length)
    threshold: float = 0.1  # nats that Δ must exceed, by more than its band, at the breakdown length L*
    allow_mixed: bool = False  # show runs with different text or tokenizers in one picture, each on its own text
    dataset: str = ""  # default: the validation text of each run's own dataset
    seed: int = 1337  # of the choice of blocks and of the bootstrap
    results_dir: str = "results"
    wandb_mode: tracking.WandbMode = "auto"  # auto: online if logged in, else offline
    wandb_project: str = "length"

    def __post_init__(self):
        super().__post_init__()
        if not self.runs:
            raise ValueError("which runs? Name their folders: python eval_length.py out/rope out/alibi")
        if self.protocol not in PROTOCOLS:
            raise ValueError(f"protocol={self.protocol!r} is not one of: {', '.join(PROTOCOLS)}")
        config.at_least(0, self, "seed", "blocks", "block_tokens", "threshold")
        for f in dataclasses.fields(self):
            readers = [name for name, protocol in PROTOCOLS.items() if f.name in protocol.options]
            if readers and self.protocol not in readers and getattr(self, f.name) != f.default:
                others = ", ".join(readers)
                raise ValueError(f"--protocol={self.protocol} has no option --{f.name}; these have: {others}")
        if self.blocks == 1:
            raise ValueError("blocks=1 is too few for a band: it must be at least 2")


@dataclass(frozen=True)
class Run:
    """One of the runs that are measured, and the text that it is measured on."""

    name: str
    checkpoint: Checkpoint
    dataset: data.Dataset

    @property
    def trained(self):
        return self.checkpoint.config.block_size


def open_runs(cfg):
    """The runs with their best checkpoints. ValueError if they cannot be compared in one picture."""
    loaded, load_text = {path: checkpoints.load(path) for path in cfg.runs}, functools.cache(data.load)
    names = [checkpoint.folder.resolve().name for checkpoint in loaded.values()]
    runs, texts = [], {}
    for (path, checkpoint), name in zip(loaded.items(), names, strict=True):
        dataset = load_text(checkpoint.dataset_name(cfg.dataset))
        checkpoint.check_tokenizer(dataset.tokenizer, f"dataset {dataset.name!r}")
        if not cfg.dataset and dataset.hash != checkpoint.dataset_hash:
            changed = f"dataset {dataset.name!r} is no longer the text that {checkpoint.path} was trained on"
            raise ValueError(f"{changed}; to evaluate the run on it anyway, name it: --dataset={dataset.name}")
        if checkpoint.step < checkpoint.settings.get("max_iters", 0):
            last = checkpoint.settings["max_iters"]
            print(f"note: the best checkpoint of {checkpoint.folder} is from step {checkpoint.step} of {last}")
        runs.append(Run(name if names.count(name) == 1 else path, checkpoint, dataset))
        text = checkpoint.dataset_hash or dataset.hash
        texts.setdefault(text, f"{checkpoint.path} on {dataset.name}: {text[:8]}…")
    if len(texts) > 1 and not cfg.allow_mixed:
        named = ", ".join(texts.values())
        raise ValueError(f"the runs were trained on different text ({named}): evaluate them apart, or --allow_mixed")
    return runs


def variants_of(cfg):
    """cfg once for each rope_scaling that it lists."""
    scalings = dict.fromkeys(cfg.rope_scaling.split(","))
    factors = {"none": "auto"} if len(scalings) > 1 else {}  # unscaled RoPE, which has no factor, may be in the list
    return [dataclasses.replace(cfg, rope_scaling=s, rope_factor=factors.get(s, cfg.rope_factor)) for s in scalings]


def stem_of(cfg):
    """Names the files of a measurement by everything that differs from the defaults."""
    window = "" if cfg.window is None else f"window{cfg.window}"
    factor = "" if cfg.rope_factor == "auto" else f"x{cfg.rope_factor}"
    theta = "" if cfg.rope_theta is None else f"theta{cfg.rope_theta:g}"
    parts = PROTOCOLS[cfg.protocol].stem, Path(cfg.dataset).name, window, cfg.rope_scaling, factor, theta
    return "-".join(filter(None, parts)).replace(",", "-")


def measure(cfg, protocol, run, targets):
    """The targets and what each job yields, {name: array}, and whether anything was computed. Arrays that are kept in
    the run's folder are not computed again; the others are saved job by job."""
    device = pick_device(cfg.device)
    dtype = pick_dtype(cfg.dtype, device)
    key = {  # everything that the values depend on
        "checkpoint": run.checkpoint.hash, "dataset": run.dataset.hash, "protocol": cfg.protocol,
        "longest": protocol.longest, "blocks": protocol.blocks, "block_tokens": protocol.block_tokens,
        "seed": cfg.seed, "dtype": str(dtype),
        "overrides": [cfg.window, cfg.rope_scaling, cfg.rope_factor, cfg.rope_theta],
    } | protocol.identity  # fmt: skip
    path = run.checkpoint.folder / f"{stem_of(cfg)}-{files.json_hash(key)[:12]}.npz"
    jobs = protocol.jobs(targets, run.trained, run.checkpoint.config.max_positions)
    found = targets | kept(path, {name for job in jobs for name in (job.name, *job.more)}, len(targets["ends"]))
    missing = [job for job in jobs if not found.keys() >= {job.name, *job.more}]
    model = run.checkpoint.model(device) if missing else None
    n_tokens, label = sum(protocol.tokens(job, found) for job in missing), str(run.checkpoint.folder)
    with tqdm(total=n_tokens, desc=label, unit=" tokens", unit_scale=True, leave=False, disable=None) as bar:
        subject = Subject(model, run.dataset.val, dtype, bar.update)
        for job in missing:
            model.override(run.checkpoint.under(cfg, job.length))
            found |= protocol.measure(job, subject, found, run.trained)
            np.savez(file := io.BytesIO(), key=json.dumps(key), **found)
            files.write(path, file.getvalue())
    return found, bool(missing)


def kept(path, names, rows):
    """Those of the named arrays that an .npz file has, {name: array}; nothing else in it is read. ValueError if it is
    damaged, or if an array has another number of rows."""
    found = {}
    try:
        with zipfile.ZipFile(path) as archive:
            if any(member.compress_type != zipfile.ZIP_STORED for member in archive.infolist()):
                raise ValueError  # not written here, and it may inflate to any size
            for name in names & {member.removesuffix(".npy") for member in archive.namelist()}:
                found[name] = np.lib.format.read_array(io.BytesIO(archive.read(f"{name}.npy")), allow_pickle=False)
                is_plain = found[name].dtype.kind in "bf" and found[name].shape[:1] == (rows,)
                if not is_plain or not np.isfinite(found[name]).all():
                    raise ValueError
    except FileNotFoundError:
        return {}
    except Exception:  # whatever a damaged or hostile file provokes
        raise ValueError(f"{path} is damaged: delete it, and its losses are measured again") from None
    return found


def main(argv):
    cfg = config.load(EvalConfig, argv, list_field="runs")
    runs, variants = open_runs(cfg), variants_of(cfg)
    n_tokens = min(len(run.dataset.val.tokens) for run in runs)
    protocol = PROTOCOLS[cfg.protocol](cfg, {run.trained for run in runs}, n_tokens)
    for run, one in itertools.product(runs, variants):  # mistakes are reported before anything is measured
        run.checkpoint.under(one, protocol.longest)
    targets = {run.name: protocol.prepare(run.dataset, run.trained) for run in runs}
    results_dir = Path(cfg.results_dir)
    if results_dir.exists() and not results_dir.is_dir():
        raise ValueError(f"results_dir={results_dir} is a file: choose a folder")
    results_dir.mkdir(parents=True, exist_ok=True)
    tempfile.TemporaryFile(dir=results_dir).close()  # OSError if no file can be written there

    measured, texts, is_new = {}, {}, False
    for run, one in itertools.product(runs, variants):
        start, suffix = time.perf_counter(), f" {one.rope_scaling}" if len(variants) > 1 else ""
        try:
            with files.Lock(run.checkpoint.folder, ".evaluation.lock", ("*.npz", "*.json"), wait=True):
                found, computed = measure(one, protocol, run, targets[run.name])
                result = result_of(protocol, run.checkpoint, protocol.rows(found, run.trained))
                files.write(run.checkpoint.folder / f"{stem_of(one)}.json", json.dumps(result, indent=1))
        except KeyboardInterrupt:
            print("\nstopped; finished measurements are kept, and the same command resumes", flush=True)
            raise
        texts[run.dataset.name] = {"hash": run.dataset.hash} | protocol.about_text(found)
        measured[run.name + suffix] = run.checkpoint.experiment + suffix, found, result
        took = tracking.format_seconds(time.perf_counter() - start) if computed else "measured before"
        print(f"{run.name}{suffix}: {took}", flush=True)
        if computed:
            publish_run(one, protocol, run, stem_of(one), result)
        is_new |= computed

    results, losses = pool_seeds(protocol, measured)
    own = f"-{runs[0].checkpoint.folder.resolve().name}" if len(runs) == 1 else ""  # comparisons have no such suffix
    picture = report(protocol, results, losses, texts, results_dir / (stem_of(cfg) + own))
    if is_new:
        publish_comparison(cfg, protocol, runs[0], stem_of(cfg), results, picture)
    return 0


if __name__ == "__main__":
    script(main)
