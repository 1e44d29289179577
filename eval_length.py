"""Loss as the context grows past the training length:  python eval_length.py out/rope out/alibi

Scores the same tokens of the validation text at every context length, for every run, and prints the difference to the
training length with a 95% band; results/ gets the numbers and the picture. What was measured before is not measured
again, and after Ctrl-C the same command goes on. Protocols:

"""

import dataclasses
import functools
import io
import itertools
import json
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tqdm import tqdm

import config
import data
import evaluation.recall  # noqa: F401  (enters itself among the protocols)
from evaluation.protocols import PROTOCOLS
from evaluation.report import pool_seeds, report, result_of
from evaluation.windows import Subject
from run import checkpoint as checkpoints
from run import files
from run.checkpoint import Checkpoint, Overrides
from run.script import script
from run.device import pick_device, pick_dtype
from run.tracking import WANDB_MODES, Wandb, format_seconds, stamp

__doc__ += "\n".join(f"{name:14}  {protocol.question}" for name, protocol in PROTOCOLS.items())


@dataclass(frozen=True)
class EvalConfig(Overrides):
    runs: tuple = ()  # given without a flag: run folders or whatever else sample.py takes
    protocol: str = "fixed"  # see above
    lengths: str = ""  # comma-separated, ascending; default: 1/4 to 16 times the training length
    blocks: int = 0  # of targets (default 256; sliding 128), texts of the longest context (64), or questions (200)
    block_tokens: int = 0  # targets in a block (default 8), or the stride of sliding (default: the shortest length)
    threshold: float = 0.1  # nats that Δ must exceed, by more than its band, to be the breakdown length L*
    allow_mixed: bool = False  # show runs with different text or tokenizers in one picture, each on its own text
    dataset: str = ""  # default: the validation text of the runs' own dataset, where they have one
    seed: int = 1337  # of the choice of blocks and of the bootstrap
    results_dir: str = "results"
    wandb_mode: str = "auto"  # online, offline, disabled; auto: online with a login, else offline
    wandb_project: str = "length"

    def __post_init__(self):
        super().__post_init__()
        if not self.runs:
            raise ValueError("which runs? Name their folders: python eval_length.py out/rope out/alibi")
        config.one_of(PROTOCOLS, self, "protocol")
        config.one_of(WANDB_MODES, self, "wandb_mode")
        config.at_least(0, self, "seed", "blocks", "block_tokens", "threshold")
        for f in dataclasses.fields(self):
            readers = [name for name, protocol in PROTOCOLS.items() if f.name in protocol.options]
            if readers and self.protocol not in readers and getattr(self, f.name) != f.default:
                others = ", ".join(readers)
                raise ValueError(f"--{f.name} is not an option of --protocol={self.protocol}, only of: {others}")
        if self.blocks == 1:
            raise ValueError("blocks=1 is too few for an interval: at least 2")


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
    """The runs with their best checkpoints. ValueError unless one picture can hold them all."""
    loaded, load_text = {path: checkpoints.load(path) for path in cfg.runs}, functools.cache(data.load)
    names = [checkpoint.folder.resolve().name for checkpoint in loaded.values()]
    runs, texts = [], {}
    for (path, checkpoint), name in zip(loaded.items(), names, strict=True):
        dataset = load_text(checkpoint.dataset_name(cfg.dataset))
        checkpoint.tokenizer(dataset)  # must be the same
        if not cfg.dataset and dataset.hash != checkpoint.dataset_hash:
            changed = f"dataset {dataset.name!r} is no longer the text that {checkpoint.path} was trained on"
            raise ValueError(f"{changed}; to evaluate the run on it all the same, name it: --dataset={dataset.name}")
        if checkpoint.step < checkpoint.settings.get("max_iters", 0):
            last = checkpoint.settings["max_iters"]
            print(f"note: the best checkpoint of {checkpoint.folder} was saved at step {checkpoint.step} of {last}")
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
    factors = {"none": "auto"} if len(scalings) > 1 else {}  # a grid may hold the plain one, which has no factor
    return [dataclasses.replace(cfg, rope_scaling=s, rope_factor=factors.get(s, cfg.rope_factor)) for s in scalings]


def stem_of(cfg):
    """Names the files of a measurement by whatever differs from the defaults."""
    window = "" if cfg.window is None else f"window{cfg.window}"
    factor = "" if cfg.rope_factor == "auto" else f"x{cfg.rope_factor}"
    theta = "" if cfg.rope_theta is None else f"theta{cfg.rope_theta:g}"
    parts = PROTOCOLS[cfg.protocol].stem, Path(cfg.dataset).name, window, cfg.rope_scaling, factor, theta
    return "-".join(filter(None, parts)).replace(",", "-")


def measure(cfg, protocol, run, targets):
    """What is known about a run, {name: array}: the targets, and for every job what the protocol keeps of it; and
    whether anything was computed. What lies in the run's folder is read. The rest is computed, and saved job by job."""
    device = pick_device(cfg.device)
    dtype = pick_dtype(cfg.dtype, device)
    key = {  # everything that the losses depend on
        "checkpoint": run.checkpoint.hash, "dataset": run.dataset.hash, "protocol": cfg.protocol,
        "longest": protocol.longest, "blocks": protocol.blocks, "block_tokens": protocol.block_tokens,
        "seed": cfg.seed, "dtype": str(dtype),
        "overrides": [cfg.window, cfg.rope_scaling, cfg.rope_factor, cfg.rope_theta],
    } | protocol.identity  # fmt: skip
    path = run.checkpoint.folder / f"{stem_of(cfg)}.npz"
    found = kept(path, key) | {"key": json.dumps(key), "lengths": np.array(protocol.lengths)} | targets

    jobs = protocol.jobs(found, run.trained, run.checkpoint.config.max_positions)
    for values, n in ((found[job.name], protocol.units(job, found)) for job in jobs if job.name in found):
        if values.shape[:1] != (n,) or not np.isfinite(values).all():
            raise damaged(path)
    missing = [job for job in jobs if job.name not in found]
    model = run.checkpoint.model(device) if missing else None
    n_tokens, label = sum(protocol.tokens(job, found) for job in missing), str(run.checkpoint.folder)
    with tqdm(total=n_tokens, desc=label, unit=" tokens", unit_scale=True, leave=False, disable=None) as bar:
        subject = Subject(model, run.dataset.val, dtype, bar.update)
        for job in missing:
            model.override(run.checkpoint.under(cfg, job.length))
            found |= protocol.measure(job, subject, found, run.trained)
            np.savez(file := io.BytesIO(), **found)
            files.write(path, file.getvalue())
    return found, bool(missing)


def damaged(path):
    return ValueError(f"{path} is damaged: delete it, and its losses are computed again")


def kept(path, key):
    """The arrays at `path`, by name, if they were measured under `key`, else {}. The same model's arrays under other
    settings move to a name of their own, and come back when they are asked for again."""

    def elsewhere(key):
        return path.with_name(f"{path.stem}-{files.json_hash(key)[:8]}.npz")

    def read():
        try:
            with zipfile.ZipFile(path) as archive:
                whole = archive.testzip() is None
            with np.load(path) as saved:
                found = dict(saved)
            numbers = all(array.dtype.kind in "biufU" for array in found.values())
            whole = whole and numbers and isinstance(json.loads(str(found["key"])), dict)
        except Exception:  # whatever a damaged or hostile file provokes
            whole = False
        if not whole:
            raise damaged(path)
        return found

    found = read() if path.is_file() else {}
    old = json.loads(str(found.get("key", "{}")))
    if old == key:
        return found
    if old.get("checkpoint") == key["checkpoint"]:
        path.replace(elsewhere(old))
    if not elsewhere(key).is_file():
        return {}
    elsewhere(key).replace(path)
    return read()


def start_wandb(cfg, run, id, job_type, axes, settings):
    """A wandb run in the group of the training run."""
    group = run.checkpoint.settings.get("wandb_group") or Path(run.dataset.name).name
    settings |= dataclasses.asdict(cfg) | {"runs": list(cfg.runs)}
    return Wandb(cfg.wandb_mode, cfg.wandb_project, group, f"{id}-{stamp()}", job_type, settings, axes)


def log_run(cfg, protocol, run, result):
    """Logs a run's rows against the context length, and as a summary what runs are sorted by. Returns closing lines."""
    name, prefix = run.checkpoint.folder.resolve().name, protocol.stem.split("-")[0]
    x = f"{prefix}/{protocol.column}"
    settings = run.checkpoint.settings | {"run": name, "step": run.checkpoint.step}
    tracker = start_wandb(cfg, run, f"{name}-{stem_of(cfg)}", "eval_length", {prefix: x}, settings)
    summary = {"L_star": result["L_star"]} if "L_star" in result else {}
    for n, row in result["rows"].items():
        if row:
            tracker.log({x: n} | {f"{prefix}/{key}": value for key, value in row.items()})
            if n > run.trained and "delta" in row:
                summary[f"delta_{n / run.trained:g}x"] = row["delta"]
    tracker.summary(summary)
    return tracker.finish()


def log_comparison(cfg, protocol, runs, results, picture):
    """Logs a curve for every line of the picture, and the picture. Returns closing lines."""
    headline, x = protocol.headline, f"x/{protocol.column}"  # charts are sorted: x comes last
    tracker = start_wandb(cfg, runs[0], f"compare-{stem_of(cfg)}", "comparison", {headline: x}, {})
    for n in protocol.shown():
        rows = {f"{headline}/{name}": result["rows"][n] for name, result in results.items()}
        tracker.log({x: n} | {name: row[headline] for name, row in rows.items() if row})
    tracker.image(f"{protocol.stem.split('-')[0]}/picture", picture)
    return tracker.finish()


def main(argv):
    cfg = config.load(EvalConfig, argv, list_field="runs")
    runs, variants = open_runs(cfg), variants_of(cfg)
    n_tokens = min(len(run.dataset.val.tokens) for run in runs)
    protocol = PROTOCOLS[cfg.protocol](cfg, {run.trained for run in runs}, n_tokens)
    for run, one in itertools.product(runs, variants):  # a mistake is reported before anything is measured
        run.checkpoint.under(one, protocol.longest)
    targets = {run.name: protocol.prepare(run.dataset, run.trained) for run in runs}

    files.write(Path(cfg.results_dir, ".writable"), b"")  # found out before anything is measured
    Path(cfg.results_dir, ".writable").unlink(missing_ok=True)

    measured, texts, closing = {}, {}, []
    for run, one in itertools.product(runs, variants):
        begin, suffix = time.perf_counter(), f" {one.rope_scaling}" if len(variants) > 1 else ""
        try:
            with files.Lock(run.checkpoint.folder, ".evaluation.lock", ("*.npz", "*.json"), wait=True):
                found, computed = measure(one, protocol, run, targets[run.name])
        except KeyboardInterrupt:
            print("\nstopped; what was measured is kept, and the same command goes on", flush=True)
            raise
        rows = protocol.rows(found, run.trained)
        texts[run.dataset.name] = {"hash": run.dataset.hash} | protocol.about_text(found)
        result = result_of(protocol, run.checkpoint, rows)
        measured[run.name + suffix] = run.checkpoint.experiment + suffix, found, result
        took = format_seconds(time.perf_counter() - begin) if computed else "done before"
        print(f"{run.name}{suffix}: {took}", flush=True)
        files.write(run.checkpoint.folder / f"{stem_of(one)}.json", json.dumps(result, indent=1))
        if computed:
            closing = log_run(one, protocol, run, result)

    results, losses = pool_seeds(protocol, measured)
    own = f"-{runs[0].checkpoint.folder.resolve().name}" if len(runs) == 1 else ""  # beside the comparison of several
    picture = report(protocol, results, losses, texts, Path(cfg.results_dir, stem_of(cfg) + own))
    if closing:  # something is new: the picture does not belong to a single run
        closing = log_comparison(cfg, protocol, runs, results, picture)
    print("\n".join(closing))
    return 0


if __name__ == "__main__":
    script(main)
