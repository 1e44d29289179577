"""Trains a GPT:  python train.py config/rope.py --max_iters=500

Settings come from config files and --key=value flags (listed below); the defaults are the baseline experiment. The
run's folder gets latest.pt, best.pt, metrics.jsonl and loss.png. Ctrl-C saves and stops. The same command resumes an
unfinished run.
On several GPUs: torchrun --standalone --nproc_per_node=8 train.py config/gpt2.py
"""

import contextlib
import math
import os
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Literal

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import config
import data
from data.tasks import TASKS
from model import GPT, GPTConfig, scheme_names
from run import files
from run.checkpoint import CALL_FIELDS, load_checkpoint, save_run
from run.device import DType, World, autocast
from run.optimizer import Optimizer, clip
from run.script import Stop, script
from run.start import all_settings, find_run, start
from run.tracking import RunLog, WandbMode

__doc__ += f"\nValues of pos_scheme: {', '.join(scheme_names())}"

LONG_RUN = 2000  # steps: in a shorter run, compiling takes longer than it saves
VAL_TOKENS = 65_536  # the most that are used to validate during training; --eval_only uses the whole validation text


@dataclass(frozen=True)
class TrainConfig(GPTConfig):
    # the model: the baseline's size
    block_size: int = 128  # tokens of context
    vocab_size: int = 0  # 0: the tokenizer's
    n_layer: int = 4
    n_head: int = 4
    n_embd: int = 128
    bias: bool = False  # biases in Linear and LayerNorm; slightly better and faster without
    init_from: config.PathName = ""  # start with the weights of a run; tools.import_weights makes one of GPT-2's
    # data
    dataset: config.PathName = "sympy_char"  # a folder of data/, or a path with a slash
    max_position: int = 0  # positions are sampled below it in each step (Ruoss 2023); 0: positions 0, 1, 2, …
    sampled_every: config.Count = 1  # sampled in every n-th step; in the others, positions are 0, 1, 2, …
    unscored: int = 0  # predictions at the start of each window that do not count, in training and its validation
    batch_size: config.Count = 32  # windows per micro-step
    gradient_accumulation_steps: config.Count = 1  # micro-steps per step, over all processes
    # optimizer
    optimizer: Literal["muon", "adamw"] = "muon"  # muon is for the layers' matrices; with --init_from: adamw
    max_iters: config.Count = 850  # steps
    learning_rate: float = 4e-3  # AdamW's peak
    muon_lr: float = 0.04  # Muon's peak; both follow the same schedule
    warmup_iters: int = 30  # steps over which the rates rise
    decay: Literal["linear", "cosine"] = "linear"  # how the rates fall after the warm-up
    min_lr: float = 0.0  # AdamW's at the end
    weight_decay: float = 0.1  # for matrices and tables
    beta1: config.Share = 0.9  # AdamW's average of gradients
    beta2: config.Share = 0.99  # AdamW's average of squared gradients
    grad_clip: float = 1.0  # largest gradient norm; 0: no clipping
    seed: config.Seed = 1337  # for weights, batches and dropout
    # this call only, not part of the experiment: run.checkpoint.CALL_FIELDS lists the same names
    out_dir: config.PathName = ""  # the run's folder; default: out/ and the names of the config files, or the scheme
    resume: bool = False  # resume the run in out_dir, also with other settings, such as a larger max_iters
    overwrite: bool = False  # replace the run in out_dir
    eval_only: bool = False  # print the loss of the best checkpoint over the whole validation text
    eval_interval: config.Count = 100  # steps between evaluations, each of which saves a checkpoint
    log_interval: config.Count = 10  # steps between log lines
    device: str = "auto"  # auto, cpu, cuda, cuda:1, mps
    dtype: DType = "auto"  # auto: bfloat16 on a GPU that has it
    compile: bool | None = None  # torch.compile; default: on a CUDA device, unless the run is short
    wandb_mode: WandbMode = "auto"  # auto: as you have set wandb, or online with a login, offline without
    wandb_project: str = ""  # where the charts go; default: as you have set wandb, or lengthwise
    wandb_group: str = ""  # default: the dataset

    def __post_init__(self):
        config.check_values(self)
        model_config = self.model_config(self.vocab_size or 1)  # only a check: train() knows the vocabulary
        if self.max_position:
            config.at_least(self.block_size, self, "max_position")
            model_config.check_positions(self.max_position, with_gaps=True)
        if self.unscored >= self.block_size:
            raise ValueError(f"unscored={self.unscored} must be below block_size={self.block_size}")
        if self.resume and self.overwrite:
            raise ValueError("--resume and --overwrite exclude each other")

    def model_config(self, n_vocab):
        """The GPTConfig for a tokenizer of n_vocab ids. ValueError if vocab_size is smaller."""
        if 0 < self.vocab_size < n_vocab:
            raise ValueError(
                f"vocab_size={self.vocab_size} is smaller than the tokenizer's {n_vocab}: use the default, 0, or with "
                "--init_from a text with the same tokenizer"
            )
        settings = {f.name: getattr(self, f.name) for f in fields(GPTConfig)}
        return GPTConfig(**settings | {"vocab_size": self.vocab_size or n_vocab})


@torch.no_grad()
def evaluate(model, split, starts, rows, world, unscored=0):
    """Mean loss, in nats per token, of the windows of block_size tokens at `starts`, each without its first `unscored`
    targets, divided among the processes."""
    model.eval()
    starts_here = starts[world.rank :: world.size]
    total = 0.0
    with autocast(world.device, world.dtype):
        for i in range(0, len(starts_here), rows):
            batch = starts_here[i : i + rows]
            tokens = split.windows(batch, model.config.block_size).to(world.device)
            _, loss = model(tokens[:, :-1], tokens[:, 1 + unscored :])
            total += loss.item() * len(batch)
    model.train()
    return world.sum(total) / len(starts)


def train(cfg, run=None, source=None):
    """Trains a new model or, given Checkpoints, resumes `run` or starts with the weights of `source`. Returns the best
    validation loss in nats per token. ValueError for settings that do not fit, before anything is written."""
    # the processes, and the rows of this one in each micro-step
    world = World(cfg.device, cfg.dtype)
    rows, micro_steps = world.share_rows(cfg.batch_size, cfg.gradient_accumulation_steps)

    # the text, its batches and the validation windows
    dataset = data.load(cfg.dataset)
    batches = data.Batches(dataset.train, cfg.block_size, rows, cfg.seed, world.device)
    val_starts = dataset.val.val_starts(cfg.block_size, VAL_TOKENS)

    # the model: with new weights, with those of another run, or where an earlier call stopped
    model_config = cfg.model_config(dataset.tokenizer.n_vocab)
    model = GPT(model_config, seed=cfg.seed).to(world.device)
    optimizer = Optimizer(model, cfg)
    checkpoint, messages = start(cfg, model, optimizer, dataset, run, source)
    step = checkpoint.step
    if step >= cfg.max_iters:
        if world.rank == 0:
            print(f"{cfg.out_dir} is finished: {step} steps, best validation loss {checkpoint.best_val_loss:.4f}")
        return checkpoint.best_val_loss

    # compile the model for a long run, and average gradients over the processes
    compiled = cfg.compile
    if compiled is None:
        compiled = world.device.type == "cuda" and cfg.max_iters - step >= LONG_RUN
    step_model = torch.compile(model) if compiled else model
    if world.size > 1:
        step_model = DistributedDataParallel(step_model, find_unused_parameters=bool(cfg.layers))

    # open the log
    log = RunLog(cfg, world.rank, checkpoint.segment, step)
    log.say(
        f"{cfg.out_dir}: {cfg.pos_scheme}, {sum(p.numel() for p in model.parameters()):,} parameters, {cfg.optimizer}",
        f"{cfg.dataset}: {len(dataset.train.tokens):,} training tokens, vocabulary of {dataset.tokenizer.n_vocab:,}",
        f"steps of {rows} × {cfg.block_size} tokens",
        f"{world.size} × {world.device.type}, {str(world.dtype)[6:]}",
        *messages,
    )

    # the loss before the first step; from here on, a signal asks the loop to save and stop
    stop = Stop()
    stopping = False
    validate = partial(evaluate, model, dataset.val, val_starts, len(micro_steps[0]), world, cfg.unscored)
    if step == 0:
        val_loss = validate()
        log(0, {"val/loss": val_loss})

    loss_sum = torch.zeros((), device=world.device)
    while step < cfg.max_iters and not stopping:
        # forward and backward, one micro-step at a time
        max_position = 0 if step % cfg.sampled_every else cfg.max_position
        positions = data.sampled_positions(cfg.block_size, max_position, (cfg.seed, step))
        for n, my_rows in enumerate(micro_steps):
            x, y = batches(step, my_rows.start, my_rows.stop)
            if cfg.dropout:  # a resumed run draws the same masks
                torch.manual_seed(hash((cfg.seed, step, n, world.rank)))
            if world.size > 1:  # only the last micro-step averages gradients over the processes
                step_model.require_backward_grad_sync = n == len(micro_steps) - 1
            with autocast(world.device, world.dtype):
                _, loss = step_model(x, y[:, cfg.unscored :], positions=positions)
                loss = loss / len(micro_steps)
            loss.backward()
            loss_sum += loss.detach()

        # clip the gradient and update the weights
        share = optimizer.set_rates(step)
        grad_norm = clip(model, cfg.grad_clip or math.inf)
        optimizer.step()
        model.zero_grad()
        step += 1

        # stop after the same step in all processes
        evaluating = step % cfg.eval_interval == 0 or step == cfg.max_iters
        logging = evaluating or step % cfg.log_interval == 0
        if world.size == 1 or logging:
            stopping = world.sum(stop.asked) > 0

        # log losses and speed; to log another metric, add it to this row
        if logging:
            row = {
                "train/loss": world.sum(loss_sum.item()) / (step - log.step) / world.size,
                "train/lr": cfg.learning_rate * share,
                "train/grad_norm": grad_norm.item(),
                "train/tokens_per_s": rows * cfg.block_size * log.steps_per_s(step),
            }
            if evaluating:
                row["val/loss"] = validate()
            if not math.isfinite(row["train/loss"] + row.get("val/loss", 0.0)):
                kept = "the last checkpoint is kept" if any(log.folder.glob("*.pt")) else "nothing was saved"
                raise ValueError(f"the loss is not finite at step {step}: lower --learning_rate; {kept}")
            log(step, row)
            loss_sum.zero_()

        # save after each evaluation and before stopping
        if world.rank == 0 and (evaluating or stopping):
            checkpoint = replace(checkpoint, step=step, weights=model.state_dict(), optimizer=optimizer.state_dict())
            checkpoint = save_run(log.folder, checkpoint, row["val/loss"] if evaluating else math.inf)

    # say where everything is
    stop.restore()
    if world.rank == 0:
        text = dataset.meta["source"]["text"].split(",")[0]
        log.close(step, checkpoint.best_val_loss, "-m evaluation.answers" if text in TASKS else "eval_length.py")
    if world.size > 1:
        dist.barrier()  # the first process has saved
    if step < cfg.max_iters:
        raise KeyboardInterrupt
    return checkpoint.best_val_loss


def eval_only(cfg, checkpoint, values):
    """Prints the loss of the best checkpoint over the whole validation text. ValueError if the `values` of the command
    line do not apply to it, or if the text has changed and the command line does not name it."""
    trained = asdict(checkpoint.config) | checkpoint.settings
    for name in values.keys() - {*CALL_FIELDS, "batch_size", "dataset"}:
        if values[name] != trained.get(name):
            raise ValueError(f"--eval_only evaluates the model as it was trained: remove --{name}")
    world = World(cfg.device, cfg.dtype)
    dataset = data.load(cfg.dataset)
    checkpoint.check_dataset(dataset, "dataset" in values)
    starts = dataset.val.val_starts(cfg.block_size)
    loss = evaluate(checkpoint.model(world.device), dataset.val, starts, cfg.batch_size, world)
    if world.rank == 0:
        info = dataset.meta["splits"]["val"]
        bits = loss / math.log(2) * info["tokens"] / info["bytes"]
        print(f"{checkpoint.path}, step {checkpoint.step}, over the whole validation text, {len(starts):,} windows:")
        print(f"{loss:.4f} nats per token, {bits:.4f} bits per byte")


def main(argv):
    values, config_files = config.parse(TrainConfig, argv)
    source = load_checkpoint(values["init_from"]) if values.get("init_from") else None
    if not values.get("out_dir"):
        scheme = values.get("pos_scheme", (source.config if source else TrainConfig).pos_scheme)
        names = [Path(file).stem for file in config_files] or [scheme]
        values["out_dir"] = f"out/{'-'.join(names)}"
    writes = os.environ.get("RANK", "0") == "0" and not values.get("eval_only")
    with files.locked(Path(values["out_dir"])) if writes else contextlib.nullcontext():
        run = find_run(values)
        cfg = TrainConfig(**all_settings(values, run, source))
        try:
            if cfg.eval_only:
                eval_only(cfg, run, values)
            else:
                train(cfg, run, source)
        finally:  # by then, the threads of DDP have ended
            if dist.is_initialized():
                dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    script(main)
