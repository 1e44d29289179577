"""A user's mistake costs one line and the exit status 2, and nothing is written.

To test another command, add its flags to FLAGS and its rows to MISTAKES.
"""

import pytest

import eval_length
import sample
import train
from tools import bench

FLAGS = {  # flags that are valid without the mistake
    train.main: "{tiny} --out_dir={out}",
    sample.main: "--out_dir={alibi}",
    eval_length.main: "--results_dir={out} --device=cpu",
    bench.main: "--device=cpu --n_embd=16",
}
# What the line must name, by command and arguments. {rope} and {alibi} are trained runs; {out} does not exist.
MISTAKES = {
    train.main: {
        # the model
        "--pos_scheme=t5 --pos_options=sise=2": "'sise'",
        "--pos_scheme=t5 --pos_options=size": "pos_options: size",
        "--pos_scheme=inkling --pos_options=extent=1.5": "extent=1.5",
        "--rope_scaling=yarn": "rope_scaling",
        "--max_position=300": "learnable",
        "--unscored=200": "unscored=200",
        "--pos_scheme=transformer_xl --max_position=300": "transformer_xl",
        "--pos_scheme=rope --rope_factor=4": "rope_factor=4.0",
        "--pos_scheme=rope --rope_fraction=.1": "rope_fraction=0.1",
        "--init_from={rope} --n_head=4": "n_head=2",
        "--pos_scheme=rope --n_embd=6 --n_head=2": "n_embd/n_head",
        "--pos_scheme=sinusoidal --n_embd=15 --n_head=3": "n_embd=15",
        "--n_embd=10 --n_head=4": "n_head=4",
        "--layers=windows=8": "did you mean --window?",
        "--layers=n_layer=2": "--n_layer",
        "--layers=*0|window=8": "*0 must be a count",
        "--layers=window=8|pos_scheme=sinusoidal": "sinusoidal",
        "--layers=window=8|pos_scheme=none": "pos_scheme=learnable",
        "--layers=window=1.5": "window=1.5",
        "--layers=sink=2": "sink='2'",
        "--pos_scheme=rope --layers=rope_theta=5|pos_scheme=none|window=8": "n_layer=2",
        "--pos_scheme=rope --rope_theta=0": "rope_theta=0",
        "--pos_scheme=alibi --sink": "alibi",
        "--vocab_size=5": "vocab_size=5",
        # the text and the run
        "--block_size=100000": "block_size=100000",
        "--block_size=5000": "block_size=5000",
        "--init_from={rope}s": "there is no checkpoint '{rope}s'",
        "--out_dir={rope}/best.pt": "{rope}/best.pt",
        "--resume --overwrite --out_dir={rope}": "--overwrite",
        # other settings
        "--init_from=resume": "--resume",
        "--pos_scheme=rope --rope_scaling=yarn --rope_size=-2": "rope_size=-2.0",
        "--device=tpu9": "device='tpu9'",
    },
    eval_length.main: {
        "{rope} --layers=sink": "sinks",
        "{rope} --layers=pos_scheme=t5": "pos_scheme=t5",
        "{alibi} --rope_scaling=yarn": "alibi",
        "": "out/rope",
        "--runs=out/rope": "runs='out/rope'",
        "{rope} --max_position=16": "max_position=16",
        "{rope} --lengths=a": "lengths='a'",
        "{rope} --temperature=1": "--attention_temperature",
        "{rope}.npz": "{rope}.npz",
    },
    sample.main: {
        "--start=": "--start=",
        "--start=FILE:{rope}/best.pt": "utf-8",
        "{alibi} {rope}": "'{rope}'",
        "--start=é": "'é'",
        "--top_p=0": "top_p=0.0",
        "--stop": "--stop",
    },
    bench.main: {
        "--nanogpt={out}": "{out}/model.py",
    },
}
CASES = [(main, flags, word) for main, mistakes in MISTAKES.items() for flags, word in mistakes.items()]


@pytest.mark.parametrize("main, flags, word", CASES)
def test_mistake(main, flags, word, tiny, trained, tmp_path, refused):
    runs = {scheme: trained(scheme) for scheme in ("rope", "alibi")}
    names = {"tiny": " ".join(tiny), "out": tmp_path / "r"} | runs

    def contents():
        return {path: path.read_bytes() for run in runs.values() for path in run.iterdir()}

    before = contents()
    message = refused(main, *f"{FLAGS[main]} {flags}".format(**names).split())
    assert word.format(**names) in message
    assert not (tmp_path / "r").exists()
    assert contents() == before
