"""Exact answers: measurements of models that know a rule up to some length, or remember facts up to some distance."""

import re
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from conftest import WrittenModel, dataset_of, facts_dataset
from test_tasks import RULES

from data import recall, tasks
from evaluation import answers
from evaluation.answers import AnswersConfig, answer, learned, reach, recall_questions, task_questions
from evaluation.rows import by_number

CONFIG = AnswersConfig(runs=("x",), examples=3, device="cpu")


class Knows(WrittenModel):
    """Answers by the rule if the question has at most `reach` characters, and otherwise ends the answer at once."""

    def __init__(self, name, reach, folder):
        self.dataset = dataset_of(*(tasks.document(name, seed) for seed in range(6)))
        super().__init__(self.dataset, reach, folder)
        self.name = name
        self.seen = []

    def following(self, text):
        self.seen.append(text)
        question, mark, answer = text.split("\n")[-1].partition(">")
        if not mark:
            return ""
        expected = RULES[self.name](question) if len(question) <= self.reach else ""
        return (expected + "\n")[len(answer) :][:1] or "\n"

    def answers(self, *lengths):
        """What `answer` returns, as arrays of a row."""
        arrays = answer(CONFIG, partial(task_questions, CONFIG, self.name, lengths, self.dataset), self)
        return {name: right[None] for name, right in arrays.items()}


@pytest.mark.parametrize("name", RULES)
def test_a_model_that_knows_the_rule_is_always_right(name, tmp_path):
    arrays = Knows(name, 10**4, tmp_path).answers(5, 10, 20, 40, 160)
    assert len(arrays) == 10
    assert all(right.all() for right in arrays.values())


@pytest.mark.parametrize("known", [4, 10, 40])
def test_the_reach_of_a_model_is_measured(known, tmp_path):
    arrays = Knows("copy", known, tmp_path).answers(5, 10, 20, 40, 80)
    for prefix in ("exact-", "exact_behind-"):
        right = by_number(arrays, prefix)
        assert [n for n in right if right[n].all()] == [n for n in (5, 10, 20, 40, 80) if n <= known]
        assert reach(right) == [known if known > 4 else 0]
        assert learned(right) == [known >= tasks.LONGEST]


def test_an_example_stands_alone_or_behind_others(tmp_path):
    run = Knows("sort", 0, tmp_path)
    run.answers(20)
    everything = run.tokenizer.decode_bytes(run.dataset.val.tokens.tolist()).decode()
    for question, _ in tasks.fresh_examples("sort", 20, 3, CONFIG.seed):
        windows = {text for text in run.seen if text.endswith(f"\n{question}>")}
        alone, behind = sorted(windows, key=len)
        assert alone == f"\n{question}>"
        assert len(behind) == 128 + 21 and behind[:128] in everything


def test_models_that_have_not_learned_the_task_are_told_from_others_by_fixed_lengths():
    right = np.ones((3, 200))
    right[0, :6] = 0  # 594 of 600 answers are enough, and 593 are not
    right[1, :7] = 0
    all_right = np.ones((3, 200))
    exact = {5: right, 10: all_right, 20: all_right, 40: 0 * all_right}
    assert learned(exact).tolist() == [True, False, True]


class Remembers(WrittenModel):
    """Answers correctly if and only if the last mention begins within the last `reach` characters."""

    def following(self, text):
        known = re.findall(rf"{text[-1]}([a-zA-Z])", text[-1 - self.reach : -1])
        return known[-1] if known else ""


@pytest.mark.parametrize("known", [40, 300, 10_000])
def test_the_reach_of_a_memory_is_measured_where_it_was_planted(known, tmp_path):
    dataset = dataset_of(*map(recall.document, range(20)))
    cfg = replace(CONFIG, examples=30)
    distances = [4, 8, 16, 32, 64, 128, 256, 512]
    found = answer(cfg, partial(recall_questions, cfg, distances, dataset), Remembers(dataset, known, tmp_path))
    for distance in distances:
        share = found[str(distance)].mean()
        if 2 * distance + 2 <= known:
            assert share == 1
        if distance > known:
            assert share < 0.1


@pytest.fixture
def shown(tmp_path, capsys):
    """shown(run, flag, …): what the command prints, as words by the first of them, and as a text."""

    def call(*arguments):
        flags = ["--examples=4", "--device=cpu", f"--results_dir={tmp_path}/results"]
        assert answers.main([*map(str, arguments), *flags]) == 0
        out = capsys.readouterr().out
        lines = [line.split() for line in reversed(out.splitlines())]
        return {line[0]: line[1:] for line in lines if line}, out

    return call


def test_the_command(trained, shown, refused, tmp_path, monkeypatch, capsys):
    text = facts_dataset(tmp_path, "repeat_copy")
    runs = [trained("alibi", dataset=text, block_size=64, seed=seed) for seed in (1, 2)]
    assert f"evaluate  python -m evaluation.answers {runs[1]}" in capsys.readouterr().out
    learnable = trained("learnable", dataset=text, block_size=64)
    lines, out = shown(*runs, learnable, f"--keep={tmp_path}", "--lengths=1,40,80")
    assert "of the 4 examples of 1 symbols, 2 are different" in out
    assert lines["exact"] == ["repeat_copy", "1", "5", "10", "20", "40", "80"]
    absolute = lines[str(learnable)]
    assert absolute[3].endswith("%") and absolute[4:] == ["—", "—"]  # examples of 40 symbols do not fit
    assert "0 of 2 models learned it; reach: 0, 0" in out
    monkeypatch.setattr("eval_length.score", None)  # nothing is measured again
    (kept,) = tmp_path.glob("alibi*.npz")
    for names in ([kept], runs):
        assert "0 of 2 models learned it; reach: 0, 0" in shown(*names, "--lengths=1,40,80")[1]
    assert "prepare one of" in refused(answers.main, trained("rope"))
    monkeypatch.setitem(tasks.TASKS, "repeat_copy", lambda random, n: ("ab"[n == 77] * n, "c" * n))
    assert "another rule" in refused(answers.main, *runs)
