import os
from dataclasses import dataclass
from typing import Literal

import pytest
from conftest import ROOT

import config
import eval_length
import sample
import train
from model import find_scheme, scheme_names
from tools import bench, pictures

CONFIGS = sorted((ROOT / "config").glob("[!_]*.py"))


@dataclass(frozen=True)
class Knobs:
    n: int = 1  # a whole number
    count: config.Count = 1
    rate: float = 0.5
    share: config.Share = 0.5
    flag: bool = False  # a switch
    maybe: bool | None = None
    name: str = "x"
    folder: config.PathName = "y"
    runs: tuple = ()
    kind: Literal["a", "b"] = "a"  # a choice

    def __post_init__(self):
        config.check_values(self)


@pytest.mark.parametrize(
    "line, settings",
    [
        ("a.py b.py", dict(n=6, rate=1.0, name="b", folder="/home/a")),  # a later file wins
        ("--name=c=d a.py b.py --n=1e3", dict(n=1000, rate=1.0, name="c=d", folder="/home/a")),  # and flags over files
        ("r/s --n=2 t", dict(n=2, runs=("r/s", "t"))),
        ("--flag --maybe --name=3 --rate=1e-3 --kind=b", dict(flag=True, maybe=True, name="3", rate=1e-3, kind="b")),
        ("--flag=true --maybe=None --name= --rate=1/4", dict(flag=True, maybe=None, name="", rate=0.25)),
        ("--maybe=False --folder=~/a --name=~/b", dict(maybe=False, folder="/home/a", name="~/b")),
    ],
)
def test_a_value_has_the_type_of_its_field(line, settings, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", "/home")
    monkeypatch.chdir(tmp_path)
    imports = "import math\nfrom pathlib import Path\nfrom math import sqrt\n"  # these are no settings
    (tmp_path / "a.py").write_text(imports + "_hidden = 7\nn = 2 * 3\nrate = sqrt(1)\nname = 'a'\nfolder = '~/a'")
    (tmp_path / "b.py").write_text("name = 'b'")
    assert config.load(Knobs, line.split(), bare_field="runs") == Knobs(**settings)


@pytest.mark.parametrize(
    "argument, message",
    {
        "--nmae=3": "--nmae: did you mean --name",
        "--n=1.5": "n='1.5' must be of type int",
        "--n": "--n=VALUE",
        "--qzx=1": "--qzx: --help",
        "--n=" + "9" * 5000: "n='999.* must be of type int",
        "--rate=1e400": "rate=inf must be at least 0 and below",
        "--count=1e9": "count=1000000000 must be at least 1 and below 1,048,576",
        "--share=1": "share=1.0 must be at least 0 and below 1",
        "--kind=c": "kind='c' is not one of: a, b",
        "-n=3": "'-n=3' is neither .*--key=value",
        "config/rpe.py": "config/rpe.py",
        "nn = 3": "c.py: unknown key --nn",
        "n = 'a'": "c.py: n='a' must be of type int",
        "n = ": "c.py does not run: SyntaxError",
    }.items(),
)
def test_a_mistake_is_named(argument, message, tmp_path, monkeypatch):
    """An argument with ` = ` is the content of a config file."""
    monkeypatch.chdir(tmp_path)
    if " = " in argument:
        (tmp_path / "c.py").write_text(argument)
        argument = "c.py"
    with pytest.raises(ValueError, match=message) as error:
        config.load(Knobs, [argument])
    assert len(str(error.value)) < 500


NANOGPT = """out_dir eval_interval log_interval eval_iters eval_only always_save_checkpoint init_from wandb_log wandb_project
    wandb_run_name dataset gradient_accumulation_steps batch_size block_size n_layer n_head n_embd dropout bias learning_rate
    max_iters weight_decay beta1 beta2 grad_clip decay_lr warmup_iters lr_decay_iters min_lr backend device dtype compile"""


def test_every_setting_of_nanogpt_is_one_or_gets_an_answer_of_its_own():
    for name in NANOGPT.split():
        if name not in train.TrainConfig.__dataclass_fields__:
            with pytest.raises(ValueError, match=f"--{name}") as error:
                config.types_of(train.TrainConfig, name)
            assert str(error.value).endswith(config.ANSWERS[name])


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: p.stem)
def test_every_shipped_config_is_valid_and_that_of_a_scheme_sets_only_what_is_tuned_for_it(path, monkeypatch):
    monkeypatch.chdir(os.sep)  # they are found from any folder
    values = config.read_file(train.TrainConfig, f"config/{path.name}")
    train.TrainConfig(**values)
    assert config.runpy.run_path(str(path))["__doc__"]
    if path.stem in scheme_names():
        assert values.pop("pos_scheme") == path.stem
        assert values.keys() <= {*find_scheme(path.stem).reads, "pos_options", "learning_rate", "muon_lr"}


@pytest.mark.parametrize("module", [train, sample, eval_length, bench, pictures])
def test_help_lists_every_field_with_its_default_and_comment(module, capsys):
    with pytest.raises(SystemExit) as exit:
        module.main(["--help"])
    text = capsys.readouterr().out
    assert not exit.value.code
    assert text.startswith(module.__doc__.strip().splitlines()[0])
    rows = [line.split(maxsplit=1) for line in text.splitlines() if line.startswith("  --")]
    assert rows and all(len(row) == 2 for row in rows)
    assert "|llama3] " in text or module in (bench, pictures)  # --rope_scaling
