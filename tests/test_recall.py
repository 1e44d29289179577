"""Recall at a distance: the generated text, the questions in it, and what is measured of models whose memory is known."""

import hashlib
import importlib.util
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import data
import eval_length
import recall
import train
from model import GPTConfig

ROOT = Path(recall.__file__).parent
spec = importlib.util.spec_from_file_location("recall_char", ROOT / "data" / "recall_char" / "prepare.py")
generator = importlib.util.module_from_spec(spec)
spec.loader.exec_module(generator)


def dataset_of(*texts):
    tokenizer = data.CharTokenizer(set("".join(texts)))
    docs = np.cumsum([0, *map(len, texts[:-1])])
    split = data.Split(tokenizer.encode("".join(texts)).astype(np.uint16), docs)
    return data.Dataset("x", split, split, tokenizer, {}, "")


def test_the_text_is_the_same_on_every_machine():
    assert (
        hashlib.sha256(generator.document(0).encode()).hexdigest()
        == "a8a25d90f5d0664a28ca0a67aeceeb96c841507faba0de54d2f316efddf820a6"
    )
    assert [generator.Random(7).below(1000) for _ in range(2)] == [generator.Random(7).below(1000) for _ in range(2)]
    drawn = [r.below(10) for r in [generator.Random(3)] for _ in range(10_000)]
    assert abs(np.bincount(drawn) - 1000).max() < 130  # four standard deviations


def test_distances_are_log_uniform_and_every_answer_is_the_fact():
    texts = [generator.document(i) for i in range(20)]
    split, text = dataset_of(*texts).val, "".join(texts)
    questions = recall.find_questions(split, data.CharTokenizer(set(text)))
    assert len(questions) > 0.4 * len(re.findall(r"\w+=\w+;", text))  # some are still open at the end of a document
    for end, n, distance in questions[::50]:
        statement = text[end - n - 3 : end + 1]
        assert text[: end - n - 3 - distance].endswith(statement)
    octaves = np.bincount(np.log2(questions[:, 2] / 16).astype(int), minlength=8)
    assert octaves[1:6].min() > 0.7 * octaves[1:6].max()  # the first lacks those that had to wait for the end of a word


def test_questions_are_found_within_their_document():
    tokenizer = data.CharTokenizer("ab deors=;")
    [question] = recall.find_questions(dataset_of("ba=red; so ba=red;", "ba=red;").val, tokenizer)
    assert list(question) == [17, 3, 11 - 7]
    with pytest.raises(ValueError, match="holds no questions: --recall needs a run on recall_char"):
        recall.find_questions(dataset_of("nothing").val, data.CharTokenizer("nothig"))


class Remembers(torch.nn.Module):
    """Answers rightly if and only if the fact ends within the last `reach` characters."""

    class pos:
        max_positions = None

    def __init__(self, dataset, reach):
        super().__init__()
        self.tokenizer, self.reach, self.unused = dataset.tokenizer, reach, torch.nn.Parameter(torch.zeros(1))
        self.config = GPTConfig(block_size=128, vocab_size=dataset.tokenizer.n_vocab)

    def hidden(self, idx, last):
        logits = torch.zeros(len(idx), last, self.config.vocab_size)
        for row, ids in enumerate(idx.tolist()):
            text = self.tokenizer.decode_bytes(ids).decode()
            for i in range(last):
                so_far = text[: len(text) - last + 1 + i]
                if asked := re.search(r"(\w+)=(\w*)$", so_far):
                    facts = re.findall(rf"\b{asked[1]}=(\w+);", so_far[-self.reach :])
                    if facts:
                        logits[row, i, self.tokenizer.encode((facts[-1] + ";")[len(asked[2])])] = 20
        return logits

    def lm_head(self, logits):
        return logits


@pytest.mark.parametrize("reach", [64, 300, 10_000])
def test_the_reach_of_a_memory_is_measured_where_it_was_planted(reach):
    dataset = dataset_of(*(generator.document(i) for i in range(6)))
    rows = recall.measure(Remembers(dataset, reach), dataset, 1024, 30, 0, torch.float32, "x")
    assert list(rows) == [16, 32, 64, 128, 256, 512]
    for distance, row in rows.items():
        if 2 * distance + 24 <= reach:  # of a question, a distance is up to 20 shorter than to its fact's word
            assert row["accuracy"] == 1 and row["loss"] < 1e-3 and row["high"] == pytest.approx(1)
        if distance > reach:
            assert row["accuracy"] < 0.1 and row["loss"] > 1
        assert row["low"] <= row["accuracy"] <= row["high"] and row["n"] == 30


def test_the_command(tmp_path, monkeypatch, capsys):
    from data.prepare import prepare

    files = [tmp_path / f"{i}.txt" for i in range(12)]
    for i, file in enumerate(files):
        file.write_text(generator.document(i))
    prepare(f"{tmp_path}/facts", files, "char", {}, tmp_path)
    monkeypatch.chdir(tmp_path)
    for scheme in ("alibi", "learnable"):
        train.main([
            f"--dataset={tmp_path}/facts", f"--pos_scheme={scheme}", "--n_layer=1", "--n_head=1", "--n_embd=8",
            "--block_size=64", "--max_iters=2", "--device=cpu",
        ])  # fmt: skip
    capsys.readouterr()
    assert (
        eval_length.main(["out/alibi", "out/learnable", "--recall", "--blocks=4", "--lengths=256", "--device=cpu"]) == 0
    )
    out = capsys.readouterr().out
    found = json.loads((tmp_path / "results" / "recall.json").read_text())["runs"]
    assert list(found["alibi"]["rows"]) == ["16", "32", "64", "128"]
    assert found["alibi"]["rows"]["128"]["n"] == 4 and found["learnable"]["rows"]["128"] is None
    assert "—" in out and (tmp_path / "results" / "recall.png").exists()


def test_a_run_on_other_text_is_refused(tiny, tmp_path):
    train.main([*tiny, f"--out_dir={tmp_path}/r"])
    with pytest.raises(ValueError, match="holds no questions"):
        eval_length.main([f"{tmp_path}/r", "--recall", "--device=cpu", f"--results_dir={tmp_path}"])
