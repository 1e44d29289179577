"""Redraws every table and picture of README.md and docs/ from kept losses:  python -m tools.pages

docs/evidence has a folder for each run: run.json (its settings) and, as an evaluation writes them, the losses of every
block. Run folders given here are taken over first: python -m tools.pages out/rope. In a page, a table stands between
<!-- NAME --> and <!-- end -->; its function below has that name.
"""

import functools
import json
import math
import re
import statistics
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np

import config
from evaluation.protocols import PROTOCOLS
from evaluation.recall import GUESSES
from evaluation.report import contrasts, pool_seeds, power, triangle
from model import SCHEMES
from run import checkpoint as checkpoints
from run import files
from run.script import script
from run.checkpoint import CALL_FIELDS
from run.tracking import read_metrics
from tools.claims import CARDS, SEEDS, SETTINGS, STATEMENTS, NotMeasured, verdict

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", "docs/results.md", "docs/replications.md")
SET_ASIDE = re.compile(r"-[0-9a-f]{8}$")  # losses under former settings, as eval_length names them


@dataclass(frozen=True)
class PagesConfig:
    runs: tuple = ()  # run folders to take over, given without a flag
    root: str = str(ROOT)  # where README.md and docs/ are


# ----------------------------------------------------------------------------------------------------------
# The evidence


def take_over(folder, evidence):
    """Keeps what the pages need of a run folder: its settings, and the losses that were measured on it."""
    checkpoint = checkpoints.load(folder)
    own = evidence / checkpoint.folder.resolve().name
    warm = checkpoint.settings["warmup_iters"]
    logged = [row for row in read_metrics(checkpoint.folder) if row["step"] > warm and "train/grad_norm" in row]
    norms = [row["train/grad_norm"] for row in logged]
    known = {
        "settings": checkpoint.settings, "step": checkpoint.step, "weights": checkpoint.hash,
        "text": checkpoint.dataset_hash, "best_val_loss": checkpoint.best_val_loss,
        "grad_norm": [statistics.median(norms), max(norms)] if norms else None,
        "tokens_per_s": statistics.median(row["train/tokens_per_s"] for row in logged) if logged else None,
    }  # fmt: skip
    own.mkdir(parents=True, exist_ok=True)
    files.write(own / "run.json", json.dumps(known, indent=1))
    for path in sorted(checkpoint.folder.glob("*.npz")):
        with np.load(path) as saved:
            found = {key: a.astype(np.float32) if a.dtype == np.float64 and a.ndim else a for key, a in saved.items()}
        if json.loads(str(found["key"]))["checkpoint"] == known["weights"] and not SET_ASIDE.search(path.stem):
            np.savez(own / path.name, **found)


def experiment(name):
    """A run's name without its seed: alibi-2 is of alibi."""
    return re.sub(r"-\d+$", "", name)


class Evidence:
    """Kept runs by name."""

    def __init__(self, folder):
        self.folder = folder
        self.runs = {path.parent.name: json.loads(path.read_text()) for path in sorted(folder.glob("*/run.json"))}

    @functools.cache  # noqa: B019  (lives as long as the program)
    def of(self, pattern, stem="length"):
        """(protocol, results, losses) of the runs whose whole name matches, as eval_length reports them, by experiment:
        runs whose names differ in the number at the end are its seeds."""
        measured, protocol = {}, None
        for name, run in self.runs.items():
            path = self.folder / name / f"{stem}.npz"
            if not (re.fullmatch(pattern, name) and path.is_file()):
                continue
            with np.load(path) as saved:
                found = dict(saved)
            key, settings = json.loads(str(found["key"])), run["settings"]
            if key["checkpoint"] != run["weights"]:
                raise ValueError(f"{path} is of other weights than run.json: evaluate the run, and take it over again")
            kind = PROTOCOLS[key["protocol"]]
            asked = {k: key[k] for k in ("blocks", "block_tokens") if k == "blocks" or k in kind.options}
            given = {"threshold": 0.1, "block_tokens": 0, "seed": key["seed"]} | asked
            lengths = ",".join(map(str, found.pop("lengths")))
            trained = settings["block_size"]
            protocol = kind(SimpleNamespace(lengths=lengths, **given), {trained}, 10**12)
            result = {"pos_scheme": settings["pos_scheme"], "training_length": trained, "seed": settings["seed"]}
            limit = SCHEMES[settings["pos_scheme"]].max_positions(SimpleNamespace(**settings))
            if any(job.name not in found for job in protocol.jobs(found, trained, limit)):
                raise ValueError(f"{path} is of an unfinished evaluation: finish it, and take it over")
            measured[name] = experiment(name), found, result | {"rows": protocol.rows(found, trained)}
        if not measured:
            raise NotMeasured(f"{self.folder} has no {stem}.npz of {pattern}: evaluate the runs, and take them over")
        self.check_seeds(measured)
        results, losses = pool_seeds(protocol, measured)  # named as the shortest of theirs
        return protocol, {experiment(n): r for n, r in results.items()}, {experiment(n): v for n, v in losses.items()}

    def check_seeds(self, names):
        """ValueError where runs whose names differ in the number at the end are not seeds of one experiment."""
        for name in names:
            first = next(other for other in names if experiment(other) == experiment(name))
            one, two = ({"text": run["text"]} | run["settings"] for run in (self.runs[first], self.runs[name]))
            unlike = {key for key in one.keys() & two if one[key] != two[key]} - {*CALL_FIELDS, "seed", "init_from"}
            if unlike or (name != first and one["seed"] == two["seed"]):
                what = ", ".join(sorted(unlike)) or "nothing, and have one seed"
                raise ValueError(
                    f"{first} and {name} should be seeds of one experiment, but differ in {what}: rename one"
                )


# ----------------------------------------------------------------------------------------------------------
# The tables, each a function of its name, and the pictures

BASELINE = rf"({'|'.join(SCHEMES)}|rope_nope)(-\d+)?"
PAST = (256, 512, 1024, 2048)  # where the baseline is measured past its training length
RECALL = r"recall-\w+(-\d+)?", "recall"
SCALINGS = {"untouched": "none", "linear (PI)": "linear", "ntk": "ntk", "yarn": "yarn"}
TABLES = {}  # name -> function


def table(function):
    TABLES[function.__name__] = function
    return function


def markdown(*rows):
    """Lines of a table whose first row is the header."""
    head, *body = [f"| {' | '.join(row)} |" for row in rows]
    return [head, "|" + "---|" * len(rows[0]), *body]


def within(value, band):
    return value if band is None or math.isnan(band) else f"{value} ±{band:.3f}"


def cell(row, key="delta", band="band", form="{:+.3f}"):
    """A row's value with its interval, or a dash where the scheme is undefined."""
    return within(form.format(row[key]), row[band]) if row else "—"


def level(row):
    return cell(row, "loss", "level", "{:.3f}")


def entropy(row):
    return cell(row, "entropy", "entropy_band", "{:.2f}")


def in_order(named, prefix=""):
    """In the order of model.py; what is none of its schemes stands last."""
    places = {prefix + name: i for i, name in enumerate(SCHEMES)}
    return sorted(named.items(), key=lambda item: places.get(item[0], len(places)))


def seeds(result):
    return str(len(result.get("seeds", "1")))


def changes(named):
    """A line for each (name, result): the loss at the training length, and the changes past it."""
    rows = (
        [name, seeds(r), level(r["rows"][r["training_length"]]), *(cell(r["rows"][n]) for n in PAST)]
        for name, r in named
    )
    return markdown(["", "seeds", "at the training length", *(f"Δ at {n:,}" for n in PAST)], *rows)


IN_A_LINE = {
    "none": "no positions: the highest mean at 128, and climbs at once",
    "sinusoidal": "defined everywhere, and breaks at twice the length",
    "learnable": "undefined past 128 tokens",
    "rope": "breaks at twice the length; its mean climbs with every doubling",
    "alibi": "flat",
    "t5": "nearly flat: one to three hundredths up",
    "transformer_xl": "holds at twice the length, climbs at eight times; its steps take 15 to 20% longer in float32",
    "rope_nope": "RoPE and a window in three of four layers: flat, or nearly",
}


@table
def main_table(evidence):
    return markdown(
        ["scheme", "loss at 128", "Δ at 2,048 tokens", "in a line"],
        *(
            [f"`{name}`", level(r["rows"][128]), cell(r["rows"][2048]), IN_A_LINE[name]]
            for name, r in in_order(evidence.of(BASELINE)[1])
        ),
    )


@table
def lengths(evidence):
    return changes(in_order(evidence.of(BASELINE)[1]))


@table
def lengths_with_adamw(evidence):
    return changes(in_order(evidence.of(f"adamw-{BASELINE}")[1], "adamw-"))


def contrasted(evidence, length, stem="length"):
    protocol, _, losses = evidence.of(BASELINE, stem)
    found = contrasts(protocol, dict(in_order(losses)), length)
    names, differences = triangle(found)

    def show(mean, width):
        text = f"{mean:+.3f} ±{width:.3f}"
        return text if abs(mean) > width else f"({text})" if width < math.inf else ""

    rows = ([row, *(show(*d) for d in own), *[""] * (len(names) - 1 - len(own))] for row, own in differences)
    return [*markdown([f"at {length:,}", *names[:-1]], *rows), "", power(found)]


@table
def contrasts_at_128(evidence):
    return contrasted(evidence, 128, "length-sliding")


@table
def contrasts_at_1024(evidence):
    return contrasted(evidence, 1024)


@table
def contrasts_at_2048(evidence):
    return contrasted(evidence, 2048)


def judged(evidence, words, *claim):
    """A claim's verdict in one of three words, for true, false and undecided; its mean with the interval; its seeds."""
    holds, (mean, width), seeds = verdict(evidence, *claim)
    return words[(True, False, None).index(holds)], within(f"{mean:+.3f}", width), seeds


@table
def settings(evidence):
    rows = []
    for words, prefix in SETTINGS.items():
        runs = [run for name, run in evidence.runs.items() if re.fullmatch(prefix + BASELINE, name)]
        if not runs:
            continue
        cells = []
        for statement in STATEMENTS:
            pairs = statement.pairs(prefix, runs[0]["settings"]["block_size"])
            try:
                found = judged(evidence, ("yes", "no", "undecided"), pairs, statement.side, statement.edge)
                cells.append("{}: {} ({})".format(*found))
            except NotMeasured:
                cells.append("")
        rows.append([words, *cells])
    return markdown(["", *(statement.words for statement in STATEMENTS)], *rows)


@table
def cards(evidence):
    rows = []
    for card, words, pairs, side, edge in CARDS:
        try:
            outcome, found, seeds = judged(evidence, ("pass", "fail", "not decided"), pairs, side, edge)
        except NotMeasured:
            outcome, found, seeds = "not run", "", 0
        outcome = "too few seeds" if 0 < seeds < SEEDS.get(card, 3) else outcome
        rows.append([card, f"{words}, {side} {edge:g}", str(seeds), found, outcome])
    return markdown(["card", "measured and needed", "seeds", "found", "outcome"], *rows)


@table
def entropies(evidence):
    shown = (128, *PAST)
    rows = ([name, *(entropy(r["rows"][n]) for n in shown)] for name, r in in_order(evidence.of(BASELINE)[1]))
    return markdown(["", *(f"{n:,}" for n in shown)], *rows)


def growth(rows, trained):
    """How much the entropy of attention and the loss grow from the training length to sixteen times it."""
    return rows[16 * trained]["entropy"] - rows[trained]["entropy"], rows[16 * trained]["delta"]


def rank_correlation(pairs):
    """Spearman's, of pairs without ties."""
    return np.corrcoef(np.argsort(np.argsort(pairs, axis=0), axis=0), rowvar=False)[0, 1]


@table
def spread(evidence):
    """How far T5's attention spreads, and what it loses, by setting; and how the two go together over models."""
    lines, models = [], {}
    for words, prefix in SETTINGS.items():
        try:
            r = evidence.of(rf"{prefix}t5(-\d+)?")[1][f"{prefix}t5"]
        except NotMeasured:
            continue
        rows, trained = r["rows"], r["training_length"]
        first, last = rows[trained], rows[16 * trained]
        lines.append((growth(rows, trained), [words, seeds(r), entropy(first), entropy(last), cell(last)]))
        models[words] = [growth(each, trained) for each in r.get("seeds", {"": rows}).values()]
    own, every = models["as above"], sum(models.values(), [])
    return [
        *markdown(["t5", "seeds", "entropy at 1×", "entropy at 16×", "Δ at 16×"], *(line for _, line in sorted(lines))),
        "",
        f"Rank correlation of the entropy's growth and Δ: {rank_correlation(own):.2f} among the {len(own)} models as "
        f"above, {rank_correlation(every):.2f} among all {len(every)}.",
    ]


SIZES = {"sinusoidal": "sinusoidal_size", "learnable": "pos_init", "t5": "t5_size", "transformer_xl": "pos_init"}


@table
def tuning(evidence):
    """The losses by which settings were chosen: those of each scheme's first run, and of the runs tune-SCHEME-… that
    have its seed."""
    rows, columns = [], [(0.5, 1.0), (1.0, 1.0), (2.0, 1.0), (1.0, 0.5), (1.0, 2.0)]
    for scheme in SCHEMES:
        if scheme not in evidence.runs:
            continue
        chosen, size, found = evidence.runs[scheme]["settings"], SIZES.get(scheme), {}
        for name, run in evidence.runs.items():
            own_seed = run["settings"]["seed"] == chosen["seed"]
            if own_seed and (name == scheme or name.startswith(f"tune-{scheme}-")):
                rates = tuple(run["settings"][k] / chosen[k] for k in ("learning_rate", "muon_lr"))
                own = run["settings"][size] if size else None
                found.setdefault(own, {})[rates] = f"{run['best_val_loss']:.3f}"
        for own, losses in sorted(found.items()):
            words = f"{scheme}, {size} {own:g}" if size else scheme
            rows.append([words, f"{chosen['learning_rate']:g}", *(losses.get(column, "") for column in columns)])
    heads = ["", "rate", "half the rate", "the rate", "twice the rate", "half of muon_lr", "twice muon_lr"]
    return markdown(heads, *rows)


@table
def nonoverlapping(evidence):
    rows = []
    for name, r in in_order(evidence.of(BASELINE, "length-nonoverlapping")[1]):
        last = r["rows"][2048]
        rows.append([name, seeds(r), level(r["rows"][128]), cell(last), cell(last, "real", "real_band")])
    return markdown(["", "seeds", "at 128", "Δ at 2,048", "of which real"], *rows)


@table
def context(evidence):
    protocol, results, _ = evidence.of(BASELINE, "length-context")
    rows = []
    for name, r in in_order(results):
        last = r["rows"][2048]
        rows.append([name, seeds(r), *(cell(last, f"gain_over_{k}", f"gain_over_{k}_band") for k in protocol.kinds)])
    words = protocol.kinds.values()
    return markdown(["gain at 2,048 over", "seeds", *words], *rows)


@table
def window(evidence):
    last = evidence.of(rf"(long-)?{BASELINE}", "length-window128")[1]
    every = evidence.of("|".join(last) + "".join(f"|{n}" for r in last.values() for n in r.get("seeds", ())))[1]
    rows = ([name, seeds(r), cell(every[name]["rows"][2048]), cell(r["rows"][2048])] for name, r in in_order(last))
    return markdown(["Δ at 2,048", "seeds", "all keys", "last 128 keys"], *rows)


def scaled(evidence):
    """{in words: result} of RoPE's runs, untouched and stretched."""
    return {words: evidence.of(r"rope(-\d+)?", f"length-{kind}")[1]["rope"] for words, kind in SCALINGS.items()}


@table
def scaling(evidence):
    return changes(scaled(evidence).items())


@table
def bases(evidence):
    return changes(evidence.of(r"theta(20|81|10000|1e6)-rope(-\d+)?")[1].items())


@table
def positions_for_some_of_the_time(evidence):
    return changes(evidence.of(r"(rope|rope_nope|none|drope|drope850|qk-rope|qk-drope)(-\d+)?")[1].items())


@table
def recall(evidence):
    protocol, results, losses = evidence.of(*RECALL)
    results = dict(in_order(results, "recall-"))
    some = next(iter(next(iter(losses.values())).values()))  # the questions are the same for all
    rows = []
    for d in protocol.shown():
        found = [r["rows"][d] for r in results.values()]
        cells = [f"{row['accuracy']:.0%} [{100 * row['low']:.0f}, {100 * row['high']:.0f}]" for row in found]
        rows.append([protocol.label(d), *cells, *(f"{share:.0%}" for share in some[f"guesses-{d}"])])
    names = [f"{name.removeprefix('recall-')} ({seeds(r)})" for name, r in results.items()]
    return markdown(["right at a distance of", *names, *GUESSES], *rows)


@table
def training(evidence):
    rows = []
    for scheme in SCHEMES:
        own = [run for name, run in evidence.runs.items() if experiment(name) == scheme]
        if own:
            losses = [run["best_val_loss"] for run in own]
            loss = f"{statistics.mean(losses):.3f} ({min(losses):.3f} to {max(losses):.3f})"
            medians, largest = zip(*(run["grad_norm"] for run in own), strict=True)
            rows.append([scheme, str(len(own)), loss, f"{statistics.median(medians):.2f} ({max(largest):.2f})"])
    heads = ["", "seeds", "loss over the tuning part: mean (lowest to highest)", "gradient norm: median (largest)"]
    return markdown(heads, *rows)


PIECES = {  # in words -> the names of its runs; a run is of the first that fits
    "baseline": BASELINE,
    **{words: prefix + BASELINE for words, prefix in SETTINGS.items() if prefix},
    "choice of settings": "tune-.*",
    "recall": RECALL[0],
    "bases of RoPE": "theta.*",
    "DroPE, QK-norm, RoPE at 512, others": ".*",
}


@table
def compute(evidence):
    """Hours of training on two cores, a run on each, at each run's median speed and without its validation."""
    hours, measured = {words: [] for words in PIECES}, dict.fromkeys(PIECES, 0)
    for name, run in evidence.runs.items():
        own, speed = run["settings"], run["tokens_per_s"] or math.inf  # none is known of a run of a few steps
        tokens = own["max_iters"] * own["batch_size"] * own["gradient_accumulation_steps"] * own["block_size"]
        piece = next(words for words, pattern in PIECES.items() if re.fullmatch(pattern, name))
        hours[piece].append(tokens / speed / 3600 / 2)
        measured[piece] += len([*(evidence.folder / name).glob("*.npz")])
    rows = [[words, str(len(each)), f"{sum(each):.1f}", str(measured[words])] for words, each in hours.items()]
    total = ["all", str(len(evidence.runs)), f"{sum(map(sum, hours.values())):.1f}", str(sum(measured.values()))]
    return markdown(["", "runs", "hours of training", "evaluations"], *rows, total)


def pictures(evidence):
    """{docs/NAME.png: (protocol, results)}."""
    length, muon, _ = evidence.of(BASELINE)
    adamw = evidence.of(f"adamw-{BASELINE}")[1]
    asked, answers, _ = evidence.of(*RECALL)
    return {
        "length": (length, dict(in_order(muon))),
        "length-adamw": (length, dict(in_order(adamw, "adamw-"))),
        "length-rope": (length, scaled(evidence)),
        "recall": (asked, dict(in_order(answers, "recall-"))),
    }


def redraw(page, evidence):
    """The text of a page with its tables drawn anew. ValueError where a mark names no table."""

    def draw(found):
        if found[1] not in TABLES:
            raise ValueError(f"there is no table {found[1]!r}; there are: {', '.join(TABLES)}")
        lines = "\n".join(TABLES[found[1]](evidence))
        return f"<!-- {found[1]} -->\n{lines}\n<!-- end -->"

    return re.sub(r"<!-- (\w+) -->\n.*?<!-- end -->", draw, page, flags=re.DOTALL)


def main(argv):
    cfg = config.load(PagesConfig, argv, list_field="runs")
    root = Path(cfg.root)
    for folder in cfg.runs:
        take_over(folder, root / "docs" / "evidence")
    evidence = Evidence(root / "docs" / "evidence")
    for name in PAGES:
        files.write(root / name, redraw((root / name).read_text(), evidence).encode())
        print(root / name)
    for name, (protocol, results) in pictures(evidence).items():
        path = root / "docs" / f"{name}.png"
        protocol.draw(results).savefig(path)
        print(path)
    return 0


if __name__ == "__main__":
    script(main)
