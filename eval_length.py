"""
Loss as the context grows past the training length:  python eval_length.py out/rope out/alibi

Scores the same tokens of the validation text at every context length, for every run, and prints the difference to the
training length with a 95% band; results/ gets the numbers and the picture. What is done already is not done again.
"""

import dataclasses
import hashlib
import itertools
import json
import math
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

import config
import data
import run
from model import GPTConfig

PROTOCOLS = ("fixed", "nonoverlapping")
RESAMPLES = 4000  # of the bootstrap
FEWEST_DOCUMENTS = 10  # to resample documents; below it blocks, and the band speaks of these documents only


@dataclass(frozen=True)
class EvalConfig(run.Overrides):
    runs: tuple = ()  # given without a flag: run folders or whatever else sample.py takes
    protocol: str = "fixed"  # the same last tokens at every length; nonoverlapping: all tokens of windows side by side
    lengths: str = ""  # comma-separated; default: 1/4 to 16 times the training length
    blocks: int = 0  # blocks of targets (fixed; default 512) or of text as long as the longest context (default 64)
    block_tokens: int = 0  # targets in a block under `fixed`; default: 8, or a quarter of the shortest length if less
    dataset: str = ""  # default: the validation text of the runs' own dataset, where they have one
    seed: int = 1337  # of the choice of blocks and of the bootstrap
    results_dir: str = "results"
    device: str = "auto"  # auto, cpu, cuda, cuda:1, mps
    dtype: str = "auto"  # float32, bfloat16; auto: bfloat16 on a GPU that has it
    wandb_mode: str = "auto"  # online, offline, disabled; auto: online with a login, else offline
    wandb_project: str = "length"

    def __post_init__(self):
        super().__post_init__()
        if not self.runs:
            raise ValueError("which runs? Name their folders: python eval_length.py out/rope out/alibi")
        config.one_of(PROTOCOLS, self, "protocol")
        config.one_of(run.DTYPES, self, "dtype")
        config.one_of(run.WANDB_MODES, self, "wandb_mode")
        config.at_least(0, self, "seed", "blocks", "block_tokens")
        if self.blocks == 1:
            raise ValueError("blocks=1 is too few for an interval: at least 2")


# ----------------------------------------------------------------------------------------------------------
# What is scored


def choose_lengths(cfg, training_lengths):
    """The context lengths, ascending; the training lengths are always among them, since Δ is taken against them."""
    if cfg.lengths:
        try:
            lengths = {int(n) for n in cfg.lengths.split(",")}
        except ValueError:
            raise ValueError(f"lengths={cfg.lengths!r} must be whole numbers with commas between them") from None
    else:
        lengths, n = set(), max(1, min(training_lengths) // 4)
        while n <= 16 * max(training_lengths):
            lengths.add(n)
            n *= 2
    lengths = sorted(lengths | set(training_lengths))
    if cfg.protocol == "fixed" and lengths[0] < 4 * max(1, cfg.block_tokens):
        raise ValueError(
            f"the shortest length, {lengths[0]}, must be at least four times block_tokens={max(1, cfg.block_tokens)}: "
            f"the block's own tokens are part of its context"
        )
    if cfg.protocol == "nonoverlapping" and any(n < 1 or lengths[-1] % n for n in lengths):
        raise ValueError(f"under nonoverlapping, lengths {lengths} must all divide the longest")
    return lengths


def choose_ends(split, longest, stride, n, seed):
    """The last target of each of n blocks, evenly spread and at least `stride` apart; the document of each; the share
    of contexts that cross documents.

    Blocks with `longest` tokens of their own document before them come first; only where there are fewer than n do
    contexts cross documents, as they do in training. ValueError where the text is too short."""
    ends = np.arange(longest, len(split.tokens), stride)
    documents = np.searchsorted(split.docs, ends, side="right") - 1
    own = ends - longest >= split.docs[documents]
    if len(ends) < n:
        raise ValueError(
            f"the validation text has {len(split.tokens):,} tokens, enough for {len(ends)} blocks with {longest:,} "
            f"tokens of context, not for {n}: lower --blocks or --lengths, or choose another --dataset"
        )
    offset = np.random.default_rng(seed).random()

    def spread(candidates, k):
        return candidates[((np.arange(k) + offset) * len(candidates) / max(k, 1)).astype(int)]

    inside = spread(np.flatnonzero(own), min(n, own.sum()))
    chosen = np.sort(np.concatenate([inside, spread(np.flatnonzero(~own), n - len(inside))]))
    return ends[chosen], documents[chosen], 1 - len(inside) / n


@torch.no_grad()
def window_losses(model, tokens, starts, length, scored, dtype, progress):
    """Loss, in nats, of the last `scored` predictions of each window of `length` tokens: (windows, scored) float32.
    Holds one batch of windows, and logits for some thousands of its positions only."""
    device = next(model.parameters()).device
    budget = 2**17 if device.type == "cuda" else 2**14  # tokens in one forward
    rows, out = max(1, budget // length), []
    for batch in np.split(starts, range(rows, len(starts), rows)):
        window = data.windows(tokens, batch, length, model.config.vocab_size).to(device)
        targets = window[:, -scored:].flatten()
        with run.autocast(device, dtype):
            hidden = model.hidden(window[:, :-1], last=scored).flatten(0, 1)
        losses = [  # in float32, whatever the dtype
            F.cross_entropy(model.lm_head(h.float()), t, reduction="none")
            for h, t in zip(hidden.split(4096), targets.split(4096), strict=True)
        ]
        out.append(torch.cat(losses).view(len(batch), scored).cpu().numpy())
        progress(len(batch) * length)
    return np.concatenate(out)


def block_losses(cfg, model, split, ends, length, longest, dtype, progress):
    """Mean loss of each block at one context length, (blocks,) float64."""
    if cfg.protocol == "fixed":  # the same targets, with `length` tokens before the last of them
        starts, scored = ends - length, cfg.block_tokens
    else:  # the same text, cut into windows of `length`
        starts, scored = ((ends - longest)[:, None] + np.arange(0, longest, length)).flatten(), length
    losses = window_losses(model, split.tokens, starts, length, scored, dtype, progress)
    return losses.astype(np.float64).reshape(len(ends), -1).mean(axis=1)


# ----------------------------------------------------------------------------------------------------------
# Statistics


def paired_bands(differences, documents, seed):
    """Means of differences (blocks, lengths) and half-widths of a 95% band that holds at all lengths at once.

    Documents are resampled, since neighbouring blocks of one document are alike (blocks, where there are too few
    documents); the band is the bootstrap's max-t. Also returns what was resampled and how many there were."""
    units = "documents" if len(np.unique(documents)) >= FEWEST_DOCUMENTS else "blocks"
    ids = np.unique(documents, return_inverse=True)[1] if units == "documents" else np.arange(len(documents))
    n = ids.max() + 1
    sums, counts = np.zeros((n, differences.shape[1])), np.bincount(ids)
    np.add.at(sums, ids, differences)
    draws = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=RESAMPLES)
    means = differences.mean(axis=0)
    resampled = (draws @ sums) / (draws @ counts)[:, None]
    se = resampled.std(axis=0)
    moved = se > 0  # at the training length itself every difference is 0
    t = abs(resampled - means)[:, moved] / se[moved]
    width = np.quantile(t.max(axis=1), 0.95) * se if moved.any() else se
    return means, width, units, int(n)


# ----------------------------------------------------------------------------------------------------------
# One run


def variant_of(cfg):
    """Names the files of a measurement: length, and whatever differs from the defaults."""
    parts = [
        "" if cfg.protocol == "fixed" else cfg.protocol,
        Path(cfg.dataset).name,
        "" if cfg.window is None else f"window{cfg.window}",
        cfg.rope_scaling.replace(",", "-"),
        "" if cfg.rope_factor == "auto" else f"x{cfg.rope_factor}",
        "" if cfg.rope_theta is None else f"theta{cfg.rope_theta:g}",
    ]
    return "-".join(["length", *filter(None, parts)])


def weights_hash(checkpoint):
    """sha256 of a checkpoint's file or, where it is not in a file of ours, of its model."""
    if Path(checkpoint["path"]).is_file():
        return data.file_hash(checkpoint["path"])
    tensors = {name: hashlib.sha256(t.numpy()).hexdigest() for name, t in checkpoint["model"].items()}
    return data.spec_hash([checkpoint["model_args"], tensors])


def measure(cfg, checkpoint, dataset, lengths):
    """The run's block losses at every length, from its folder if they are there, else computed and saved there:
    ({length: (blocks,)}, documents (blocks,), share of contexts that cross documents, whether computed now)."""
    split, longest = dataset.val, lengths[-1]
    ends, documents, crossing = choose_ends(split, longest, cfg.block_tokens, cfg.blocks, cfg.seed)
    device = run.pick_device(cfg.device)
    dtype = run.pick_dtype(cfg.dtype, device)
    key = {
        "checkpoint": weights_hash(checkpoint),
        "dataset": dataset.hash,
        "protocol": cfg.protocol,
        "lengths": lengths,
        "blocks": cfg.blocks,
        "block_tokens": cfg.block_tokens,
        "seed": cfg.seed,
        "dtype": str(dtype),
        "overrides": [cfg.window, cfg.rope_scaling, cfg.rope_factor, cfg.rope_theta],
    }
    folder, variant = checkpoint["folder"], variant_of(cfg)
    json_path, npz_path = folder / f"{variant}.json", folder / f"{variant}.npz"
    if json_path.is_file() and npz_path.is_file() and json.loads(json_path.read_text()).get("key") == key:
        with np.load(npz_path) as saved:
            return {n: saved[str(n)] for n in lengths if str(n) in saved}, documents, crossing, False

    model = run.load_model(checkpoint, device)
    limit = model.pos.max_positions
    defined = [n for n in lengths if limit is None or n <= limit]
    per_length = [longest if cfg.protocol == "nonoverlapping" else n for n in defined]
    progress = run.Progress(f"{folder}", cfg.blocks * sum(per_length))
    losses = {}
    for n in defined:
        run.override(model, cfg, n, checkpoint["path"])
        losses[n] = block_losses(cfg, model, split, ends, n, longest, dtype, progress)
    progress.close()
    folder.mkdir(parents=True, exist_ok=True)  # a name on the hub has none yet
    json_path.unlink(missing_ok=True)  # written last: it vouches for the losses
    np.savez(npz_path, ends=ends, documents=documents, **{str(n): v for n, v in losses.items()})
    run.write_atomically(json_path, json.dumps({"key": key}))
    return losses, documents, crossing, True


def summarise(losses, documents, lengths, training_length, seed):
    """Per length: loss, delta to the training length and the half-width of its band; None where undefined."""
    defined = list(losses)
    differences = np.stack([losses[n] - losses[training_length] for n in defined], axis=1)
    means, widths, units, n_units = paired_bands(differences, documents, seed)
    rows = dict.fromkeys(lengths)
    for n, delta, width in zip(defined, means, widths, strict=True):
        rows[n] = {"loss": float(losses[n].mean()), "delta": float(delta), "band": float(width)}
    return rows, units, n_units


# ----------------------------------------------------------------------------------------------------------
# What a person sees


def table(results, lengths, columns=4):
    """Context length × run, a few runs beside each other: loss, and Δ to the training length with its band."""

    def cell(result, n):
        row = result["rows"][n]
        if row is None:
            return "—"
        if n == result["training_length"]:
            return f"{row['loss']:.3f}  training length"
        return f"{row['loss']:.3f}  {row['delta']:+.3f} ±{row['band']:.3f}"

    names, tables = list(results), []
    for some in (names[i : i + columns] for i in range(0, len(names), columns)):
        lines = ["context  " + "".join(f"{name:>24}" for name in some)]
        for n in lengths:
            lines.append(f"{n:7}  " + "".join(f"{cell(results[name], n):>24}" for name in some))
        tables.append("\n".join(lines))
    return "\n\n".join(tables)


def draw(results, lengths, title, base):
    """Loss against context length, one line with a band per run; undefined is a gap."""
    from matplotlib.figure import Figure  # 0.7 s, so only where it is used

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    for i, (name, result) in enumerate(results.items()):
        rows = [result["rows"][n] for n in lengths]
        loss, band = (np.array([math.nan if r is None else r[key] for r in rows]) for key in ("loss", "band"))
        style = run.line_style(i)
        undefined = "" if None not in rows else f" (undefined past {result['training_length']})"
        axes.plot(lengths, loss, label=name + undefined, **style)
        axes.fill_between(lengths, loss - band, loss + band, color=style["color"], alpha=0.2, linewidth=0)
    for n in sorted({r["training_length"] for r in results.values()}):
        axes.axvline(n, color="0.6", linestyle="--", linewidth=1, zorder=0)
        axes.annotate(f"training length {n}", (n, 1), xycoords=("data", "axes fraction"), xytext=(4, -12),
                      textcoords="offset points", color="0.4", fontsize=9)  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, [f"{n:,}" for n in lengths])
    axes.minorticks_off()
    axes.set(xlabel="context length (tokens)", ylabel="loss (nats per token)", title=title)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False)
    base.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(base.with_suffix(".png"), dpi=150)


def log_to_wandb(cfg, name, checkpoint, result, lengths, variant):
    """One wandb run per checkpoint, in the group of its training run: length/* against the context length."""
    settings = checkpoint["config"] | {"run": name, "step": checkpoint["step"]} | dataclasses.asdict(cfg)
    tracker = run.Wandb(
        cfg.wandb_mode, cfg.wandb_project, group_of(cfg, checkpoint), f"{name}-{variant}-{run.stamp()}", "eval_length",
        settings | {"runs": list(cfg.runs)}, {"length": "length/context"},
    )  # fmt: skip
    for n in lengths:
        if row := result["rows"][n]:
            tracker.log({"length/context": n, **{f"length/{key}": value for key, value in row.items()}})
    return tracker.finish()


def group_of(cfg, checkpoint):
    return checkpoint["config"].get("wandb_group") or Path(checkpoint["config"].get("dataset", cfg.dataset)).name


def open_runs(cfg):
    """{name: best checkpoint}, and the text to evaluate them on. ValueError unless one picture can hold them all."""
    checkpoints = {str(path): run.load_checkpoint(path) for path in map(Path, cfg.runs)}
    datasets = [run.dataset_of(c, cfg.dataset) for c in checkpoints.values()]
    texts = {c["dataset_hash"]: f"{r} (on {c['config']['dataset']})" for r, c in checkpoints.items() if c["config"]}
    if len(texts) > 1:
        both = ", ".join(f"{who}: {hash[:8]}…" for hash, who in list(texts.items())[:2])
        raise ValueError(f"the runs were trained on different text ({both}): evaluate them apart")
    dataset = data.load(datasets[0])
    for checkpoint in checkpoints.values():
        run.load_tokenizer(checkpoint, dataset.tokenizer, f"dataset {dataset.name!r}")
    if not cfg.dataset and dataset.hash not in texts:
        raise ValueError(
            f"dataset {dataset.name!r} is no longer the text that the runs were trained on; to evaluate them on it all "
            f"the same, name it: --dataset={dataset.name}"
        )
    for name, checkpoint in checkpoints.items():
        step, last = checkpoint["step"], checkpoint["config"].get("max_iters", 0)
        if step < last:
            print(f"note: the best checkpoint of {name} is of step {step} of {last}")
    return checkpoints, dataset


def report(cfg, dataset, lengths, documents, crossing, resampled, results):
    """Prints the table; writes the picture, whose path is returned, and the numbers."""
    what = f"{cfg.blocks} {'blocks' if cfg.protocol == 'fixed' else 'stretches'} of {cfg.block_tokens:,} tokens"
    units, n_units = resampled
    print(
        f"\n{cfg.protocol} on {dataset.name}: the same {what} at every length, from {documents} documents; "
        f"{crossing:.0%} of the longest contexts cross documents.\n"
        f"Loss in nats per token, then Δ to the training length with its 95% band (over {n_units} {units}, "
        f"all lengths at once).\n\n{table(results, lengths)}\n"
    )
    base = Path(cfg.results_dir) / variant_of(cfg)
    draw(results, lengths, f"{cfg.protocol}, {dataset.name}: {what}, {documents} documents", base)
    summary = {
        "protocol": cfg.protocol,
        "dataset": dataset.name,
        "dataset_hash": dataset.hash,
        "blocks": cfg.blocks,
        "documents": documents,
        "crossing": crossing,
        "resampled": {"units": units, "n": n_units},
        "runs": results,
    }
    run.write_atomically(base.with_suffix(".json"), json.dumps(summary, indent=1, allow_nan=False))
    print(f"picture   {base}.png\nnumbers   {base}.json; each block's loss: .npz files in the run folders")
    return base.with_suffix(".png")


def main(argv):
    cfg = config.load(EvalConfig, argv, list_field="runs")
    checkpoints, dataset = open_runs(cfg)
    lengths = choose_lengths(cfg, {c["model_args"]["block_size"] for c in checkpoints.values()})
    if cfg.protocol == "fixed":
        stride, blocks = cfg.block_tokens or min(8, lengths[0] // 4), 512
    else:
        stride, blocks = lengths[-1], 64
    blocks = cfg.blocks or max(2, min(blocks, (len(dataset.val.tokens) - 1) // stride - lengths[-1] // stride))
    cfg = dataclasses.replace(cfg, blocks=blocks, block_tokens=stride)
    variants = [dataclasses.replace(cfg, rope_scaling=scaling) for scaling in cfg.rope_scaling.split(",")]
    for checkpoint, one in itertools.product(checkpoints.values(), variants):  # told before any is measured
        run.overridden(GPTConfig(**checkpoint["model_args"]), one, lengths[-1], checkpoint["path"])

    results, closing = {}, []
    names = [checkpoint["folder"].resolve().name for checkpoint in checkpoints.values()]
    for (path, checkpoint), one in itertools.product(checkpoints.items(), variants):
        short = checkpoint["folder"].resolve().name
        name = short if names.count(short) == 1 else path
        name += f" {one.rope_scaling}" if len(variants) > 1 else ""
        begin, training_length = time.perf_counter(), checkpoint["model_args"]["block_size"]
        losses, documents, crossing, computed = measure(one, checkpoint, dataset, lengths)
        rows, *resampled = summarise(losses, documents, lengths, training_length, cfg.seed)
        results[name] = {
            "pos_scheme": checkpoint["model_args"]["pos_scheme"],
            "training_length": training_length,
            "step": checkpoint["step"],
            "rows": rows,
        }
        print(f"{name}: {run.format_seconds(time.perf_counter() - begin) if computed else 'done before'}", flush=True)
        if computed:
            closing = log_to_wandb(one, short, checkpoint, results[name], lengths, variant_of(one))

    n_documents = len(np.unique(documents))
    picture = report(cfg, dataset, lengths, n_documents, crossing, resampled, results)
    if closing:  # something is new: the picture belongs to no single run
        group = group_of(cfg, next(iter(checkpoints.values())))
        id = f"compare-{variant_of(cfg)}-{run.stamp()}"
        tracker = run.Wandb(cfg.wandb_mode, cfg.wandb_project, group, id, "comparison", {"runs": names}, {})
        tracker.image("length/picture", picture)
        closing = tracker.finish()
    print("\n".join(closing))
    return 0


if __name__ == "__main__":
    config.script(main)
