import json
import sys

import datasets
import numpy as np
import pytest
import tokenizers
import transformers
from conftest import documents, prepare
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

import data
from data import texts
from data.prepare import PrepareConfig, main
from data.tokenizers import tokenizer_from

TEXTS = [f"document {i}:\n" + "many words " * (i % 7 + 3) for i in range(30)]


def write(path, texts=TEXTS):
    """The texts as one parquet or jsonl file, with another column that is named like the file."""
    path.parent.mkdir(exist_ok=True)
    rows = datasets.Dataset.from_dict({path.stem: range(len(texts)), "text": texts})
    write_rows = rows.to_parquet if path.suffix == ".parquet" else rows.to_json
    write_rows(path)
    return path


def all_documents(ds):
    return sorted(documents(ds, ds.train) + documents(ds, ds.val))


@pytest.mark.parametrize("name", ["[2024] *b/x?.parquet", "[2024] *b/x?.JSONL", "x.json"])
def test_parquet_and_jsonl_give_the_same_documents(tmp_path, name):
    rows = [text for text in TEXTS for text in ("", text)]
    ds = prepare(tmp_path, write(tmp_path / name, rows), "--tokenizer=char")
    val = documents(ds, ds.val)
    assert len(val) == 3
    assert val == [text for text in TEXTS if text in val]
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
def test_end_of_text_stands_between_documents_and_its_name_in_one_is_only_text(kind, tmp_path):
    kind = kind if ":" in kind else write_tokenizer(tmp_path / kind)
    rows = [*TEXTS, "", None, "a <|endoftext|> b 中文 naïve 🙂\r\n"]
    ds = prepare(tmp_path, write(tmp_path / "a.jsonl", rows), f"--tokenizer={kind}")
    assert all_documents(ds) == sorted(filter(None, rows))
    for split in (ds.train, ds.val):
        ends = np.flatnonzero(split.tokens == ds.tokenizer.eot)
        assert (ends == split.docs[1:] - 1).all()
    tokenizer = tokenizer_from(json.loads(json.dumps(ds.tokenizer.spec)))
    ids = tokenizer.encode("a 🙂<|endoftext|>")
    assert ids[-1] == tokenizer.eot
    assert max(ids) < tokenizer.n_vocab <= 330
    assert b"".join(tokenizer.decode_bytes([id]) for id in ids) == "a 🙂<|endoftext|>".encode()


def test_a_tokenizer_is_known_by_its_name_and_vocabulary(tmp_path, monkeypatch, refused, capsys):
    kind = write_tokenizer(tmp_path / "model")
    flags = [write(tmp_path / "a.jsonl"), f"--name={tmp_path}/set", f"--tokenizer={kind}"]
    assert main([*map(str, flags)]) == 0
    vocabulary = {character: i for i, character in enumerate("dmt")}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocabulary, []))  # it drops all other characters
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(tmp_path / "model")
    main([*map(str, flags), "--overwrite"])
    assert "changes or drops characters, in 27 of" in capsys.readouterr().out
    write_tokenizer(tmp_path / "model", vocabulary=290)
    with pytest.raises(ValueError, match="model has changed"):
        data.load(f"{tmp_path}/set")
    assert "no/where could not be loaded" in refused(
        main, *flags[:2], f"--tokenizer=hf:{tmp_path}/no/where", "--overwrite"
    )
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert "pip install transformers" in refused(main, *flags)


def test_what_a_killed_preparation_left_is_replaced(tmp_path):
    (tmp_path / "set" / ".dataset.tmp").mkdir(parents=True)
    for name in (".lock", ".dataset.tmp/train.bin", "train_docs.bin", "train.bin"):
        (tmp_path / "set" / name).write_text("half")
    ds = prepare(tmp_path, write(tmp_path / "a.jsonl"), "--tokenizer=char")
    assert all_documents(ds) == sorted(TEXTS)
    assert {path.stem for path in (tmp_path / "set").iterdir()} == {"meta", "train", "train_docs", "val", "val_docs"}


def test_nanogpts_documents_are_held_out_or_a_validation_split_of_its_own(monkeypatch, capsys):
    rows = datasets.Dataset.from_dict({"text": [str(i) for i in range(210_000)]})
    splits = {"train": rows}
    monkeypatch.setattr(datasets, "load_dataset", lambda path, name: datasets.DatasetDict(splits))

    def validation():
        read = texts.TEXTS["openwebtext"].read(PrepareConfig())
        train, val = ([text for _, text in documents()] for documents in read.values())
        assert sorted(train + val, key=int) == rows["text"][:]
        return val

    expected = rows.train_test_split(test_size=0.0005, seed=2357, shuffle=True)["test"]["text"]
    assert validation() == sorted(expected, key=int)
    rows = rows.select([1, 2, 7])
    splits["train"] = rows.select([0, 1])
    splits["dev"] = rows.select([2])
    splits["test"] = rows.select([0])
    assert validation() == ["7"]
    assert "validation: dev; left out: test" in capsys.readouterr().out
