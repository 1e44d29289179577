"""Writes what docs/page shows into docs/page/data:

    python -m tools.page out/{rope,alibi,fox5,learnable,none,rope_nope}

A run becomes NAME.js, its weights as 8-bit integers with a scale per row. passages.js holds texts that no model was
trained on, each ending with a block that eval_length.py scores. results.js holds the tables of benchmark/. All are
scripts that call a function with JSON, because a page that is opened from disk may load scripts but not read files.
"""

import base64
import json
import re

import data
from benchmark.results import BENCHMARK, losses_of, read_rows, rise_of
from benchmark.tables import deltas
from eval_length import choose_blocks
from run.checkpoint import load_checkpoint, own_settings
from run.script import script

# the schemes, their options and the settings of a model that docs/page/model.js has
KNOWN = """none learnable rope alibi fox b
block_size vocab_size n_layer n_head n_embd bias pos_scheme pos_options layers""".split()


def write(name, content):
    path = BENCHMARK / f"../docs/page/data/{name}.js"
    path.write_text(f"add({name!r}, {json.dumps(content, default=str)});\n")


def pack(tensor):
    """The bytes of a tensor: its integers, then the scales of its rows. A vector is one row."""
    rows = tensor.reshape(-1, tensor.size(-1))
    scales = rows.abs().amax(1, keepdim=True) / 127
    integers = (rows / scales).round().char()
    return integers.numpy().tobytes() + scales.numpy().tobytes()


def model_of(run):
    """What the page needs of a Checkpoint. ValueError if docs/page/model.js cannot compute it."""
    config = run.config
    weights = run.weights
    settings = own_settings(config)
    schemes = [kind.pos_scheme for kind in config.kinds]
    options = re.findall(r"(\w+)=", " ".join(kind.pos_options for kind in config.kinds))
    unknown = {*settings, *schemes, *options}.difference(KNOWN)
    if unknown:
        raise ValueError(f"{run.path}: the page does not have {unknown}")
    del weights["lm_head.weight"]  # the same as wte
    return {
        "config": settings,
        "schemes": schemes,
        "windows": [kind.window for kind in config.kinds],
        "chars": run.tokenizer_spec["chars"],
        "shapes": {name: tensor.shape for name, tensor in weights.items()},
        "weights": base64.b64encode(b"".join(map(pack, weights.values()))).decode(),
    }


def passages(text):
    """Six of the blocks that eval_length.py scores by default, with their longest context: every third one that lies
    within a name."""
    ends, _ = choose_blocks(text.val, 2048, 8, 256, 1337)
    windows = text.val.windows(ends - 2048, 2048)
    texts = [text.tokenizer.decode_bytes(window).decode() for window in windows]
    return [passage for passage in texts if passage[-8:].isidentifier()][::3]


def results():
    """{folder: rows}: those of README's table, each with its verdict and, for each length, the loss of each seed."""
    tables = {}
    for name in sorted({str(path.parent.relative_to(BENCHMARK)) for path in BENCHMARK.rglob("*.npz")}):
        if re.search("arrays|context|reach|recall|sliding|tasks", name):  # no losses by length
            continue
        tables[name] = list(deltas(name))
        for row, line in zip(tables[name], read_rows(name).values(), strict=True):
            losses = losses_of(line)
            risen = rise_of(line)
            row["verdict"] = risen["verdict"] if risen else "—"
            row["losses"] = {n: values.mean(axis=1).round(4).tolist() for n, values in losses.items()}
    return tables


def main(argv):
    for run in map(load_checkpoint, argv):
        write(run.folder.name, model_of(run))
    write("passages", passages(data.load(data.DEFAULT)))
    write("results", results())
    return 0


if __name__ == "__main__":
    script(main)
