"""
Loss as the context grows past the training length:  python eval_length.py out/rope out/alibi

Scores the same tokens of the validation text at every context length, for every run, and prints the difference to the
training length with a 95% band; results/ gets the numbers and the picture. What is done already is not done again, and
after Ctrl-C the same command goes on (but for --recall, which takes seconds). Protocols:

fixed           the same last tokens of every context: does more of it help or hurt them?
sliding         the same text at every length, its windows a stride apart, of which each scores its last stride
nonoverlapping  the same text cut into windows of each length, all of their tokens scored
position        the longest windows alone, by position: a row holds those from the length before it up to its own
context         fixed, and again with all beyond the training length cut off, of another document, or shuffled

--recall asks another question, of a run on recall_char: how far back can an answer lie that a model looks up?
"""

import dataclasses
import hashlib
import io
import itertools
import json
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

import config
import data
import recall
import run
from bands import FEWEST_DOCUMENTS, KINDS, breakdown, group_seeds, summarise
from model import SCHEMES, GPTConfig
from report import KINDS_IN_WORDS, draw, table
from train import experiment_of

PROTOCOLS = ("fixed", "sliding", "nonoverlapping", "position", "context")
STRIDES = 4  # that a block has under `sliding`
ENTROPY_BLOCKS = 8  # whose attention is looked at


@dataclass(frozen=True)
class EvalConfig(run.Overrides):
    runs: tuple = ()  # given without a flag: run folders or whatever else sample.py takes
    protocol: str = "fixed"  # fixed, sliding, nonoverlapping, position, context: see above
    lengths: str = ""  # comma-separated, ascending; default: 1/4 to 16 times the training length
    blocks: int = 0  # of targets (default 256; sliding 128), or of text as long as the longest context (default 64)
    block_tokens: int = 0  # targets in a block of fixed (default 8), the stride of sliding (default: shortest length)
    recall: bool = False  # answers looked up, by distance, instead of a protocol; --blocks: questions a distance
    threshold: float = 0.1  # nats that Δ must exceed, by more than its band, to be the breakdown length L*
    allow_mixed: bool = False  # runs of different text or tokenizers in one picture, each on its own
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
        config.at_least(0, self, "seed", "blocks", "block_tokens", "threshold")
        if self.recall and (self.protocol != "fixed" or self.block_tokens):
            raise ValueError("--recall is no protocol's: leave --protocol and --block_tokens out")
        if self.blocks == 1:
            raise ValueError("blocks=1 is too few for an interval: at least 2")


# ----------------------------------------------------------------------------------------------------------
# What is scored


def choose_lengths(cfg, training_lengths):
    """The context lengths, ascending; the training lengths are always among them, since Δ is taken against them."""
    if cfg.lengths:
        try:
            given = [int(n) for n in cfg.lengths.split(",")]
        except ValueError:
            raise ValueError(f"lengths={cfg.lengths!r} must be whole numbers with commas between them") from None
        if given[0] < 1 or sorted(set(given)) != given:
            raise ValueError(f"lengths={cfg.lengths!r} must ascend, from 1 on")
        lengths = set(given)
    else:
        lengths, n = set(), max(1, min(training_lengths) // 4)
        while n <= 16 * max(training_lengths):
            lengths.add(n)
            n *= 2
    lengths = sorted(lengths | set(training_lengths))
    if cfg.protocol in ("fixed", "context") and lengths[0] < 4 * max(1, cfg.block_tokens):
        raise ValueError(
            f"the shortest length, {lengths[0]}, must be at least four times block_tokens={max(1, cfg.block_tokens)}: "
            f"the block's own tokens are part of its context"
        )
    if cfg.protocol == "sliding" and lengths[0] < max(1, cfg.block_tokens):
        raise ValueError(
            f"the shortest length, {lengths[0]}, must be at least the stride, block_tokens={cfg.block_tokens}"
        )
    if cfg.protocol == "nonoverlapping" and any(lengths[-1] % n for n in lengths):
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
def window_losses(model, tokens, starts, length, scored, dtype, progress, change=None):
    """Loss, in nats, of the last `scored` predictions of each window of `length` tokens: (windows, scored) float32.
    change(rows, first) may alter a batch of windows (rows, length + 1), of which `first` is the number of the first.
    Holds one batch of windows, and logits for some thousands of its positions only."""
    device = next(model.parameters()).device
    budget = 2**17 if device.type == "cuda" else 2**14  # tokens in one forward
    rows, out = max(1, budget // length), []
    for first in range(0, len(starts), rows):
        batch = starts[first : first + rows]
        window = data.windows(tokens, batch, length, model.config.vocab_size)
        if change is not None:
            change(window, first)
        window = window.to(device)
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


def replaced(split, ends, documents, n, kept, kind, seed):
    """The `change` of windows of n tokens before `ends`: all but the last `kept` tokens of the context become those of
    the next block, half the text on, of which they lie outside the window and its document ("foreign"), or are shuffled
    ("shuffled"). ValueError where there is no such block."""
    bounds = np.append(split.docs, len(split.tokens))

    def change(window, first):
        for row, i in enumerate(range(first, first + len(window))):
            far = window[row, : n - kept]
            if kind == "foreign":
                donors = np.roll(ends, -(i + len(ends) // 2))
                before, after = min(bounds[documents[i]], ends[i] - n), max(bounds[documents[i] + 1], ends[i])
                outside = (donors - kept <= before) | (donors - n >= after)
                if not outside.any():
                    raise ValueError(f"no block has {n - kept:,} tokens of other documents before it: lower --lengths")
                donor = donors[outside.argmax()]
                far[:] = torch.from_numpy(split.tokens[donor - n : donor - kept].astype(np.int64))
            else:
                far[:] = far[torch.from_numpy(np.random.default_rng((seed, i)).permutation(n - kept))]

    return change


def layout(cfg, length, longest):
    """How far before the end of a block each of its windows of `length` tokens begins, and how many of a window's last
    predictions are scored. Between the ends of two blocks lie as many block_tokens as a block has longest windows."""
    if cfg.protocol == "sliding":
        return length + np.arange(STRIDES) * cfg.block_tokens, cfg.block_tokens
    if cfg.protocol == "nonoverlapping":  # the same text, cut into windows of `length`
        return longest - np.arange(0, longest, length), length
    return np.array([length]), length if cfg.protocol == "position" else cfg.block_tokens


def block_losses(cfg, model, split, ends, documents, kind, length, longest, dtype, progress):
    """Losses at one context length, of every block: (blocks, windows of a block, scored) float64."""
    before, scored = layout(cfg, length, longest)
    starts, change = (ends[:, None] - before).flatten(), None
    if kind:
        change = replaced(split, ends, documents, length, model.config.block_size, kind, cfg.seed)
    losses = window_losses(model, split.tokens, starts, length, scored, dtype, progress, change)
    return losses.astype(np.float64).reshape(len(ends), -1, scored)


def bytes_per_token(cfg, dataset, ends, longest):
    """Of the targets' text. What only divides documents has no bytes."""
    before, scored = layout(cfg, longest, longest)
    targets = dataset.val.tokens[ends[:, None] + np.arange(1 - len(before) * scored, 1)].flatten()
    text = targets if dataset.tokenizer.eot is None else targets[targets != dataset.tokenizer.eot]
    return np.array(len(dataset.tokenizer.decode_bytes(text.tolist())) / len(targets))


def entropy(cfg, model, split, ends, length):
    """Mean entropy of the attention of the scored predictions, in nats, over a few blocks."""
    n = min(ENTROPY_BLOCKS, len(ends))
    some = ends[np.arange(n) * len(ends) // n]
    idx = data.windows(split.tokens, some - length, length - 1, model.config.vocab_size)
    rows = idx.to(model.lm_head.weight.device)[:, None]  # one at a time: memory
    return np.mean([run.attention_entropy(model, row, cfg.block_tokens) for row in rows])


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


def jobs(cfg, lengths, trained, limit):
    """(name, what is done to the context, length) of everything that is measured of a run."""
    defined = [n for n in lengths if limit is None or n <= limit]
    if cfg.protocol == "position":
        return [("positions", "", defined[-1])]
    if cfg.protocol == "context":
        further = [n for n in defined if n > trained]
        changed = [(f"{kind}-{n}", kind, n) for kind in KINDS[1:] for n in further]
        return [(str(n), "", n) for n in (trained, *further)] + changed
    return [(str(n), "", n) for n in defined]


def measure(cfg, checkpoint, dataset, lengths):
    """The run's losses by the names of `jobs`, each (blocks,), from its folder as far as they are there, else computed
    and saved there one by one. Returns {name: losses}, the share of contexts that cross documents, and whether anything
    was computed.

    Beside them: `ends` and `documents` (blocks,), a block's last target in val.bin and its document; `bytes_per_token`
    () of the targets; `positions` (blocks, length) under position; `edge` (blocks,), the loss in the last quarter of
    the training length, under nonoverlapping; `entropy-N` () under fixed; and `key`, all that the losses depend on."""
    split, longest, trained = dataset.val, lengths[-1], checkpoint["model_args"]["block_size"]
    before, _ = layout(cfg, longest, longest)
    ends, documents, crossing = choose_ends(split, before.max(), len(before) * cfg.block_tokens, cfg.blocks, cfg.seed)
    if cfg.protocol == "context" and len(np.unique(documents)) < 2:
        raise ValueError("--protocol=context needs a text of several documents: all blocks are of one")
    device = run.pick_device(cfg.device)
    dtype = run.pick_dtype(cfg.dtype, device)
    key = {
        "checkpoint": weights_hash(checkpoint),
        "dataset": dataset.hash,
        "protocol": cfg.protocol,
        "longest": longest,
        "blocks": cfg.blocks,
        "block_tokens": cfg.block_tokens,
        "seed": cfg.seed,
        "dtype": str(dtype),
        "overrides": [cfg.window, cfg.rope_scaling, cfg.rope_factor, cfg.rope_theta],
    }
    if cfg.protocol == "context":
        key["foreign"] = "neither of the window nor of its document"  # once it was only: of another document than it
    path = checkpoint["folder"] / f"{variant_of(cfg)}.npz"
    found = {"key": json.dumps(key), "ends": ends, "documents": documents}
    found["bytes_per_token"] = bytes_per_token(cfg, dataset, ends, longest)
    found |= kept(path, key)

    trained_as = GPTConfig(**checkpoint["model_args"])
    wanted = jobs(cfg, lengths, trained, SCHEMES[trained_as.pos_scheme](trained_as).max_positions)
    missing = [job for job in wanted if job[0] not in found]
    model = run.load_model(checkpoint, device) if missing else None
    tokens = sum(len(layout(cfg, n, longest)[0]) * n for *_, n in missing)
    progress = run.Progress(str(checkpoint["folder"]), cfg.blocks * tokens)
    for name, kind, n in missing:
        run.override(model, checkpoint, cfg, n)
        losses = block_losses(cfg, model, split, ends, documents, kind, n, longest, dtype, progress)
        found[name] = losses[:, 0] if name == "positions" else losses.mean(axis=(1, 2))
        if cfg.protocol == "nonoverlapping" and n == trained:
            found["edge"] = losses[:, :, -max(1, trained // 4) :].mean(axis=(1, 2))
        if cfg.protocol == "fixed":
            found[f"entropy-{n}"] = np.array(entropy(cfg, model, split, ends, n))
        save(path, found)
    progress.close()
    return found, crossing, bool(missing)


def kept(path, key):
    """The losses at `path`, by name, if they are those under `key`, else {}. Those of the same model under other
    settings get a name of their own, and come back from there when they are asked for again."""

    def elsewhere(key):
        return path.with_name(f"{path.stem}-{data.spec_hash(key)[:8]}.npz")

    def read():
        try:
            with np.load(path) as saved:
                return dict(saved)
        except (OSError, ValueError, zipfile.BadZipFile):
            raise ValueError(f"{path} is damaged: delete it, and its losses are computed again") from None

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


def save(path, arrays):
    file = io.BytesIO()
    np.savez(file, **arrays)
    run.write_atomically(path, file.getvalue())


# ----------------------------------------------------------------------------------------------------------
# The command


def tracker_of(cfg, name, checkpoint, variant, axes):
    """A wandb run for an evaluation of one checkpoint, in the group of its training run."""
    settings = checkpoint["config"] | {"run": name, "step": checkpoint["step"]} | dataclasses.asdict(cfg)
    id, settings = f"{name}-{variant}-{run.stamp()}", settings | {"runs": list(cfg.runs)}
    return run.Wandb(cfg.wandb_mode, cfg.wandb_project, group_of(cfg, checkpoint), id, "eval_length", settings, axes)


def log_to_wandb(cfg, name, checkpoint, result, lengths):
    """length/* against the context length, and as the run's summary what runs are sorted by."""
    tracker = tracker_of(cfg, name, checkpoint, variant_of(cfg), {"length": "length/context"})
    trained, summary = result["training_length"], {"L_star": result["L_star"]}
    for n in lengths:
        if row := result["rows"][n]:
            tracker.log({"length/context": n, **{f"length/{key}": value for key, value in row.items()}})
            if n > trained:
                summary[f"delta_{n / trained:g}x"] = row["delta"]
    tracker.summary(summary)
    return tracker.finish()


def group_of(cfg, checkpoint):
    return checkpoint["config"].get("wandb_group") or Path(checkpoint["config"].get("dataset", cfg.dataset)).name


def open_runs(cfg):
    """[(name, best checkpoint, its dataset)]. ValueError unless one picture can hold them all."""
    checkpoints = [run.load_checkpoint(path) for path in dict.fromkeys(cfg.runs)]
    loaded = {}
    for checkpoint in checkpoints:
        wanted = run.dataset_of(checkpoint, cfg.dataset)
        loaded[wanted] = loaded.get(wanted) or data.load(wanted)
        dataset = checkpoint["dataset"] = loaded[wanted]
        run.load_tokenizer(checkpoint, dataset.tokenizer, f"dataset {dataset.name!r}")
        if not cfg.dataset and dataset.hash != checkpoint["dataset_hash"]:
            raise ValueError(
                f"dataset {dataset.name!r} is no longer the text that {checkpoint['path']} was trained on; to evaluate "
                f"it on that all the same, name it: --dataset={dataset.name}"
            )
    first = checkpoints[0]
    for other in checkpoints[1:]:
        hashes = [c["dataset_hash"] or c["dataset"].hash for c in (first, other)]
        if hashes[0] != hashes[1] and not cfg.allow_mixed:
            both = ", ".join(
                f"{c['path']} on {c['dataset'].name}: {h[:8]}…" for c, h in zip((first, other), hashes, strict=True)
            )
            raise ValueError(f"the runs were trained on different text ({both}): evaluate them apart, or --allow_mixed")
    for checkpoint in checkpoints:
        step, last = checkpoint["step"], checkpoint["config"].get("max_iters", 0)
        if step < last:
            print(f"note: the best checkpoint of {checkpoint['folder']} is of step {step} of {last}")
    names = [checkpoint["folder"].resolve().name for checkpoint in checkpoints]
    return [
        (name if names.count(name) == 1 else path, checkpoint)
        for name, path, checkpoint in zip(names, dict.fromkeys(cfg.runs), checkpoints, strict=True)
    ]


def report(cfg, checkpoints, lengths, texts, results):
    """Prints the table; writes the picture, whose path is returned, and the numbers."""
    what = {
        "fixed": f"the same {cfg.blocks} blocks of {cfg.block_tokens:,} tokens at every length",
        "context": f"the same {cfg.blocks} blocks of {cfg.block_tokens:,} tokens at every length",
        "sliding": f"the same {cfg.blocks} blocks of {STRIDES} strides of {cfg.block_tokens:,} tokens at every length",
        "nonoverlapping": f"the same {cfg.blocks} stretches of {cfg.block_tokens:,} tokens at every length",
        "position": f"{cfg.blocks} windows of {cfg.block_tokens:,} tokens",
    }[cfg.protocol]
    columns, shown = "Δ to the training length with its 95% band", lengths
    if cfg.protocol == "context":
        shown = [n for n in lengths if n >= min(r["training_length"] for r in results.values())]
        columns = f"the gain over {', over '.join(KINDS_IN_WORDS)}, each with its 95% band"
    elif any("seeds" in result for result in results.values()):
        columns += " and the standard deviation over the seeds"
    print(f"\n{cfg.protocol}: {what}")
    for name, text in texts.items():
        print(
            f"{name}: {text['documents']} documents, {text['crossing']:.0%} of the longest contexts cross documents, "
            f"{text['bytes_per_token']:.3g} bytes a token; bands over {text['n']} {text['units']}, all lengths at once"
        )
        if text["n"] < FEWEST_DOCUMENTS:
            print(f"note: {text['n']} {text['units']} are too few for a band to be relied on: raise --blocks")
    print(
        f"Loss in nats per token, then {columns}.\n"
        f"L*: where Δ exceeds {cfg.threshold:g} nats by more than its band.\n\n"
        f"{table(results, shown, cfg.protocol)}\n"
    )
    base = Path(cfg.results_dir) / variant_of(cfg)
    if len(checkpoints) == 1:  # does not replace the comparison of several
        base = base.with_name(f"{base.name}-{checkpoints[0]['folder'].resolve().name}")
    sources = ", ".join(f"{name} ({text['documents']} documents)" for name, text in texts.items())
    draw(results, shown, f"{cfg.protocol}, {sources}: {what}", base, cfg.protocol)
    summary = {
        "protocol": cfg.protocol,
        "blocks": cfg.blocks,
        "block_tokens": cfg.block_tokens,
        "threshold": cfg.threshold,
        "datasets": texts,
        "runs": results,
    }
    run.write_atomically(Path(f"{base}.json"), json.dumps(summary, indent=1, allow_nan=False))
    print(f"picture   {base}.png\nnumbers   {base}.json; each block's loss: .npz files in the run folders")
    return f"{base}.png"


def filled(cfg, checkpoints):
    """The config with its defaults that depend on the runs, and the lengths."""
    lengths = choose_lengths(cfg, {c["model_args"]["block_size"] for c in checkpoints})
    stride, blocks = {
        "sliding": (cfg.block_tokens or lengths[0], 128),
        "nonoverlapping": (lengths[-1], 64),
        "position": (lengths[-1], 64),
    }.get(cfg.protocol, (cfg.block_tokens or max(1, min(8, lengths[0] // 4)), 256))
    cfg = dataclasses.replace(cfg, block_tokens=stride)
    before, _ = layout(cfg, lengths[-1], lengths[-1])
    room = min(len(c["dataset"].val.tokens) - 1 - lengths[-1] for c in checkpoints) // (len(before) * stride)
    return dataclasses.replace(cfg, blocks=cfg.blocks or max(2, min(blocks, room))), lengths


def main(argv):
    cfg = config.load(EvalConfig, argv, list_field="runs")
    runs = open_runs(cfg)
    if cfg.recall:
        furthest = choose_lengths(cfg, {checkpoint["model_args"]["block_size"] for _, checkpoint in runs})[-1]
        return recall.evaluate(cfg, runs, furthest, variant_of(cfg).replace("length", "recall", 1), tracker_of)
    cfg, lengths = filled(cfg, [checkpoint for _, checkpoint in runs])
    scalings = list(dict.fromkeys(cfg.rope_scaling.split(",")))
    variants = [dataclasses.replace(cfg, rope_scaling=scaling) for scaling in scalings]
    if len(scalings) > 1:  # a grid may hold the plain one, which has no factor
        variants = [dataclasses.replace(v, rope_factor="auto") if v.rope_scaling == "none" else v for v in variants]
    for (_, checkpoint), one in itertools.product(runs, variants):  # told before any is measured
        run.overridden(checkpoint, one, lengths[-1])

    try:
        return measure_all(cfg, runs, variants, lengths)
    except KeyboardInterrupt:
        print("\nstopped; what was measured is kept, and the same command goes on", flush=True)
        raise


def measure_all(cfg, runs, variants, lengths):
    """Every run under every variant of cfg, then all that is told of them. Returns the exit status."""
    measured, texts, closing = {}, {}, []
    for (short, checkpoint), one in itertools.product(runs, variants):
        name = f"{short} {one.rope_scaling}" if len(variants) > 1 else short
        begin, trained = time.perf_counter(), checkpoint["model_args"]["block_size"]
        dataset = checkpoint["dataset"]
        found, crossing, computed = measure(one, checkpoint, dataset, lengths)
        rows, (units, n) = summarise(one, found, lengths, trained)
        texts[dataset.name] = {
            "hash": dataset.hash,
            "documents": len(np.unique(found["documents"])),
            "crossing": crossing,
            "bytes_per_token": float(found["bytes_per_token"]),
            "units": units,
            "n": n,
        }
        result = {
            "pos_scheme": checkpoint["model_args"]["pos_scheme"],
            "training_length": trained,
            "step": checkpoint["step"],
            "seed": checkpoint["config"].get("seed"),
            "L_star": breakdown(rows, trained, cfg.threshold),
            "rows": rows,
        }
        measured[name] = experiment_of(checkpoint) + name[len(short) :], found, result
        print(f"{name}: {run.format_seconds(time.perf_counter() - begin) if computed else 'done before'}", flush=True)
        run.write_atomically(checkpoint["folder"] / f"{variant_of(one)}.json", json.dumps(result, indent=1))
        if computed:
            closing = log_to_wandb(one, checkpoint["folder"].resolve().name, checkpoint, result, lengths)

    results = group_seeds(cfg, measured, lengths)
    picture = report(cfg, [c for _, c in runs], lengths, texts, results)
    if closing:  # something is new: the picture belongs to no single run
        id = f"compare-{variant_of(cfg)}-{run.stamp()}"
        tracker = run.Wandb(
            cfg.wandb_mode, cfg.wandb_project, group_of(cfg, runs[0][1]), id, "comparison", {"runs": list(measured)}, {}
        )
        tracker.image("length/picture", picture)
        closing = tracker.finish()
    print("\n".join(closing))
    return 0


if __name__ == "__main__":
    config.script(main)
