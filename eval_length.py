"""Loss as the context grows past the training length:  python eval_length.py out/rope out/alibi

Scores the same tokens of the validation text at every context length, for every run, and prints the difference to the
loss at the training length, with a 95% band. The numbers and the picture go to results/. Measurements are kept in the
run folders and not repeated; after Ctrl-C, the same command resumes. Protocols:

"""

import dataclasses
import inspect
import io
import json
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tqdm import tqdm

import config
import data
from evaluation import attention, recall  # noqa: F401  (they register their protocols)
from evaluation.kept import KeptRun, is_line, keep_run, kept, line_of, load_line, measured_as
from evaluation.protocols import PROTOCOLS
from evaluation.report import charts, pool_seeds, report
from evaluation.windows import Subject
from model import SCHEMES, find_scheme
from run import files, tracking
from run.checkpoint import CALL_FIELDS, Overrides, load_checkpoint
from run.device import pick_device, pick_dtype
from run.script import script

__doc__ += "\n".join(f"{name:14}  {protocol.question}" for name, protocol in PROTOCOLS.items())
CHANGES = ("window", "rope_scaling", "rope_factor", "rope_theta", "max_position")  # of the trained models


@dataclass(frozen=True)
class EvalConfig(Overrides):
    # what is measured
    runs: tuple = ()  # given without a flag: run folders, or anything else that sample.py accepts
    protocol: str = "fixed"  # what is scored; see above
    lengths: str = ""  # comma-separated, ascending; default: 1/4 to 16 times the training length
    blocks: int = 0  # of targets (default 256; sliding 128; nonoverlapping, position, entropy 64); questions (200)
    block_tokens: int = 0  # targets in a block (default 8), or the stride of sliding (default: the shortest length)
    max_position: int = 0  # tokens stand at positions sampled below it, as train.py has it; 0: at 0, 1, 2, …
    threshold: float = 0.1  # nats that Δ exceeds, by more than its ±, at the breakdown length L*; flat is below half
    dataset: str = ""  # whose validation text is used; default: the dataset that the runs were trained on
    seed: int = 1337  # for the choice of blocks and for the bootstrap
    # this call
    keep: str = ""  # a folder that gets the losses of out/NAME-SEED in NAME.npz, which can stand for the run's seeds
    results_dir: str = "results"  # where the picture and the numbers go
    wandb_mode: tracking.WandbMode = "auto"  # auto: online if logged in, else offline
    wandb_project: str = "length"  # where the charts go

    def __post_init__(self):
        super().__post_init__()
        if not self.runs:
            raise ValueError("which runs? Name their folders: python eval_length.py out/rope out/alibi")
        if self.keep and is_line(self.keep):
            raise ValueError(f"keep={self.keep!r} is a line: name its folder, --keep={Path(self.keep).parent}")
        if self.protocol not in PROTOCOLS:
            raise ValueError(f"protocol={self.protocol!r} is not one of: {', '.join(PROTOCOLS)}")
        config.at_least(0, self, "seed", "blocks", "block_tokens", "threshold", "max_position")
        for f in dataclasses.fields(self):
            readers = [name for name, protocol in PROTOCOLS.items() if f.name in protocol.options]
            if readers and self.protocol not in readers and getattr(self, f.name) != f.default:
                others = ", ".join(readers)
                raise ValueError(f"--protocol={self.protocol} has no option --{f.name}; these have: {others}")


def open_runs(cfg):
    """{name: Checkpoint} of the runs, and the dataset. ValueError if they do not fit together."""
    runs = {}
    for path in cfg.runs:
        runs |= load_line(path) if is_line(path) else {path: load_checkpoint(path)}
    names = [run.folder.resolve().name for run in runs.values()]
    if len(set(names)) == len(names):  # else they keep their paths
        runs = dict(zip(names, runs.values(), strict=True))
    texts = {name: run.dataset_name(cfg.dataset) for name, run in runs.items()}
    if len(set(texts.values())) > 1:
        lines = {name: run.path for name, run in runs.items() if isinstance(run, KeptRun)}
        held = ", ".join(dict.fromkeys(f"{lines.get(name, name)} on {text}" for name, text in texts.items()))
        how = "a kept line stands for its own text only" if lines else "choose one with --dataset=NAME"
        raise ValueError(f"the runs were trained on different texts ({held}): {how}")
    dataset = data.load(next(iter(texts.values())))
    for run in runs.values():
        run.check_dataset(dataset, cfg.dataset)
        if run.step < run.settings.get("max_iters", 0):
            print(f"note: the best checkpoint of {run.folder} is from step {run.step} of {run.settings['max_iters']}")
    return runs, dataset


def changes(cfg):
    """What cfg changes in the trained models, in words."""
    return [f"{name}={getattr(cfg, name)}" for name in CHANGES if getattr(cfg, name) != getattr(EvalConfig, name)]


def unlike_settings(runs, beside):
    """The settings besides scheme and seed in which one of the runs differs from most runs, in words: "max_iters: 850
    in none, 100 in t5". `beside`: other runs that count as well. Names are without the seed if all seeds agree. If the
    most common value has more than three names, they are "the others"."""
    expected = {"vocab_size", "pos_scheme", "pos_options"}
    expected |= {name for scheme in SCHEMES.values() for name in scheme.reads}
    counted, words = beside | runs, []
    known = {name: dataclasses.asdict(run.config) | run.shared_settings for name, run in counted.items()}
    shorts = {name: run.without_seed(name) for name, run in counted.items()}
    for key in sorted(set.intersection(*map(set, known.values())) - expected):
        names = {}  # {value: the runs that have it}
        for name, settings in known.items():
            same = all(known[n][key] == settings[key] for n, short in shorts.items() if short == shorts[name])
            names.setdefault(str(settings[key]), {})[shorts[name] if same else name] = None
        most = max(names, key=lambda value: len(names[value]))
        if any(str(known[name][key]) != most for name in runs):
            if len(names[most]) > 3:
                names[most] = ["the others"]
            words.append(f"{key}: " + ", ".join(f"{value or repr('')} in {', '.join(names[value])}" for value in names))
    return "; ".join(words)


def measure(cfg, protocol, run, dataset, targets):
    """The targets and what each job yields, {name: array}, and whether anything was computed. What the run's folder
    already has is not computed again; the rest is saved there job by job."""
    device, trained = pick_device(cfg.device), run.config.block_size
    dtype = pick_dtype(cfg.dtype, device)
    code = inspect.getmodule(find_scheme(run.config.pos_scheme)), type(protocol)  # either may have been edited
    key = measured_as(protocol) | {  # everything that the values depend on
        "lengths": protocol.longest, "checkpoint": run.hash, "dataset": dataset.hash, "dtype": str(dtype),
        "overrides": [getattr(cfg, name) for name in CHANGES], "code": [inspect.getsource(part) for part in code],
    }  # fmt: skip
    path = run.folder / f"{protocol.stem}-{files.json_hash(key)[:12]}.npz"
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


def measure_all(cfg, protocol, runs, dataset, targets):
    """{name: what was found} of every run, and whether anything was computed."""
    found, is_new = {}, False
    for name, run in runs.items():
        start, trained = time.perf_counter(), run.config.block_size
        if isinstance(run, KeptRun):
            found[name] = run.losses(protocol, targets[trained])
            continue
        with files.locked(run.folder, ".evaluation.lock", ("*.npz",), wait=True):
            found[name], computed = measure(cfg, protocol, run, dataset, targets[trained])
        took = tracking.format_seconds(time.perf_counter() - start) if computed else "measured before"
        print(f"{name}: {took}", flush=True)
        is_new |= computed
    return found, is_new


def check(cfg, protocol, dataset, run, targets):
    """ValueError if a run cannot be measured, or kept, as cfg asks."""
    if isinstance(run, KeptRun):
        if changes(cfg):
            raise ValueError(
                f"{run.path} stays as it was measured: {', '.join(changes(cfg))} needs the runs themselves"
            )
        run.losses(protocol, targets[run.config.block_size])
        return
    changed = run.under(cfg, protocol.longest)
    if cfg.max_position:
        changed.check_positions(cfg.max_position, with_gaps=True)
    if cfg.keep:
        steps = run.settings.get("max_iters", 0)
        if steps and (last := load_checkpoint(run.folder, "latest").step) < steps:
            raise ValueError(f"{run.folder} stopped at step {last} of {steps}: finish it before --keep, with --resume")
        line_of(cfg, protocol, dataset, run, changes(cfg))


def main(argv):
    cfg = config.load(EvalConfig, argv, bare_field="runs")
    runs, dataset = open_runs(cfg)
    protocol = PROTOCOLS[cfg.protocol](cfg, {run.config.block_size for run in runs.values()}, len(dataset.val.tokens))
    group = next(iter(runs.values())).settings.get("wandb_group") or Path(dataset.name).name
    x = f"x/{protocol.column}"  # wandb sorts charts by name, so x comes last
    wandb = {
        "project": cfg.wandb_project, "group": group, "job_type": "eval_length",
        "id": f"{protocol.stem}-{time.strftime('%Y%m%d-%H%M%S')}", "config": dataclasses.asdict(cfg),
    }  # fmt: skip

    # mistakes are reported before anything is measured
    targets = {length: protocol.prepare(dataset, length) for length in protocol.training_lengths}
    for run in runs.values():
        check(cfg, protocol, dataset, run, targets)
    Path(cfg.results_dir).mkdir(parents=True, exist_ok=True)
    own, beside = {name: run for name, run in runs.items() if not isinstance(run, KeptRun)}, {}
    for path in sorted(Path(cfg.keep).glob("*.npz")) if cfg.keep else []:
        beside |= {run.folder.name: run for run in load_line(str(path)).values()}
    if unlike := unlike_settings(own or runs, beside | runs):
        print(f"note: besides scheme and seed, these runs differ in {unlike}")

    try:
        found, is_new = measure_all(cfg, protocol, runs, dataset, targets)
    except KeyboardInterrupt:
        print("\nstopped; finished measurements are kept, and the same command resumes", flush=True)
        raise
    results, losses = pool_seeds(protocol, runs, found)
    left_out = ("runs", "results_dir", "keep", *CALL_FIELDS)
    settings = {key: value for key, value in dataclasses.asdict(cfg).items() if key not in left_out}
    of = {"runs": [str(run.folder.resolve()) for run in runs.values()], "settings": settings}
    base = Path(cfg.results_dir, f"{protocol.stem}-{files.json_hash(of)[:6]}")
    *_, text = targets.values()  # of the longest training length
    picture = report(protocol, results, losses, dataset, text, base, changes(cfg), of)
    lines = {}  # file: seeds
    for name, run in own.items():
        if cfg.keep:
            lines |= keep_run(cfg, protocol, dataset, run, found[name], changes(cfg))
    for file, seeds in lines.items():
        print(f"kept      {file} (seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))})")
    if is_new:
        tracking.publish(charts(protocol, results, picture, x), cfg.wandb_mode, {protocol.stem: x}, wandb)
    return 0


if __name__ == "__main__":
    script(main)
