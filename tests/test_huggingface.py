import json
import os
import shutil
import sys
from unittest.mock import Mock

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import data
from data import prepare as P
from data.huggingface import prepare as H

TEXTS = [f"document {i}:\n" + " ".join(str(i * j) for j in range(i % 7 + 3)) for i in range(30)]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """The cache of `datasets` in the test's own folder, without bars."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()


def write(path, texts=TEXTS, column="text"):
    """The texts as one parquet or jsonl file, or as a folder of txt files."""
    if path.suffix == ".parquet":
        pq.write_table(pa.table({"id": range(len(texts)), column: texts}), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps({"id": i, column: text}) + "\n" for i, text in enumerate(texts)))
    else:
        path.mkdir()
        for i, text in enumerate(texts):
            (path / f"{i:03}.txt").write_text(text)
    return path


def prepare(tmp_path, *args, name="set", tokenizer="char"):
    assert H.main([*map(str, args), f"--name={tmp_path}/{name}", f"--tokenizer={tokenizer}"]) == 0
    return data.load(f"{tmp_path}/{name}")


def decode(ds, split):
    """The documents of a split, by their offsets, without the sign between them."""
    documents = np.split(split.tokens, split.docs)[1:]
    return [ds.tokenizer.decode_bytes(ids).decode().removesuffix(data.END_OF_TEXT) for ids in documents]


def contents(folder):
    return {p.name: p.read_bytes() for p in folder.iterdir()}


@pytest.mark.parametrize("name", ["texts.parquet", "texts.jsonl", "texts"])
def test_parquet_jsonl_and_txt_give_the_same_documents(tmp_path, name):
    ds = prepare(tmp_path, write(tmp_path / name), "--num_proc=2")
    train, val = decode(ds, ds.train), decode(ds, ds.val)
    assert len(val) == 3 and val == [t for t in TEXTS if t in val]
    assert train == [t for t in TEXTS if t not in val]
    assert ds.meta["splits"]["train"]["bytes"] == sum(len(t.encode()) for t in train)
    assert ds.meta["source"]["text"] == str(tmp_path / name)


def test_end_of_text_stands_between_documents_and_its_name_in_one_is_only_text(tmp_path):
    texts = [*TEXTS, "", None, "a <|endoftext|> b 中文 naïve 🙂\r\n"]
    ds = prepare(tmp_path, write(tmp_path / "t.parquet", texts), tokenizer="bpe:300")
    assert sorted(decode(ds, ds.train) + decode(ds, ds.val)) == sorted(filter(None, texts))
    for split in (ds.train, ds.val):
        assert (np.flatnonzero(split.tokens == ds.tokenizer.eot) == split.docs[1:] - 1).all()


def test_the_default_tokenizer_is_gpt2s(tmp_path, gpt2_bpe):
    H.main([str(write(tmp_path / "t.jsonl")), f"--name={tmp_path}/set"])
    ds = data.load(f"{tmp_path}/set")
    assert ds.tokenizer.n_vocab == 50257 and ds.meta["dtype"] == "uint16"
    ids = [ds.tokenizer.encode_plain(text) + [50256] for text in decode(ds, ds.train)]
    assert ds.train.tokens.tolist() == sum(ids, [])[:-1]


def test_any_number_of_processes_and_any_size_of_chunks_and_pieces_give_the_same_bytes(tmp_path, monkeypatch):
    files = write(tmp_path / "a.parquet", TEXTS[:20]), write(tmp_path / "b.parquet", TEXTS[20:])
    for n, chunk, piece in ((1, 100, 1000), (3, 7, 7)):
        monkeypatch.setattr(H, "CHUNK", chunk)
        monkeypatch.setattr(P, "PIECE", piece)
        prepare(tmp_path, *files, f"--num_proc={n}", name=str(n), tokenizer="bpe:300")
    assert contents(tmp_path / "1") == contents(tmp_path / "3")
    assert len(contents(tmp_path / "1")) == 5  # nothing else is left


def test_a_killed_run_goes_on_and_ends_with_the_same_bytes(tmp_path, monkeypatch):
    path, tokenise = write(tmp_path / "t.parquet"), H.tokenise
    prepare(tmp_path, path, name="whole", tokenizer="bpe:300")
    shutil.rmtree(tmp_path / "cache")
    monkeypatch.setattr(H, "CHUNK", 10)

    def killed(text, **kw):
        return os._exit(9) if text == TEXTS[25] else tokenise(text, **kw)

    with monkeypatch.context() as m, pytest.raises(ValueError, match="tokenising stopped .*: the same command goes on"):
        m.setattr(H, "tokenise", killed)
        prepare(tmp_path, path, "--num_proc=2", tokenizer="bpe:300")
    with pytest.raises(ValueError, match="is not prepared"):
        data.load(f"{tmp_path}/set")

    def only_the_last_chunk(text, **kw):
        assert text in TEXTS[20:]
        return tokenise(text, **kw)

    monkeypatch.setattr(H, "tokenise", only_the_last_chunk)
    monkeypatch.setattr(P, "make_tokenizer", None)  # nor is the tokenizer made again
    prepare(tmp_path, path, "--num_proc=1", tokenizer="bpe:300")
    assert contents(tmp_path / "set") == contents(tmp_path / "whole")


def test_chunks_of_a_text_that_changed_are_not_mixed(tmp_path, monkeypatch):
    path = write(tmp_path / "t.jsonl")
    with monkeypatch.context() as m, pytest.raises(OSError, match="disk full"):
        m.setattr(P, "publish", Mock(side_effect=OSError("disk full")))
        prepare(tmp_path, path)
    write(path, ["new " + text for text in TEXTS])
    os.utime(path, (1, 1))
    ds = prepare(tmp_path, path)
    assert all(text.startswith("new ") for text in decode(ds, ds.train))
    assert len(contents(tmp_path / "set")) == 5


def test_a_finished_dataset_says_so_and_another_is_not_overwritten_unasked(tmp_path, capsys):
    path = write(tmp_path / "t.jsonl")
    before = prepare(tmp_path, path).hash
    shutil.rmtree(tmp_path / "cache")
    prepare(tmp_path, path)
    assert "is prepared already" in capsys.readouterr().out and not (tmp_path / "cache").exists()
    with pytest.raises(ValueError, match="holds another dataset, .*'char'.*: choose another --name, or --overwrite"):
        prepare(tmp_path, path, tokenizer="bpe:300")
    assert data.load(f"{tmp_path}/set").hash == before
    assert prepare(tmp_path, path, "--overwrite", tokenizer="bpe:300").tokenizer.n_vocab == 300


def test_nanogpts_documents_are_held_out_or_a_validation_split_of_its_own(monkeypatch):
    def load_rows(**splits):
        monkeypatch.setattr(datasets, "load_dataset", lambda **kw: splits)
        return H.load_rows(["hub/name"], [], None, "text")

    rows = datasets.Dataset.from_dict({"text": [str(i) for i in range(300_000)]})
    expected = rows.train_test_split(test_size=0.0005, seed=2357, shuffle=True)["test"]["text"]
    _, held = load_rows(train=rows)
    assert sorted(map(int, expected)) == np.flatnonzero(held).tolist() and held.sum() == 150
    splits = {s: datasets.Dataset.from_dict({"text": [s] * n}) for s, n in (("train", 200), ("validation", 7))}
    rows, held = load_rows(**splits)
    assert rows["text"][:] == ["train"] * 200 + ["validation"] * 7 and held.tolist() == [False] * 200 + [True] * 7


@pytest.mark.parametrize(
    "args, message",
    [
        (["{tmp}/nothing.jsonl"], "there is no file or folder .*nothing.jsonl"),
        (["{tmp}"], "must be of one kind of .parquet, .jsonl, .txt; found: .'.jsonl', '.parquet', '.txt'."),
        (["{tmp}/empty"], "must be of one kind of .*; found: no text"),
        (["{tmp}/broken.parquet"], "broken.parquet could not be loaded: Parquet magic bytes not found"),
        (["{tmp}/binary.txt"], "binary.txt could not be loaded: 'utf-8' codec can't decode byte 0xff"),
        (["{tmp}/good.jsonl", "--column=id"], "--column='id' is not a column of text of .*: id .int64., text .string."),
        (["{tmp}/good.jsonl", "--column=content"], "--column='content' is not a column of text"),
        (["{tmp}/one.jsonl"], "the text has too few documents: none is left for train"),
        (["{tmp}/good.jsonl", "--tokenizer=word"], "must be char, gpt2 or bpe:N"),
        (["{tmp}/good.jsonl", "--tokenizer=bpe:9999"], "too small for --tokenizer=bpe:9999"),
        (["{tmp}/good.jsonl", "--num_proc=0"], "--num_proc=0 must be at least 1"),
        (["{tmp}/good.jsonl", "--name=a b"], "must be of letters"),
        (["{tmp}/good.jsonl", "--name="], "text from files needs a name"),
        (["no/such"], "no/such could not be loaded: the hub is away; nor is there a file or folder of this name"),
    ],
)
def test_bad_input_is_one_line_and_leaves_no_dataset(tmp_path, monkeypatch, args, message):
    write(tmp_path / "good.jsonl"), write(tmp_path / "one.jsonl", ["a"])
    (tmp_path / "broken.parquet").write_text("no parquet")
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe" * 50)
    (tmp_path / "empty").mkdir()
    if args == ["no/such"]:
        monkeypatch.setattr(datasets, "load_dataset", Mock(side_effect=ConnectionError("the hub\n is away")))
    with pytest.raises(ValueError, match=message) as error:
        H.main([f"--name={tmp_path}/new", "--tokenizer=char", *(a.format(tmp=tmp_path) for a in args)])
    assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match="is not prepared"):
        data.load(f"{tmp_path}/new")


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ValueError, match="needs one more package: pip install datasets"):
        H.main(["a/b", f"--name={tmp_path}/new"])
