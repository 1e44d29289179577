"""Times training steps of every scheme, side by side:  python -m tools.bench [config/gpt2.py] [--nanogpt=PATH]

A step is forward, backward, clipping and optimizer, on random tokens. --lengths=128,1024,8192 measures one layer's
attention instead, forward and backward on one window of each length, and the peak memory of it and of a training step.
With --nanogpt, the path of a nanoGPT checkout, nanoGPT's model and optimizer join in. The contenders alternate, so a
machine whose speed drifts treats them equally. A ratio is the median over rounds of the speed relative to `learnable`
in the same round.
"""

import dataclasses
import math
import os
import runpy
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # silences torch's profiler, which measures memory
import torch
from tqdm import tqdm

import config
from model import GPT, GPTConfig, scheme_names
from run.device import autocast, pick_device, pick_dtype
from run.optimizer import Optimizer
from run.script import script
from train import TrainConfig

BASE = GPTConfig.pos_scheme  # speeds are relative to this scheme, GPT-2's own
TURN_SECONDS = 20  # at each length, no round starts after this long per contender


@dataclass(frozen=True)
class BenchConfig(TrainConfig):
    vocab_size: int = 96  # about that of a text by character
    rounds: int = 20  # timed turns of each contender
    nanogpt: str = ""  # the path of a nanoGPT checkout to compare with
    lengths: str = ""  # measure attention at these lengths instead of steps: 128,1024,8192

    def __post_init__(self):
        super().__post_init__()
        config.at_least(1, self, "rounds")
        if not all(n.isdigit() and int(n) > 0 for n in self.lengths.split(",") if self.lengths):
            raise ValueError(f"lengths={self.lengths!r} must be positive numbers with commas between them: 128,1024")


def nanogpt(cfg, device):
    """The model and the optimizer of a nanoGPT checkout."""
    file = Path(cfg.nanogpt) / "model.py"
    if not file.is_file():
        raise ValueError(f"nanogpt={cfg.nanogpt!r} has no model.py: give the path of a nanoGPT checkout")
    names = runpy.run_path(str(file), run_name="nanogpt")
    settings = {f.name: getattr(cfg, f.name) for f in dataclasses.fields(names["GPTConfig"])}
    model = names["GPT"](names["GPTConfig"](**settings)).to(device)
    return model, model.configure_optimizers(cfg.weight_decay, cfg.learning_rate, (cfg.beta1, cfg.beta2), device.type)


def build(cfg, scheme, device):
    return GPT(dataclasses.replace(cfg.model_config(cfg.vocab_size), pos_scheme=scheme)).to(device)


def alternate(actions, rounds, device, warmup=3, most_seconds=math.inf):
    """{name: seconds of each turn} of {name: function}."""
    times, start = {name: [] for name in actions}, time.perf_counter()
    for n in tqdm(range(warmup + rounds), desc="rounds", leave=False, disable=None):
        for name, action in actions.items():
            started = time.perf_counter()
            action()
            if device.type == "cuda":
                torch.cuda.synchronize()
            if n >= warmup:
                times[name].append(time.perf_counter() - started)
        if n >= warmup and time.perf_counter() - start > most_seconds * len(actions):
            break
    return times


def contenders(cfg, device):
    """{name: (model, optimizer)}: every scheme, BASE under the other optimizer, and nanoGPT if asked for."""
    pairs = {"nanoGPT": nanogpt(cfg, device)} if cfg.nanogpt else {}
    other = {"muon": "adamw", "adamw": "muon"}[cfg.optimizer]
    named = [(scheme, scheme, cfg.optimizer) for scheme in dict.fromkeys([BASE, *scheme_names()])]
    for name, scheme, optimizer in [*named, (f"{BASE}, {other}", BASE, other)]:
        model = build(cfg, scheme, device)
        pairs[name] = model, Optimizer(model, dataclasses.replace(cfg, optimizer=optimizer))
    return pairs


def steps(cfg, device, dtype):
    """Prints the speed of a training step of every contender."""
    pairs = contenders(cfg, device)
    compiled = cfg.compile if cfg.compile is not None else device.type == "cuda"
    x, y = torch.randint(cfg.vocab_size, (2, cfg.batch_size, cfg.block_size), device=device)

    def step(run, model, optimizer):
        with autocast(device, dtype):
            loss = run(x, y)[1]
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), cfg.grad_clip or math.inf)
        optimizer.step()
        optimizer.zero_grad()
        loss.item()  # waits for the device

    runs = {name: torch.compile(m, mode=cfg.compile_mode) if compiled else m for name, (m, _) in pairs.items()}
    actions = {name: lambda run=runs[name], pair=pair: step(run, *pair) for name, pair in pairs.items()}
    times = alternate(actions, cfg.rounds, device)
    what = f"{cfg.optimizer}, {device.type}, {str(dtype)[6:]}" + ", compiled" * compiled
    tokens = cfg.batch_size * cfg.block_size
    print(f"{cfg.batch_size} windows of {cfg.block_size} tokens a step, {what}")
    print(f"{'':20}{'parameters':>12}{'ms a step':>11}{'tokens/s':>11}{f'speed relative to {BASE}':>30}")
    for name, (model, _) in pairs.items():
        seconds, size = statistics.median(times[name]), sum(p.numel() for p in model.parameters())
        speed = statistics.median(base / own for base, own in zip(times[BASE], times[name], strict=True))
        print(f"{name:20}{size:12,}{1000 * seconds:11.1f}{tokens / seconds:11,.0f}{speed:30.3f}")


def attention(model, idx):
    """A function that runs the first layer's attention over idx (1, T), forward and backward."""
    with torch.no_grad():
        x, [(block, positions, window), *_] = model.enter(idx)
    x = x.detach().requires_grad_()
    return lambda: block.attn(x, positions, window, None, idx.size(1)).sum().backward()


def peak_memory(action, device):
    """The most bytes that an action holds beyond those that were held before it."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        action()
        return torch.cuda.max_memory_allocated() - before
    with torch.profiler.profile(profile_memory=True) as profile:  # records every allocation and release
        action()
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    return torch.tensor([e.nbytes() for e in sorted(events, key=lambda e: e.start_ns())]).cumsum(0).max().item()


def measure(cfg, n, schemes, device, dtype):
    """{scheme: (seconds, bytes of attention, bytes of a step)} at length n."""
    idx = torch.randint(cfg.vocab_size, (1, n), device=device)
    models = {s: build(dataclasses.replace(cfg, block_size=n), s, device) for s in schemes}
    with autocast(device, dtype):
        actions = {s: attention(model, idx) for s, model in models.items()}
        times = alternate(actions, cfg.rounds, device, warmup=1, most_seconds=TURN_SECONDS)
        alone = {s: peak_memory(action, device) for s, action in actions.items()}
        step = {s: peak_memory(lambda m=m: m(idx, idx)[1].backward(), device) for s, m in models.items()}
    return {s: (statistics.median(times[s]), alone[s], step[s]) for s in schemes}


def at_lengths(cfg, device, dtype):
    """Prints attention's time and memory, and a step's memory, against length."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if device.type == "cuda":
        memory = torch.cuda.get_device_properties(device).total_memory
    lengths = sorted({int(n) for n in cfg.lengths.split(",")})
    found, fitting = {}, list(scheme_names())  # found: length -> scheme -> what was measured
    for n, longer in zip(lengths, [*lengths[1:], 0], strict=True):
        found[n] = measure(cfg, n, fitting, device, dtype)
        growth = (longer / n) ** 2  # at most: memory may grow with the square of the length
        fitting = [s for s in fitting if max(found[n][s][1:]) * growth < memory]
    print(f"One window, forward and backward, {device.type}, {str(dtype)[6:]}")
    titles = ("Attention of one layer, ms", "Attention's peak memory, MB", "A training step's peak memory, MB")
    for which, (title, unit) in enumerate(zip(titles, (1e3, 1e-6, 1e-6), strict=True)):
        print(f"{title:35}" + "".join(f"{n:>11,}" for n in lengths))
        for scheme in scheme_names():
            row = [f"{unit * found[n][scheme][which]:11,.2f}" if scheme in found[n] else f"{'—':>11}" for n in lengths]
            print(f"{scheme:35}" + "".join(row))


def main(argv):
    cfg = config.load(BenchConfig, argv)
    device, question = pick_device(cfg.device), at_lengths if cfg.lengths else steps
    torch.backends.cuda.matmul.allow_tf32 = True
    question(cfg, device, pick_dtype(cfg.dtype, device))
    return 0


if __name__ == "__main__":
    script(main)
