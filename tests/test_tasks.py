"""Tasks: their rules and their texts."""

import hashlib
import re

import pytest
from conftest import ROOT

import data
from data.prepare import main
from data.tasks import LONGEST, TASKS, document, fresh_examples, source_of, task_of


def add_by_hand(question):
    answer = ""
    carry = 0
    for a, b in zip(*question.split("+"), strict=True):
        carry, digit = divmod(int(a) + int(b) + carry, 10)
        answer += str(digit)
    return answer + str(carry)


RULES = {  # the answer to a question, written again
    "copy": lambda question: question,
    "repeat_copy": lambda question: question,
    "reverse": lambda question: "".join(reversed(question)),
    "sort": lambda question: "".join(map(chr, sorted(map(ord, question)))),
    "majority": lambda question: "a" if 2 * question.count("a") > len(question) else "b",
    "parity": lambda question: str(sum(map(int, question)) % 2),
    "addition": add_by_hand,
    "lookup": lambda question: dict(zip(question[:-1:2], question[1::2], strict=True))[question[-1]],
    "selective_copy": lambda question: "".join(filter(str.isalpha, question)),
}


@pytest.mark.parametrize("name", RULES)
def test_answers_follow_the_rule(name):
    page = (ROOT / "docs" / "tasks.md").read_text()
    for line in [TASKS[name].__doc__, *re.findall(rf"\| `{name}` \| `(.*)", page)]:
        question, answer = re.match(r"([^>]*)>(\w*)", line).groups()
        assert answer == RULES[name](question)
        assert name != "sort" or "code point" in line
    for n in (1, 2, 7, LONGEST, 8 * LONGEST):
        for question, answer in fresh_examples(name, n, 50, seed=0):
            assert answer == RULES[name](question)
            assert len(question) == {"addition": 2 * n + 1, "lookup": 2 * n + 1}.get(name, n)


def test_the_texts_are_the_same_on_every_machine():
    digest = hashlib.sha256("".join(document(name, 0) for name in RULES).encode()).hexdigest()
    assert digest == "6e92c0584eea0dec7f94c174862a3bc6a9bf90c998b1a89f8731570d9a791b7c"


@pytest.mark.parametrize("name", ["copy", "sort", "addition", "lookup"])  # there are many questions of one length
def test_new_examples_are_not_in_the_text(name):
    text = "".join(document(name, seed) for seed in range(30))
    assert not any(f"\n{question}>" in text for question, _ in fresh_examples(name, 10, 200, seed=0))


def test_the_page_says_what_always_answering_b_finds():
    shares = []
    for n in (10, 20, 40):
        answers = [answer for _, answer in fresh_examples("majority", n, 200, seed=1337)]
        shares.append(f"{answers.count('b') / 200:.1%}")
    assert "{}, {} and {}".format(*shares) in (ROOT / "docs" / "tasks.md").read_text()


def test_only_the_task_that_is_asked_for_is_made_and_its_fault_is_one_line(monkeypatch, refused, tmp_path):
    def prepare(name):
        return refused(main, name, f"--name={tmp_path}/set")

    monkeypatch.setitem(TASKS, "rotate", lambda random, n: ("abcd", "bcd\na"))
    assert "task rotate has a line end" in prepare("rotate") and "bcd\\na" in prepare("rotate")
    monkeypatch.setitem(TASKS, "rotate", lambda random, n: 1 / 0)
    assert "task rotate fails for" in prepare("rotate") and "division by zero" in prepare("rotate")
    monkeypatch.setattr("data.recall.DOCUMENTS", 20)
    assert main(["parity", f"--name={tmp_path}/parity"]) == 0


def test_a_change_of_the_rule_for_any_length_changes_the_source(monkeypatch):
    sources = {source_of("reverse")}
    for first in (1, LONGEST + 1, 8 * LONGEST):
        monkeypatch.setitem(TASKS, "reverse", lambda random, n, first=first: ("a", str(n < first)))
        sources.add(source_of("reverse"))
    assert len(sources) == 4


def test_a_task_is_scored_in_any_characters_by_the_rule_that_made_its_text(monkeypatch, tmp_path):
    monkeypatch.setattr("data.recall.DOCUMENTS", 20)
    for flags in ("copy --longest=40", f"sort --tokenizer=data:{tmp_path}/copy", "parity --tokenizer=bpe:300"):
        assert main([*flags.split(), f"--name={tmp_path}/{flags.split()[0]}"]) == 0
    assert [task_of(data.load(f"{tmp_path}/{name}")) for name in ("copy", "sort")] == [("copy", 40), ("sort", LONGEST)]
    with pytest.raises(ValueError, match="parity .*--tokenizer=char"):
        task_of(data.load(f"{tmp_path}/parity"))
    monkeypatch.setitem(TASKS, "copy", TASKS["reverse"])
    with pytest.raises(ValueError, match="copy .*rule .*--overwrite"):
        task_of(data.load(f"{tmp_path}/copy"))
