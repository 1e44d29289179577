"""Trains a GPT:  python train.py config/rope.py --max_iters=500

Settings come from config files and --key=value flags (see below); the defaults are the baseline experiment. The run's
folder holds latest.pt, best.pt and metrics.jsonl. Called again, a finished run says so and an unfinished one goes on.
On several GPUs: torchrun --standalone --nproc_per_node=8 train.py config/gpt2.py
"""

import contextlib
import dataclasses
import math
import os
from dataclasses import dataclass
from pathlib import Path

import torch
from tqdm import tqdm

import config
import data
from model import GPT, GPTConfig
from run import checkpoint as checkpoints
from run.begin import inherited, start
from run.checkpoint import Checkpoint
from run.device import DTYPES, autocast, matmul_peak, pick_device, pick_dtype
from run.folder import RunFolder
from run.optimizer import DECAYS, OPTIMIZERS, Optimizer, schedule
from run.script import Stop, script
from run.tracking import WANDB_MODES, Pace, RunLog, format_seconds
from run.world import World

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


def train(cfg, folder):
    """Trains as cfg says, in a RunFolder. Returns the best validation loss in nats per token. A setting that does not
    fit raises ValueError before anything is written."""
    # the processes, the text, the model and its optimizer: the same in every process
    world = World.join(cfg.device)
    device, dtype = world.device, pick_dtype(cfg.dtype, world.device)
    dataset = world.first_goes_first(lambda: data.load(cfg.dataset))
    model = GPT(cfg.model_config(dataset.tokenizer.n_vocab), seed=cfg.seed).to(device)
    optimizer = Optimizer(model, cfg)

    # the batches, this process's share of each, and the windows of validation text to watch
    rows, my_rows = world.share_rows(cfg.batch_size, cfg.gradient_accumulation_steps)
    batches = data.Batches(dataset.train, cfg.block_size, rows, cfg.seed)
    val_starts = dataset.val.val_starts(cfg.block_size, VAL_TOKENS)

    def validate():
        return evaluate(model, dataset.val, val_starts, len(my_rows[0]), world, dtype)

    # begin anew, from other weights, or where an earlier call stopped
    step, best_val_loss, segment, notes = start(cfg, model, optimizer, dataset)
    if step >= cfg.max_iters:
        if world.is_first:
            print(f"{cfg.out_dir} is finished: {step} steps, best validation loss {best_val_loss:.4f}")
        return best_val_loss
    if cfg.warmup_iters >= cfg.max_iters:
        notes += (f"note: warmup_iters={cfg.warmup_iters} is not over by step {cfg.max_iters}",)

    # compile the model, and let several processes average their gradients
    torch.backends.cuda.matmul.allow_tf32 = True
    compiled = cfg.compile if cfg.compile is not None else device.type == "cuda"
    step_model = world.wrap(torch.compile(model, mode=cfg.compile_mode) if compiled else model)

    # open the log
    peak, tokens = matmul_peak(device, dtype), rows * cfg.block_size
    log = RunLog.open(cfg, world, segment, step)
    log.say([
        f"{cfg.out_dir}: {cfg.pos_scheme}, {model.n_params():,} parameters, {rows} windows of {cfg.block_size} tokens a step",
        f"{cfg.dataset}: {len(dataset.train.tokens):,} tokens to train on, vocabulary {dataset.tokenizer.n_vocab:,}",
        f"{world.size} × {device.type}, {str(dtype)[6:]}, {peak / 1e12:.3g} TFLOP/s matrix product",
        *notes,
    ])  # fmt: skip
    stop, stopping = Stop(), False
    if step == 0:
        val_loss = validate()
        log(0, {"val/loss": val_loss}, f"step 0/{cfg.max_iters} | val {val_loss:.4f}")

    pace = Pace(step, cfg.max_iters, tokens, tokens * model.flops_per_token(), world.size * peak)
    loss_sum = torch.zeros((), device=device)
    while step < cfg.max_iters and not stopping:
        # forward and backward, micro-step by micro-step
        if compiled:
            torch.compiler.cudagraph_mark_step_begin()  # what CUDA graphs computed before may be overwritten
        for n, mine in enumerate(my_rows):
            x, y = world.place(batches(step, mine.start, mine.stop))
            if cfg.dropout:  # seeded from where we are, so that a resumed run draws the same masks
                torch.manual_seed(hash((cfg.seed, step, n, world.rank)))
            with world.exchange(step_model, n == len(my_rows) - 1), autocast(device, dtype):
                loss = step_model(x, y)[1] / len(my_rows)
            loss.backward()
            loss_sum += loss.detach()

        # clip the gradient and update the weights
        share = schedule(cfg, step)
        optimizer.set_rates(share)
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
            row = {"train/loss": world.sum(loss_sum.item()) / (step - pace.step) / world.size,
                   "train/lr": cfg.learning_rate * share, "train/grad_norm": grad_norm.item(), **pace.row(step)}  # fmt: skip
            if evaluating:
                row["val/loss"] = validate()
            if not math.isfinite(row["train/loss"] + row.get("val/loss", 0.0)):
                raise ValueError(f"the loss is not finite at step {step}: lower --learning_rate; the last checkpoint is kept")
            log(step, row, pace.line(step, row))
            loss_sum.zero_()
            pace.restart(step)

        # save after every evaluation, and before stopping; a full disk does not end training
        if world.is_first and (evaluating or stopping):
            made = Checkpoint(
                weights=model.state_dict(), config=model.config, step=step, optimizer=optimizer.state_dict(),
                settings=dataclasses.asdict(cfg), best_val_loss=best_val_loss,
                tokenizer_spec=dataset.tokenizer.spec, dataset_hash=dataset.hash, segment=segment,
            )  # fmt: skip
            best_val_loss = folder.save(made, row["val/loss"] if evaluating else math.inf, log)

    # say where everything is
    stop.restore()
    if world.is_first and not folder.unsaved:
        log.say(closing_lines(cfg, step, pace, best_val_loss))
    log.close({"val/best_loss": best_val_loss})
    world.barrier()
    if world.is_first:
        folder.check_saved()
    if step < cfg.max_iters:
        raise KeyboardInterrupt(stop.signum)
    return best_val_loss


def closing_lines(cfg, step, pace, best_val_loss):
    """What the log says after the last step."""
    if step < cfg.max_iters:
        return [f"stopped and saved at step {step}. Go on with:\n  python train.py --resume --out_dir={Path(cfg.out_dir)}"]
    folder, took = Path(cfg.out_dir), format_seconds(pace.seconds())
    return [
        f"{step - pace.first} steps in {took}, best validation loss {best_val_loss:.4f}: {folder}/best.pt",
        f"sample    python sample.py --out_dir={folder}",
        f"evaluate  python eval_length.py {folder}",
    ]


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


def main(argv):
    values, named = config.parse(TrainConfig, argv)
    if not values.get("out_dir"):
        stem = "-".join(Path(f).stem for f in named)
        values["out_dir"] = f"out/{stem or values.get('pos_scheme', TrainConfig.pos_scheme)}"
    cfg = TrainConfig(**inherited(TrainConfig, values) | values)
    try:
        if cfg.eval_only:
            eval_only(cfg)
        else:
            is_first = os.environ.get("RANK", "0") == "0"
            with RunFolder(Path(cfg.out_dir), partial=("*.pt", "*.jsonl")) if is_first else contextlib.nullcontext() as folder:
                train(cfg, folder)
    except RuntimeError as error:  # gloo and nccl have no type of their own for it
        if not World.lost(error):
            raise
        raise ConnectionError(f"another process of this run has ended or stands still ({str(error)[:80]}…)") from None
    finally:
        World.leave()  # after `train` has let go of DDP, whose threads must end first
    return 0


if __name__ == "__main__":
    script(main)
