"""Recall at a distance: the generated text, the questions in it, and what is measured of models whose memory is known."""

import hashlib
import json
import re

import numpy as np
import pytest
import torch
from test_protocols import measured

import data
import eval_length
from data.recall_char import prepare as generator
from eval_length import EvalConfig
from evaluation.recall import Recall, choose_questions, find_questions
from model import GPTConfig


def dataset_of(*texts):
    tokenizer = data.CharTokenizer(set("".join(texts)))
    docs = np.cumsum([0, *map(len, texts[:-1])])
    split = data.Split(tokenizer.encode("".join(texts)).astype(np.uint16), docs, tokenizer.n_vocab)
    return data.Dataset("x", split, split, tokenizer, {}, "")


def facts_dataset(folder):
    """A small text of data/recall_char, as --dataset takes it."""
    with pytest.MonkeyPatch.context() as m:
        m.setattr(data, "ROOT", folder)
        m.setattr(generator, "DOCUMENTS", 60)
        assert generator.main([]) == 0
    return f"{folder}/recall_char"


def test_the_text_is_the_same_on_every_machine():
    found = hashlib.sha256("".join(map(generator.document, range(3))).encode()).hexdigest()
    assert found == "5a5f4cda0998316c724c3c2746e3df1b848271d2eef1a448c2574f7345b1ab93"
    drawn = [r.below(10) for r in [generator.Random(3)] for _ in range(10_000)]
    assert abs(np.bincount(drawn) - 1000).max() < 130  # four standard deviations


def test_in_a_document_a_digit_has_one_letter_and_distances_are_log_uniform():
    texts = [generator.document(i) for i in range(120)]
    dataset = dataset_of(*texts)
    questions = find_questions(dataset.val, dataset.tokenizer)
    whole = "".join(texts)
    for first, answer, distance in questions[::500]:
        mention = whole[answer - 1 : answer + 1]
        assert whole[: answer - 1 - distance].endswith(mention)
        assert mention not in whole[answer - 1 - distance : answer - 1]
        assert first <= answer - 3 - distance
    sparse = [t for t in texts if t.count(".") > 0.9 * len(t)]  # of the widest range
    far = find_questions(dataset_of(*sparse).val, data.CharTokenizer(set("".join(sparse))))[:, 2]
    octaves = np.bincount(np.log2(far / 4).astype(int), minlength=9)
    assert octaves[1:6].min() > 0.8 * octaves[1:6].max() and far.max() > 1500
    for text in texts:
        assert len(set(re.findall(r"\d[a-zA-Z]", text))) == 10 and 8192 <= len(text) <= 8193


def test_questions_are_found_within_their_document():
    questions = find_questions(dataset_of("3a..7b.3a7b", "7b..3a.7b").val, data.CharTokenizer(".37ab"))
    assert questions.tolist() == [[0, 8, 5], [0, 10, 3], [11, 19, 5]]
    with pytest.raises(ValueError, match="does not ask for facts: --protocol=recall needs a run on recall_char"):
        find_questions(dataset_of("3a.4b").val, data.CharTokenizer(".34ab"))
    with pytest.raises(ValueError, match="does not ask for facts"):  # a text that only looks like it
        find_questions(dataset_of("0x41 0y 0x41").val, data.CharTokenizer(" 014xy"))


class Remembers:
    """Answers correctly if and only if the last mention begins within the last `reach` characters."""

    lm_head = torch.nn.Identity()  # `hidden` returns the logits
    lm_head.weight = torch.zeros(1)

    def __init__(self, dataset, reach):
        self.tokenizer, self.reach = dataset.tokenizer, reach
        self.config = GPTConfig(block_size=128, vocab_size=dataset.tokenizer.n_vocab)

    def hidden(self, idx, last):
        logits = torch.zeros(len(idx), last, self.config.vocab_size)
        for row, ids in enumerate(idx.tolist()):
            text = self.tokenizer.decode_bytes(ids).decode()
            if known := re.findall(rf"{text[-1]}([a-zA-Z])", text[-1 - self.reach : -1]):
                logits[row, -1, self.tokenizer.encode(known[-1])] = 20
        return logits


@pytest.mark.parametrize("reach", [40, 300, 10_000])
def test_the_reach_of_a_memory_is_measured_where_it_was_planted(reach):
    dataset = dataset_of(*(generator.document(i) for i in range(60)))
    protocol = Recall(EvalConfig(runs=("x",), protocol="recall", lengths="1024", blocks=30, seed=0), {128}, 10**6)
    _, rows, _ = measured(protocol, Remembers(dataset, reach), dataset, trained=128)
    assert list(rows) == [4, 8, 16, 32, 64, 128, 256, 512]
    for distance, row in rows.items():
        if 2 * distance + 2 <= reach:
            assert row["accuracy"] == 1 and row["loss"] < 1e-3 and row["high"] == pytest.approx(1)
        if distance > reach:
            assert row["accuracy"] < 0.1 and row["loss"] > 1
        assert row["low"] <= row["accuracy"] <= row["high"] and row["n"] == 30


def test_every_context_holds_the_fact_and_lies_in_its_document():
    dataset = dataset_of(*(generator.document(i) for i in range(60)))
    text = dataset.tokenizer.decode_bytes(dataset.val.tokens).decode()
    lengths = {2**i: max(128, 2 ** (i + 1)) for i in range(2, 11)}
    for distance, places in choose_questions(dataset, lengths, 50, seed=0).items():
        length = lengths[distance]
        assert len(places) > 0
        documents = np.searchsorted(dataset.val.docs, places, side="right")
        assert len(set(zip(documents, dataset.val.tokens[places - 1], strict=True))) == len(places)  # no fact twice
        for answer in places:
            context = text[answer - length : answer]
            before = context[:-1].rfind(text[answer - 1 : answer + 1])
            assert before >= 0 and distance <= length - 1 - before - 2 < 2 * distance
            document = np.searchsorted(dataset.val.docs, [answer - length, answer], side="right")
            assert document[0] == document[1]


def test_the_command(trained, tmp_path, monkeypatch, capsys, refused):
    facts, sizes = facts_dataset(tmp_path), {"alibi": 64, "learnable": 64, "rope": 32}
    alibi, learnable, rope = (str(trained(s, dataset=facts, block_size=n)) for s, n in sizes.items())
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    recall = ["--protocol=recall", "--blocks=4", "--device=cpu"]
    arguments = [alibi, learnable, *recall, "--lengths=256"]
    assert eval_length.main(arguments) == 0
    out = capsys.readouterr().out
    found = json.loads((tmp_path / "results" / "recall.json").read_text())["runs"]
    assert list(found["alibi"]["rows"]) == ["4", "8", "16", "32", "64", "128"]
    assert found["alibi"]["rows"]["128"]["n"] == 4 and found["learnable"]["rows"]["64"] is None
    assert "64–127" in out and "—" in out and "L*" not in out and (tmp_path / "results" / "recall.png").exists()
    eval_length.main([*arguments, "--window=8"])
    assert (tmp_path / "results" / "recall-window8.json").exists()
    eval_length.main(arguments)
    assert capsys.readouterr().out.count("done before") == 2
    eval_length.main([rope, alibi, *recall])  # of two training lengths
    found = json.loads((tmp_path / "results" / "recall.json").read_text())["runs"]
    assert list(found["rope"]["rows"]) == list(found["alibi"]["rows"]) and "512" in found["rope"]["rows"]
    assert "does not ask for facts" in refused(eval_length.main, trained("rope"), *recall)  # of other text
    stretched, measure = [], Recall.measure  # as far as each row needs, and no further

    def noting(self, job, subject, *rest):
        stretched.append((job.length, subject.model.config.rope_factor))
        return measure(self, job, subject, *rest)

    monkeypatch.setattr(Recall, "measure", noting)
    eval_length.main([rope, *recall, "--rope_scaling=yarn", "--lengths=128"])
    assert stretched == [(32, 1), (32, 1), (32, 1), (64, 2), (128, 4)]
