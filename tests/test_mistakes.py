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
# Command, its arguments, and a part of the line. NAME=value without dashes is set in the environment, as in a shell.
# {rope} and {alibi} are trained runs; {out} does not exist.
MISTAKES = [
    # the model
    (train.main, "--pos_scheme=ropes", "pos_scheme='ropes' is not one of: none, sinusoidal, learnable, rope, alibi, "),
    (train.main, "--pos_pattern=10", "pos_pattern='10': learnable acts on the embedding only"),
    (train.main, "--pos_init=-1", "pos_init=-1.0 must be at least 0"),
    (train.main, "--pos_scheme=t5 --pos_options=sise=2", "pos_options: t5 has no option 'sise'; its options: size"),
    (train.main, "--pos_scheme=t5 --pos_options=size", "pos_options='size' must be a list such as size=32,b=5"),
    (train.main, "--pos_scheme=t5 --pos_options=size=-1", "size=-1.0 must be above 0"),
    (train.main, "--pos_scheme=cope --pos_options=p_max=1.5", "p_max=1.5 must be a whole number of at least 1"),
    (train.main, "--rope_scaling=yarn", "rope_scaling is an option of pos_scheme rope and ssmax, not of learnable"),
    (train.main, "--max_position=300", "learnable positions are defined for 16 tokens, not for 300"),
    (train.main, "--pos_scheme=transformer_xl --max_position=300", "transformer_xl cannot take positions with gaps below 300"),
    (train.main, "--pos_scheme=rope --rope_factor=4", "rope_factor=4.0 does nothing without rope_scaling"),
    (train.main, "--pos_scheme=rope --rope_fraction=.1", "rope_fraction=0.1 must be at most 1, and turn one of 4 pairs"),
    (train.main, "--init_from={rope} --n_head=4", "best.pt has n_head=2: its heads cannot be regrouped"),
    (train.main, "--pos_scheme=rope --n_embd=6 --n_head=2", "the head size n_embd/n_head = 6/2 = 3 must be even"),
    (train.main, "--pos_scheme=sinusoidal --n_embd=15 --n_head=3", "n_embd=15 must be even"),
    (train.main, "--n_embd=10 --n_head=4", "n_embd=10 must be a multiple of n_head=4"),
    (train.main, "--window_pattern=1x", "window_pattern='1x' must consist of 1s and 0s"),
    (train.main, "--window_pattern=10", "window_pattern=10 has no effect without a window"),
    (train.main, "--vocab_size=5", "vocab_size=5 is smaller than the tokenizer's 25"),
    (train.main, "--init_from={rope} --n_embd=24", "(transformer.wte.weight: (25, 24) here, (25, 16) there)"),
    # the text and the run
    (train.main, "--block_size=100000", "too few for block_size=100000"),
    (train.main, "--block_size=5000", "the validation text has 2,345 tokens, too few for block_size=5000"),
    (train.main, "--init_from={rope}/best.pt --out_dir={rope} --overwrite", "lies in --out_dir={rope}: choose another"),
    (train.main, "--init_from=tiny", "there is no checkpoint tiny: give a run's folder, a .pt file, gpt2 or hf:OWNER/NAME"),
    (train.main, "--init_from={rope}s", "there is no checkpoint {rope}s: did you mean {rope}?"),
    (train.main, "--out_dir={rope}/best.pt", "'{rope}/best.pt' cannot be used as a folder: File exists"),
    (train.main, "--resume --overwrite --out_dir={rope}", "--resume and --overwrite exclude each other"),
    # other settings
    (train.main, "--lr=1", "unknown key --lr: did you mean --learning_rate?"),
    (train.main, "--init_from=resume", "unknown key --init_from=resume: did you mean --resume?"),
    (sample.main, "--prompt=x", "unknown key --prompt: did you mean --start?"),
    (train.main, "--optimizer=sgd", "optimizer='sgd' is not one of: muon, adamw"),
    (train.main, "--max_iters=0", "max_iters=0 must be at least 1"),
    (train.main, "--device=tpu9", "device='tpu9' is not available"),
    (train.main, "WORLD_SIZE=2", "environment variable RANK expected, but not set"),
    # samples
    (sample.main, "--start=", "--start=: the prompt must not be empty"),
    (sample.main, "--start=FILE:{rope}/best.pt", "'utf-8' codec can't decode"),
    (sample.main, "{rope}", "'{rope}' is neither a config file (NAME.py) nor a flag (--key=value): did you mean --out_dir"),
    (sample.main, "--start=FILE:/", "Is a directory: '/'"),
    (sample.main, "--start=é", "the tokenizer lacks 'é'"),
    (sample.main, "--top_p=0", "top_p=0.0 must be at least 0.000001"),
    (sample.main, "--dtype=float8", "dtype='float8' is not one of: auto, float32, bfloat16"),
    (sample.main, "--rope_factor=much", "could not convert string to float: 'much'"),
    (sample.main, "--tokenizer=gpt4", "--tokenizer='gpt4' must be gpt2, PATH/tokenizer.json or data:NAME"),
    # evaluations
    (eval_length.main, "", "which runs? Name their folders: python eval_length.py out/rope out/alibi"),
    (eval_length.main, "--runs=out/rope", "runs are given without a flag: out/rope"),
    (eval_length.main, "{rope} --max_position=16", "max_position=16 must be at least the longest length, 256"),
    (eval_length.main, "{rope} --lengths=a", "lengths='a' must be ascending positive numbers"),
    (eval_length.main, "{rope} --block_tokens=2", "block_tokens=2: the shortest length, 4, must be at least 8"),
    (eval_length.main, "{rope} --block_tokens=5 --protocol=sliding", "block_tokens=5: the shortest length, 4, must be at least 5"),
    (eval_length.main, "{rope} --protocol=slide", "protocol='slide' is not one of: fixed, sliding, nonoverlapping, position, context"),
    (eval_length.main, "{rope} --block_tokens=1 --protocol=position", "has no option --block_tokens; these have: fixed, sliding"),
    (eval_length.main, "{rope} --lengths=16,24,64 --protocol=nonoverlapping", "all lengths must divide the longest"),
    (eval_length.main, "{rope} --window=-1", "rope/best.pt: window=-1 must be at least 0"),
    (eval_length.main, "{rope} {alibi} --rope_scaling=yarn", "is an option of pos_scheme rope and ssmax, not of alibi"),
    (eval_length.main, "{rope} --results_dir={rope}/best.pt", "File exists"),
    # tools
    (bench.main, "--nanogpt={out}", "No such file or directory: '{out}/model.py'"),
    (export.main, "", "there is no checkpoint '': give a run's folder, a .pt file, gpt2 or hf:OWNER/NAME"),
    (export.main, "{rope} --hf_dir={rope}", "{rope} exists and is not empty: choose another --hf_dir"),
]  # fmt: skip


@pytest.mark.parametrize("main, flags, message", MISTAKES)
def test_mistake(main, flags, message, tiny, trained, tmp_path, monkeypatch, refused):
    runs = {scheme: trained(scheme) for scheme in ("rope", "alibi")}
    names = {"tiny": " ".join(tiny), "out": tmp_path / "r"} | runs
    before = {path: path.read_bytes() for run in runs.values() for path in run.iterdir()}
    words = f"{FLAGS[main]} {flags}".format(**names).split()
    variables = [word for word in words if "=" in word and not word.startswith("-")]
    for variable in variables:
        monkeypatch.setenv(*variable.split("="))
    assert message.format(**names) in refused(main, *[word for word in words if word not in variables])
    assert not (tmp_path / "r").exists()
    assert before == {path: path.read_bytes() for run in runs.values() for path in run.iterdir()}
