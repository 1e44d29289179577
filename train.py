"""Trains a GPT:  python train.py config/rope.py --max_iters=500

Settings come from config files and --key=value flags (see below); the defaults are the baseline experiment. The run's
folder holds latest.pt, best.pt and metrics.jsonl. Called again, a finished run says so and an unfinished one goes on.
On several GPUs: torchrun --standalone --nproc_per_node=8 train.py config/gpt2.py
"""

import contextlib
import dataclasses
import math
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from tqdm import tqdm

import config
import data
from model import GPT, SCHEMES, GPTConfig
from run import checkpoint as checkpoints
from run import files
from run.checkpoint import CALL_FIELDS, Checkpoint
from run.device import DTYPES, autocast, matmul_peak, pick_device, pick_dtype
from run.tracking import WANDB_MODES, RunLog, Wandb, format_seconds, stamp
from run.world import World

OPTIMIZERS = ("muon", "adamw")
MOMENTS = {"adamw": ("step", "exp_avg", "exp_avg_sq"), "muon": ("momentum_buffer",)}  # what each keeps of a parameter
DECAYS = ("linear", "cosine")
COMPILE_MODES = ("default", "reduce-overhead", "max-autotune")
VAL_TOKENS = 65_536  # of the tuning part, during training; --eval_only takes all of the validation text


@dataclass(frozen=True)
class TrainConfig(GPTConfig):
    # the model, at the baseline's size
    block_size: int = 128
    vocab_size: int = 0  # 0: the tokenizer's
    n_layer: int = 4
    n_head: int = 4
    n_embd: int = 128
    bias: bool = False  # biases in Linear and LayerNorm; a bit better and faster without
    init_from: str = ""  # begin with the weights of a run, of nanoGPT's ckpt.pt or of a GPT-2 (gpt2)
    # data
    dataset: str = "stdlib_char"  # a folder of data/, or a path with a slash
    batch_size: int = 32  # windows per micro-step
    gradient_accumulation_steps: int = 1  # micro-steps per step, over all processes
    # optimizer
    optimizer: str = "muon"  # muon: for the layers' matrices (W_r, too), AdamW for the rest; adamw: for all
    max_iters: int = 850  # steps
    learning_rate: float = 4e-3  # AdamW's
    muon_lr: float = 0.04  # Muon's; the two rise and fall together
    warmup_iters: int = 30
    decay: str = "linear"  # how the rates fall after the warm-up: linear, cosine
    min_lr: float = 0.0  # AdamW's at the end
    weight_decay: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.99
    grad_clip: float = 1.0  # largest gradient norm; 0: no clipping
    seed: int = 1337  # of weights, batches and dropout
    # this call only, not part of the experiment: run.checkpoint.CALL_FIELDS lists the same names
    out_dir: str = ""  # the run's folder; default: out/ and the names of the config files
    resume: bool = False  # go on with the run in out_dir, also under other settings, such as a larger max_iters
    overwrite: bool = False  # begin anew in an out_dir that holds a run
    eval_only: bool = False  # loss of the best checkpoint over all of the validation text
    eval_interval: int = 100  # steps between evaluations, each of which saves a checkpoint
    log_interval: int = 10
    device: str = "auto"  # auto, cpu, cuda, cuda:1, mps
    dtype: str = "auto"  # float32, bfloat16; auto: bfloat16 on a GPU that has it
    compile: bool | None = None  # torch.compile; default: on a CUDA device only
    compile_mode: str = "default"  # torch.compile's; reduce-overhead: CUDA graphs, for models too small for their GPU
    wandb_mode: str = "auto"  # online, offline, disabled; auto: online with a login, else offline
    wandb_project: str = "length"
    wandb_group: str = ""  # default: the dataset

    def __post_init__(self):
        self.model_config(self.vocab_size or 1)  # checks the model's fields
        at_least, rates = config.at_least, ("learning_rate", "muon_lr", "min_lr", "weight_decay", "grad_clip")
        at_least(1, self, "batch_size", "gradient_accumulation_steps", "max_iters", "eval_interval", "log_interval")
        at_least(0, self, *rates, "warmup_iters", "seed", "vocab_size")
        config.one_of(OPTIMIZERS, self, "optimizer")
        config.one_of(DECAYS, self, "decay")
        config.one_of(DTYPES, self, "dtype")
        config.one_of(COMPILE_MODES, self, "compile_mode")
        config.one_of(WANDB_MODES, self, "wandb_mode")
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must lie in [0, 1)")
        if "0" in self.window_pattern and not self.window:
            raise ValueError(f"window_pattern={self.window_pattern} does nothing without a window: give --window=N")
        if self.resume and self.overwrite:
            raise ValueError("--resume and --overwrite exclude each other")

    def model_config(self, n_vocab):
        """The GPTConfig for a tokenizer of n_vocab ids. ValueError where vocab_size is smaller."""
        if 0 < self.vocab_size < n_vocab:
            hint = f": {self.init_from} goes with another" if self.init_from else "; 0 takes the tokenizer's"
            raise ValueError(f"vocab_size={self.vocab_size} is smaller than the tokenizer's {n_vocab}{hint}")
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(GPTConfig)}
        return GPTConfig(**fields | {"vocab_size": self.vocab_size or n_vocab})


# ----------------------------------------------------------------------------------------------------------
# Parts of a run


class Optimizer:
    """AdamW (Loshchilov & Hutter 2017, arXiv 1711.05101), or Muon for the layers' matrices and AdamW for the rest: two
    optimizers that step as one.

    Muon (Jordan et al. 2024, kellerjordan.github.io/posts/muon) makes the momentum of a matrix orthogonal before it
    steps. Matrices and embeddings decay; biases, norms and what the scheme exempts do not."""

    def __init__(self, model, cfg):
        params = dict(model.named_parameters())
        self.names = {p: name for name, p in params.items()}
        own = tuple(f"pos.{name}." for name in model.pos.matrices)
        matrices = [k for k, p in params.items() if p.dim() == 2 and (".h." in k or k.startswith(own))]
        muon = [params.pop(k) for k in matrices] if cfg.optimizer == "muon" else []
        exempt = [params.pop(f"pos.{name}") for name in model.pos.no_decay]
        groups = [
            dict(params=[p for p in params.values() if p.dim() >= 2], weight_decay=cfg.weight_decay),
            dict(params=[p for p in params.values() if p.dim() < 2] + exempt, weight_decay=0.0),
        ]
        self.parts = {"adamw": torch.optim.AdamW(groups, cfg.learning_rate, (cfg.beta1, cfg.beta2), fused=True)}
        if muon:
            self.parts["muon"] = torch.optim.Muon(muon, cfg.muon_lr, cfg.weight_decay)
        for group in self.groups():
            group["initial_lr"] = group["lr"]

    def groups(self):
        return [group for part in self.parts.values() for group in part.param_groups]

    def set_rates(self, share):
        """Sets the learning rates to a share of their peaks."""
        for group in self.groups():
            group["lr"] = share * group["initial_lr"]

    def step(self):
        for part in self.parts.values():
            part.step()

    def zero_grad(self):
        for part in self.parts.values():
            part.zero_grad()

    def params(self, part):
        """A part's parameters, in its own order."""
        return [p for group in part.param_groups for p in group["params"]]

    def state_dict(self):
        """{part: {parameter: its moments}}."""
        return {name: {self.names[p]: part.state[p] for p in self.params(part)} for name, part in self.parts.items()}

    def load_state_dict(self, saved):
        """Takes the moments of a state_dict: rates, decay and betas are those of this call. ValueError unless each
        parameter finds its own: the fused optimizer would write past the end of a smaller tensor."""
        for name, part in self.parts.items():
            params = self.params(part)
            moments = saved.get(name) if isinstance(saved.get(name), dict) else {}
            state = [moments.get(self.names[p]) for p in params]
            if not all(isinstance(own, dict) and self.fits(name, p, own) for p, own in zip(params, state, strict=True)):
                raise ValueError(f"its optimizer state is not that of this model and {name}")
            part.load_state_dict(part.state_dict() | {"state": {i: own for i, own in enumerate(state) if own}})

    def fits(self, part, p, own):
        """Whether `own` are the moments of a parameter: none, where it never had a gradient."""
        shapes = {key: () if key == "step" else p.shape for key in MOMENTS[part]}
        return not own or own.keys() == shapes.keys() and all(
            checkpoints.is_dense(t) and t.is_contiguous() and t.dtype == torch.float32 and t.shape == shapes[key]
            and t.isfinite().all() for key, t in own.items()
        )  # fmt: skip


def schedule(cfg, step):
    """The share of the peak learning rates at a step: a linear warm-up, then a line or a cosine to min_lr /
    learning_rate, or to 1 if that is less, at max_iters."""
    if step < cfg.warmup_iters:
        return (step + 1) / (cfg.warmup_iters + 1)
    low = min(1.0, cfg.min_lr / max(cfg.learning_rate, 1e-12))
    left = 1 - min(1.0, (step - cfg.warmup_iters) / max(1, cfg.max_iters - cfg.warmup_iters))
    return low + (1 - low) * (left if cfg.decay == "linear" else 0.5 * (1 - math.cos(math.pi * left)))


def share_rows(cfg, world):
    """The rows of a step, the micro-steps of each process, and the rows of a micro-step. ValueError where the rows do
    not divide."""
    rows = cfg.batch_size * cfg.gradient_accumulation_steps
    micro_steps = -(-cfg.gradient_accumulation_steps // world.size)
    micro_rows, odd = divmod(rows, world.size * micro_steps)
    if odd:
        parts = f"{world.size} processes × {micro_steps} micro-steps"
        raise ValueError(f"batch_size·gradient_accumulation_steps={rows} must be a multiple of {parts}")
    return rows, micro_steps, micro_rows


@torch.no_grad()
def evaluate(model, split, starts, rows, world, dtype, label="validation"):
    """Mean loss, in nats per token, of the windows of block_size tokens at `starts`, split among the processes."""
    mine, total = starts[world.rank :: world.size], 0.0
    model.eval()
    silent = None if world.is_first else True  # None: where stderr is not a terminal
    with autocast(world.device, dtype):
        for i in tqdm(range(0, len(mine), rows), desc=label, unit="batch", leave=False, disable=silent):
            batch = mine[i : i + rows]
            tokens = split.windows(batch, model.config.block_size).to(world.device)
            total += model(tokens[:, :-1], tokens[:, 1:])[1].item() * len(batch)
    model.train()
    return world.sum(total) / len(starts)


def flops_per_token(model):
    """6 per weight that multiplies plus 12·L·C·T for attention (Chowdhery et al. 2022, arXiv 2204.02311)."""
    c = model.config
    return 6 * sum(p.numel() for p in model.transformer.parameters()) + 12 * c.n_layer * c.n_embd * c.block_size


class Stop:
    """A signal that asks the loop to save and end: Ctrl-C, termination, or the terminal's end. A second Ctrl-C ends it
    at once."""

    def __init__(self):
        self.signum = 0
        signals = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
        heard = [s for s in signals if signal.getsignal(s) != signal.SIG_IGN]  # nohup makes us deaf to one
        self.old = {s: signal.signal(s, self.ask) for s in heard}

    def ask(self, signum, frame):
        if self.signum and signum == signal.SIGINT:
            raise KeyboardInterrupt
        self.signum = self.signum or signum
        with contextlib.suppress(OSError):  # at once, whatever is being computed; the terminal may be gone
            os.write(2, b"\nstopping: the run is saved first (Ctrl-C again ends it at once)\n")

    def restore(self):
        for s, handler in self.old.items():
            signal.signal(s, handler)


def open_folder(cfg, dataset):
    """The Checkpoint to go on from, or None for a new run. ValueError where out_dir holds something else."""
    folder = Path(cfg.out_dir)
    if cfg.overwrite or not any((folder / name).exists() for name in ("latest.pt", "best.pt")):
        if cfg.resume:
            raise ValueError(f"there is no run to resume in {folder}")
        return None
    checkpoint = checkpoints.load(folder, "latest")
    old, new = checkpoint.settings, dataclasses.asdict(cfg)
    if missing := sorted(new.keys() - old.keys()):
        raise ValueError(f"{checkpoint.path} is damaged: its settings lack {missing[0]}")
    changed = [k for k in new if k not in CALL_FIELDS and new[k] != old[k]]
    if checkpoint.dataset_hash != dataset.hash and "dataset" not in changed:
        changed.append("the prepared text")
    begun = ("init_from", "seed", "optimizer", "dataset", "the prepared text")  # what a run began with
    fixed = [k for k in changed if k in vars(checkpoint.config) or k in begun]
    if cfg.resume and fixed:
        raise ValueError(f"{folder} cannot be resumed with another {', '.join(fixed)}: choose another --out_dir")
    if changed and not cfg.resume:
        what = ", ".join(f"{k} {old[k]!r} there, {new[k]!r} now" if k in new else k for k in changed[:4])
        ways = "go on with that run under these settings (--resume), or discard it (--overwrite)"
        raise ValueError(f"{folder} holds another run ({what}): choose another --out_dir, or {ways}")
    checkpoint.tokenizer(dataset)  # must be the same
    return checkpoint


def begin_from(path, model, dataset):
    """Loads another run's weights into the model: the whole backbone, the scheme's parameters that both runs have, and
    of a table of another length the rows that both have. Returns lines for the log."""
    checkpoint = checkpoints.load(path)
    checkpoint.tokenizer(dataset)  # must be the same
    source, lines = dict(checkpoint.weights), [f"begun from {checkpoint.path}, step {checkpoint.step}"]
    for name, own in model.state_dict().items():
        theirs, is_schemes = source.pop(name, None), name.startswith("pos.")
        if theirs is not None and theirs.shape == own.shape:
            own.copy_(theirs)
        elif theirs is None and is_schemes:
            lines.append(f"{name} starts untrained")
        elif is_schemes and theirs.shape[1:] == own.shape[1:]:
            n = min(len(theirs), len(own))
            own[:n] = theirs[:n]
            lines.append(f"{name} keeps its first {n} rows, {len(own) - n} start untrained")
        else:
            shapes = f"{tuple(own.shape)} here, {None if theirs is None else tuple(theirs.shape)} there"
            raise ValueError(f"init_from={path} is of another size ({name}: {shapes})")
    if checkpoint.config.pos_scheme == model.config.pos_scheme:
        model.pos.begin_from(checkpoint.config)
    for name in source:
        if not name.startswith("pos."):
            raise ValueError(f"init_from={path} has weights that this model does not have, such as {name}")
        lines.append(f"{name} is not loaded")
    return lines


def open_log(cfg, world, segment, step):
    """The log of a run that begins after `step`. A new run first deletes what another left in its folder. Only the
    first process prints and writes."""
    if not world.is_first:
        return RunLog()
    folder = Path(cfg.out_dir)
    folder.mkdir(parents=True, exist_ok=True)
    group = cfg.wandb_group or Path(cfg.dataset).name
    id = f"{folder.name}-{stamp()}" + (f"-r{segment}" if segment else "")  # no id is ever used twice
    axes = {"train": "step", "val": "step"}
    tracker = Wandb(cfg.wandb_mode, cfg.wandb_project, group, id, "train", dataclasses.asdict(cfg), axes)
    if segment == 0 and cfg.overwrite:
        for name in ("latest.pt", "best.pt", "metrics.jsonl"):
            (folder / name).unlink(missing_ok=True)
    elif segment == 0 and (folder / "metrics.jsonl").is_file():  # of a run that ended before its first checkpoint
        (folder / "metrics.jsonl").replace(folder / f"metrics-{stamp()}.jsonl")
    return RunLog(folder, step, tracker)


def save(checkpoint, lock, is_best):
    """Saves a checkpoint in the locked folder. Returns why it could not be saved, or None, and whether best.pt is this
    one now."""
    folder, best = lock.folder, lock.folder / "best.pt"
    there = os.stat(best) if best.exists() else None
    try:
        lock.keep()
        checkpoint.save(folder, is_best)
    except OSError as error:
        why = f"step {checkpoint.step} could not be saved in {folder}: {error.strerror or error}"
        return why, best.exists() and not (there and os.path.samestat(os.stat(best), there))
    return None, is_best


def closing_lines(cfg, step, first_step, seconds, best_val_loss):
    """What the log says after the last step."""
    folder = Path(cfg.out_dir)
    if step < cfg.max_iters:
        return [f"stopped and saved at step {step}. Go on with:\n  python train.py --resume --out_dir={folder}"]
    done = f"{step - first_step} steps in {format_seconds(seconds)}"
    return [
        f"{done}, best validation loss {best_val_loss:.4f}: {folder}/best.pt",
        f"sample    python sample.py --out_dir={folder}",
        f"evaluate  python eval_length.py {folder}",
    ]


# ----------------------------------------------------------------------------------------------------------
# What the script does


def train(cfg, lock):
    """Trains as cfg says, in the folder that the Lock holds. Returns the best validation loss in nats per token. A
    setting that does not fit raises ValueError before anything is written."""
    # this process's device, and the text
    world = World.join(cfg.device)
    device, dtype = world.device, pick_dtype(cfg.dtype, world.device)
    dataset = world.first_goes_first(lambda: data.load(cfg.dataset))

    # the model and its optimizer, the same in every process
    model = GPT(cfg.model_config(dataset.tokenizer.n_vocab), seed=cfg.seed).to(device)
    optimizer = Optimizer(model, cfg)

    # the batches, and the windows of validation text to watch
    rows, micro_steps, micro_rows = share_rows(cfg, world)
    batches = data.Batches(dataset.train, cfg.block_size, rows, cfg.seed)
    val_starts = dataset.val.val_starts(cfg.block_size, VAL_TOKENS)

    # go on with the run in out_dir, or begin a new one
    folder, checkpoint = Path(cfg.out_dir), open_folder(cfg, dataset)
    step, best_val_loss, segment, begun = 0, math.inf, 0, []
    if checkpoint is not None:
        step, best_val_loss, segment = checkpoint.step, checkpoint.best_val_loss, checkpoint.segment + 1
        if step >= cfg.max_iters:
            if world.is_first:
                print(f"{folder} is finished: {step} steps, best validation loss {best_val_loss:.4f}")
            return best_val_loss
        model.load_state_dict(checkpoint.weights)
        try:
            optimizer.load_state_dict(checkpoint.optimizer)
        except ValueError as error:
            raise ValueError(f"{checkpoint.path} cannot be resumed: {error}") from None
        begun = [f"going on after step {step}"]
    elif cfg.init_from:
        begun = begin_from(cfg.init_from, model, dataset)
    del checkpoint  # its memory

    # compile the model, and let several processes average their gradients
    torch.backends.cuda.matmul.allow_tf32 = True
    compiled = cfg.compile if cfg.compile is not None else device.type == "cuda"
    step_model = world.wrap(torch.compile(model, mode=cfg.compile_mode) if compiled else model)

    # open the log
    peak = matmul_peak(device, dtype)
    n_params = sum(p.numel() for p in model.parameters())
    if cfg.warmup_iters >= cfg.max_iters:
        begun.append(f"note: warmup_iters={cfg.warmup_iters} is not over by step {cfg.max_iters}")
    log = open_log(cfg, world, segment, step)
    log.say([
        f"{folder}: {cfg.pos_scheme}, {n_params:,} parameters, {rows} windows of {cfg.block_size} tokens a step",
        f"{cfg.dataset}: {len(dataset.train.tokens):,} tokens to train on, vocabulary {dataset.tokenizer.n_vocab:,}",
        f"{world.size} × {device.type}, {str(dtype)[6:]}, {peak / 1e12:.3g} TFLOP/s matrix product",
        *begun,
    ])  # fmt: skip

    # the loss before the first step
    stop, stopping, first_step, begin = Stop(), False, step, time.perf_counter()
    if step == 0:
        val_loss = evaluate(model, dataset.val, val_starts, micro_rows, world, dtype)
        log(step, {"val/loss": val_loss}, f"step 0/{cfg.max_iters} | val {val_loss:.4f}")

    unsaved = None  # why the last checkpoint could not be written
    loss_sum, logged_step, logged_at = torch.zeros((), device=device), step, time.perf_counter()
    while step < cfg.max_iters and not stopping:
        # set the learning rates of this step
        share = schedule(cfg, step)
        optimizer.set_rates(share)

        # forward and backward, micro-step by micro-step
        if compiled:
            torch.compiler.cudagraph_mark_step_begin()  # what CUDA graphs computed before may be overwritten
        for micro_step in range(micro_steps):
            first = (world.rank * micro_steps + micro_step) * micro_rows
            x, y = world.place(batches(step, first, first + micro_rows))
            if cfg.dropout:  # seeded from where we are, so that a resumed run draws the same masks
                torch.manual_seed(hash((cfg.seed, step, micro_step, world.rank)))
            if world.size > 1:  # gradients are exchanged once a step
                step_model.require_backward_grad_sync = micro_step == micro_steps - 1
            with autocast(device, dtype):
                loss = step_model(x, y)[1] / micro_steps
            loss.backward()
            loss_sum += loss.detach()

        # clip the gradient and update the weights
        grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), cfg.grad_clip or math.inf)
        optimizer.step()
        optimizer.zero_grad()
        step += 1

        # stop after the same step in every process
        evaluating = step % cfg.eval_interval == 0 or step == cfg.max_iters
        logging = evaluating or step % cfg.log_interval == 0
        if world.size == 1 or logging:
            stopping = world.sum(stop.signum > 0) > 0

        # log losses and speed; to log one more metric, add it to this row
        if logging:
            train_loss = world.sum(loss_sum.item()) / (step - logged_step) / world.size
            tokens_per_s = (step - logged_step) * rows * cfg.block_size / (time.perf_counter() - logged_at)
            mfu = tokens_per_s * flops_per_token(model) / (world.size * peak)
            row = {"train/loss": train_loss, "train/lr": cfg.learning_rate * share, "train/grad_norm": grad_norm.item(),
                   "train/tokens_per_s": tokens_per_s, "train/mfu": mfu}  # fmt: skip
            if evaluating:
                row["val/loss"] = evaluate(model, dataset.val, val_starts, micro_rows, world, dtype)
                peak = max(peak, matmul_peak(device, dtype, 2))  # the first timing may have been disturbed
            if not math.isfinite(train_loss + row.get("val/loss", 0.0)):
                raise ValueError(
                    f"the loss is not finite at step {step}: lower --learning_rate; the last checkpoint is kept"
                )
            left = (time.perf_counter() - begin) / (step - first_step) * (cfg.max_iters - step)
            val = f" | val {row['val/loss']:.4f}" if evaluating else ""
            log(step, row, f"step {step}/{cfg.max_iters} | train {train_loss:.4f}{val} | lr {row['train/lr']:.1e} | "
                f"{tokens_per_s / 1e3:.1f}k tok/s | {mfu:.0%} MFU | {format_seconds(left)} left")  # fmt: skip
            loss_sum.zero_()
            logged_step, logged_at = step, time.perf_counter()

        # save after every evaluation, and before stopping; a full disk does not end training
        if evaluating or stopping:
            is_best = evaluating and (row["val/loss"] < best_val_loss or not (folder / "best.pt").exists())
            new_best = row["val/loss"] if is_best else best_val_loss
            if world.is_first:
                made = Checkpoint(
                    weights=model.state_dict(), config=model.config, step=step, optimizer=optimizer.state_dict(),
                    settings=dataclasses.asdict(cfg), best_val_loss=new_best,
                    tokenizer_spec=dataset.tokenizer.spec, dataset_hash=dataset.hash, segment=segment,
                )  # fmt: skip
                unsaved, is_best = save(made, lock, is_best)
                if unsaved:
                    log.say([f"{unsaved}. The last checkpoint stays, training goes on, and saves again later"])
            best_val_loss = new_best if is_best else best_val_loss

    # say where everything is
    stop.restore()
    if not unsaved:
        log.say(closing_lines(cfg, step, first_step, time.perf_counter() - begin, best_val_loss))
    log.close({"val/best_loss": best_val_loss})
    world.barrier()
    if unsaved:
        raise ValueError(f"{unsaved}. Make room, and go on with: python train.py --resume --out_dir={folder}")
    if step < cfg.max_iters:
        raise KeyboardInterrupt(stop.signum)
    return best_val_loss


def eval_only(cfg):
    """Prints the best checkpoint's loss over all of the validation text."""
    checkpoint = checkpoints.load(cfg.out_dir)
    dataset = data.load(cfg.dataset)
    checkpoint.tokenizer(dataset)  # must be the same
    world = World(pick_device(cfg.device))
    model = checkpoint.model(world.device)
    T = model.config.block_size
    starts = dataset.val.val_starts(T)
    text = f"all of the validation text, {len(starts):,} windows of {T} tokens"
    print(f"{checkpoint.path}, step {checkpoint.step}, over {text}:", flush=True)
    dtype = pick_dtype(cfg.dtype, world.device)
    loss = evaluate(model, dataset.val, starts, cfg.batch_size, world, dtype, checkpoint.path)
    info = dataset.meta["splits"]["val"]
    bits = loss / math.log(2) * info["tokens"] / info["bytes"]
    print(f"{loss:.4f} nats per token, {bits:.4f} bits per byte")
    return loss


def inherited(values):
    """The settings that a call takes from an earlier run, where its own `values` do not say otherwise. --resume and
    --eval_only take all but the device; --init_from takes the model's size, the text, and the length that a scheme was
    trained at before it is stretched."""
    if values.get("resume") or values.get("eval_only"):
        checkpoint = checkpoints.load(values["out_dir"], "latest")
        saved = checkpoint.settings | {"dataset": checkpoint.dataset_name(values.get("dataset"))}
        saved = {k: v for k, v in saved.items() if k not in ("resume", "overwrite", "device")}
        return config.checked(TrainConfig, saved, checkpoint.path)
    if not values.get("init_from"):
        return {}
    checkpoint = checkpoints.load(values["init_from"])
    args = dataclasses.asdict(checkpoint.config) | {"dataset": checkpoint.dataset_name(values.get("dataset"))}
    options = SCHEMES[args["pos_scheme"]].options
    if values.get("pos_scheme", args["pos_scheme"]) != args["pos_scheme"]:
        return {k: v for k, v in args.items() if k not in options}
    if "rope_block_size" in options:
        args["rope_block_size"] = args["rope_block_size"] or args["block_size"]
    return args


def main(argv):
    values, named = config.parse(TrainConfig, argv)
    if not values.get("out_dir"):
        stem = "-".join(Path(f).stem for f in named)
        values["out_dir"] = f"out/{stem or values.get('pos_scheme', TrainConfig.pos_scheme)}"
    cfg = TrainConfig(**inherited(values) | values)
    try:
        if cfg.eval_only:
            eval_only(cfg)
        else:
            is_first = os.environ.get("RANK", "0") == "0"
            with files.Lock(Path(cfg.out_dir)) if is_first else contextlib.nullcontext() as lock:
                train(cfg, lock)
    except RuntimeError as error:  # gloo and nccl have no type of their own for it
        if not World.lost(error):
            raise
        raise ConnectionError(f"another process of this run has ended or stands still ({str(error)[:80]}…)") from None
    finally:
        World.leave()  # after `train` has let go of DDP, whose threads must end first
    return 0


if __name__ == "__main__":
    config.script(main)
