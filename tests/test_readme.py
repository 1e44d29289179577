"""Every command of README, docs/speed.md and the teaching page runs as written, in order, with tiny models."""

import importlib
import math
import re
import shlex
import subprocess
import textwrap

import pytest
from conftest import ROOT, facts_dataset

import config
import model
import train

NAMES = ("README.md", "docs/using.md", "docs/speed.md", "docs/position-encoding.md")
PAGES = [(ROOT / name).read_text() for name in NAMES]
BLOCKS = re.findall(r"```sh\n(.*?)```", "".join(PAGES), re.S)
COMMANDS = [line for line in "".join(BLOCKS).splitlines() if line.strip()]
MODEL = "--n_layer=4 --n_head=2 --n_embd=8 --block_size=16 --batch_size=2 --max_iters=2 --warmup_iters=1 --device=cpu"
SIZES = {  # flags that make a script's commands quick
    "eval_length": ["--blocks=4", "--device=cpu"],
    "sample": ["--max_new_tokens=8", "--device=cpu"],
    "tools.bench": "--n_layer=2 --n_head=2 --n_embd=8 --block_size=16 --batch_size=2 --device=cpu --rounds=1".split(),
}
GENERATED = {"recall": "recall", "task": "copy"}  # config file: its text


def calls(line):
    """Yields (script, arguments) for each call that the shell makes for a command line, with its loops and globs."""
    stub = 'python() { printf "%s\\n" "${*@Q}"; }; torchrun() { :; }; pip() { :; }; '
    out = subprocess.run(["bash", "-c", stub + line], capture_output=True, text=True, check=True).stdout
    for call in out.splitlines():
        script, *arguments = [word for word in shlex.split(call) if word != "-m"]
        yield script.removesuffix(".py"), arguments


def test_the_two_commands_come_first_and_the_pages_are_complete_and_short():
    assert COMMANDS[0].endswith("pip install -r requirements.txt && python train.py config/rope.py")
    assert COMMANDS[1].endswith("pip install -r requirements-dev.txt && python -m pytest")
    lines = PAGES[0].splitlines()
    assert next(line for line in lines if "pip install -r requirements-dev.txt" in line) == COMMANDS[1]  # as in .ci/run
    assert len(lines) <= 170
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for path in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
            assert (page.parent / path).exists(), path


def test_every_command_runs(dataset, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    generated = {f"config/{name}.py": facts_dataset(tmp_path, text) for name, text in GENERATED.items()}
    ran = set()
    train.main(["config/rope.py", f"--dataset={dataset}", *MODEL.split()])  # the first two lines make environments
    for line in COMMANDS[2:]:
        for script, arguments in calls(line):
            ran.add(script)
            if script == "data.prepare":  # test_data.py prepares; here, its arguments must be understood
                config.load(importlib.import_module(script).PrepareConfig, arguments, bare_field="name")
                continue
            extra = SIZES.get(script, [])
            if "--lengths" in "".join(arguments):
                extra = [*extra, "--lengths=8,32"]
            if script == "train":
                text = generated.get(arguments[0], dataset)
                extra = [f"--dataset={text}", *MODEL.split()]
                if arguments[0] == "config/task.py":
                    extra.append("--block_size=64")
                if any(a.startswith(("--resume", "--init_from")) for a in arguments):
                    extra = ["--max_iters=3", "--device=cpu"]
                if "--eval_only" in arguments:
                    extra = ["--device=cpu"]
            assert importlib.import_module(script).main([*arguments, *extra]) == 0, line
    assert {"train", "data.prepare", *SIZES} <= ran
    assert [*(tmp_path / "results").glob("length-*.png")]


def test_the_example_of_a_scheme_trains_from_a_file_of_schemes(dataset, tmp_path, monkeypatch):
    import schemes

    example = re.search(r"```python\n(.*?)```", PAGES[0], re.S)[1]
    (tmp_path / "example.py").write_text(example.replace('"mine"', '"example"'))  # the reader may have schemes/mine.py
    monkeypatch.setattr(schemes, "__path__", [*schemes.__path__, str(tmp_path)])
    importlib.import_module("schemes.example")
    train.main(["--pos_scheme=example", f"--dataset={dataset}", *MODEL.split(), f"--out_dir={tmp_path}/run"])
    assert (tmp_path / "run" / "best.pt").exists()
    del model.SCHEMES["example"]


@pytest.mark.parametrize("page", ["position-encoding.md", "position-encoding.zh.md"])
def test_the_teaching_page_prints_quotes_computes_and_names_what_is_true(page, capsys):
    text, english = ((ROOT / "docs" / name).read_text() for name in (page, "position-encoding.md"))
    (printed,) = re.findall(r"```text\n(.*?)```", text, re.S)
    example = re.search(r"```python\n(.*?)```", english, re.S)[1]
    exec(example, {})
    assert capsys.readouterr().out == printed
    tests = "".join(p.read_text() for p in (ROOT / "tests").glob("*.py"))
    for name in re.findall(r"`(test_\w+)`", text):
        assert f"def {name}(" in tests, name
    for path in re.findall(r"`(schemes/\w+\.png)`", text):
        assert (ROOT / "docs" / path).exists(), path

    files = [ROOT / "model.py", *(ROOT / "schemes").glob("*.py")]
    code = "".join(path.read_text() for path in files)
    quotes = [block for block in re.findall(r"```python\n(.*?)```", text, re.S) if "import torch" not in block]
    assert len(quotes) >= 4
    for quote in quotes:
        assert textwrap.indent(quote, 4 * " ") in code or textwrap.indent(quote, 8 * " ") in code, quote

    windows = [f"{math.log(100) / slope:,.0f}" for slope in model.alibi_slopes(4)]
    longest = [f"{2 * math.pi * 10000 ** (1 - 2 / channels):,.0f}" for channels in (128, 32)]
    turning = sum(127 * 10000 ** (-pair / 16) >= 2 * math.pi for pair in range(16))
    assert turning == 6
    for number in (*windows, *longest):
        assert number in text, number
