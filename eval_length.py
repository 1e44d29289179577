"""Loss as the context grows past the training length:  python eval_length.py out/rope out/alibi

Scores the same tokens of the validation text at every context length, for every run, and prints the difference to the
loss at the training length, with a 95% band. The numbers and the picture go to results/. Measurements are kept in the
run folders and not repeated; after Ctrl-C, the same command resumes. Protocols:

"""

import contextlib
import dataclasses
import inspect
import io
import itertools
import json
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tqdm import tqdm

import config
import data
from evaluation import attention, recall  # noqa: F401  (they register their protocols)
from evaluation.protocols import PROTOCOLS
from evaluation.report import Measured, charts, json_text, pool_seeds, report, result_of
from evaluation.windows import Subject
from model import SCHEMES, find_scheme
from run import files, tracking
from run.checkpoint import CALL_FIELDS, Overrides, is_whole, load_checkpoint
from run.device import pick_device, pick_dtype
from run.script import script

__doc__ += "\n".join(f"{name:14}  {protocol.question}" for name, protocol in PROTOCOLS.items())


@dataclass(frozen=True)
class EvalConfig(Overrides):
    # what is measured
    runs: tuple = ()  # given without a flag: run folders, or anything else that sample.py accepts
    protocol: str = "fixed"  # what is scored; see above
    lengths: str = ""  # comma-separated, ascending; default: 1/4 to 16 times the training length
    blocks: int = 0  # of targets (default 256; sliding 128; nonoverlapping, position, entropy 64); questions (200)
    block_tokens: int = 0  # targets in a block (default 8), or the stride of sliding (default: the shortest length)
    max_position: int = 0  # tokens stand at positions sampled below it, as train.py has it; 0: at 0, 1, 2, …
    threshold: float = 0.1  # nats that Δ must exceed, by more than its band, at the breakdown length L*
    dataset: str = ""  # whose validation text is used; default: the dataset that the runs were trained on
    seed: int = 1337  # for the choice of blocks and for the bootstrap
    # this call
    results_dir: str = "results"  # where the picture and the numbers go
    wandb_mode: tracking.WandbMode = "auto"  # auto: online if logged in, else offline
    wandb_project: str = "length"  # where the charts go

    def __post_init__(self):
        super().__post_init__()
        if not self.runs:
            raise ValueError("which runs? Name their folders: python eval_length.py out/rope out/alibi")
        if self.protocol not in PROTOCOLS:
            raise ValueError(f"protocol={self.protocol!r} is not one of: {', '.join(PROTOCOLS)}")
        config.at_least(0, self, "seed", "blocks", "block_tokens", "threshold", "max_position")
        for f in dataclasses.fields(self):
            readers = [name for name, protocol in PROTOCOLS.items() if f.name in protocol.options]
            if readers and self.protocol not in readers and getattr(self, f.name) != f.default:
                others = ", ".join(readers)
                raise ValueError(f"--protocol={self.protocol} has no option --{f.name}; these have: {others}")


def open_runs(cfg):
    """{name: Checkpoint} of the runs' best checkpoints, and the dataset. ValueError if they do not fit together."""
    loaded = {path: load_checkpoint(path) for path in cfg.runs}
    names = [checkpoint.folder.resolve().name for checkpoint in loaded.values()]
    runs = {
        name if names.count(name) == 1 else path: checkpoint
        for name, (path, checkpoint) in zip(names, loaded.items(), strict=True)
    }
    texts = {name: run.dataset_name(cfg.dataset) for name, run in runs.items()}
    if len(set(texts.values())) > 1:
        held = ", ".join(f"{name} on {text}" for name, text in texts.items())
        raise ValueError(f"the runs were trained on different texts ({held}): choose one with --dataset=NAME")
    dataset = data.load(next(iter(texts.values())))
    for run in runs.values():
        run.check_dataset(dataset, cfg.dataset)
        if run.step < run.settings.get("max_iters", 0):
            print(f"note: the best checkpoint of {run.folder} is from step {run.step} of {run.settings['max_iters']}")
    return runs, dataset


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
    sampled = f"positions{cfg.max_position}" if cfg.max_position else ""
    parts = PROTOCOLS[cfg.protocol].stem, Path(cfg.dataset).name, window, cfg.rope_scaling, factor, theta, sampled
    return "-".join(filter(None, parts)).replace(",", "-")


def results_base(cfg, runs):
    """The path of a comparison's files without an ending, and what tells it from others: its runs and settings. The
    files are named by the runs, or by a hash if there are many or if other results have that name."""
    settings = {k: v for k, v in dataclasses.asdict(cfg).items() if k not in ("runs", "device", *CALL_FIELDS)}
    of = {"runs": [str(run.folder.resolve()) for run in runs.values()], "settings": settings}
    names, digest = "-".join(runs), files.json_hash(of)[:6]
    base = Path(cfg.results_dir, f"{stem_of(cfg)}-{names}")
    if len(names) > 80 or "/" in names:
        base = Path(cfg.results_dir, f"{stem_of(cfg)}-{len(runs)}-runs-{digest}")
    elif base.with_name(f"{base.name}.json").is_file():
        with contextlib.suppress(ValueError, KeyError, TypeError):
            if json.loads(base.with_name(f"{base.name}.json").read_text())["of"] == of:
                return base, of
        base = base.with_name(f"{base.name}-{digest}")
    return base, of


def unlike_settings(runs):
    """The settings in which runs differ besides scheme and seed, in words: "max_iters=850, but 100 in none"."""
    expected = {"seed", "vocab_size", "pos_scheme", "pos_options", *CALL_FIELDS}
    expected.update(*(scheme.reads for scheme in SCHEMES.values()))
    known = {name: dataclasses.asdict(run.config) | run.settings for name, run in runs.items()}
    words = []
    for key in sorted(set.intersection(*map(set, known.values())) - expected):
        names = {}  # {value: the runs that have it}
        for name, settings in known.items():
            names.setdefault(repr(settings[key]), []).append(name)
        usual, *others = sorted(names, key=lambda value: -len(names[value]))
        if others:
            exceptions = ", ".join(f"{value} in {', '.join(names[value])}" for value in others)
            words.append(f"{key}={usual}, but {exceptions}")
    return "; ".join(words)


def about(cfg, runs):
    """How the runs were trained and are measured, for the picture."""
    trained = [run.settings for run in runs.values() if run.settings]
    values = {key: " or ".join(sorted({str(s[key]) for s in trained})) for key in ("dataset", "optimizer", "max_iters")}
    changed = [f"{f.name}={getattr(cfg, f.name)}" for f in dataclasses.fields(Overrides)
               if f.name not in ("device", "dtype") and getattr(cfg, f.name) != f.default]  # fmt: skip
    if trained:
        changed.insert(0, "trained on {dataset} with {optimizer}, {max_iters} steps".format(**values))
    return "; ".join(changed)


def measure(cfg, protocol, run, dataset, targets):
    """The targets and what each job yields, {name: array}, and whether anything was computed. What the run's folder
    already has is not computed again; the rest is saved there job by job."""
    device, trained = pick_device(cfg.device), run.config.block_size
    dtype = pick_dtype(cfg.dtype, device)
    key = {  # everything that the values depend on
        "checkpoint": run.hash, "dataset": dataset.hash, "protocol": cfg.protocol,
        "longest": protocol.longest, "blocks": protocol.blocks, "block_tokens": protocol.block_tokens,
        "seed": cfg.seed, "dtype": str(dtype),
        "overrides": [cfg.window, cfg.rope_scaling, cfg.rope_factor, cfg.rope_theta, cfg.max_position],
        "code": [  # either may have been edited
            inspect.getsource(inspect.getmodule(find_scheme(run.config.pos_scheme))), inspect.getsource(type(protocol)),
        ],
    } | protocol.identity  # fmt: skip
    path = run.folder / f"{stem_of(cfg)}-{files.json_hash(key)[:12]}.npz"
    found = targets | kept(path, {"key", *targets}, len(targets["ends"]))
    jobs = protocol.jobs(trained, run.config.max_positions)
    missing = {job: length for job, length in jobs.items() if job not in found}
    model = run.model(device) if missing else None
    n_tokens = sum(len(targets["ends"]) * len(protocol.layout(length)[0]) * length for length in missing.values())
    with tqdm(total=n_tokens, desc=str(run.folder), unit=" tokens", unit_scale=True, leave=False, disable=None) as bar:
        subject = Subject(model, dataset.val, dtype, bar.update, cfg.max_position)
        for job, length in missing.items():
            model.override(run.under(cfg, length))
            found |= protocol.measure(job, length, subject, found, trained)
            np.savez(file := io.BytesIO(), key=json.dumps(key), **found)
            files.write(path, file.getvalue())
    return found, bool(missing)


def kept(path, known, rows):
    """The measurements in an .npz file, {name: array}: all arrays but the known ones. ValueError if it is damaged."""
    if not path.exists():
        return {}
    if is_whole(path):  # it may still provoke any exception
        with contextlib.suppress(Exception), np.load(path, allow_pickle=False) as archive:
            found = {name: archive[name] for name in archive if name not in known}
            if all(a.dtype.kind in "bf" and a.shape[:1] == (rows,) and np.isfinite(a).all() for a in found.values()):
                return found
    raise ValueError(f"{path} is damaged: delete it, and its losses are measured again")


def measure_all(variants, protocol, runs, dataset, targets):
    """{name: Measured} of every run under every variant of the config, and whether anything was computed."""
    measured, is_new = {}, False
    for (name, run), cfg in itertools.product(runs.items(), variants):
        start, suffix = time.perf_counter(), f" {cfg.rope_scaling}" if len(variants) > 1 else ""
        about = {"pos_scheme": run.config.pos_scheme, "training_length": run.config.block_size, "step": run.step}
        with files.Lock(run.folder, ".evaluation.lock", ("*.npz", "*.json"), wait=True):
            found, computed = measure(cfg, protocol, run, dataset, targets[run.config.block_size])
            result = result_of(protocol, about | {"seed": run.settings.get("seed")}, found)
            files.write(run.folder / f"{stem_of(cfg)}.json", json_text(result))
        measured[name + suffix] = Measured(run.experiment + suffix, found, result)
        took = tracking.format_seconds(time.perf_counter() - start) if computed else "measured before"
        print(f"{name}{suffix}: {took}", flush=True)
        is_new |= computed
    return measured, is_new


def main(argv):
    cfg = config.load(EvalConfig, argv, bare_field="runs")
    (runs, dataset), variants = open_runs(cfg), variants_of(cfg)
    protocol = PROTOCOLS[cfg.protocol](cfg, {run.config.block_size for run in runs.values()}, len(dataset.val.tokens))
    first = next(iter(runs.values()))
    base, of = results_base(cfg, runs)
    group = first.settings.get("wandb_group") or Path(dataset.name).name
    x = f"x/{protocol.column}"  # wandb sorts charts by name, so x comes last
    wandb = (
        cfg.wandb_mode, cfg.wandb_project, group, f"{stem_of(cfg)}-{tracking.stamp()}", "eval_length",
        dataclasses.asdict(cfg), {protocol.stem: x},
    )  # fmt: skip

    # mistakes are reported before anything is measured
    for run, one in itertools.product(runs.values(), variants):
        run.under(one, protocol.longest)
        if cfg.max_position:
            run.config.check_gaps(cfg.max_position)
    targets = {trained: protocol.prepare(dataset, trained) for trained in protocol.training_lengths}
    tracking.wandb_options(*wandb)
    base.parent.mkdir(parents=True, exist_ok=True)
    tempfile.TemporaryFile(dir=base.parent).close()  # OSError if no file can be written there
    if unlike := unlike_settings(runs):
        print(f"note: besides scheme and seed, these runs differ in {unlike}")

    try:
        measured, is_new = measure_all(variants, protocol, runs, dataset, targets)
    except KeyboardInterrupt:
        print("\nstopped; finished measurements are kept, and the same command resumes", flush=True)
        raise
    results, losses = pool_seeds(protocol, measured)
    text = {"hash": dataset.hash} | protocol.about_text(targets[protocol.training_lengths[-1]])
    picture = report(protocol, results, losses, {dataset.name: text}, base, about(cfg, runs), of)
    if is_new:
        tracking.publish(charts(protocol, results, picture, x), *wandb)
    return 0


if __name__ == "__main__":
    script(main)
