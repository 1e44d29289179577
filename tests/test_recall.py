"""Recall at a distance: the generated text, the questions in it, and measurements of models whose memory is known."""

import hashlib
import json
import re

import numpy as np
import pytest
import torch
from test_protocols import measured

import data
import eval_length
from data import recall as generator
from data.prepare import main as prepare
from data.tokenizers import CharTokenizer
from eval_length import EvalConfig
from evaluation.recall import SIGNS, Recall, choose_questions, find_questions, planted
from model import GPTConfig


def dataset_of(*texts):
    tokenizer = CharTokenizer(set("".join(texts)))
    docs = np.cumsum([0, *map(len, texts[:-1])])
    split = data.Split(tokenizer.encode("".join(texts)).astype(np.uint16), docs, tokenizer.n_vocab)
    return data.Dataset("x", split, split, tokenizer, {}, "")


def facts_dataset(folder):
    """A small text of facts, as --dataset takes it."""
    with pytest.MonkeyPatch.context() as m:
        m.setattr(data, "ROOT", folder)
        m.setattr(generator, "DOCUMENTS", 60)
        assert prepare(["recall"]) == 0
    return f"{folder}/recall_char"


def test_the_text_is_the_same_on_every_machine():
    found = hashlib.sha256("".join(map(generator.document, range(3))).encode()).hexdigest()
    assert found == "0cfcde818ac0f6ecc15e1a499e8d230cbb0e2ef01211d73ec1571435ecf5c895"


def test_questions_are_found_within_their_document():
    questions = find_questions(dataset_of("3a..7b.3a7b", "7b..3a.7b").val, CharTokenizer(".37ab"))
    assert questions.tolist() == [[0, 8], [0, 10], [11, 19]]
    with pytest.raises(ValueError, match="does not ask for facts: --protocol=recall needs a run on recall_char"):
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
    protocol = Recall(EvalConfig(runs=("x",), protocol="recall", lengths="1024", blocks=30, seed=0), {128}, 10**6)
    _, rows, _ = measured(protocol, Remembers(dataset, reach), dataset, trained=128)
    assert list(rows) == [4, 8, 16, 32, 64, 128, 256, 512]
    for distance, row in rows.items():
        if 2 * distance + 2 <= reach:
            assert row["accuracy"] == 1 and row["loss"] < 1e-3 and row["high"] == pytest.approx(1)
        if distance > reach:
            assert row["accuracy"] < 0.1 and row["loss"] > 1
        assert row["low"] <= row["accuracy"] <= row["high"] and row["n"] == 30


def test_several_seeds_are_one_line_whose_interval_covers_their_differences():
    """Two runs that know everything and one that knows nothing."""
    found = {"documents": np.repeat(np.arange(30), 2), "loss-4": np.zeros((3, 60)), "4": np.ones((3, 60), bool)}
    protocol = Recall(EvalConfig(runs=("x",), protocol="recall", lengths="8"), {8}, 10**6)
    certain = protocol.rows(found, 8)[4]
    assert certain["accuracy"] == certain["high"] == 1 and 0.9 < certain["low"] < 0.95  # Wilson's
    found["4"][2] = False
    row = protocol.rows(found, 8)[4]
    assert row["accuracy"] == pytest.approx(2 / 3) and row["low"] == 0 and row["high"] == 1


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


def test_runs_of_two_training_lengths_answer_the_same_questions():
    dataset = dataset_of(*(generator.document(i) for i in range(60)))
    protocol = Recall(EvalConfig(runs=("x",), protocol="recall", lengths="32"), {32, 100}, 10**6)
    short, long = (protocol.prepare(dataset, trained)["ends"] for trained in (32, 100))
    assert np.array_equal(short, long)


def test_the_command(trained, tmp_path, monkeypatch, capsys):
    facts, sizes = facts_dataset(tmp_path), {"alibi": 64, "learnable": 64, "rope": 32}
    alibi, learnable, rope = (str(trained(s, dataset=facts, block_size=n)) for s, n in sizes.items())
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    recall = ["--protocol=recall", "--blocks=4", "--device=cpu"]
    arguments = [alibi, learnable, *recall, "--lengths=256"]
    assert eval_length.main(arguments) == 0
    out = capsys.readouterr().out
    [first] = (tmp_path / "results").glob("recall-*.json")
    found = json.loads(first.read_text())["runs"]
    assert list(found["alibi"]["rows"]) == ["4", "8", "16", "32", "64", "128"]
    assert found["alibi"]["rows"]["128"]["n"] == 4 and found["learnable"]["rows"]["64"] is None
    assert "distance ≥" in out and "—" in out and "L*" not in out and [*(tmp_path / "results").glob("recall-*.png")]
    eval_length.main(arguments)
    assert capsys.readouterr().out.count("measured before") == 2
    eval_length.main([rope, alibi, *recall])  # of two training lengths
    [second] = {*(tmp_path / "results").glob("recall-*.json")} - {first}
    found = json.loads(second.read_text())["runs"]
    assert list(found["rope"]["rows"]) == list(found["alibi"]["rows"]) and "512" in found["rope"]["rows"]


def test_an_older_kept_line_without_losses_of_answers_stands_for_runs_and_grows(trained, tmp_path, capsys):
    run = str(trained("alibi", dataset=facts_dataset(tmp_path), block_size=64))
    flags = ["--protocol=recall", "--blocks=4", "--device=cpu", "--lengths=256", f"--results_dir={tmp_path}"]
    eval_length.main([run, *flags, f"--keep={tmp_path}/kept"])
    [path] = (tmp_path / "kept").iterdir()
    with np.load(path) as line:
        older = {name: values for name, values in line.items() if not name.startswith("loss-")}
    about = json.loads(str(older["about"]))
    about["runs"][0]["seed"] = 5
    np.savez(path, **older | {"about": json.dumps(about)})
    capsys.readouterr()
    eval_length.main([str(path), *flags])
    assert "nan" not in capsys.readouterr().out
    eval_length.main([run, *flags, f"--keep={tmp_path}/kept"])
    with np.load(path) as line:
        assert set(line) == set(older) and line["128"].shape == (2, *older["128"].shape[1:])
