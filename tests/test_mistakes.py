"""A user's mistake costs one line and the exit status 2, and nothing is written.

To test another command, add its flags to FLAGS and its rows to MISTAKES.
"""

import pytest

import eval_length
import sample
import train
from tools import bench, export

FLAGS = {  # flags that are valid without the mistake
    train.main: "{tiny} --out_dir={out}",
    sample.main: "--out_dir={alibi}",
    eval_length.main: "--results_dir={out} --device=cpu",
    bench.main: "--device=cpu --n_embd=16",
    export.main: "",
}
# Command, its arguments, and what the line must name. NAME=value without dashes is set in the environment, as in a shell.
# {rope} and {alibi} are trained runs; {out} does not exist.
MISTAKES = [
    # the model
    (train.main, "--pos_scheme=ropes", "pos_scheme='ropes'"),
    (train.main, "--pos_init=-1", "pos_init=-1.0"),
    (train.main, "--pos_scheme=t5 --pos_options=sise=2", "'sise'"),
    (train.main, "--pos_scheme=t5 --pos_options=size", "pos_options: size"),
    (train.main, "--pos_scheme=inkling --pos_options=extent=1.5", "extent=1.5"),
    (train.main, "--rope_scaling=yarn", "rope_scaling"),
    (train.main, "--max_position=300", "learnable"),
    (train.main, "--pos_scheme=transformer_xl --max_position=300", "transformer_xl"),
    (train.main, "--pos_scheme=rope --rope_factor=4", "rope_factor=4.0"),
    (train.main, "--pos_scheme=rope --rope_fraction=.1", "rope_fraction=0.1"),
    (train.main, "--init_from={rope} --n_head=4", "best.pt has n_head=2"),
    (train.main, "--pos_scheme=rope --n_embd=6 --n_head=2", "n_embd/n_head"),
    (train.main, "--pos_scheme=sinusoidal --n_embd=15 --n_head=3", "n_embd=15"),
    (train.main, "--n_embd=10 --n_head=4", "n_head=4"),
    (train.main, "--layers=windows=8", "did you mean --window?"),
    (train.main, "--layers=n_layer=2", "--n_layer"),
    (train.main, "--layers=*0|window=8", "*0 must be a count"),
    (train.main, "--layers=*x|window=8", "*x must be a count"),
    (train.main, "--layers=window=8|pos_scheme=sinusoidal", "sinusoidal"),
    (train.main, "--layers=window=2/1", "2/1"),
    (train.main, "--layers=window=1.5", "window=1.5"),
    (train.main, "--layers=sink=2", "sink='2'"),
    (train.main, "--layers=window", "--window=VALUE"),
    (train.main, "--pos_scheme=rope --layers=rope_theta=5|pos_scheme=none|window=8", "n_layer=2"),
    (train.main, "--pos_scheme=rope --layers=pos_scheme=none|pos_scheme=t5|rope_theta=0", "rope_theta=0"),
    (train.main, "--pos_scheme=alibi --sink", "alibi"),
    (eval_length.main, "{rope} --layers=sink", "sinks"),
    (eval_length.main, "{rope} --layers=pos_scheme=t5", "pos_scheme=t5"),
    (eval_length.main, "{alibi} --rope_scaling=yarn", "alibi"),
    (train.main, "--vocab_size=5", "vocab_size=5"),
    (train.main, "--init_from={rope} --n_embd=24", "transformer.wte.weight"),
    # the text and the run
    (train.main, "--block_size=100000", "block_size=100000"),
    (train.main, "--block_size=5000", "block_size=5000"),
    (train.main, "--init_from=tiny", "hf:OWNER/NAME"),
    (train.main, "--init_from={rope}s", "did you mean {rope}?"),
    (train.main, "--out_dir={rope}/best.pt", "{rope}/best.pt"),
    (train.main, "--resume --overwrite --out_dir={rope}", "--overwrite"),
    (train.main, "--init_from={rope} --out_dir={rope} --overwrite", "{rope} holds the weights"),
    (train.main, "--wandb_project=a/b", "--wandb_project=a/b"),
    # other settings
    (train.main, "--lr=1", "did you mean --learning_rate?"),
    (train.main, "--init_from=resume", "did you mean --resume?"),
    (train.main, "--optimizer=sgd", "optimizer='sgd'"),
    (train.main, "--max_iters=0", "max_iters=0"),
    (train.main, "--device=tpu9", "device='tpu9'"),
    (train.main, "WORLD_SIZE=2", "RANK"),
    # samples
    (sample.main, "--start=", "--start="),
    (sample.main, "--start=FILE:{rope}/best.pt", "utf-8"),
    (sample.main, "{rope}", "did you mean --out_dir"),
    (sample.main, "--start=é", "'é'"),
    (sample.main, "--top_p=0", "top_p=0.0"),
    (sample.main, "--stop", "--stop"),
    (sample.main, "--rope_factor=much", "much"),
    (sample.main, "--tokenizer=gpt4", "--tokenizer='gpt4'"),
    # evaluations
    (eval_length.main, "", "eval_length.py out/rope"),
    (eval_length.main, "--runs=out/rope", "runs='out/rope'"),
    (eval_length.main, "{rope} --max_position=16", "max_position=16"),
    (eval_length.main, "{rope} --lengths=a", "lengths='a'"),
    (eval_length.main, "{rope} --wandb_project=a:b", "--wandb_project=a:b"),
    (eval_length.main, "{rope} --block_tokens=2", "block_tokens=2"),
    (eval_length.main, "{rope} --protocol=slide", "protocol='slide'"),
    (eval_length.main, "{rope} --block_tokens=1 --protocol=position", "--block_tokens"),
    (eval_length.main, "{rope} --lengths=16,24,64 --protocol=nonoverlapping", "lengths"),
    (eval_length.main, "{rope} --window=-1", "rope/best.pt: window=-1"),
    (eval_length.main, "{rope} --results_dir={rope}/best.pt", "File exists"),
    # tools
    (bench.main, "--nanogpt={out}", "{out}/model.py"),
    (export.main, "", "hf:OWNER/NAME"),
]  # fmt: skip


@pytest.mark.parametrize("main, flags, word", MISTAKES)
def test_mistake(main, flags, word, tiny, trained, tmp_path, monkeypatch, refused):
    runs = {scheme: trained(scheme) for scheme in ("rope", "alibi")}
    names = {"tiny": " ".join(tiny), "out": tmp_path / "r"} | runs

    def contents():
        return {path: path.read_bytes() for run in runs.values() for path in run.iterdir()}

    before = contents()
    arguments = []
    for argument in f"{FLAGS[main]} {flags}".format(**names).split():
        if "=" in argument and not argument.startswith("-"):
            monkeypatch.setenv(*argument.split("="))
        else:
            arguments.append(argument)
    message = refused(main, *arguments)
    assert word.format(**names) in message
    if main == train.main and "--layers" in flags:
        assert "window=64 *3 | pos_scheme=none" in message  # its form
    assert not (tmp_path / "r").exists()
    assert contents() == before
