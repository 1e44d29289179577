from dataclasses import dataclass
from typing import Literal

import pytest
from conftest import ROOT

import config
import eval_length
import sample
import train
from model import find_scheme, scheme_names
from tools import bench

CONFIGS = sorted(p for p in (ROOT / "config").glob("*.py") if p.name != "__init__.py")


@dataclass(frozen=True)
class Knobs:
    n: int = 1  # a whole number
    rate: float = 0.5
    flag: bool = False  # a switch
    maybe: bool | None = None
    name: str = "x"
    runs: tuple = ()
    kind: Literal["a", "b"] = "a"  # a choice

    def __post_init__(self):
        config.check_choices(self)


def test_a_later_file_wins_over_earlier_ones_and_flags_win_over_files(tmp_path):
    (tmp_path / "a.py").write_text("import math\n_hidden = 7\nn = 2 * 3\nrate = 1\nname = 'a'\n")
    (tmp_path / "b.py").write_text("name = 'b'\n")
    files = [f"{tmp_path}/a.py", f"{tmp_path}/b.py"]
    assert config.load(Knobs, files) == Knobs(n=6, rate=1.0, name="b")
    assert config.load(Knobs, ["--name=c=d", *files, "--n=1e3"]) == Knobs(n=1000, rate=1.0, name="c=d")
    assert config.load(Knobs, ["a/b", "--n=2", "c"], bare_field="runs") == Knobs(n=2, runs=("a/b", "c"))


def test_a_value_is_read_as_the_type_of_its_field():
    flags = ["--flag", "--maybe", "--name=3", "--rate=1e-3", "--kind=b"]
    assert config.load(Knobs, flags) == Knobs(flag=True, maybe=True, name="3", rate=1e-3, kind="b")
    assert config.load(Knobs, ["--flag=False", "--maybe=None", "--name="]) == Knobs(flag=False, maybe=None, name="")
    assert config.load(Knobs, ["--flag=true"]).flag


@pytest.mark.parametrize(
    "argument, message",
    [
        ("--nmae=3", "unknown key --nmae: did you mean --name"),
        ("--n=1.5", "n='1.5' must be of type int"),
        ("--n=True", "must be of type int"),
        ("--flag=1", "must be of type bool"),
        ("--n", "--n needs a value"),
        ("--qzx=1", "unknown key --qzx: --help lists all keys"),
        ("--n=" + "9" * 5000, "must be of type int"),
        ("--rate=1e20", "rate='1e20' is not a number below 9e.15"),
        ("rate = float('nan')", "rate=nan is not a number below 9e.15"),
        ("--kind=c", "kind='c' is not one of: a, b"),
        ("stray", "'stray' is neither a config file"),
        ("no_such.py", "there is no config file no_such.py"),
        ("nn = 3", "unknown key nn in c.py"),
        ("n = 'a'", "n='a' must be"),
        ("n = ", "c.py does not run: Syn"),
        ("kind = 1", "kind=1 must be of type str"),
    ],
)
def test_a_mistake_is_named(argument, message, tmp_path, monkeypatch):
    """An argument with ` = ` is the content of a config file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.py").write_text(argument)
    with pytest.raises(ValueError, match=message) as error:
        config.load(Knobs, ["c.py" if " = " in argument else argument])
    assert len(str(error.value)) < 300


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: p.stem)
def test_every_shipped_config_is_valid(path):
    train.TrainConfig(**config.read_file(train.TrainConfig, path))
    assert config.runpy.run_path(str(path))["__doc__"]


def test_a_config_named_after_a_scheme_sets_only_what_is_tuned_for_it():
    own = [path for path in CONFIGS if path.stem in scheme_names()]
    in_model = {name for name in scheme_names() if find_scheme(name).__module__ == "model"}
    assert {path.stem for path in own} >= in_model
    for path in own:
        values = config.read_file(train.TrainConfig, path)
        tuned = {*find_scheme(path.stem).reads, "pos_options", "learning_rate", "muon_lr"}
        assert values.pop("pos_scheme") == path.stem and values.keys() <= tuned


@pytest.mark.parametrize("module", [train, sample, eval_length, bench])
def test_help_lists_every_field_with_its_default_and_comment(module, capsys):
    with pytest.raises(SystemExit) as exit:
        module.main(["--help"])
    text = capsys.readouterr().out
    assert exit.value.code == 0 and text.startswith(module.__doc__.strip().splitlines()[0])
    assert "--device='auto'" in text and "auto, cpu, cuda, cuda:1, mps" in text
    rows = [line for line in text.splitlines() if line.startswith("  --")]
    assert len(rows) > 10 and all(len(line.split(maxsplit=1)) == 2 for line in rows)
    assert module is not train or ", ".join(scheme_names()) in text
    assert "--protocol" not in text or "nonoverlapping  the same text" in text
