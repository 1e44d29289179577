"""Recall at a distance: the generated text, the questions in it, and measurements of models whose memory is known."""

import hashlib
import json
import re

import numpy as np
import pytest
import torch
from conftest import facts_dataset, measured, protocol_of

import data
import eval_length
from data import recall as generator
from data.tokenizers import CharTokenizer
from evaluation.recall import SIGNS, choose_questions, find_questions, planted
from model import GPTConfig


def dataset_of(*texts):
    tokenizer = CharTokenizer(set("".join(texts)))
    docs = np.cumsum([0, *map(len, texts[:-1])])
    split = data.Split(tokenizer.encode("".join(texts)).astype(np.uint16), docs, tokenizer.n_vocab)
    return data.Dataset("x", split, split, tokenizer, {}, "")


def test_the_text_is_the_same_on_every_machine():
    found = hashlib.sha256("".join(map(generator.document, range(3))).encode()).hexdigest()
    assert found == "0cfcde818ac0f6ecc15e1a499e8d230cbb0e2ef01211d73ec1571435ecf5c895"


def test_questions_are_found_within_their_document():
    questions = find_questions(dataset_of("3a..7b.3a7b", "7b..3a.7b").val, CharTokenizer(".37ab"))
    assert questions.tolist() == [[0, 8], [0, 10], [11, 19]]
    with pytest.raises(ValueError, match="--protocol=recall"):
        find_questions(dataset_of("3a.4b").val, CharTokenizer(".34ab"))


class Remembers:
    """Answers correctly if and only if the last mention begins within the last `reach` characters."""

    lm_head = torch.nn.Identity()  # `hidden` returns the logits
    lm_head.weight = torch.zeros(1)

    def __init__(self, dataset, reach):
        self.tokenizer, self.reach = dataset.tokenizer, reach
        self.config = GPTConfig(block_size=128, vocab_size=dataset.tokenizer.n_vocab)

    def hidden(self, idx, last, positions=None):
        logits = torch.zeros(len(idx), last, self.config.vocab_size)
        for row, ids in enumerate(idx.tolist()):
            text = self.tokenizer.decode_bytes(ids).decode()
            if known := re.findall(rf"{text[-1]}([a-zA-Z])", text[-1 - self.reach : -1]):
                logits[row, -1, self.tokenizer.encode(known[-1])] = 20
        return logits


@pytest.mark.parametrize("reach", [40, 300, 10_000])
def test_the_reach_of_a_memory_is_measured_where_it_was_planted(reach):
    dataset = dataset_of(*(generator.document(i) for i in range(60)))
    protocol = protocol_of("recall", 10**6, trained=128, lengths="1024", blocks=30, seed=0)
    means, *_ = measured(protocol, Remembers(dataset, reach), dataset, trained=128)
    assert list(means["accuracy"]) == [4, 8, 16, 32, 64, 128, 256, 512]
    for distance, accuracy in means["accuracy"].items():
        if 2 * distance + 2 <= reach:
            assert accuracy == 1 and means["loss"][distance] < 1e-3
        if distance > reach:
            assert accuracy < 0.1 and means["loss"][distance] > 1


def test_the_interval_is_wilsons_or_covers_the_differences_of_seeds():
    documents = np.repeat(np.arange(30), 2)
    protocol = protocol_of("recall", 10**6, trained=8, lengths="8")
    right = np.ones((3, 60))
    mean, low, high = protocol.bounds("accuracy", right, documents)
    assert mean == high == 1 and 0.9 < low < 0.95  # Wilson's
    right[2] = 0  # two runs that know everything and one that knows nothing
    assert protocol.bounds("accuracy", right, documents) == (pytest.approx(2 / 3), 0, 1)


def test_the_fact_is_in_the_context_once_at_its_distance_and_the_rest_is_whole():
    dataset = dataset_of(*(generator.document(i) for i in range(60)))
    ends, documents = choose_questions(dataset, 2048, 50, seed=0)
    digits = dataset.val.tokens[ends - 1]
    assert len(ends) == 50 == len(set(zip(documents, digits, strict=True)))  # no fact twice
    assert (ends - documents >= 2048).all() and (ends >= data.tuning_part(len(dataset.val.tokens))).all()
    for distance, length in ((4, 128), (100, 256), (253, 256), (1024, 2048)):
        window = dataset.val.windows(ends - length, length)
        before = window.clone()
        change = planted(dataset.tokenizer.encode(SIGNS), np.full(50, distance))
        for i, row in enumerate(window):
            change(row, i)
        texts = ([dataset.tokenizer.decode_bytes(row).decode() for row in w.tolist()] for w in (before, window))
        for old, new in zip(*texts, strict=True):
            question = new[-2:]
            assert question == old[-2:] and new.count(question[0]) == 2 == new.count(question)
            assert new.index(question) == length + 1 - 4 - distance
            assert set(re.sub(r"\d[a-z]", "..", new)[1:]) == {"."}  # no half of a mention, but where the window begins
            changed = sum(a != b for a, b in zip(old, new, strict=True))
            assert changed <= 2 * old.count(question[0]) + 4


def test_the_command(trained, tmp_path, monkeypatch, capsys):
    facts = facts_dataset(tmp_path)
    sizes = {"alibi": 64, "learnable": 64, "rope": 32}
    alibi, learnable, rope = (str(trained(s, dataset=facts, block_size=n)) for s, n in sizes.items())
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    recall = ["--protocol=recall", "--blocks=4", "--device=cpu"]
    arguments = [alibi, learnable, *recall, "--lengths=256", f"--keep={tmp_path}/kept"]
    assert eval_length.main(arguments) == 0
    out = capsys.readouterr().out
    [first] = (tmp_path / "results").glob("recall-*.json")
    values = {name: run["values"]["accuracy"] for name, run in json.loads(first.read_text())["runs"].items()}
    assert list(values["alibi"]) == ["4", "8", "16", "32", "64", "128"]
    assert (
        values["learnable"]["64"] is None and 0 <= values["alibi"]["128"]["low"] <= values["alibi"]["128"]["high"] <= 1
    )
    assert "distance ≥" in out and "—" in out and "rise" not in out and [*(tmp_path / "results").glob("recall-*.png")]
    eval_length.main(arguments)
    assert capsys.readouterr().out.count("measured before") == 2
    eval_length.main([f"{tmp_path}/kept/alibi", learnable, *recall, "--lengths=256"])
    eval_length.main([rope, alibi, *recall])  # two training lengths: they answer the same questions
    newest = max((tmp_path / "results").glob("recall-*.json"), key=lambda path: path.stat().st_mtime_ns)
    runs = json.loads(newest.read_text())["runs"]
    assert list(runs["rope"]["values"]["accuracy"]) == list(runs["alibi"]["values"]["accuracy"])
