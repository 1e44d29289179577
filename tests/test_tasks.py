"""Tasks: their rules, their texts, and measurements of models that know a rule up to some length."""

import hashlib

import numpy as np
import pytest

from data.recall import Random
from data.tasks import LONGEST, TASKS, document, fresh_examples


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


@pytest.mark.parametrize("name", TASKS)
def test_the_place_of_an_example_in_the_text_says_nothing(name):
    """Examples of copy have even lengths, and the windows of an epoch are a multiple of block_size apart."""
    text = "".join(document(name, seed) for seed in range(30))
    places = np.array([i for i, character in enumerate(text) if character == "\n"])
    assert 0.3 < (places % 2).mean() < 0.7
