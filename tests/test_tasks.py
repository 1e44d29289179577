"""Tasks: their rules and their texts."""

import hashlib
import re

import numpy as np
import pytest
from conftest import ROOT

import data
from data.prepare import main
from data.recall import Random
from data.tasks import LONGEST, TASKS, document, fresh_examples, source_of, task_of


def insertion_sort(question):
    answer = ""
    for symbol in question:
        place = sum(ord(other) < ord(symbol) for other in answer)
        answer = answer[:place] + symbol + answer[place:]
    return answer


def count_majority(question):
    lead = 0
    for letter in question:
        lead += 1 if letter == "a" else -1
    return "a" if lead > 0 else "b"


def flip(question):
    odd = False
    for bit in question:
        odd ^= bit == "1"
    return "1" if odd else "0"


def add_by_hand(question):
    answer = ""
    carry = 0
    for a, b in zip(*question.split("+"), strict=True):
        carry, digit = divmod(int(a) + int(b) + carry, 10)
        answer += str(digit)
    return answer + str(carry)


RULES = {  # the answer to a question, written again
    "copy": lambda question: "".join(question[i] for i in range(len(question))),
    "repeat_copy": lambda question: "".join(question[i] for i in range(len(question))),
    "reverse": lambda question: "".join(reversed(question)),
    "sort": insertion_sort,
    "majority": count_majority,
    "parity": flip,
    "addition": add_by_hand,
    "lookup": lambda question: dict(zip(question[:-1:2], question[1::2], strict=True))[question[-1]],
    "selective_copy": lambda question: "".join(symbol for symbol in question if symbol.isalpha()),
}


@pytest.mark.parametrize("name", RULES)
def test_answers_follow_the_rule(name):
    page = (ROOT / "docs" / "tasks.md").read_text()
    for line in [TASKS[name].__doc__, *re.findall(rf"\| `{name}` \| `(.*)", page)]:
        question, answer = re.match(r"([^>]*)>(\w*)", line).groups()
        assert answer == RULES[name](question)
        assert name != "sort" or "code point" in line
    for n in (1, 2, 7, LONGEST, 8 * LONGEST):
        answers = set()
        for question, answer in fresh_examples(name, n, 50, seed=0):
            assert answer == RULES[name](question)
            assert len(question) == {"addition": 2 * n + 1, "lookup": 2 * n + 1}.get(name, n)
            if name in ("copy", "reverse", "sort"):
                assert len(set(question)) == n
            answers.add(answer)
        assert len(answers) > 1


def test_the_texts_are_the_same_on_every_machine():
    digest = hashlib.sha256("".join(document(name, 0) for name in RULES).encode()).hexdigest()
    assert digest == "6e92c0584eea0dec7f94c174862a3bc6a9bf90c998b1a89f8731570d9a791b7c"


@pytest.mark.parametrize("name", TASKS)
def test_no_example_of_the_test_lengths_is_in_the_text(name):
    lines = "".join(document(name, seed) for seed in range(30)).split()
    questions = [line.split(">")[0] for line in lines]
    longest, _ = TASKS[name](Random(0), LONGEST)
    lengths = np.bincount([*map(len, questions)])
    assert len(lengths) == len(longest) + 1
    assert lengths[lengths > 0].min() > 0.8 * len(lines) / LONGEST  # all trained lengths are as frequent
    for n in (LONGEST + 1, 2 * LONGEST, 8 * LONGEST):
        for question, _ in fresh_examples(name, n, 20, seed=0):
            assert len(question) > len(longest)
    if name in ("copy", "sort", "addition", "lookup"):  # with many questions of the same length, new ones are new
        assert not {question for question, _ in fresh_examples(name, 10, 200, seed=0)}.intersection(questions)


def test_the_page_says_what_always_answering_b_finds():
    shares = []
    for n in (10, 20, 40):
        answers = [answer for _, answer in fresh_examples("majority", n, 200, seed=1337)]
        shares.append(f"{answers.count('b') / 200:.1%}")
    assert "{}, {} and {}".format(*shares) in (ROOT / "docs" / "tasks.md").read_text()


def rotate(random, n):
    return "abcd", "bcd\na"


def test_only_the_task_that_is_asked_for_is_made_and_its_fault_is_one_line(monkeypatch, refused, tmp_path):
    def prepare(name):
        return refused(main, name, f"--name={tmp_path}/set")

    monkeypatch.setitem(TASKS, "rotate", rotate)
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
    for flags in ("copy --tokenizer=char", f"sort --tokenizer=data:{tmp_path}/copy", "parity --tokenizer=bpe:300"):
        assert main([*flags.split(), f"--name={tmp_path}/{flags.split()[0]}"]) == 0
    assert [task_of(data.load(f"{tmp_path}/{name}")) for name in ("copy", "sort")] == ["copy", "sort"]
    with pytest.raises(ValueError, match="parity .*by character"):
        task_of(data.load(f"{tmp_path}/parity"))
    monkeypatch.setitem(TASKS, "copy", TASKS["reverse"])
    with pytest.raises(ValueError, match="copy .*rule .* data.prepare copy"):
        task_of(data.load(f"{tmp_path}/copy"))
    monkeypatch.delitem(TASKS, "sort")
    with pytest.raises(ValueError, match="no task 'sort'"):
        task_of(data.load(f"{tmp_path}/sort"))


@pytest.mark.parametrize("name", TASKS)
def test_the_place_of_an_example_in_the_text_says_nothing(name):
    """Examples of copy have even lengths, and the windows of an epoch are a multiple of block_size apart."""
    text = "".join(document(name, seed) for seed in range(30))
    places = np.array([i for i, character in enumerate(text) if character == "\n"])
    assert 0.3 < (places % 2).mean() < 0.7
