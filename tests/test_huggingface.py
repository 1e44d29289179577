import json
import os
import re
import signal
import subprocess
import sys
import time
from unittest.mock import Mock

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tokenizers
import transformers
from conftest import ROOT, documents, prepare
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

import data
from data import texts
from data.prepare import FILES, PrepareConfig, main
from data.tokenizers import named_tokenizer, tokenizer_from

CHAR = "--tokenizer=char"
TEXTS = [f"document {i}:\n" + "many words " * (i % 7 + 3) for i in range(30)]


def write(path, texts=TEXTS):
    """The texts as one parquet or jsonl file, with another column that is named like the file."""
    rows = [{path.stem: i, "text": text} for i, text in enumerate(texts)]
    path.parent.mkdir(exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def all_documents(ds):
    return sorted(documents(ds, ds.train) + documents(ds, ds.val))


@pytest.mark.parametrize("name", ["[2024] *b/x?.parquet", "[2024] *b/x?.JSONL", "x.ndjson", "x.json"])
def test_parquet_and_jsonl_give_the_same_documents(tmp_path, name):
    write(tmp_path / "2 ab" / f"xx{name[-8:]}", ["what the name matches as a pattern"])
    ds = prepare(tmp_path, write(tmp_path / name), CHAR)
    val = documents(ds, ds.val)
    assert len(val) == 3 and val == [text for text in TEXTS if text in val]
    assert documents(ds, ds.train) == [text for text in TEXTS if text not in val]


def write_tokenizer(folder, vocabulary=330):
    """A tokenizer in Hugging Face's format, which writes bytes as GPT-2's does or, in a folder "sentencepiece", as
    Llama's."""
    tokenizer = tokenizers.Tokenizer(models.BPE(byte_fallback=True))
    special = ["<|endoftext|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    if folder.name == "sentencepiece":
        tokenizer.normalizer = normalizers.Replace(" ", "▁")
        special += [f"<0x{byte:02X}>" for byte in range(256)]
        alphabet = ["▁"]
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocabulary, special_tokens=special, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(TEXTS, trainer)
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=special[0], model_max_length=8)
    fast.save_pretrained(folder)
    return f"hf:{folder}"


@pytest.mark.parametrize("kind", ["bpe:300", "bytes", "sentencepiece"])
def test_end_of_text_stands_between_documents_and_its_name_in_one_is_only_text(kind, tmp_path, capsys):
    kind = kind if ":" in kind else write_tokenizer(tmp_path / kind)
    rows = [*TEXTS, "", None, "a <|endoftext|> b 中文 naïve 🙂\r\n"]
    first = write(tmp_path / "a.parquet", rows[:20])
    second = write(tmp_path / "b.jsonl", rows[20:])
    ds = prepare(tmp_path, first, second, f"--tokenizer={kind}")
    assert all_documents(ds) == sorted(filter(None, rows))
    assert "2 rows without text" in capsys.readouterr().out
    for split in (ds.train, ds.val):
        assert (np.flatnonzero(split.tokens == ds.tokenizer.eot) == split.docs[1:] - 1).all()
    tokenizer = tokenizer_from(json.loads(json.dumps(ds.tokenizer.spec)))
    ids = tokenizer.encode("a 🙂<|endoftext|>")
    assert ids[-1] == tokenizer.eot and max(ids) < tokenizer.n_vocab <= 330
    assert b"".join(tokenizer.decode_bytes([id]) for id in ids) == "a 🙂<|endoftext|>".encode()


def test_a_tokenizer_is_known_by_its_name_and_vocabulary(tmp_path, monkeypatch, refused, capsys):
    kind = write_tokenizer(tmp_path / "model")
    flags = [write(tmp_path / "a.jsonl"), f"--name={tmp_path}/set", f"--tokenizer={kind}"]
    assert main([*map(str, flags)]) == 0
    assert data.load(f"{tmp_path}/set").tokenizer.spec == named_tokenizer(kind).spec
    assert "changes or drops" not in capsys.readouterr().out
    vocabulary = {character: i for i, character in enumerate("dmt")}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocabulary, []))  # it drops all other characters
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(tmp_path / "model")
    main([*map(str, flags), "--overwrite"])
    assert "changes or drops characters, in 27 of" in capsys.readouterr().out
    write_tokenizer(tmp_path / "model", vocabulary=290)
    with pytest.raises(ValueError, match="model has changed"):
        data.load(f"{tmp_path}/set")
    assert "no/where could not be loaded" in refused(main, *flags[:2], f"--tokenizer=hf:{tmp_path}/no/where")
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert "pip install transformers" in refused(main, *flags)


def test_rows_without_text_are_not_drawn_for_validation(tmp_path):
    rows = [text for text in TEXTS for text in ("", text)]
    ds = prepare(tmp_path, write(tmp_path / "a.jsonl", rows), CHAR)
    assert len(ds.val.docs) == 3 and len(ds.train.docs) == 27


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL])
def test_a_stopped_preparation_leaves_nothing_for_the_next(tmp_path, signum):
    path = write(tmp_path / "t.jsonl", ["some words " * 300] * 20_000)
    out = tmp_path / "out"
    command = [sys.executable, "-m", "data.prepare", path, f"--name={tmp_path}/set", CHAR]
    with open(out, "w") as f:
        process = subprocess.Popen(command, stdout=f, stderr=f, start_new_session=True, cwd=ROOT)
    while not re.search("tokenising train: +[1-9]", out.read_text()):
        assert process.poll() is None, out.read_text()
        time.sleep(0.02)
    os.killpg(process.pid, signum)
    assert process.wait(30) == -signum, out.read_text()
    if signum == signal.SIGINT:
        assert "Traceback" not in out.read_text() and not (tmp_path / "set").exists()
    assert all_documents(prepare(tmp_path, write(path), CHAR)) == sorted(TEXTS)
    assert {path.name for path in (tmp_path / "set").iterdir()} == {*FILES}


def test_nanogpts_documents_are_held_out_or_a_validation_split_of_its_own(monkeypatch, capsys):
    def read(**splits):
        monkeypatch.setattr(datasets, "load_dataset", lambda path, name: datasets.DatasetDict(splits))
        documents = texts.TEXTS["openwebtext"].read(PrepareConfig())
        return [[text for _, text in read_split()] for read_split in documents.values()]

    rows = datasets.Dataset.from_dict({"text": [str(i) for i in range(210_000)]})
    expected = rows.train_test_split(test_size=0.0005, seed=2357, shuffle=True)["test"]["text"]
    train, val = read(train=rows)
    assert val == sorted(expected, key=int) and sorted(train + val, key=int) == rows["text"][:]
    splits = {"train": rows.select([1, 2]), "test": rows.select([5]), "dev": rows.select([7])}
    assert read(**splits) == [["1", "2"], ["7"]] and "validation: dev; left out: test" in capsys.readouterr().out


@pytest.mark.parametrize(
    "flags, word",
    {
        "{tmp}/broken.parquet": "broken.parquet",
        "{tmp}/good.jsonl --column=good": "good.jsonl, row 1 .*--column='good' is int",
        "{tmp}/good.parquet --column=x": "good.parquet, row 1 .*--column='x' .* good, text",
        "{tmp}/half.jsonl": "half.jsonl, row 2",
        "{tmp}/blank.jsonl": "blank.jsonl, row 3 .*--column='text' is missing",
        "{tmp}/cut.jsonl": "cut.jsonl, row 3 .*Expecting value",
        "{tmp}/good.jsonl README.md": "good.jsonl .*README.md",
        "{tmp}/one.jsonl": "train",
        "hf:no/such": "the hub is away",
    }.items(),
)
def test_mistakes_with_rows_are_one_line_and_leave_no_dataset(tmp_path, monkeypatch, flags, word):
    monkeypatch.chdir(ROOT)
    write(tmp_path / "good.jsonl")
    write(tmp_path / "good.parquet")
    write(tmp_path / "half.jsonl", ["a", "half a surrogate pair: \ud800"])
    write(tmp_path / "one.jsonl", ["a"])
    (tmp_path / "broken.parquet").write_text("no parquet")
    (tmp_path / "blank.jsonl").write_text('{"text": "a"}\n\n["b"]\n')  # a list, in the third line
    (tmp_path / "cut.jsonl").write_text('{"text": "a"}\n\n{"text": ')
    if flags == "hf:no/such":
        monkeypatch.setattr(datasets, "load_dataset", Mock(side_effect=ConnectionError("the hub\n is away")))
    with pytest.raises(ValueError, match=word):
        main([f"--name={tmp_path}/new", CHAR, *flags.format(tmp=tmp_path).split()])
    assert not (tmp_path / "new").exists()


def test_a_missing_package_is_named(tmp_path, monkeypatch, refused):
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert "pip install datasets" in refused(main, "hf:a/b", CHAR, f"--name={tmp_path}/new")
