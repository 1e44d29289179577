"""Training speed of every scheme, side by side:  python -m tools.bench [config/gpt2.py] [--nanogpt=PATH]

Times whole training steps (forward, backward, clipping, optimizer) on random tokens. The contenders take turns step by
step, so that a machine whose speed drifts treats them alike. The ratio is the median over rounds of the speed relative
to `learnable` in the same round. With --nanogpt, the path of a nanoGPT checkout, its model and optimizer join in.
"""

import dataclasses
import importlib.util
import math
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from tqdm import tqdm

import config
from model import GPT, SCHEMES, GPTConfig
from run.device import autocast, pick_device, pick_dtype
from train import Optimizer, TrainConfig

BASE = GPTConfig.pos_scheme  # what speeds are relative to: GPT-2's own scheme


@dataclass(frozen=True)
class BenchConfig(TrainConfig):
    vocab_size: int = 96  # stdlib_char's
    rounds: int = 20  # timed steps of each contender
    nanogpt: str = ""  # a checkout of nanoGPT, to measure beside

    def __post_init__(self):
        super().__post_init__()
        config.at_least(1, self, "rounds")


def nanogpt(cfg, device):
    """The model and the optimizer of a nanoGPT checkout."""
    file = Path(cfg.nanogpt) / "model.py"
    if not file.is_file():
        raise ValueError(f"nanogpt={cfg.nanogpt!r} has no model.py: give the path of a nanoGPT checkout")
    spec = importlib.util.spec_from_file_location("nanogpt_model", file)
    theirs = sys.modules["nanogpt_model"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(theirs)
    shared = {f.name: getattr(cfg, f.name) for f in dataclasses.fields(theirs.GPTConfig)}
    model = theirs.GPT(theirs.GPTConfig(**shared)).to(device)
    return model, model.configure_optimizers(cfg.weight_decay, cfg.learning_rate, (cfg.beta1, cfg.beta2), device.type)


def main(argv):
    cfg = config.load(BenchConfig, argv)
    device = pick_device(cfg.device)
    dtype = pick_dtype(cfg.dtype, device)
    torch.backends.cuda.matmul.allow_tf32 = True
    pairs = {"nanoGPT": nanogpt(cfg, device)} if cfg.nanogpt else {}
    for scheme in dict.fromkeys([BASE, *SCHEMES]):  # BASE comes first
        model = GPT(dataclasses.replace(cfg.model_config(cfg.vocab_size), pos_scheme=scheme)).to(device)
        pairs[scheme] = model, Optimizer(model, cfg)
    compiled = cfg.compile if cfg.compile is not None else device.type == "cuda"
    models = {name: torch.compile(model) if compiled else model for name, (model, _) in pairs.items()}
    x, y = torch.randint(cfg.vocab_size, (2, cfg.batch_size, cfg.block_size), device=device)

    times = {name: [] for name in pairs}  # seconds of each step
    for n in tqdm(range(3 + cfg.rounds), desc="rounds", leave=False, disable=None):
        for name, (model, optimizer) in pairs.items():
            begin = time.perf_counter()
            with autocast(device, dtype):
                loss = models[name](x, y)[1]
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), cfg.grad_clip or math.inf)
            optimizer.step()
            optimizer.zero_grad()
            loss.item()  # waits for the loss
            if device.type == "cuda":
                torch.cuda.synchronize()  # waits for all
            if n >= 3:  # the first three warm up
                times[name].append(time.perf_counter() - begin)

    where = f"{device.type}, {str(dtype)[6:]}" + ", compiled" * compiled
    print(f"{cfg.batch_size} windows of {cfg.block_size} tokens a step, {where}")
    print(f"{'':15}{'parameters':>12}{'ms a step':>11}{'tokens/s':>11}{f'speed relative to {BASE}':>30}")
    for name, (model, _) in pairs.items():
        seconds = statistics.median(times[name])
        ratios = [a / b for a, b in zip(times[BASE], times[name], strict=True)]
        rate = cfg.batch_size * cfg.block_size / seconds
        size = sum(p.numel() for p in model.parameters())
        print(f"{name:15}{size:12,}{1000 * seconds:11.1f}{rate:11,.0f}{statistics.median(ratios):30.3f}")
    return 0


if __name__ == "__main__":
    config.script(main)
