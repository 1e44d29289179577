"""Exact answers: measurements of models that know a rule up to some length, or remember facts up to some distance."""

import re
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from conftest import facts_dataset
from test_tasks import RULES

import data
from data import tasks
from evaluation import answers
from evaluation.answers import AnswersConfig, answer, learned, reach, recall_questions, task_questions
from evaluation.rows import by_number
from model import GPTConfig

CONFIG = AnswersConfig(runs=("x",), examples=3, device="cpu")


class Written:
    """A run whose model continues a text by `following(text)`."""

    config = GPTConfig(block_size=128, pos_scheme="none")

    def __init__(self, name, reach, folder):
        self.dataset = data.load(facts_dataset(folder, name))
        self.name = name
        self.reach = reach
        self.seen = []


@pytest.fixture
def written(monkeypatch):
    """Takes the answers of such a model for those of a GPT."""

    def measure(cfg, run, windows, scored):
        right = np.zeros((len(windows), scored), bool)
        for row, ids in enumerate(windows.tolist()):
            text = run.dataset.tokenizer.decode_bytes(ids).decode()
            for i in range(-scored, 0):
                right[row, i] = run.following(text[:i]) == text[i]
        return None, right

    monkeypatch.setattr(answers, "measure", measure)


class Knows(Written):
    """Answers by the rule if the question has at most `reach` characters, and otherwise ends the answer at once."""

    def following(self, text):
        self.seen.append(text)
        question, mark, answer = text.split("\n")[-1].partition(">")
        expected = RULES[self.name](question) if mark and len(question) <= self.reach else ""
        return (expected + "\n")[len(answer) :][:1] or "\n"

    def answers(self, *lengths):
        """What `answer` returns, as arrays of a row."""
        arrays = answer(CONFIG, partial(task_questions, CONFIG, self.name, lengths, self.dataset), self)
        return {name: right[None] for name, right in arrays.items()}


@pytest.mark.usefixtures("written")
@pytest.mark.parametrize(
    "name, known",
    [
        ("copy", 4),
        ("copy", 10),
        ("copy", 40),
        *((name, 500) for name in RULES),
    ],
)
def test_the_reach_of_a_model_is_measured(name, known, tmp_path):
    arrays = Knows(name, known, tmp_path).answers(5, 10, 20, 40, 160)
    expected = [n for n in (5, 10, 20, 40, 160) if n <= known]
    for prefix in ("exact-", "exact_behind-"):
        right = by_number(arrays, prefix)
        assert [n for n in right if right[n].all()] == expected
        assert reach(right) == max(expected, default=0)
        assert learned(right) == (tasks.LONGEST in expected)


@pytest.mark.usefixtures("written")
def test_an_example_stands_alone_or_behind_others(tmp_path):
    run = Knows("sort", 0, tmp_path)
    run.answers(20)
    everything = run.dataset.tokenizer.decode_bytes(run.dataset.val.tokens.tolist()).decode()
    for question, _ in tasks.fresh_examples("sort", 20, 3, CONFIG.seed):
        windows = {text for text in run.seen if text.endswith(f"\n{question}>")}
        alone, behind = sorted(windows, key=len)
        assert alone == f"\n{question}>"
        assert len(behind) == 128 + 21
        assert behind[:128] in everything


def test_models_that_have_not_learned_the_task_are_told_from_others_by_fixed_lengths():
    right = np.ones((3, 200))
    right[0, :6] = 0  # 594 of 600 answers are enough, and 593 are not
    right[1, :7] = 0
    all_right = np.ones((3, 200))
    exact = {5: right, 10: all_right, 20: all_right, 40: 0 * all_right}
    assert learned(exact).tolist() == [True, False, True]
    assert learned(exact, longest=40).tolist() == [False] * 3


class Remembers(Written):
    """Answers correctly if and only if the last mention begins within the last `reach` characters."""

    def following(self, text):
        known = re.findall(rf"{text[-1]}([a-zA-Z])", text[-1 - self.reach : -1])
        return known[-1] if known else ""


@pytest.mark.usefixtures("written")
@pytest.mark.parametrize("known", [40, 300, 10_000])
def test_the_reach_of_a_memory_is_measured_where_it_was_planted(known, tmp_path):
    run = Remembers("recall", known, tmp_path)
    cfg = replace(CONFIG, examples=30)
    distances = [4, 8, 16, 32, 64, 128, 256, 512]
    found = answer(cfg, partial(recall_questions, cfg, distances, run.dataset), run)
    for distance in distances:
        right = found[str(distance)]
        if 2 * distance + 2 <= known:
            assert right.all()
        if distance > known:
            assert right.mean() < 0.1


def test_the_command(trained, refused, tmp_path, monkeypatch, capsys):
    def shown(*arguments):
        """What the command prints, as words by the first of them, and as a text."""
        flags = ["--examples=4", "--lengths=1,40,80", "--device=cpu", f"--results_dir={tmp_path}/results"]
        assert answers.main([*map(str, arguments), *flags]) == 0
        out = capsys.readouterr().out
        lines = [line.split() for line in reversed(out.splitlines())]
        return {line[0]: line[1:] for line in lines if line}, out

    text = facts_dataset(tmp_path, "repeat_copy", "--longest=8")
    runs = [trained("alibi", dataset=text, block_size=64, seed=seed) for seed in (1, 2)]
    assert f"evaluate  python -m evaluation.answers {runs[1]}" in capsys.readouterr().out
    learnable = trained("learnable", dataset=text, block_size=64)
    lines, out = shown(*runs, learnable, f"--keep={tmp_path}")
    assert "of the 4 examples of 1 symbols, 2 are different" in out
    assert lines["exact"] == ["repeat_copy", "1", "2", "4", "8", "40", "80"]
    absolute = lines[str(learnable)]
    assert absolute[3].endswith("%")
    assert absolute[4:] == ["—", "—"]  # examples of 40 symbols do not fit
    assert "0 of 2 models learned it; reach: 0 (0×), 0 (0×)" in out
    monkeypatch.setattr("eval_length.score", None)  # nothing is measured again
    (kept,) = tmp_path.glob("alibi*.npz")
    for names in ([kept], runs):
        assert "0 of 2 models learned it; reach: 0 (0×), 0 (0×)" in shown(*names)[1]
    assert "prepare one of" in refused(answers.main, trained("rope"))
    monkeypatch.setitem(tasks.TASKS, "repeat_copy", lambda random, n: ("ab"[n == 77] * n, "c" * n))
    assert "another rule" in refused(answers.main, *runs)
