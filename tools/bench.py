"""Times training steps of every scheme, side by side:  python -m tools.bench [config/gpt2.py] [--nanogpt=PATH]

A step is forward, backward, clipping and optimizer, on random tokens. The benchmark waits for each step; with
--flowing=8 only for every eighth, as train.py does on a GPU. --lengths=128,1024,8192 measures forward and backward on
one window of each length instead, and the peak memory.
--schemes=rope,mine leaves the other schemes out. With --nanogpt, the path of a nanoGPT checkout, nanoGPT's model and
optimizer join in. The contenders alternate, so a machine whose speed drifts treats them equally. Settings that neither
the model nor the optimizer reads do nothing.
"""

import math
import os
import runpy
import time
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import pairwise
from pathlib import Path

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # silences torch's profiler, which measures memory
import numpy as np
import torch
from torch.utils.benchmark import Timer

import config
from model import GPT, GPTConfig, scheme_names
from run.device import World, autocast
from run.optimizer import Optimizer, clip
from run.script import script
from train import TrainConfig

WARMUP = 3  # rounds that are not timed


@dataclass(frozen=True)
class BenchConfig(TrainConfig):
    # the benchmark
    rounds: int = 20  # timed turns of each contender
    vocab_size: int = 96  # about that of a text by character
    flowing: int = 1  # steps in a turn, of which only the last is waited for
    nanogpt: config.PathName = ""  # the path of a nanoGPT checkout to compare with
    lengths: str = ""  # measure time and memory at these lengths instead: 128,1024,8192
    schemes: str = ""  # only these schemes: rope,alibi,mine

    @property
    def chosen(self):
        """The schemes. Speeds are relative to the first, by default GPT-2's own."""
        if self.schemes:
            return self.schemes.split(",")
        return sorted(scheme_names(), key=lambda name: name != GPTConfig.pos_scheme)


def contenders(cfg, device):
    """{name: (model, optimizer)}: every scheme, the first under the other optimizer, and nanoGPT."""
    configs = {scheme: replace(cfg, pos_scheme=scheme) for scheme in cfg.chosen}
    other = "adamw" if cfg.optimizer == "muon" else "muon"
    configs[f"{cfg.chosen[0]}, {other}"] = replace(cfg, pos_scheme=cfg.chosen[0], optimizer=other)
    pairs = {}
    for name, settings in configs.items():
        model = GPT(settings.model_config(cfg.vocab_size)).to(device)
        pairs[name] = model, Optimizer(model, settings)
    if cfg.nanogpt:
        pairs["nanoGPT"] = nanogpt(cfg, device)
    return pairs


def nanogpt(cfg, device):
    """nanoGPT's model and optimizer with the same settings."""
    module = runpy.run_path(Path(cfg.nanogpt, "model.py"))
    settings = {field.name: getattr(cfg, field.name) for field in fields(module["GPTConfig"])}
    model = module["GPT"](module["GPTConfig"](**settings)).to(device)
    betas = cfg.beta1, cfg.beta2
    return model, model.configure_optimizers(cfg.weight_decay, cfg.learning_rate, betas, device.type)


def forward_backward(model, x, y, dtype):
    with autocast(x.device, dtype):
        loss = model(x, y)[1]
    loss.backward()
    return loss


def time_steps(cfg, device, dtype):
    """Prints the speed of a training step of each contender. The ratio is the median over the rounds of its speed
    relative to the first in the same round. MB: the peak memory of a step, beside parameters and the optimizer's."""
    pairs = contenders(cfg, device)
    is_compiled = device.type == "cuda" if cfg.compile is None else cfg.compile
    if is_compiled:
        torch._dynamo.config.recompile_limit = len(pairs)  # by default, the ninth model of a class is not compiled
        for model, _ in pairs.values():
            model.compile()
    x, y = torch.randint(cfg.vocab_size, (2, cfg.batch_size, cfg.block_size), device=device)

    def step_s(model, optimizer):
        start = time.perf_counter()
        for _ in range(cfg.flowing):
            loss = forward_backward(model, x, y, dtype)
            clip(model, cfg.grad_clip or math.inf)
            optimizer.step()
            model.zero_grad()
        loss.item()  # waits for the device
        return (time.perf_counter() - start) / cfg.flowing

    steps = [partial(step_s, *pair) for pair in pairs.values()]
    seconds = np.array([[step() for step in steps] for _ in range(WARMUP + cfg.rounds)])[WARMUP:]
    median_s = np.median(seconds, axis=0)
    speed = np.median(seconds[:, :1] / seconds, axis=0)
    settings = f"{cfg.optimizer}, {device.type}, {str(dtype)[6:]}" + ", compiled" * is_compiled
    print(f"{cfg.batch_size} windows of {cfg.block_size} tokens a step, {settings}")
    print(f"{'parameters':>32}{'ms a step':>11}{'MB':>8}{'tokens/s':>11}{f'speed relative to {cfg.chosen[0]}':>30}")
    for n, (name, (model, _)) in enumerate(pairs.items()):
        size = sum(p.numel() for p in model.parameters())
        numbers = f"{1000 * median_s[n]:11.1f}{peak_memory(steps[n], device) / 1e6:8,.0f}"
        print(f"{name:20}{size:12,}{numbers}{x.numel() / median_s[n]:11,.0f}{speed[n]:30.3f}")


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


def time_lengths(cfg, device, dtype):
    """Prints the time and the peak memory of a step on one window of each length, forward and backward. Skips the
    lengths at which it might need more than half of the machine's memory, as it may grow with the square of the
    length."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    lengths = sorted(map(int, cfg.lengths.split(",")))
    print(f"One window, forward and backward, {cfg.n_layer} layers, {device.type}, {str(dtype)[6:]}")
    print(f"{'':20}{'length':>8}{'ms a step':>15}{'MB a step':>15}")
    for scheme in cfg.chosen:
        peak = 0
        for shorter, length in pairwise([1, *lengths]):
            if peak * (length / shorter) ** 2 > memory / 2:
                break
            settings = replace(cfg, pos_scheme=scheme, block_size=length)
            model = GPT(settings.model_config(cfg.vocab_size)).to(device)
            idx = torch.randint(cfg.vocab_size, (1, length), device=device)
            step = partial(forward_backward, model, idx, idx, dtype)
            peak = peak_memory(step, device)  # of the first step, which also allocates the gradients
            timer = Timer("step()", globals={"step": step}, num_threads=torch.get_num_threads())
            ms = 1000 * timer.timeit(cfg.rounds).mean
            print(f"{scheme:20}{length:8,}{ms:15,.2f}{peak / 1e6:15,.2f}")


def main(argv):
    cfg = config.load(BenchConfig, argv)
    world = World(cfg.device, cfg.dtype)
    compare = time_lengths if cfg.lengths else time_steps
    compare(cfg, world.device, world.dtype)
    return 0


if __name__ == "__main__":
    script(main)
