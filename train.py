"""
Trains a GPT:  python train.py config/rope.py --max_iters=500

Settings come from config files and --key=value flags (see below), the defaults being the baseline experiment. The run's
folder holds latest.pt, best.pt and metrics.jsonl. Called again, a finished run says so and an unfinished one goes on.
On several GPUs: torchrun --standalone --nproc_per_node=8 train.py config/gpt2.py
"""

import dataclasses
import itertools
import json
import math
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import config
import data
import run
from model import GPT, SCHEMES, GPTConfig

VAL_TOKENS = 65_536  # of validation text, during training; --eval_only takes all of it


@dataclass(frozen=True)
class TrainConfig(GPTConfig):
    # the model's, at the baseline's size
    block_size: int = 128
    vocab_size: int = 0  # 0: the tokenizer's
    n_layer: int = 4
    n_head: int = 4
    n_embd: int = 128
    bias: bool = False  # biases in Linear and LayerNorm; without them a bit better and faster
    # data
    dataset: str = "stdlib_char"  # a folder of data/, or a path with a slash
    batch_size: int = 32  # windows per micro-step
    gradient_accumulation_steps: int = 1  # micro-steps per step, over all processes
    # optimizer
    max_iters: int = 850  # steps
    learning_rate: float = 4e-3
    min_lr: float = 1e-4  # at the end of a cosine that begins after the warm-up
    warmup_iters: int = 100
    weight_decay: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.99
    grad_clip: float = 1.0  # largest gradient norm; 0: no clipping
    seed: int = 1337  # of weights, batches and dropout
    # this call
    init_from: str = ""  # to begin with, under this scheme and settings: a run, nanoGPT's ckpt.pt, or a GPT-2 (gpt2)
    out_dir: str = ""  # the run's folder; default: out/ and the names of the config files
    resume: bool = False  # go on with the run in out_dir, also under other settings, such as a larger max_iters
    overwrite: bool = False  # begin anew in an out_dir that holds a run
    eval_only: bool = False  # loss of the best checkpoint over all of the validation text
    eval_interval: int = 100  # steps between evaluations, each of which saves a checkpoint
    log_interval: int = 10
    device: str = "auto"  # auto, cpu, cuda, cuda:1, mps
    dtype: str = "auto"  # float32, bfloat16; auto: bfloat16 on a GPU that has it
    compile: bool | None = None  # torch.compile; default: on a CUDA device only
    wandb_mode: str = "auto"  # online, offline, disabled; auto: online with a login, else offline
    wandb_project: str = "length"
    wandb_group: str = ""  # default: the dataset

    def __post_init__(self):
        args = model_args(self, max(1, self.vocab_size))  # checks the model's fields, and the scheme its own:
        SCHEMES[self.pos_scheme](GPTConfig(**args))
        config.at_least(
            1, self, "batch_size", "gradient_accumulation_steps", "max_iters", "eval_interval", "log_interval"
        )
        config.at_least(
            0, self, "learning_rate", "min_lr", "warmup_iters", "weight_decay", "grad_clip", "seed", "vocab_size"
        )
        config.one_of(run.DTYPES, self, "dtype")
        config.one_of(run.WANDB_MODES, self, "wandb_mode")
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must lie in [0, 1)")
        if "0" in self.window_pattern and not self.window:
            raise ValueError(
                f"window_pattern={self.window_pattern} does nothing without a window: give --window=TOKENS"
            )
        if self.resume and self.overwrite:
            raise ValueError("--resume and --overwrite exclude each other")


# Settings of a call, not of an experiment: a run may go on under other ones.
CALL_FIELDS = [f.name for f in dataclasses.fields(TrainConfig)]
CALL_FIELDS = CALL_FIELDS[CALL_FIELDS.index("out_dir") :]


def experiment_of(checkpoint):
    """What runs that differ in their seed alone have in common: the settings listed before it, of which an older run
    may lack some."""
    own = checkpoint["config"]
    settings = dataclasses.asdict(TrainConfig()) | own
    before = [(key, settings[key]) for key in itertools.takewhile("seed".__ne__, settings)]
    return json.dumps(
        [before, checkpoint["dataset_hash"], own.get("init_from") or "", None if own else checkpoint["path"]]
    )


def model_args(cfg, vocab_size):
    """The model's part of a TrainConfig, checked, as plain types."""
    args = {f.name: getattr(cfg, f.name) for f in dataclasses.fields(GPTConfig)} | {"vocab_size": vocab_size}
    return dataclasses.asdict(GPTConfig(**args))


def learning_rate(cfg, step):
    """Linear warm-up, then a cosine from learning_rate to min_lr, or to learning_rate if that is less, at max_iters."""
    if step < cfg.warmup_iters:
        return cfg.learning_rate * (step + 1) / (cfg.warmup_iters + 1)
    done = (step - cfg.warmup_iters) / max(1, cfg.max_iters - cfg.warmup_iters)
    low = min(cfg.min_lr, cfg.learning_rate)
    return low + 0.5 * (1 + math.cos(math.pi * min(1.0, done))) * (cfg.learning_rate - low)


@torch.no_grad()
def evaluate(model, split, starts, rows, rank=0, world=1, progress=lambda windows: None):
    """Mean loss, in nats per token, of the windows of block_size tokens at `starts`, shared out among the ranks."""
    c, device = model.config, next(model.parameters()).device
    mine, total = starts[rank::world], 0.0
    model.eval()
    for i in range(0, len(mine), rows):
        batch = mine[i : i + rows]
        tokens = data.windows(split.tokens, batch, c.block_size, c.vocab_size).to(device)
        total += model(tokens[:, :-1], tokens[:, 1:])[1].item() * len(batch)
        progress(len(batch))
    model.train()
    return sum_over_ranks(total, world, device) / len(starts)


def sum_over_ranks(value, world, device):
    """The sum of every process's value, a number."""
    if world == 1:
        return value
    total = torch.tensor(float(value), device=device)
    dist.all_reduce(total)
    return total.item()


def matmul_peak(device, dtype, repeats=10):
    """FLOP/s of a large matrix product: what the hardware can do at best, so that MFU means something on any of it."""
    n = 8192 if device.type == "cuda" else 1024
    a = torch.randn(n, n, device=device, dtype=dtype)
    best = math.inf
    for _ in range(repeats):
        begin = time.perf_counter()
        (a @ a)[0, 0].item()  # waits for the device
        best = min(best, time.perf_counter() - begin)
    return 2 * n**3 / best


def flops_per_token(model):
    """6 per weight that multiplies plus 12·L·C·T for attention (Chowdhery et al. 2022, arXiv 2204.02311)."""
    c = model.config
    return 6 * sum(p.numel() for p in model.transformer.parameters()) + 12 * c.n_layer * c.n_embd * c.block_size


class Stop:
    """Ctrl-C or a termination signal asks the loop to save and end; a second Ctrl-C ends it at once."""

    def __init__(self):
        self.asked = False
        self.old = {s: signal.signal(s, self.ask) for s in (signal.SIGINT, signal.SIGTERM)}

    def ask(self, signum, frame):
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True

    def restore(self):
        for s, handler in self.old.items():
            signal.signal(s, handler)


def open_folder(cfg, dataset):
    """The checkpoint to go on from, or None for a new run. ValueError where out_dir holds something else."""
    folder = Path(cfg.out_dir)
    if cfg.overwrite or not any((folder / name).exists() for name in ("latest.pt", "best.pt")):
        if folder.exists() and not folder.is_dir():
            raise ValueError(f"out_dir={cfg.out_dir} is a file, not a folder")
        if cfg.resume:
            raise ValueError(f"there is no run to resume in {folder}")
        return None
    checkpoint = run.load_checkpoint(folder, "latest")
    old = dataclasses.asdict(TrainConfig()) | checkpoint["config"]  # which may be older than some settings
    new = dataclasses.asdict(cfg)
    changed = [k for k in new if k not in CALL_FIELDS and new[k] != old[k]]
    if checkpoint["dataset_hash"] != dataset.hash and "dataset" not in changed:
        changed.append("the prepared text")
    model_fields = {f.name for f in dataclasses.fields(GPTConfig)}
    fixed = [k for k in changed if k in model_fields or k == "the prepared text"]
    if cfg.resume and fixed:
        raise ValueError(f"{folder} cannot be resumed with another {', '.join(fixed)}: choose another --out_dir")
    if changed and not cfg.resume:
        what = ", ".join(f"{k} {old[k]!r} there, {new[k]!r} now" if k in new else k for k in changed[:4])
        raise ValueError(
            f"{folder} holds another run ({what}): choose another --out_dir, "
            f"or go on with that run under these settings (--resume), or discard it (--overwrite)"
        )
    return checkpoint


def begin_from(path, model, dataset):
    """Loads what fits of another run's checkpoint into the model: the backbone whole, the scheme's own parameters where
    they are of the same kind, a table of another length as far as both reach. Returns what to tell of it."""
    checkpoint = run.load_checkpoint(path)
    run.load_tokenizer(checkpoint, dataset.tokenizer, f"dataset {dataset.name!r}")
    source, lines = checkpoint["model"], [f"begun from {checkpoint['path']}, step {checkpoint['step']}"]
    for name, own in model.state_dict().items():
        theirs = source.get(name)
        if theirs is None and name.startswith("pos."):
            lines.append(f"{name} begins afresh")
        elif theirs is not None and theirs.shape == own.shape:
            own.copy_(theirs)
        elif theirs is not None and name.startswith("pos.") and theirs.shape[1:] == own.shape[1:]:
            n = min(len(theirs), len(own))
            own[:n] = theirs[:n]
            lines.append(f"{name} keeps its first {n} rows, {len(own) - n} begin afresh")
        else:
            shapes = f"{tuple(own.shape)} here, {None if theirs is None else tuple(theirs.shape)} there"
            raise ValueError(f"init_from={path} is of another size ({name}: {shapes})")
    if left := sorted(source.keys() - model.state_dict().keys()):
        if other := [k for k in left if not k.startswith("pos.")]:
            raise ValueError(f"init_from={path} has weights that this model has not, such as {other[0]}")
        lines.append(f"{', '.join(left)} left behind")
    return lines


def train(cfg):
    """Trains as cfg says; returns the best validation loss in nats per token. Everything a user can get wrong raises
    ValueError before anything is written."""
    # What is trained, and on what
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    on_gpus = world > 1 and cfg.device in ("auto", "cuda") and torch.cuda.is_available()
    device = run.pick_device(f"cuda:{os.environ['LOCAL_RANK']}" if on_gpus else cfg.device)
    dtype = run.pick_dtype(cfg.dtype, device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if world > 1:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
        if rank > 0:
            dist.barrier()  # until the first has prepared the data, where it is missing
    dataset = data.load(cfg.dataset)
    if world > 1 and rank == 0:
        dist.barrier()
    n_vocab = dataset.tokenizer.n_vocab
    if 0 < cfg.vocab_size < n_vocab:
        raise ValueError(
            f"vocab_size={cfg.vocab_size} is smaller than the tokenizer's {n_vocab}"
            + (f": {cfg.init_from} goes with another" if cfg.init_from else "; 0 takes the tokenizer's")
        )
    args = model_args(cfg, cfg.vocab_size or n_vocab)
    rows = cfg.batch_size * cfg.gradient_accumulation_steps  # of a step: they go to ranks, then to micro-steps
    micro_steps = -(-cfg.gradient_accumulation_steps // world)
    micro_rows, odd = divmod(rows, world * micro_steps)
    if odd:
        raise ValueError(f"batch_size·gradient_accumulation_steps={rows} rows do not divide among {world} processes")
    batches = data.Batches(dataset.train, cfg.block_size, rows, cfg.seed, n_vocab)
    val_starts = data.val_windows(dataset.val, cfg.block_size, VAL_TOKENS)
    model = GPT(GPTConfig(**args), seed=cfg.seed).to(device)
    optimizer = model.configure_optimizer(cfg.weight_decay, cfg.learning_rate, (cfg.beta1, cfg.beta2))

    # Its folder: empty, or holding this very run
    folder, checkpoint = Path(cfg.out_dir), open_folder(cfg, dataset)
    step, best_val_loss, segment = 0, math.inf, 0
    begun = begin_from(cfg.init_from, model, dataset) if cfg.init_from and checkpoint is None else []
    if checkpoint is not None:
        step, best_val_loss, segment = checkpoint["step"], checkpoint["best_val_loss"], checkpoint["segment"] + 1
        if step >= cfg.max_iters:
            if rank == 0:
                print(f"{folder} is finished: {step} steps, best validation loss {best_val_loss:.4f}")
            return best_val_loss
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
    del checkpoint

    torch.backends.cuda.matmul.allow_tf32 = True
    step_model = model
    if cfg.compile if cfg.compile is not None else device.type == "cuda":
        step_model = torch.compile(step_model)
    if world > 1:
        step_model = DistributedDataParallel(step_model, device_ids=[device.index] if device.type == "cuda" else None)
    peak = matmul_peak(device, dtype)
    tracker = None
    if rank == 0:
        folder.mkdir(parents=True, exist_ok=True)
        if segment == 0:
            for name in ("latest.pt", "best.pt", "metrics.jsonl"):
                (folder / name).unlink(missing_ok=True)
        run.keep_metrics_until(folder, step)
        tracker = run.Wandb(
            cfg.wandb_mode, cfg.wandb_project, cfg.wandb_group or Path(cfg.dataset).name,
            f"{folder.name}-{run.stamp()}" + (f"-r{segment}" if segment else ""),  # no id is ever used twice
            "train", dataclasses.asdict(cfg), {"train": "step", "val": "step"},
        )  # fmt: skip
        n_params = sum(p.numel() for p in model.parameters())
        print(
            f"{folder}: {cfg.pos_scheme}, {n_params:,} parameters, {rows} windows of {cfg.block_size} tokens a step\n"
            f"{cfg.dataset}: {len(dataset.train.tokens):,} tokens to train on, {n_vocab:,} in the vocabulary\n"
            f"{world} × {device.type}, {str(dtype)[6:]}, {peak / 1e12:.3g} TFLOP/s matrix product"
            + (f"\ngoing on after step {step}" if segment else "")
            + "".join(f"\n{line}" for line in begun)
            + (
                f"\nnote: warmup_iters={cfg.warmup_iters} is not over by step {cfg.max_iters}"
                if cfg.warmup_iters >= cfg.max_iters
                else ""
            ),
            flush=True,
        )

    def fetch(micro_step):
        first = (rank * micro_steps + micro_step) * micro_rows
        pair = batches(step, first, first + micro_rows)
        if device.type == "cuda":  # pinned memory is copied while the GPU computes
            return (t.pin_memory().to(device, non_blocking=True) for t in pair)
        return (t.to(device) for t in pair)

    def validate():
        progress = run.Progress("validation", -(-len(val_starts) // world)) if rank == 0 else lambda windows: None
        with run.autocast(device, dtype):
            loss = evaluate(model, dataset.val, val_starts, micro_rows, rank, world, progress)
        if rank == 0:
            progress.close()
        return loss

    def log(row, text):
        if rank == 0:
            with open(folder / "metrics.jsonl", "a") as f:
                f.write(json.dumps({"step": step} | row) + "\n")
            tracker.log({"step": step} | row)
            print(f"step {step}/{cfg.max_iters} | {text}", flush=True)

    def save(is_best):
        if rank == 0:
            state = {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "model_args": args,
                "config": dataclasses.asdict(cfg),
                "step": step,
                "best_val_loss": best_val_loss,
                "tokenizer": dataset.tokenizer.spec | {"hash": data.spec_hash(dataset.tokenizer.spec)},
                "dataset_hash": dataset.hash,
                "segment": segment,  # how often the run was resumed
            }
            run.save_checkpoint(folder, state, is_best)

    # The loop
    stop, begin, first_step = Stop(), time.perf_counter(), step
    if step == 0:
        val_loss = validate()
        log({"val/loss": val_loss}, f"val {val_loss:.4f}")
    loss_sum, logged_step, logged_at = torch.zeros((), device=device), step, time.perf_counter()
    stopping = False
    while step < cfg.max_iters and not stopping:
        lr = learning_rate(cfg, step)
        for group in optimizer.param_groups:
            group["lr"] = lr
        for micro_step in range(micro_steps):
            x, y = fetch(micro_step)
            if cfg.dropout:  # seeded from where we are, so that a resumed run draws the same masks
                torch.manual_seed(hash((cfg.seed, step, micro_step, rank)))
            if world > 1:  # gradients are exchanged once a step
                step_model.require_backward_grad_sync = micro_step == micro_steps - 1
            with run.autocast(device, dtype):
                loss = step_model(x, y)[1] / micro_steps
            loss.backward()
            loss_sum += loss.detach()
        grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), cfg.grad_clip or math.inf)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step += 1

        evaluating = step % cfg.eval_interval == 0 or step == cfg.max_iters
        logging = evaluating or step % cfg.log_interval == 0
        if world == 1 or logging:  # all processes stop after the same step
            stopping = sum_over_ranks(stop.asked, world, device) > 0
        if logging or stopping:
            train_loss = sum_over_ranks(loss_sum.item(), world, device) / (step - logged_step) / world
            tokens_per_s = (step - logged_step) * rows * cfg.block_size / (time.perf_counter() - logged_at)
            mfu = tokens_per_s * flops_per_token(model) / (world * peak)
            row = {"train/loss": train_loss, "train/lr": lr, "train/grad_norm": grad_norm.item(),
                   "train/tokens_per_s": tokens_per_s, "train/mfu": mfu}  # fmt: skip
            if evaluating:
                row["val/loss"] = validate()
                peak = max(peak, matmul_peak(device, dtype, 2))  # another process may have had the machine at the start
            if not math.isfinite(train_loss + row.get("val/loss", 0.0)):
                raise ValueError(
                    f"the loss is not finite at step {step}: lower --learning_rate; the last checkpoint stays"
                )
            left = (time.perf_counter() - begin) / (step - first_step) * (cfg.max_iters - step)
            val = f" | val {row['val/loss']:.4f}" if evaluating else ""
            log(row, f"train {train_loss:.4f}{val} | lr {lr:.1e} | {tokens_per_s / 1e3:.1f}k tok/s | {mfu:.0%} MFU | "
                f"{run.format_seconds(left)} left")  # fmt: skip
            loss_sum.zero_()
            logged_step, logged_at = step, time.perf_counter()
        if evaluating or stopping:
            is_best = evaluating and row["val/loss"] < best_val_loss
            best_val_loss = row["val/loss"] if is_best else best_val_loss
            save(is_best)
    stop.restore()

    if rank == 0:
        tracker.summary({"val/best_loss": best_val_loss})
        took = run.format_seconds(time.perf_counter() - begin)
        if step < cfg.max_iters:
            print(f"stopped and saved at step {step}. Go on with:\n  python train.py --resume --out_dir={folder}")
        else:
            print(f"{step - first_step} steps in {took}, best validation loss {best_val_loss:.4f}: {folder}/best.pt")
            print(f"sample    python sample.py --out_dir={folder}\nevaluate  python eval_length.py {folder}")
        print("\n".join(tracker.finish()))
    if world > 1:
        dist.barrier()
    if step < cfg.max_iters:
        raise KeyboardInterrupt
    return best_val_loss


def eval_only(cfg):
    """Prints the best checkpoint's loss over all of the validation text."""
    checkpoint = run.load_checkpoint(cfg.out_dir)
    dataset = data.load(cfg.dataset)
    run.load_tokenizer(checkpoint, dataset.tokenizer, f"dataset {cfg.dataset!r}")
    device = run.pick_device(cfg.device)
    model = run.load_model(checkpoint, device)
    starts = data.val_windows(dataset.val, model.config.block_size)
    progress = run.Progress(checkpoint["path"], len(starts))
    with run.autocast(device, run.pick_dtype(cfg.dtype, device)):
        loss = evaluate(model, dataset.val, starts, cfg.batch_size, progress=progress)
    progress.close()
    info = dataset.meta["splits"]["val"]
    bits = loss / math.log(2) * info["tokens"] / info["bytes"]
    print(
        f"{checkpoint['path']}, step {checkpoint['step']}: {loss:.4f} nats per token, {bits:.4f} bits per byte, "
        f"over all of the validation text ({len(starts):,} windows of {model.config.block_size} tokens)"
    )
    return loss


def model_of(path, values):
    """What a run that begins from another takes over from it, where `values` do not say otherwise: the model's size,
    the text, and the length that a scheme was trained at before it is stretched."""
    checkpoint = run.load_checkpoint(path)
    args = checkpoint["model_args"] | {"dataset": run.dataset_of(checkpoint, values.get("dataset"))}
    options = SCHEMES[args["pos_scheme"]].options
    if values.get("pos_scheme", args["pos_scheme"]) != args["pos_scheme"]:
        return {k: v for k, v in args.items() if k not in options}
    if "rope_block_size" in options:
        args["rope_block_size"] = args["rope_block_size"] or args["block_size"]
    return args


def main(argv):
    values, files = config.parse(TrainConfig, argv)
    if not values.get("out_dir"):
        stem = "-".join(Path(f).stem for f in files)
        values["out_dir"] = f"out/{stem or values.get('pos_scheme', TrainConfig.pos_scheme)}"
    if values.get("resume") or values.get("eval_only"):  # the checkpoint's settings, but for what this call sets
        checkpoint = run.load_checkpoint(values["out_dir"], "latest")
        saved = checkpoint["config"] | {"dataset": run.dataset_of(checkpoint, values.get("dataset"))}
        values = {k: v for k, v in saved.items() if k not in ("resume", "overwrite", "device")} | values
        del checkpoint
    elif values.get("init_from"):
        values = model_of(values["init_from"], values) | values
    cfg = TrainConfig(**values)
    try:
        (eval_only if cfg.eval_only else train)(cfg)
    finally:
        if dist.is_initialized():  # after `train` has let go of DDP, whose threads must end first
            dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    config.script(main)
