"""README's commands run as they are written, with few iterations; its example of a scheme is executed."""

import re
import shlex
from pathlib import Path

import pytest
from conftest import EXAMPLE

import bench
import claims
import config
import eval_length
import export
import sample
import train
import visualize
from model import SCHEMES

ROOT = Path(train.__file__).parent
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, re.S)
COMMANDS = [line for kind, text in BLOCKS if kind == "sh" for line in text.splitlines() if line.strip()]


def commands(script):
    """The argument lists of every call of a script, loops unrolled to their first turn, comments dropped."""
    found = []
    for line in COMMANDS:
        line = re.sub(r"for (\w+) in (\S+).*?; do", r"\1=\2;", line).split("#")[0]
        values = dict(re.findall(r"\b(\w)=([^;\s]+);", line))
        for name, value in values.items():
            line = line.replace(f"${name}", value)
        for call in re.split(r";|&&", line):
            words = shlex.split(call)
            if script in words:
                found.append(words[words.index(script) + 1 :])
    return found


def test_the_two_commands_come_first_and_ci_runs_the_second():
    assert COMMANDS[0].endswith("pip install -r requirements.txt && python train.py config/rope.py")
    assert COMMANDS[1].endswith("pip install -r requirements-dev.txt && python -m pytest")
    line = next(line for line in README.splitlines() if "pip install -r requirements-dev.txt" in line)
    assert line == COMMANDS[1]  # what .ci/run finds


def test_nothing_is_left_to_be_filled_in():
    assert "@@" not in README


def test_every_train_command_runs(tiny, tmp_path, monkeypatch):
    """In the README's order, in an empty folder, each with a model and a few steps of the tests' size."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config").symlink_to(ROOT / "config")
    for argv in commands("train.py"):
        assert train.main([*argv, *tiny]) == 0, argv


@pytest.mark.parametrize("module", [sample, eval_length, bench, visualize, export, claims], ids=lambda m: m.__name__)
def test_other_commands_are_valid(module):
    [cls] = [
        c
        for c in vars(module).values()
        if isinstance(c, type) and c.__module__ == module.__name__ and "Config" in c.__name__
    ]
    found = commands(f"{module.__name__}.py")
    assert found
    for argv in found:
        config.load(cls, argv, list_field="runs" if hasattr(cls, "runs") else None)


def test_prepare_scripts_exist():
    scripts = re.findall(r"python (data/\w+/prepare\.py)", README)
    assert scripts and all((ROOT / s).is_file() for s in scripts)


def test_main_path_as_written(tiny, tmp_path, monkeypatch, capsys):
    """Train, sample, evaluate: README's commands with a tiny model, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    paths = {a: f"{ROOT}/{a}" for argv in commands("train.py") for a in argv if a.startswith("config/")}
    train.main([paths["config/rope.py"], *tiny])
    sample.main([*commands("sample.py")[0], "--device=cpu"])
    eval_length.main(["out/rope", "--block_tokens=1", "--blocks=5", "--device=cpu"])
    assert (tmp_path / "results" / "length-rope.png").exists()
    capsys.readouterr()


def test_the_example_of_a_scheme_is_ten_lines():
    """conftest.py executes it; all tests of schemes then run on it."""
    assert "kerple" in SCHEMES
    assert len([line for line in EXAMPLE.split("class ")[1].splitlines() if line.strip()]) <= 10


@pytest.mark.parametrize("page", ["position-encoding.md", "position-encoding.zh.md"])
def test_the_teaching_page_prints_what_it_says_and_names_what_exists(page, capsys):
    text = (ROOT / "docs" / page).read_text()
    (example,), (printed,) = (re.findall(rf"```{kind}\n(.*?)```", text, re.S) for kind in ("python", "text"))
    exec(example, {})
    assert capsys.readouterr().out == printed
    tests = "".join(p.read_text() for p in (ROOT / "tests").glob("*.py"))
    for name in re.findall(r"`(test_\w+)`", text):
        assert f"def {name}(" in tests, name
    for path in re.findall(r"\]\((?!http)([^)#]+)", text) + re.findall(r"`(schemes/\w+\.png)`", text):
        assert (ROOT / "docs" / path).exists(), path
