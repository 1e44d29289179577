"""Recall at a distance: the generated text, the questions in it, and measurements of models whose memory is known."""

import hashlib
import re
from dataclasses import replace

import numpy as np
import pytest
from conftest import WrittenModel, dataset_of, facts_dataset, measured, protocol_of

import data
from data import recall as generator


def facts():
    """A dataset of generated documents."""
    dataset = dataset_of(*map(generator.document, range(60)))
    return replace(dataset, meta={"source": {"text": generator.SOURCE, "tokenizer": "char"}})


def test_the_text_is_the_same_on_every_machine():
    digest = hashlib.sha256("".join(map(generator.document, range(3))).encode()).hexdigest()
    assert digest == "0cfcde818ac0f6ecc15e1a499e8d230cbb0e2ef01211d73ec1571435ecf5c895"


def test_a_text_without_facts_is_a_mistake(dataset):
    with pytest.raises(ValueError, match="config/recall.py"):
        protocol_of("recall", data.load(dataset))


class Remembers(WrittenModel):
    """Answers correctly if and only if the last mention begins within the last `reach` characters."""

    def following(self, text):
        known = re.findall(rf"{text[-1]}([a-zA-Z])", text[-1 - self.reach : -1])
        return known[-1] if known else ""


@pytest.mark.parametrize("reach", [40, 300, 10_000])
def test_the_reach_of_a_memory_is_measured_where_it_was_planted(reach):
    dataset = facts()
    protocol = protocol_of("recall", dataset, trained=128, lengths="1024", blocks=30, seed=0)
    means, *_ = measured(protocol, Remembers(dataset, reach))
    assert list(means["accuracy"]) == [4, 8, 16, 32, 64, 128, 256, 512]
    for distance, accuracy in means["accuracy"].items():
        if 2 * distance + 2 <= reach:
            assert accuracy == 1
        if distance > reach:
            assert accuracy < 0.1


def test_the_interval_is_wilsons_or_covers_the_differences_of_seeds():
    documents = np.repeat(np.arange(30), 2)
    protocol = protocol_of("recall", facts(), trained=8, lengths="8")
    right = np.ones((3, 60))
    mean, low, high = protocol.bounds("accuracy", right, documents)
    assert mean == high == 1 and 0.9 < low < 0.95  # Wilson's
    right[2] = 0  # two runs that know everything and one that knows nothing
    assert protocol.bounds("accuracy", right, documents) == (pytest.approx(2 / 3), 0, 1)


@pytest.mark.parametrize("distance, size", [(4, 129), (100, 257), (128, 257), (1024, 2049)])
def test_the_fact_is_in_the_context_once_at_its_distance_and_no_half_of_another(distance, size):
    random = generator.Random(0)
    for _ in range(30):
        text = generator.question(random, distance, size)
        fact = text[-2:]
        assert len(text) == size and text.count(fact[0]) == 2 == text.count(fact)
        assert distance <= size - 4 - text.index(fact) < 2 * distance
        assert set(re.sub(r"\d[a-z]", "..", text)[1:]) == {"."}


def test_the_command(trained, evaluate, tmp_path):
    text = facts_dataset(tmp_path)
    alibi, learnable = (trained(scheme, dataset=text, block_size=64) for scheme in ("alibi", "learnable"))
    flags = ["--protocol=recall", "--blocks=4", "--lengths=256"]
    results = evaluate(alibi, learnable, *flags, f"--keep={tmp_path}/kept")
    values = {name: run["values"]["accuracy"] for name, run in results.runs.items()}
    assert list(values["alibi"]) == ["4", "8", "16", "32", "64", "128"]
    assert values["learnable"]["64"] is None
    assert 0 <= values["alibi"]["128"]["low"] <= values["alibi"]["128"]["high"] <= 1
    assert "distance ≥" in results.out and "rise" not in results.out
    assert [*(tmp_path / "results").glob("recall-*.png")]
    again = evaluate(tmp_path / "kept" / "alibi", learnable, *flags)
    assert again.out.count("measured before") == 1
