"""Recall at a distance: the generated text and the questions in it."""

import hashlib
import re

import pytest

from data import recall as generator


def test_the_text_is_the_same_on_every_machine():
    digest = hashlib.sha256("".join(map(generator.document, range(3))).encode()).hexdigest()
    assert digest == "0cfcde818ac0f6ecc15e1a499e8d230cbb0e2ef01211d73ec1571435ecf5c895"


@pytest.mark.parametrize("distance, size", [(4, 129), (100, 257), (128, 257), (1024, 2049)])
def test_the_fact_is_in_the_context_once_at_its_distance_and_no_half_of_another(distance, size):
    random = generator.Random(0)
    for _ in range(30):
        text = generator.question(random, distance, size)
        fact = text[-2:]
        assert len(text) == size and text.count(fact[0]) == 2 == text.count(fact)
        assert distance <= size - 4 - text.index(fact) < 2 * distance
        assert set(re.sub(r"\d[a-z]", "..", text)[1:]) == {"."}
