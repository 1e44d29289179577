"""Loss as the context grows past the training length:  python eval_length.py out/rope out/alibi

Scores the same tokens of the validation text at every context length, for every run, and prints the difference to the
loss at the training length with its 95% interval. The numbers and the picture go to results/. Measurements stay in the
run folders and are not repeated; after Ctrl-C, the same command resumes. Protocols:

"""

import inspect
import json
import re
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from tqdm import tqdm

import config
import data
from evaluation import tasks  # noqa: F401  (registers its protocols)
from evaluation.lines import Line, is_line, measured_before, without_seed, write_arrays
from evaluation.protocols import PROTOCOLS
from evaluation.report import draw, numbers_of, print_report, result_of
from evaluation.seeds import group_seeds, note_differences
from evaluation.windows import Scorer
from model import PositionScheme, find_scheme
from run import files, tracking
from run.checkpoint import CALL_FIELDS, Overrides, load_checkpoint
from run.device import pick_device, pick_dtype
from run.script import script
from schemes import _rope_scaling

__doc__ += "\n".join(f"{name:14}  {protocol.question}" for name, protocol in PROTOCOLS.items())


@dataclass(frozen=True)
class EvalConfig(Overrides):
    # what is measured
    runs: tuple = ()  # given without a flag: run folders, kept results, or anything else that sample.py accepts
    protocol: str = "fixed"  # what is scored; see above
    lengths: str = ""  # comma-separated, ascending; default: 1/4 to 16 times the training length
    blocks: int = 0  # how many (default 256; sliding 128; nonoverlapping, position 64); questions or examples (200)
    block_tokens: int = 0  # targets in a block (default 8), or the stride of sliding (default: the shortest length)
    temperature: float | None = None  # attention scores grow by this, times ln(1 + position // block_size)
    max_position: int = 0  # positions are sampled below it, as in train.py; 0: positions 0, 1, 2, …
    dataset: config.PathName = ""  # whose validation text is used; default: the dataset that the runs were trained on
    seed: int = 1337  # for the choice of blocks
    # this call
    keep: config.PathName = ""  # a folder for the losses of out/NAME-SEED: NAME.npz, to be named instead of the runs
    results_dir: config.PathName = "results"  # where the picture and the numbers go
    delta: bool = False  # draw how the loss changes from the training length, with its ±, instead of the loss
    wandb_mode: tracking.WandbMode = "auto"  # auto: as you have set wandb, or online if logged in, else offline
    wandb_project: str = "lengthwise"  # where the charts go

    def __post_init__(self):
        super().__post_init__()
        if not self.runs:
            raise ValueError("which runs? Name their folders: python eval_length.py out/rope out/alibi")
        if self.keep and is_line(self.keep):
            raise ValueError(f"--keep={self.keep} is a kept result: name its folder, --keep={Path(self.keep).parent}")
        if self.protocol not in PROTOCOLS:
            raise ValueError(f"protocol={self.protocol!r} is not one of: {', '.join(PROTOCOLS)}")
        config.at_least(0, self, "seed", "blocks", "block_tokens", "max_position")
        tracking.check_project(self.wandb_project)

    def changes(self):
        """What this evaluation changes in the trained models, in words."""
        return self.changed(("window", "layers", "temperature", "rope_scaling", "rope_factor", "max_position"))


def open_runs(cfg):
    """The runs {name: Checkpoint}, the kept results {name: Line}, and the dataset. ValueError if they are on different
    texts."""
    opened = {path: Line.read(path) if is_line(path) else load_checkpoint(path) for path in cfg.runs}
    names = [item.folder.resolve().name.encode(errors="replace").decode() for item in opened.values()]
    if len(set(names)) == len(names):  # otherwise they keep their paths
        opened = dict(zip(names, opened.values(), strict=True))
    runs = {name: item for name, item in opened.items() if not isinstance(item, Line)}
    kept = {name: item for name, item in opened.items() if isinstance(item, Line)}
    texts = {name: cfg.dataset or item.dataset_name() for name, item in opened.items()}
    text, *others = set(texts.values())
    if others:
        found = ", ".join(f"{name} on {text}" for name, text in texts.items())
        raise ValueError(f"the runs were trained on different texts ({found}): choose one with --dataset=NAME")
    dataset = data.load(text)
    for item in opened.values():
        item.check_dataset(dataset, cfg.dataset)
    return runs, kept, dataset


def check_runs(cfg, protocol, runs):
    """ValueError if a run cannot be measured, or kept, as cfg asks."""
    for run in runs.values():
        model_config = run.config_with(cfg, protocol.longest, cfg.temperature)
        if cfg.layers is not None:  # its schemes must have the model's weights
            run.model("cpu").override(model_config)
        if cfg.max_position:
            model_config.check_positions(cfg.max_position, with_gaps=True)
        steps = run.settings.get("max_iters", 0)
        if run.step < steps:
            print(f"note: the best checkpoint of {run.folder} is from step {run.step} of {steps}")
        if not cfg.keep:
            continue
        if not run.settings:
            raise ValueError(f"--keep is for runs of train.py, not for {run.path}")
        last = load_checkpoint(run.folder, "latest").step
        if last < steps:
            raise ValueError(f"{run.folder} stopped at step {last} of {steps}: finish it before --keep, with --resume")


def path_to_keep(cfg, name, runs):
    """Where --keep writes the line of runs with this name, without .npz: it is named by them and by what the evaluation
    changes in their models, in words (window=128): rope-window128. ValueError if the file there has further seeds."""
    words = [re.sub(r"\w+=(?=[a-z])|=", "", change) for change in cfg.changes()]  # window128, yarn
    words = [re.sub(r"[^\w.]+", "_", word) for word in words]  # layers=window=1/4 *3 | … is no name of a file
    path = Path(cfg.keep, "-".join([without_seed(Path(name).name, runs[0].settings), *words]))
    if is_line(path):
        missing = {run["seed"] for run in Line.read(path).runs} - {run.settings["seed"] for run in runs}
        if missing:
            raise ValueError(f"{path}.npz also has seed {min(missing)}: name the runs of all its seeds")
    return path


def scheme_source(model_config):
    """The source of what defines a model's schemes. If it changes, losses measured before are not reused."""
    modules = {_rope_scaling}
    for kind in (model_config, *model_config.kinds):
        classes = find_scheme(kind.pos_scheme).__mro__
        modules.update(map(inspect.getmodule, classes[: classes.index(PositionScheme)]))
    return sorted(map(inspect.getsource, modules))


def measure(cfg, protocol, run, keep=True):
    """What each job yields, {name: array}. What the run's folder already has is not computed again; the rest is saved
    there job by job, if `keep`."""
    device = pick_device(cfg.device)
    dtype = pick_dtype(cfg.dtype, device)
    inputs = {  # all that the losses depend on; one file serves any lengths up to the longest
        "protocol": protocol.settings() | {"lengths": protocol.longest},
        "checkpoint": run.hash,
        "dataset": protocol.dataset.hash,
        "dtype": str(dtype),
        "changes": cfg.changes(),
        "scheme": scheme_source(run.config),
    }
    path = run.folder / f"{protocol.stem}-{files.json_hash(inputs)[:12]}.npz"
    arrays = measured_before(path, len(protocol.blocks.ends))
    missing = {job: length for job, length in protocol.jobs(run.config).items() if job not in arrays}
    if not missing:
        print(f"{run.folder}: measured before", flush=True)
        return arrays
    start = time.perf_counter()
    model = run.model(device)
    n_tokens = sum(map(protocol.n_tokens, missing.values()))
    with tqdm(total=n_tokens, desc=str(run.folder), unit=" tokens", unit_scale=True, leave=False, disable=None) as bar:
        scorer = Scorer(model, dtype, bar.update, cfg.max_position)
        for job, length in missing.items():
            model.override(run.config_with(cfg, length, cfg.temperature))
            arrays |= protocol.measure(job, length, scorer)
            if keep:
                write_arrays(path, protocol.blocks, arrays, inputs=json.dumps(inputs))
    print(f"{run.folder}: {tracking.format_seconds(time.perf_counter() - start)}", flush=True)
    return arrays


def measure_line(cfg, protocol, runs):
    """The Line of Checkpoints that differ only in their seed."""
    measured = []
    for run in runs:
        try:
            with files.locked(run.folder, ".evaluation.lock", wait=True):
                arrays = measure(cfg, protocol, run)
        except OSError as error:  # a read-only folder, or a full disk
            print(f"note: cannot save the new losses of {run.folder}: {error}")
            arrays = measure(cfg, protocol, run, keep=False)
        measured.append(arrays)
    jobs = set.intersection(*map(set, measured))
    arrays = {job: np.stack([arrays[job] for arrays in measured]) for job in sorted(jobs)}
    model_config = runs[0].config_with(cfg, protocol.longest, cfg.temperature)
    return Line.of_runs(runs, model_config, protocol, arrays)


def inputs_of(cfg, items):
    """What tells the results of an evaluation from those of others: its runs and settings, as plain types."""
    left_out = {"runs", "results_dir", "delta", "keep", *CALL_FIELDS}
    settings = {key: value for key, value in asdict(cfg).items() if key not in left_out}
    return {"runs": [str(item.folder.resolve()) for item in items], "settings": settings}


def publish(cfg, protocol, run, results):
    """Logs the results to wandb, a run for each, in the group of this run. They share charts against x. Returns whether
    wandb took everything."""
    x = f"x/{protocol.column}"  # wandb sorts charts by name, so x comes last
    charts = {}
    for name, result in results.items():
        about = {key: value for key, value in result.items() if key != "values"}
        rows = []
        for key, by_length in result["values"].items():
            for n, value in by_length.items():
                if value:
                    rows.append({x: n, f"{protocol.stem}/{key}": value["mean"]})
        charts[name] = about, rows
    names = {
        "project": cfg.wandb_project,
        "group": run.settings.get("wandb_group") or Path(protocol.dataset.name).name,
        "job_type": "eval_length",
        "name": f"{protocol.stem}-{time.strftime('%Y%m%d-%H%M%S')}",
        "config": asdict(cfg),
    }
    return tracking.publish(charts, cfg.wandb_mode, {protocol.stem: x}, names)


def main(argv):
    cfg = config.load(EvalConfig, argv, bare_field="runs")
    runs, kept, dataset = open_runs(cfg)
    training_lengths = {item.config.block_size for item in (runs | kept).values()}
    protocol = PROTOCOLS[cfg.protocol](cfg, training_lengths, dataset)

    # mistakes are reported before anything is measured
    check_runs(cfg, protocol, runs)
    for line in kept.values():
        line.check_measured(protocol, cfg.changes())
    groups = group_seeds(runs)
    paths = {name: path_to_keep(cfg, name, group) for name, group in groups.items() if cfg.keep}
    Path(cfg.results_dir).mkdir(parents=True, exist_ok=True)
    note_differences(runs, kept, cfg.keep)

    try:
        lines = {name: measure_line(cfg, protocol, group) for name, group in groups.items()}
    except KeyboardInterrupt:
        print("\nstopped; finished measurements are saved, and the same command resumes", flush=True)
        raise
    lines |= kept
    results = {name: result_of(protocol, line) for name, line in lines.items()}

    # show, keep, log and draw
    print_report(protocol, lines, results)
    for name, path in paths.items():
        lines[name].write(path)
        print(f"kept      {path}.npz (seeds {', '.join(str(run['seed']) for run in lines[name].runs)})")
    inputs = inputs_of(cfg, (runs | kept).values())
    base = Path(cfg.results_dir, f"{protocol.stem}-{files.json_hash(inputs)[:6]}")
    unlogged = base.with_suffix(".unlogged")  # new numbers stay so, also in further calls, until wandb has taken them
    numbers = numbers_of(inputs, protocol, results)
    file = base.with_suffix(".json")
    if runs and not (file.exists() and file.read_text() == numbers):
        unlogged.touch()
    files.write(file, numbers)
    print(f"numbers   {file}; the losses of each block: .npz files in the run folders")
    if unlogged.exists() and publish(cfg, protocol, next(iter(runs.values())), results):
        unlogged.unlink(missing_ok=True)
    print(tracking.save_picture("picture", base.with_suffix(".png"), draw, protocol, results, cfg.changes(), cfg.delta))
    return 0


if __name__ == "__main__":
    script(main)
