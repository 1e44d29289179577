from dataclasses import dataclass

import pytest
from conftest import ROOT

import config
import eval_length
import sample
import train
from model import SCHEMES

CONFIGS = sorted(p for p in (ROOT / "config").glob("*.py") if p.name != "__init__.py")


@dataclass(frozen=True)
class Knobs:
    n: int = 1  # a whole number
    rate: float = 0.5
    flag: bool = False  # a switch
    maybe: bool | None = None
    name: str = "x"
    runs: tuple = ()


def test_files_compose_a_later_one_wins_and_flags_win_over_all(tmp_path):
    (tmp_path / "a.py").write_text("import math\n_hidden = 7\nn = 2 * 3\nrate = 1\nname = 'a'\n")
    (tmp_path / "b.py").write_text("name = 'b'\n")
    files = [f"{tmp_path}/a.py", f"{tmp_path}/b.py"]
    assert config.load(Knobs, files) == Knobs(n=6, rate=1.0, name="b")
    assert config.load(Knobs, ["--name=c=d", *files, "--n=1e3"]) == Knobs(n=1000, rate=1.0, name="c=d")


@pytest.mark.parametrize(
    "flag, field, value",
    [
        ("--flag", "flag", True), ("--flag=False", "flag", False), ("--flag=true", "flag", True), ("--maybe", "maybe", True),
        ("--maybe=None", "maybe", None), ("--name=3", "name", "3"), ("--name=", "name", ""), ("--rate=1e-3", "rate", 1e-3),
    ],
)  # fmt: skip
def test_values_are_read_by_the_fields_type(flag, field, value):
    assert getattr(config.load(Knobs, [flag]), field) == value


@pytest.mark.parametrize(
    "argv, message",
    [
        (["--nmae=3"], "unknown key 'nmae' in the command line: did you mean 'name'"),
        (["--n=1.5"], "n='1.5' must be of type int"),
        (["--n=True"], "must be of type int"),
        (["--flag=1"], "must be of type bool"),
        (["--maybe=1"], "must be of type bool or NoneType"),
        (["--n"], "--n needs a value"),
        (["stray"], "'stray' is neither a config file"),
        (["config/no_such.py"], "there is no config file config/no_such.py"),
    ],
)
def test_mistakes_are_named(argv, message):
    with pytest.raises(ValueError, match=message):
        config.load(Knobs, argv)


@pytest.mark.parametrize(
    "text, message",
    [("nn = 3", "unknown key 'nn' in .*c.py"), ("n = 'a'", "n='a' must be"), ("n = ", "c.py does not run: Syn")],
)
def test_mistakes_in_a_file_name_the_file(tmp_path, text, message):
    (tmp_path / "c.py").write_text(text)
    with pytest.raises(ValueError, match=message):
        config.load(Knobs, [f"{tmp_path}/c.py"])


def test_positional_arguments_are_collected():
    assert config.load(Knobs, ["a/b", "--n=2", "c"], list_field="runs").runs == ("a/b", "c")


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: p.stem)
def test_every_shipped_config_is_valid(path):
    train.TrainConfig(**config.read_file(train.TrainConfig, path))
    assert config.runpy.run_path(str(path))["__doc__"]


def test_every_scheme_has_a_config_of_its_name():
    for name in SCHEMES.keys() - {"kerple"}:  # README's example
        values = config.read_file(train.TrainConfig, f"{CONFIGS[0].parent}/{name}.py")
        tuned = {*SCHEMES[name].options, "learning_rate", "muon_lr"}
        assert values.pop("pos_scheme") == name and values.keys() <= tuned  # else as all others


@pytest.mark.parametrize("module", [train, sample, eval_length])
def test_help_lists_every_field_with_its_default_and_comment(module, capsys):
    with pytest.raises(SystemExit) as exit:
        module.main(["--help"])
    text = capsys.readouterr().out
    assert exit.value.code == 0
    assert "--device='auto'" in text and "auto, cpu, cuda, cuda:1, mps" in text
    assert "--protocol" not in text or "nonoverlapping  the same text" in text
    assert text.startswith(module.__doc__.strip().splitlines()[0])
