"""Exact answers: measurements of models that know a rule up to some length, or remember facts up to some distance."""

import re
from dataclasses import replace

import numpy as np
import pytest
from conftest import WrittenModel, dataset_of, facts_dataset
from test_tasks import RULES

from data import recall, tasks
from evaluation import answers
from evaluation.answers import AnswersConfig, answer_recall, answer_task, learned, reach
from evaluation.rows import by_number

CONFIG = AnswersConfig(runs=("x",), examples=3, device="cpu")


def dataset_with(documents, source):
    return replace(dataset_of(*documents), meta={"source": {"text": source}})


def task_dataset(name):
    """A dataset of six generated documents."""
    return dataset_with((tasks.document(name, seed) for seed in range(6)), tasks.source_of(name))


class Knows(WrittenModel):
    """Answers by the rule if the question has at most `reach` characters, and otherwise ends the answer at once."""

    def __init__(self, name, *args):
        super().__init__(*args)
        self.rule = RULES[name]
        self.seen = []

    def following(self, text):
        self.seen.append(text)
        question, mark, answer = text.split("\n")[-1].partition(">")
        if not mark:
            return ""
        expected = self.rule(question) if len(question) <= self.reach else ""
        return (expected + "\n")[len(answer) :][:1] or "\n"


@pytest.mark.parametrize("name", RULES)
def test_a_model_that_knows_the_rule_is_always_right(name, tmp_path):
    dataset = task_dataset(name)
    arrays = answer_task(CONFIG, name, [5, 10, 20, 40, 160], dataset, Knows(name, dataset, 10**4, tmp_path))
    assert len(arrays) == 10 and all(right.all() for right in arrays.values())


@pytest.mark.parametrize("known", [4, 10, 40])
def test_the_reach_of_a_model_is_measured(known, tmp_path):
    dataset = task_dataset("copy")
    arrays = answer_task(CONFIG, "copy", [5, 10, 20, 40, 80], dataset, Knows("copy", dataset, known, tmp_path))
    arrays = {name: right[None] for name, right in arrays.items()}
    for prefix in ("exact-", "exact_behind-"):
        right = by_number(arrays, prefix)
        assert {n: answers.all() for n, answers in right.items()} == {n: n <= known for n in (5, 10, 20, 40, 80)}
        assert reach(right) == [max([0, *(n for n in right if n <= known)])]
        assert learned(right) == [known >= tasks.LONGEST]


def test_an_example_stands_alone_or_behind_others(tmp_path):
    dataset = task_dataset("sort")
    run = Knows("sort", dataset, 0, tmp_path)
    answer_task(CONFIG, "sort", [20], dataset, run)
    windows = {text for text in run.seen if text.endswith(">")}
    everything = dataset.tokenizer.decode_bytes(dataset.val.tokens.tolist()).decode()
    for question, _ in tasks.fresh_examples("sort", 20, 3, CONFIG.seed):
        alone, behind = sorted((text for text in windows if text.endswith(f"\n{question}>")), key=len)
        assert alone == f"\n{question}>"
        assert len(behind) == 128 + 21 and behind[:128] in everything


def test_models_that_have_not_learned_the_task_are_told_from_others_by_fixed_lengths():
    right = np.ones((3, 200))
    right[0, :6] = 0  # 594 of 600 answers are enough, and 593 are not
    right[1, :7] = 0
    exact = {5: right, 10: np.ones((3, 200)), 20: np.ones((3, 200)), 40: np.zeros((3, 200))}
    assert learned(exact).tolist() == [True, False, True]


class Remembers(WrittenModel):
    """Answers correctly if and only if the last mention begins within the last `reach` characters."""

    def following(self, text):
        known = re.findall(rf"{text[-1]}([a-zA-Z])", text[-1 - self.reach : -1])
        return known[-1] if known else ""


@pytest.mark.parametrize("known", [40, 300, 10_000])
def test_the_reach_of_a_memory_is_measured_where_it_was_planted(known, tmp_path):
    dataset = dataset_with(map(recall.document, range(20)), recall.SOURCE)
    distances = [4, 8, 16, 32, 64, 128, 256, 512]
    found = answer_recall(replace(CONFIG, examples=30), distances, dataset, Remembers(dataset, known, tmp_path))
    for distance in distances:
        share = found[str(distance)].mean()
        if 2 * distance + 2 <= known:
            assert share == 1
        if distance > known:
            assert share < 0.1


@pytest.fixture
def answer(tmp_path, capsys):
    """answer(run, flag, …): what the command prints."""

    def call(*arguments):
        flags = ["--examples=4", "--device=cpu", f"--results_dir={tmp_path}/results"]
        assert answers.main([*map(str, arguments), *flags]) == 0
        return capsys.readouterr().out

    return call


def test_the_command(trained, answer, refused, tmp_path, monkeypatch):
    text = facts_dataset(tmp_path, "repeat_copy")
    runs = [trained("alibi", dataset=text, block_size=64, seed=seed) for seed in (1, 2)]
    learnable = trained("learnable", dataset=text, block_size=64)
    out = answer(*runs, learnable, f"--keep={tmp_path}/kept", "--lengths=1,40,80")
    assert "of the 4 examples of 1 symbols, 2 are different" in out
    shown = [line.split() for line in out.splitlines()]
    assert ["exact", "repeat_copy", "1", "5", "10", "20", "40", "80"] in shown
    (absolute, *_) = (row[1:] for row in shown if row[:1] == [str(learnable)])
    assert absolute[3].endswith("%") and absolute[4:] == ["—", "—"]  # examples of 40 symbols do not fit
    assert "0 of 2 models learned it; reach: 0, 0" in out
    (kept,) = (tmp_path / "kept").glob("alibi*.npz")
    assert "0 of 2 models learned it; reach: 0, 0" in answer(kept, "--lengths=1,40,80")
    monkeypatch.setattr("eval_length.score", None)  # nothing is measured again
    answer(*runs, "--lengths=1,40,80")
    assert "prepare one of" in refused(answers.main, trained("rope"))
    monkeypatch.setitem(tasks.TASKS, "repeat_copy", lambda random, n: ("ab"[n == 77] * n, "c" * n))
    assert "another rule" in refused(answers.main, *runs)


def test_the_command_for_recall(trained, answer, tmp_path):
    text = facts_dataset(tmp_path)
    alibi, learnable = (trained(scheme, dataset=text, block_size=64) for scheme in ("alibi", "learnable"))
    rows = [
        line.split() for line in answer(alibi, learnable, "--lengths=16,64", f"--keep={tmp_path}/kept").splitlines()
    ]
    by_name = {row[0]: row[1:] for row in rows if row}
    assert by_name[str(learnable)][1] == "—" and by_name[str(alibi)][1].endswith("%")
