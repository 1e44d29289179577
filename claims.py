"""
What is often said of position schemes, measured:  python claims.py out/rope out/rope-1 out/rope-2 out/alibi …

Prints a table, as Markdown, with a row for each experiment, which its seeds share. Lines are those of code in
model.py, one a statement, with the functions that only schemes call; speed is bench.py's, at the size it ran; loss and
Δ, with the standard deviation over seeds, are eval_length.py's under its default protocol; the gradient's norm is that
after the warm-up, its median and its largest. What has not been measured is a dash.
"""

import ast
import json
import statistics
from dataclasses import dataclass
from pathlib import Path

import config
import model
import run
from bands import same_but_for_the_seed
from model import SCHEMES, GPTConfig, PositionScheme
from train import experiment_of


@dataclass(frozen=True)
class ClaimsConfig:
    runs: tuple = ()  # given without a flag: run folders
    results_dir: str = "results"  # where bench.py left its numbers

    def __post_init__(self):
        if not self.runs:
            raise ValueError("which runs? Name their folders: python claims.py out/*")


def lines_of_code(cls):
    """Statements of a scheme's class and of the functions of model.py that it calls, a line each."""
    top = {
        node.name: node
        for node in ast.parse(Path(model.__file__).read_text()).body
        if isinstance(node, ast.ClassDef | ast.FunctionDef)
    }
    total, seen, todo = 0, set(), [cls.__name__]
    while todo:
        name = todo.pop()
        if name in seen or name not in top or name == PositionScheme.__name__:
            continue
        seen.add(name)
        for node in ast.walk(top[name]):
            total += isinstance(node, ast.stmt | ast.ExceptHandler)
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                total -= ast.get_docstring(node) is not None
            if isinstance(node, ast.Name):
                todo.append(node.id)
    return total


def losses_of(checkpoint):
    """{length: its row, None where undefined}, as eval_length.py left them; {} where it has not run."""
    path = checkpoint["folder"] / "length.json"
    try:
        return {int(n): row for n, row in json.loads(path.read_text())["rows"].items()} if path.is_file() else {}
    except (KeyError, json.JSONDecodeError):
        raise ValueError(f"{path} is damaged, or of an older version: run eval_length.py on this run again") from None


def of_runs(checkpoints, rows, longest):
    """{column: text} of the runs of one experiment. rows: what `losses_of` knows of each."""
    args, norms = GPTConfig(**checkpoints[0]["model_args"]), []
    for checkpoint in checkpoints:
        warmup = checkpoint["config"].get("warmup_iters", 0)
        logged = run.read_metrics(checkpoint["folder"])
        norms += [row["train/grad_norm"] for row in logged if "train/grad_norm" in row and row["step"] >= warmup]
    cls = SCHEMES[args.pos_scheme]
    return {
        "parameters": f"{sum(p.numel() for p in cls(args).parameters()):,}",
        "lines": f"{lines_of_code(cls)}",
        "runs": f"{len(checkpoints)}",
        f"loss at {args.block_size:,}": with_sd([r[args.block_size]["loss"] for r in rows if r], "{:.3f}"),
        "gradient norm": f"{statistics.median(norms):.2f} ({max(norms):.2f})" if norms else "—",
        f"Δ at {longest:,}": with_sd([r[longest]["delta"] for r in rows if r and r[longest]], "{:+.3f}"),
    }


def with_sd(values, form):
    if not values:
        return "—"
    text = form.format(statistics.mean(values))
    return text + (f" (sd {statistics.stdev(values):.3f})" if len(values) > 1 else "")


def main(argv):
    cfg = config.load(ClaimsConfig, argv, list_field="runs")
    checkpoints = {path: run.load_checkpoint(path) for path in cfg.runs}
    rows = {path: losses_of(checkpoint) for path, checkpoint in checkpoints.items()}
    trained = {checkpoint["model_args"]["block_size"] for checkpoint in checkpoints.values()}
    if len(trained) > 1:
        raise ValueError(f"the runs were trained at different lengths ({', '.join(map(str, sorted(trained)))})")
    measured = [set(r) for r in rows.values() if r]
    longest = max(set.intersection(*measured)) if measured else 16 * max(trained)
    bench = Path(cfg.results_dir) / "bench.json"
    speeds = json.loads(bench.read_text())["relative_speed"] if bench.is_file() else {}
    table = []
    for paths in same_but_for_the_seed(
        {path: (experiment_of(c), c["config"].get("seed")) for path, c in checkpoints.items()}
    ):
        own, name = (
            [checkpoints[p] for p in paths],
            min((checkpoints[p]["folder"].resolve().name for p in paths), key=len),
        )
        scheme = own[0]["model_args"]["pos_scheme"]
        speed = f"{speeds[scheme]:.3f}" if name == scheme and scheme in speeds else "—"
        table.append({"": name, **of_runs(own, [rows[p] for p in paths], longest), "speed": speed})
    print("| " + " | ".join(table[0]) + " |\n|" + "---|" * len(table[0]))
    for row in table:
        print("| " + " | ".join(row.values()) + " |")
    return 0


if __name__ == "__main__":
    config.script(main)
