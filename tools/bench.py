"""What everything costs, side by side:  python -m tools.bench [config/gpt2.py] [--nanogpt=PATH]

Times whole training steps (forward, backward, clipping, optimizer) on random tokens. Other questions:
--lengths=128,1024,8192,32768: one layer's attention, forward and backward, and the peak memory of it and of a training
step, one window of each length. --sampling: a thousand tokens. --startup: from the command to its first words, five
times at most.

The contenders take turns, so that a machine whose speed drifts treats them alike. A ratio is the median over rounds of
the speed relative to `learnable` in the same round. With --nanogpt, the path of a nanoGPT checkout, its model, its
optimizer and its sampling join in. Tables are printed, pictures go to results_dir.
"""

import dataclasses
import importlib.util
import math
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch's profiler, which counts memory, says more than is of use
import torch
from tqdm import tqdm

import config
import train
from evaluation.pictures import figure_of, scheme_styles
from model import GPT, SCHEMES, GPTConfig
from run.script import script
from run.device import autocast, pick_device, pick_dtype
from run.optimizer import OPTIMIZERS, Optimizer
from train import TrainConfig

BASE = GPTConfig.pos_scheme  # what speeds are relative to: GPT-2's own scheme
TURN_SECONDS = 20  # at a length where a contender's turns take longer, there are fewer of them
SAMPLED, SPAN = 1000, 100  # tokens that --sampling draws, and over how many of them it takes an average


@dataclass(frozen=True)
class BenchConfig(TrainConfig):
    vocab_size: int = 96  # stdlib_char's
    rounds: int = 20  # timed turns of each contender
    nanogpt: str = ""  # a checkout of nanoGPT, to measure beside
    lengths: str = ""  # ask for attention alone at these lengths: 128,1024,8192
    sampling: bool = False  # ask for sampling
    startup: bool = False  # ask for the time to the first words of a command
    results_dir: str = "results"

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
    spec = importlib.util.spec_from_file_location("nanogpt_model", file)
    theirs = sys.modules["nanogpt_model"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(theirs)
    shared = {f.name: getattr(cfg, f.name) for f in dataclasses.fields(theirs.GPTConfig)}
    model = theirs.GPT(theirs.GPTConfig(**shared)).to(device)
    return model, model.configure_optimizers(cfg.weight_decay, cfg.learning_rate, (cfg.beta1, cfg.beta2), device.type)


def build(cfg, scheme, device):
    return GPT(dataclasses.replace(cfg.model_config(cfg.vocab_size), pos_scheme=scheme)).to(device)


def take_turns(contenders, rounds, device, warmup=3, most_seconds=math.inf):
    """{name: seconds of each turn} of {name: function}."""
    times, begin = {name: [] for name in contenders}, time.perf_counter()
    for n in tqdm(range(warmup + rounds), desc="rounds", leave=False, disable=None):
        for name, action in contenders.items():
            started = time.perf_counter()
            action()
            if device.type == "cuda":
                torch.cuda.synchronize()
            if n >= warmup:
                times[name].append(time.perf_counter() - started)
        if n >= warmup and time.perf_counter() - begin > most_seconds * len(contenders):
            break
    return times


def ratio(times, name):
    return statistics.median(a / b for a, b in zip(times[BASE], times[name], strict=True))


def save(figure, cfg, name):
    path = Path(cfg.results_dir, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    print(path)


# ----------------------------------------------------------------------------------------------------------
# The four questions


def steps(cfg, device, dtype):
    """Training steps of every scheme."""
    pairs = {"nanoGPT": nanogpt(cfg, device)} if cfg.nanogpt else {}
    for scheme in dict.fromkeys([BASE, *SCHEMES]):  # BASE comes first
        model = build(cfg, scheme, device)
        pairs[scheme] = model, Optimizer(model, cfg)
    for other in set(OPTIMIZERS) - {cfg.optimizer}:
        model = build(cfg, BASE, device)
        pairs[f"{BASE}, {other}"] = model, Optimizer(model, dataclasses.replace(cfg, optimizer=other))
    compiled = cfg.compile if cfg.compile is not None else device.type == "cuda"
    x, y = torch.randint(cfg.vocab_size, (2, cfg.batch_size, cfg.block_size), device=device)

    def step(model, optimizer, run):
        with autocast(device, dtype):
            loss = run(x, y)[1]
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), cfg.grad_clip or math.inf)
        optimizer.step()
        optimizer.zero_grad()
        loss.item()  # waits for the loss

    def contender(model, optimizer):
        run = torch.compile(model, mode=cfg.compile_mode) if compiled else model
        return lambda: step(model, optimizer, run)

    times = take_turns({name: contender(*pair) for name, pair in pairs.items()}, cfg.rounds, device)
    what = f"{cfg.optimizer}, {device.type}, {str(dtype)[6:]}" + ", compiled" * compiled
    print(f"{cfg.batch_size} windows of {cfg.block_size} tokens a step, {what}")
    print(f"{'':20}{'parameters':>12}{'ms a step':>11}{'tokens/s':>11}{f'speed relative to {BASE}':>30}")
    for name, (model, _) in pairs.items():
        seconds, size = statistics.median(times[name]), sum(p.numel() for p in model.parameters())
        rate = cfg.batch_size * cfg.block_size / seconds
        print(f"{name:20}{size:12,}{1000 * seconds:11.1f}{rate:11,.0f}{ratio(times, name):30.3f}")
    figure, (axes,) = figure_of(1, width=6, title=f"Training speed relative to {BASE}")
    bars = axes.barh(list(pairs), [ratio(times, name) for name in pairs], color="0.6")
    axes.bar_label(bars, fmt="%.3f", padding=3)
    axes.set(xlabel=what)
    axes.invert_yaxis()
    save(figure, cfg, "bench-steps.png")


def attention(model, idx):
    """A function that runs the first layer's attention over idx (1, T), forward and backward."""
    with torch.no_grad():
        x, [(block, positions, window), *_] = model.enter(idx)
    x = x.detach().requires_grad_()
    return lambda: block.attn(x, positions, window, None, idx.size(1)).sum().backward()


def peak_memory(action, device):
    """Bytes that an action holds at its peak, beyond what was there before."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        action()
        return torch.cuda.max_memory_allocated() - before
    with torch.profiler.profile(profile_memory=True) as profile:  # every allocation and release
        action()
    changes = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    changes = torch.tensor([e.nbytes() for e in sorted(changes, key=lambda e: e.start_ns())])
    return changes.cumsum(0).max().item()


def at_lengths(cfg, device, dtype):
    """Attention alone: its time against length, its peak memory, and that of a training step."""
    lengths = sorted({int(n) for n in cfg.lengths.split(",")})
    if device.type == "cuda":
        memory = torch.cuda.get_device_properties(device).total_memory
    else:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    found = {scheme: {} for scheme in SCHEMES}  # scheme -> length -> (seconds, bytes, bytes of a step)
    for i, n in enumerate(lengths):
        fitting = [s for s in SCHEMES if not i or (
            lengths[i - 1] in found[s] and max(found[s][lengths[i - 1]][1:]) * (n / lengths[i - 1]) ** 2 < memory
        )]  # fmt: skip
        idx = torch.randint(cfg.vocab_size, (1, n), device=device)
        models = {s: build(dataclasses.replace(cfg, block_size=n), s, device) for s in fitting}
        with autocast(device, dtype):
            actions = {s: attention(model, idx) for s, model in models.items()}
            times = take_turns(actions, cfg.rounds, device, warmup=1, most_seconds=TURN_SECONDS)
            for s, model in tqdm(models.items(), desc=f"memory at {n}", leave=False, disable=None):
                alone = peak_memory(actions[s], device)
                step = peak_memory(lambda model=model, idx=idx: model(idx, idx)[1].backward(), device)
                found[s][n] = statistics.median(times[s]), alone, step
    titles = ("Attention of one layer, ms", "Attention's peak memory, MB", "A training step's peak memory, MB")
    figure, panels = figure_of(3, title=f"One window, forward and backward ({device.type}, {str(dtype)[6:]})")
    for which, (title, unit, axes) in enumerate(zip(titles, (1e3, 1e-6, 1e-6), panels, strict=True)):
        print(f"{title:35}" + "".join(f"{n:>11,}" for n in lengths))
        for scheme, style in zip(SCHEMES, scheme_styles(SCHEMES), strict=True):
            row = {n: unit * point[which] for n, point in found[scheme].items()}
            print(
                f"{scheme:35}"
                + "".join(f"{row[n]:11,.{3 * (row[n] < 100)}f}" if n in row else f"{'—':>11}" for n in lengths)
            )
            axes.loglog(*zip(*row.items(), strict=True), label=scheme, **style)
        axes.set(title=title, xlabel="tokens")
        axes.grid(alpha=0.25)
    panels[0].legend(fontsize=8)
    save(figure, cfg, "bench-lengths.png")


def sampling(cfg, device, dtype):
    """A thousand tokens after a prompt of one, in a block of 1,001: the time of each."""
    cfg = dataclasses.replace(cfg, block_size=max(cfg.block_size, SAMPLED + 1))
    prompt = torch.zeros(1, 1, dtype=torch.int64, device=device)
    seconds = {}  # of every token, in every round
    models = {scheme: build(cfg, scheme, device).eval() for scheme in dict.fromkeys([BASE, *SCHEMES])}

    def draw(scheme):
        stamps = [time.perf_counter()]
        with autocast(device, dtype):
            for new in models[scheme].stream(prompt, SAMPLED):
                new.tolist()  # waits
                stamps.append(time.perf_counter())
        seconds.setdefault(scheme, []).append(torch.tensor(stamps, dtype=torch.float64).diff())

    actions = {scheme: lambda scheme=scheme: draw(scheme) for scheme in models}
    if cfg.nanogpt:
        theirs = nanogpt(cfg, device)[0].eval()
        actions = {"nanoGPT": lambda: theirs.generate(prompt, SAMPLED)} | actions
    times = take_turns(actions, cfg.rounds, device, warmup=0, most_seconds=TURN_SECONDS)
    print(f"{SAMPLED} tokens, block {cfg.block_size}, {device.type}, {str(dtype)[6:]}")
    first, last = f"ms each, first {SPAN}", f"last {SPAN}"
    print(f"{'':20}{'tokens/s':>11}{first:>20}{last:>11}{f'speed relative to {BASE}':>30}")
    figure, (axes,) = figure_of(1, width=6, title="Sampling: ms a token")
    for name in actions:
        spans = f"{'':31}"
        if name in seconds:  # nanoGPT hands out all of its tokens at once
            curve = 1e3 * torch.stack(seconds[name]).unfold(1, SPAN, SPAN).median(-1).values.median(0).values
            spans = f"{curve[0]:20.2f}{curve[-1]:11.2f}"
            axes.plot(SPAN * torch.arange(1, len(curve) + 1), curve, label=name, **scheme_styles([name])[0])
        print(f"{name:20}{SAMPLED / statistics.median(times[name]):11,.0f}{spans}{ratio(times, name):30.3f}")
    axes.set(xlabel="tokens drawn", ylim=(0, None))
    axes.legend(fontsize=8)
    save(figure, cfg, "bench-sampling.png")


def startup(cfg, device, dtype):
    """Seconds from a command to its first words, on prepared data."""
    own = {f.name: getattr(cfg, f.name) for f in dataclasses.fields(TrainConfig)}
    plain = dataclasses.asdict(TrainConfig(vocab_size=cfg.vocab_size))
    given = [f"--{name}={value}" for name, value in own.items() if value != plain[name]]
    given += ["--log_interval=1", "--wandb_mode=disabled", "--overwrite"]
    with tempfile.TemporaryDirectory() as folder:
        script = train.__file__
        commands = {  # how the awaited line begins, and what Python runs
            "import torch": ("done", ["-c", "import torch; print('done', flush=True)"]),
            "--help": ("Trains", [script, "--help"]),
            "a mistake": ("error: ", [script, "--learning_rat=1"]),
            "first step": ("step 1/", [script, *given, f"--out_dir={folder}"]),
        }

        def wait(awaited, arguments):
            command = [sys.executable, *arguments]
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
                lines = []
                while not lines or (lines[-1] and not lines[-1].startswith(awaited)):
                    lines.append(process.stdout.readline())
                process.kill()
            if not lines[-1]:
                raise ValueError(f"{shlex.join(map(str, command))} ended without {awaited!r}: {''.join(lines[-3:])}")

        actions = {name: lambda call=call: wait(*call) for name, call in commands.items()}
        times = take_turns(actions, min(cfg.rounds, 5), device, warmup=0)
    for name, values in times.items():
        print(f"{name:20}{statistics.median(values):6.2f} s")


def main(argv):
    cfg = config.load(BenchConfig, argv)
    device = pick_device(cfg.device)
    dtype = pick_dtype(cfg.dtype, device)
    torch.backends.cuda.matmul.allow_tf32 = True
    questions = {at_lengths: cfg.lengths, sampling: cfg.sampling, startup: cfg.startup}
    for question in [question for question, asked in questions.items() if asked] or [steps]:
        question(cfg, device, dtype)
    return 0


if __name__ == "__main__":
    script(main)
