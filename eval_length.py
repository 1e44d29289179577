"""How the loss changes as the context grows past the training length:  python eval_length.py out/rope out/alibi

Every model predicts the same tokens of the validation text at every context length. If the text were cut into windows
instead, as it often is, longer windows would have fewer tokens with little context, so that their mean loss would fall
although no token is predicted better. Here, a difference between two lengths comes from the context and from nothing
else, and two schemes are compared on the same tokens. Losses are kept in the run folders: nothing is computed twice,
and after Ctrl-C the same command resumes.
"""

import hashlib
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from tqdm import tqdm

import config
import data
from evaluation.pictures import draw_losses
from evaluation.rows import TOKENS, RunsConfig, Targets, code_hash, open_runs, print_unlike, rows_of, save_results
from evaluation.statistics import FEWEST_DOCUMENTS, FLAT, interval, pair, rise
from run import files, tracking
from run.checkpoint import own_settings
from run.device import autocast, pick_device, pick_dtype
from run.script import script


@dataclass(frozen=True)
class EvalConfig(RunsConfig):
    # what is measured
    lengths: str = ""  # comma-separated; default: 1/4 to 16 times the training length
    blocks: config.Count = 256  # how many places of the text are scored, if it has room for them
    block_tokens: config.Count = 8  # targets in a block: at most a quarter of the shortest length
    seed: config.Seed = 1337  # for the choice of blocks
    wandb_mode: tracking.WandbMode = "auto"  # auto: as you have set wandb, or online if logged in, else offline
    wandb_project: str = ""  # where the charts go; default: as you have set wandb, or lengthwise


# ----------------------------------------------------------------------------------------------------------
# What is scored. A number's path: choose_blocks; score (2, blocks, scored); measure_lengths (blocks,); rows_of stacks
# seeds to row.losses[n] (seeds, blocks); numbers_of (mean, ±); print_table. Runs that differ only in seed are a row.


def choose_targets(cfg, dataset, runs, kept):
    """The Targets of a comparison of runs and kept results. ValueError for a result that has others."""
    trained = {run.config.block_size for run in runs.values()} | {row.trained for row in kept.values()}
    lengths = choose_lengths(cfg, trained)
    scored = min(cfg.block_tokens, max(1, lengths[0] // 4))  # so that all targets have most of the shortest context
    ends, documents = choose_blocks(dataset.val, lengths[-1], scored, cfg.blocks, cfg.seed)
    targets = Targets(lengths, scored, cfg.seed, ends, documents)
    for path, row in kept.items():
        row.check(path, dataset, targets)
    return targets


def choose_lengths(cfg, trained):
    """The context lengths, ascending: the training lengths, and those that cfg names, or 1/4 to 16 times each."""
    lengths = [max(1, n * 2**k // 4) for n in trained for k in range(7)]
    if cfg.lengths:
        lengths = [int(n) if n.isdecimal() else 0 for n in cfg.lengths.split(",")]
        if 0 in lengths:
            raise ValueError(f"lengths={cfg.lengths!r} must be positive numbers such as 32,64,128")
    lengths = sorted({*lengths, *trained})
    if 0 < cfg.max_position < lengths[-1]:
        raise ValueError(f"max_position={cfg.max_position} must be at least the longest length, {lengths[-1]}")
    return lengths


def choose_blocks(split, longest, scored, n, seed):
    """The place of the last target of n blocks, and the document of each: both (n,). Blocks are evenly spread, from one
    random offset, over the text after the part on which checkpoints were chosen. Those whose longest window lies in
    one document are preferred; windows cross documents, unmasked as in training, only if these are too few."""
    first = max(longest, data.tuning_part(len(split.tokens)) + scored)
    ends = np.arange(first, len(split.tokens), scored)
    if len(ends) < 2:
        raise ValueError(f"--lengths={longest}: the text is too short: at most {len(split.tokens) - scored - 1}")
    if len(ends) < n:
        print(f"note: the text has room for {len(ends)} blocks with {longest:,} tokens of context, not for {n}")
        n = len(ends)
    documents = np.searchsorted(split.docs, ends, side="right") - 1
    fits = ends - longest >= split.docs[documents]
    offset = np.random.default_rng(seed).random()

    def spread(candidates, k):
        return candidates[((np.arange(k) + offset) * len(candidates) / max(k, 1)).astype(int)]

    inside = spread(np.flatnonzero(fits), min(n, fits.sum()))
    outside = spread(np.flatnonzero(~fits), n - len(inside))
    if len(outside):
        print(f"note: {len(outside) / n:.0%} of the longest contexts cross documents")
    chosen = np.sort(np.concatenate([inside, outside]))
    return ends[chosen], documents[chosen]


# ----------------------------------------------------------------------------------------------------------
# The losses of a model


@torch.no_grad()
def score(model, windows, scored, device, dtype, max_position=0):
    """The losses in nats of the last `scored` predictions of each window, and whether the likeliest token is right (1
    or 0): together (2, B, scored). windows: (B, length + 1). The model is in evaluation mode."""
    length = windows.size(1) - 1
    tokens_a_pass = 2**17 if device.type == "cuda" else 2**12  # with more, a CPU is slower
    scored_a_pass = 2**12  # with more, logits might not fit into memory
    batch = max(1, min(tokens_a_pass // length, scored_a_pass // scored))
    losses = []
    right = []
    for first in tqdm(range(0, len(windows), batch), f"{length:,} tokens", leave=False, disable=None):
        window = windows[first : first + batch].to(device)
        targets = window[:, -scored:]
        positions = None
        if max_position:  # a shorter context takes the first of block_size positions: gaps are as wide as in training
            n = max(length, model.config.block_size)
            positions = data.sampled_positions(n, max_position, seed=(length, first))[:length]
        with autocast(device, dtype):
            hidden = model.hidden(window[:, :-1], last=scored, positions=positions)
        logits = model.lm_head(hidden.float())  # (batch, scored, V), in float32 whatever the dtype
        losses.append(F.cross_entropy(logits.mT, targets, reduction="none").cpu())
        right.append((logits.argmax(-1) == targets).cpu())
    return torch.stack([torch.cat(losses), torch.cat(right)]).numpy()


def measure(cfg, run, windows, scored):
    """The scores of a run, changed as cfg says. A file in its folder keeps them, named by a hash of the inputs."""
    device = pick_device(cfg.device)
    dtype = pick_dtype(cfg.dtype, device)
    model_config = run.config_with(cfg, windows.size(1) - 1, cfg.attention_temperature)
    inputs = {
        "weights": run.hash,
        "config": own_settings(model_config),
        "code": code_hash(model_config),
        "text": hashlib.sha256(windows.numpy()).hexdigest(),
        "how": [scored, str(dtype), cfg.max_position, device.type],
    }
    path = run.folder / f"scores-{files.json_hash(inputs)[:12]}.npy"
    if not path.exists():
        model = run.model(device).override(model_config)
        scores = score(model, windows, scored, device, dtype, cfg.max_position)
        with files.replacing(path) as file:
            np.save(file, scores)
    try:
        return np.load(path)
    except (ValueError, EOFError):
        raise ValueError(f"{path} is damaged: delete it, and its losses are measured again") from None


def measure_lengths(cfg, split, targets, run):
    """The arrays of a run, for its Row: "256" has the mean loss of each block (blocks,), whose last target has
    256 tokens of context, and "256-tokens" its losses (blocks, scored). Lengths without defined scores are missing."""
    arrays = {}
    for length in targets.lengths:
        if length <= (run.config.max_positions or length):
            windows = split.windows(targets.ends - length, length)  # (blocks, length + 1)
            losses, _ = measure(cfg, run, windows, targets.scored)  # only answers.py asks which tokens are right
            arrays[str(length)] = losses.mean(axis=1)
            arrays[f"{length}{TOKENS}"] = losses.astype("float16")  # (blocks, scored)
    return arrays


# ----------------------------------------------------------------------------------------------------------
# What is shown


def numbers_of(row, reference_row):
    """What is shown of a row, as plain types. loss: the mean of row.losses[n] (seeds, blocks). delta: the loss minus
    that at the training length. minus: the loss minus that of the reference row.

    Differences are taken block by block: blocks differ far more than two lengths do. A width is the ±, half of a 95%
    interval: over documents, because the blocks of one are alike, and over seeds (evaluation/statistics.py)."""
    by_length = {}
    for n, losses in row.losses.items():
        mean, width = interval([losses], row.documents)
        delta, delta_width = interval([losses - row.losses[row.trained]], row.documents)
        numbers = {"loss": mean, "width": width, "delta": delta, "delta_width": delta_width}
        if n in reference_row.losses:
            groups = pair([(row.models, losses), (reference_row.models, -reference_row.losses[n])])
            numbers["minus"], numbers["minus_width"] = interval(groups, row.documents)
        by_length[n] = numbers | {"by_seed": losses.mean(axis=1).tolist()}
    about = {"scheme": row.scheme, "training_length": row.trained, "seeds": row.seeds}
    return about | {"lengths": by_length, "rise": rise(row.losses, row.trained, row.documents)}


def signed(mean, width):
    """A difference and its ±, which is NaN if it is unknown."""
    return f"{mean:+.3f}" + ("" if np.isnan(width) else f" ±{width:.3f}")


def print_table(title, columns, rows):
    """Prints rows {name: {column: text}}. A dash stands where a scheme is undefined."""
    table = [[title, *(f"{column:,}" for column in columns)]]
    for name, cells in rows.items():
        table.append([name, *(cells.get(column, "—") for column in columns)])
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    print()
    for name, *cells in table:
        print(name.ljust(widths[0]), *map(str.rjust, cells, widths[1:]), sep="  ")


def texts_of(results, key):
    """{name: {length: text}} of the losses, or of one of the differences, in results."""
    texts = {}
    for name, result in results.items():
        shown = {n: numbers for n, numbers in result["lengths"].items() if key in numbers}
        if key == "loss":
            texts[name] = {n: f"{numbers['loss']:.3f}" for n, numbers in shown.items()}
        else:
            texts[name] = {n: signed(numbers[key], numbers[f"{key}_width"]) for n, numbers in shown.items()}
    return texts


def print_report(results, lengths, reference):
    """Prints what is shown of the rows {name: numbers_of(row)}, with the name of the reference row."""
    print_table("loss at", lengths, texts_of(results, "loss"))
    trained = min(result["training_length"] for result in results.values())
    print_table("Δ at", [n for n in lengths if n > trained], texts_of(results, "delta"))
    others = {name: result for name, result in results.items() if name != reference}
    if others:
        print_table(f"minus {reference} at", [n for n in lengths if n >= trained], texts_of(others, "minus"))
    print()
    for name, result in results.items():
        words = "no verdict, since no loss past its training length is defined and among --lengths"
        if result["rise"]:
            change = signed(result["rise"]["mean"], result["rise"]["width"])
            words = f"lowest at {result['rise']['from']:,}, {change} from there on: {result['rise']['verdict']}"
        print(f"{name}: {words}")
    print(f"""
Losses are in nats per token. Δ: the loss minus that at the training length. The verdict is on the rise, the loss at the
longest length minus the lowest at a shorter one, from the training length on. flat: rise + ± is below {FLAT}; rises:
rise − ± is above 0; undecided: neither. ±: 95%, over the choice of text, and over the seeds if a row has several.
""")


def log(cfg, call, dataset, results):
    """Logs the losses of rows to wandb, a run for each, against log2 of the length."""
    x = "x/log2 of the length"
    charts = {}
    for name, result in results.items():
        points = []
        for n, numbers in result["lengths"].items():
            points.append({x: np.log2(n), "length/loss": numbers["loss"], "length/delta": numbers["delta"]})
        charts[name] = {"scheme": result["scheme"]}, points
    init = {"project": cfg.wandb_project, "group": Path(dataset.name).name, "name": call, "config": asdict(cfg)}
    tracking.publish(charts, cfg.wandb_mode, {"length": x}, init | {"job_type": "eval_length"})


def main(argv):
    # the models and the targets
    cfg = config.load(EvalConfig, argv, bare_field="runs")
    runs, kept, dataset = open_runs(cfg)
    targets = choose_targets(cfg, dataset, runs, kept)
    n_documents = len(set(targets.documents))
    print(f"{len(targets.ends)} blocks of {targets.scored} tokens, in {n_documents} documents of {dataset.name}")
    if cfg.rope_scaling and not cfg.rope_factor:
        print("note: rope is stretched as far as each length needs; servers use one factor for all: --rope_factor=8")
    if n_documents < FEWEST_DOCUMENTS:
        print(f"note: ± needs {FEWEST_DOCUMENTS} documents: more --blocks, shorter --lengths, or more documents")

    # the losses, a row for runs that differ only in their seed
    rows = rows_of(cfg, runs, dataset, targets, lambda run: measure_lengths(cfg, dataset.val, targets, run)) | kept

    # the numbers: the lowest loss at the longest length comes first; the reference is the first run, if there is one
    order = sorted(rows, key=lambda name: np.mean(rows[name].losses.get(targets.lengths[-1], np.inf)))
    reference = next(iter(rows)) if runs else order[0]
    results = {name: numbers_of(rows[name], rows[reference]) for name in order}
    print_report(results, targets.lengths, reference)
    print_unlike(rows, reference)

    # what was measured is saved first, logged second, drawn last
    path = save_results(cfg, "length", dataset, results)
    if runs:
        log(cfg, path.stem, dataset, {name: result for name, result in results.items() if name not in kept})
    print(tracking.save_picture("picture", path.with_suffix(".png"), draw_losses, results, kept if runs else ()))
    return 0


if __name__ == "__main__":
    script(main)
