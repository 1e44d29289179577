"""Times training steps of every scheme, side by side:  python -m tools.bench [config/gpt2.py] [--nanogpt=PATH]

A step is forward, backward, clipping and optimizer, on random tokens. --lengths=128,1024,8192 measures one layer's
attention instead, forward and backward on one window of each length, and the peak memory of it and of a training step.
--schemes=rope,mine leaves the other schemes out. With --nanogpt, the path of a nanoGPT checkout, nanoGPT's model and
optimizer join in. The contenders alternate, so a machine whose speed drifts treats them equally. Settings that neither
the model nor the optimizer reads do nothing.
"""

import math
import os
import runpy
import time
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from pathlib import Path

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # silences torch's profiler, which measures memory
import numpy as np
import torch
from torch.utils.benchmark import Timer
from tqdm import tqdm

import config
from model import GPT, GPTConfig, scheme_names
from run.device import World, autocast
from run.optimizer import Optimizer
from run.script import script
from train import TrainConfig

BASE = GPTConfig.pos_scheme  # speeds are relative to this scheme, GPT-2's own


@dataclass(frozen=True)
class BenchConfig(TrainConfig):
    # the benchmark
    vocab_size: int = 96  # about that of a text by character
    rounds: int = 20  # timed turns of each contender
    nanogpt: str = ""  # the path of a nanoGPT checkout to compare with
    lengths: str = ""  # measure attention at these lengths instead of steps: 128,1024,8192
    schemes: str = ""  # only these schemes: rope,alibi,mine

    @property
    def chosen(self):
        return self.schemes.split(",") if self.schemes else scheme_names()


def contenders(cfg, device):
    """{name: (model, optimizer)}: every scheme, BASE under the other optimizer, and nanoGPT."""
    other = {"muon": "adamw", "adamw": "muon"}[cfg.optimizer]
    configs = {scheme: replace(cfg, pos_scheme=scheme) for scheme in dict.fromkeys([BASE, *cfg.chosen])}
    configs[f"{BASE}, {other}"] = replace(cfg, pos_scheme=BASE, optimizer=other)
    models = {name: GPT(own.model_config(own.vocab_size)).to(device) for name, own in configs.items()}
    found = {name: (model, Optimizer(model, configs[name])) for name, model in models.items()}
    if cfg.nanogpt:
        theirs = runpy.run_path(str(Path(cfg.nanogpt, "model.py")), run_name="nanogpt")
        settings = {f.name: getattr(cfg, f.name) for f in fields(theirs["GPTConfig"])}
        model = theirs["GPT"](theirs["GPTConfig"](**settings)).to(device)
        rates = cfg.weight_decay, cfg.learning_rate, (cfg.beta1, cfg.beta2)
        found["nanoGPT"] = model, model.configure_optimizers(*rates, device.type)
    return found


def steps(cfg, device, dtype):
    """Prints the speed of a training step of each contender. The ratio is the median over the rounds of its speed
    relative to BASE in the same round."""
    found = contenders(cfg, device)
    compiled = device.type == "cuda" if cfg.compile is None else cfg.compile
    runs = [torch.compile(model) if compiled else model for model, _ in found.values()]
    x, y = torch.randint(cfg.vocab_size, (2, cfg.batch_size, cfg.block_size), device=device)
    seconds = np.empty((3 + cfg.rounds, len(runs)))  # three rounds to warm up
    for row in tqdm(seconds, desc="rounds", leave=False, disable=None):
        for i, (run, (model, optimizer)) in enumerate(zip(runs, found.values(), strict=True)):
            started = time.perf_counter()
            with autocast(device, dtype):
                loss = run(x, y)[1]
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), cfg.grad_clip or math.inf)
            optimizer.step()
            model.zero_grad()
            loss.item()  # waits for the device
            row[i] = time.perf_counter() - started
    seconds = seconds[3:]
    speeds = np.median(seconds[:, [list(found).index(BASE)]] / seconds, axis=0)
    what = f"{cfg.optimizer}, {device.type}, {str(dtype)[6:]}" + ", compiled" * compiled
    print(f"{cfg.batch_size} windows of {cfg.block_size} tokens a step, {what}")
    print(f"{'':20}{'parameters':>12}{'ms a step':>11}{'tokens/s':>11}{f'speed relative to {BASE}':>30}")
    for name, own, speed in zip(found, np.median(seconds, axis=0), speeds, strict=True):
        size = sum(p.numel() for p in found[name][0].parameters())
        print(f"{name:20}{size:12,}{1000 * own:11.1f}{x.numel() / own:11,.0f}{speed:30.3f}")


def peak_memory(action, device):
    """The peak memory of an action in bytes, beyond what was already allocated."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        action()
        return torch.cuda.max_memory_allocated() - before
    with torch.profiler.profile(profile_memory=True) as profile:  # records every allocation and release
        action()
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    return np.cumsum([e.nbytes() for e in sorted(events, key=lambda e: e.start_ns())]).max()


def measure(model, idx, rounds, device):
    """The seconds and the peak memory of the first layer's attention over idx (1, T), and the peak memory of a step."""
    with torch.no_grad():
        x, layers = model.enter(idx)
    x = x.detach().requires_grad_()

    def attention():
        model.transformer.h[0].attn(x, layers[0]).sum().backward()

    timer = Timer("attention()", globals={"attention": attention}, num_threads=torch.get_num_threads())
    seconds = timer.timeit(rounds).mean
    return seconds, peak_memory(attention, device), peak_memory(lambda: model(idx, idx)[1].backward(), device)


def at_lengths(cfg, device, dtype):
    """Prints the time and memory of attention, and the memory of a step, at each length. Skips the lengths at which a
    step might need more than half of the machine's memory, as it may grow with the square of the length."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if device.type == "cuda":
        memory = torch.cuda.get_device_properties(device).total_memory
    print(f"One window, forward and backward, {device.type}, {str(dtype)[6:]}")
    print(f"{'':20}{'length':>8}{'ms of attention':>18}{'MB of attention':>18}{'MB of a step':>15}")
    for scheme in cfg.chosen:
        for n, longer in pairwise([*sorted({int(n) for n in cfg.lengths.split(",")}), 0]):
            own = replace(cfg.model_config(cfg.vocab_size), pos_scheme=scheme, block_size=n)
            idx = torch.randint(cfg.vocab_size, (1, n), device=device)
            with autocast(device, dtype):
                seconds, alone, step = measure(GPT(own).to(device), idx, cfg.rounds, device)
            print(f"{scheme:20}{n:8,}{1000 * seconds:18,.2f}{alone / 1e6:18,.2f}{step / 1e6:15,.2f}")
            if step * (longer / n) ** 2 > memory / 2:
                break


def main(argv):
    cfg = config.load(BenchConfig, argv)
    world = World(cfg.device, cfg.dtype)
    (at_lengths if cfg.lengths else steps)(cfg, world.device, world.dtype)
    return 0


if __name__ == "__main__":
    script(main)
