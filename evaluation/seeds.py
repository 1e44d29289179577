"""Which runs are seeds of one experiment, and in which settings runs differ."""

import json
import statistics
from dataclasses import asdict
from pathlib import Path

from evaluation.lines import Line, shared_settings, without_seed
from model import SCHEMES


def experiment(settings, dataset_hash, history):
    """What runs have in common if they differ only in their seed, as plain types: their settings, their text, and what
    resuming changed at which step. A run that starts from another has the settings, dataset_hash and history of that
    one in its own history (run/start.py)."""
    events = []
    for step, changes in history:
        source = changes.get("init_from")
        if isinstance(source, dict):
            changes = changes | {"init_from": experiment(**source)}
        events.append([step, changes])
    return [shared_settings(settings), dataset_hash, events]


def group_seeds(runs):
    """{name of a line: [Checkpoint, …]} of runs {name: Checkpoint}. Runs that differ only in their seed are one line,
    named without it. A second run with the same seed, and a model from other code, are lines of their own."""
    groups = {}  # experiment as JSON, or the name of a run that is alone -> {seed: name}
    for name, run in runs.items():
        key = json.dumps(experiment(run.settings, run.dataset_hash, run.history), sort_keys=True)
        seed = run.settings.get("seed")
        if not run.settings or seed in groups.get(key, {}):  # it is alone
            key = name
        groups.setdefault(key, {})[seed] = name
    lines = {}
    for by_seed in groups.values():
        names = by_seed.values()
        line = min(names, key=len)
        short = without_seed(line, runs[line].settings)
        if len(names) > 1 and short not in {*runs, *lines}:
            line = short
        lines[line] = [runs[name] for name in names]
    return lines


def note_differences(runs, kept, folder):
    """Prints the settings, besides scheme and seed, in which a run differs from the most common value, counting kept
    results and those in `folder`. Without runs, the kept results are compared."""
    beside = dict(kept)
    if folder:
        beside |= {path.stem: Line.read(path) for path in sorted(Path(folder).glob("*.npz"))}
    known = {name: asdict(item.config) | shared_settings(item.settings) for name, item in (beside | runs).items()}
    expected = {"vocab_size", "pos_scheme", "pos_options"}.union(*(scheme.reads for scheme in SCHEMES.values()))
    differences = []
    for key in sorted(set.intersection(*map(set, known.values())) - expected):
        values = {name: str(settings[key]) or "''" for name, settings in known.items()}
        common = statistics.mode(values.values())
        others = [f"{values[name]} in {name}" for name in runs or kept if values[name] != common]
        if others:
            differences.append(f"{key}: {common} in most, {', '.join(others)}")
    if differences:
        print(f"note: besides scheme and seed, these runs differ in {'; '.join(differences)}")
