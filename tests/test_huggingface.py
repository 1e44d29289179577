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
from conftest import ROOT, documents, prepare

from data import texts
from data.prepare import FILES, PrepareConfig, main

CHAR = "--tokenizer=char"
TEXTS = [f"document {i}:\n" + " ".join(str(i * j) for j in range(i % 7 + 3)) for i in range(30)]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """The cache of `datasets` in the test's own folder, without bars."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()


def write(path, texts=TEXTS):
    """The texts as one parquet or jsonl file."""
    if path.suffix == ".parquet":
        pq.write_table(pa.table({"id": range(len(texts)), "text": texts}), path)
    else:
        path.write_text("".join(json.dumps({"id": i, "text": text}) + "\n" for i, text in enumerate(texts)))
    return path


@pytest.mark.parametrize("name", ["texts.parquet", "texts.jsonl"])
def test_parquet_and_jsonl_give_the_same_documents(tmp_path, name):
    ds = prepare(tmp_path, write(tmp_path / name), CHAR)
    train, val = documents(ds, ds.train), documents(ds, ds.val)
    assert len(val) == 3 and val == [t for t in TEXTS if t in val]
    assert train == [t for t in TEXTS if t not in val]
    assert ds.meta["splits"]["train"]["bytes"] == sum(len(t.encode()) for t in train)
    assert ds.meta["source"]["text"] == str(tmp_path / name)


def test_end_of_text_stands_between_documents_and_its_name_in_one_is_only_text(tmp_path):
    rows = [*TEXTS, "", None, "a <|endoftext|> b 中文 naïve 🙂\r\n"]
    files = write(tmp_path / "a.parquet", rows[:20]), write(tmp_path / "b.parquet", rows[20:])
    ds = prepare(tmp_path, *files, "--tokenizer=bpe:300")
    assert sorted(documents(ds, ds.train) + documents(ds, ds.val)) == sorted(filter(None, rows))
    for split in (ds.train, ds.val):
        assert (np.flatnonzero(split.tokens == ds.tokenizer.eot) == split.docs[1:] - 1).all()


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_stopped_preparation_leaves_nothing_for_the_next(tmp_path, how):
    path, out = write(tmp_path / "t.jsonl", ["some words " * 300] * 20_000), tmp_path / "out"
    command = [sys.executable, "-m", "data.prepare", path, f"--name={tmp_path}/set", CHAR]
    env = os.environ | {"HF_DATASETS_CACHE": str(tmp_path / "cache")}
    with open(out, "w") as f:
        started = subprocess.Popen(command, stdout=f, stderr=f, start_new_session=True, cwd=ROOT, env=env)
        while not re.search("tokenising train: +[1-9]", out.read_text()):
            assert started.poll() is None, out.read_text()
            time.sleep(0.02)
        os.killpg(started.pid, how)
        assert started.wait(30) == -how, out.read_text()
    if how == signal.SIGINT:
        assert "Traceback" not in out.read_text() and not (tmp_path / "set").exists()
    ds = prepare(tmp_path, write(path), CHAR)
    assert sorted(documents(ds, ds.train) + documents(ds, ds.val)) == sorted(TEXTS)  # not the rows of before
    assert sorted(p.name for p in (tmp_path / "set").iterdir()) == sorted(FILES)


def test_nanogpts_documents_are_held_out_or_a_validation_split_of_its_own(monkeypatch):
    def held_out(**splits):
        monkeypatch.setattr(datasets, "load_dataset", lambda **kw: splits)
        documents = texts.TEXTS["openwebtext"].read(PrepareConfig())
        return [[text for name, text in documents[split](split)] for split in ("train", "val")]

    rows = datasets.Dataset.from_dict({"text": [str(i) for i in range(300_000)]})
    expected = rows.train_test_split(test_size=0.0005, seed=2357, shuffle=True)["test"]["text"]
    train, val = held_out(train=rows)
    assert val == sorted(expected, key=int) and sorted(train + val, key=int) == rows["text"][:]
    splits = {s: datasets.Dataset.from_dict({"text": [s] * n}) for s, n in (("train", 200), ("validation", 7))}
    assert held_out(**splits) == [["train"] * 200, ["validation"] * 7]


@pytest.mark.parametrize(
    "args, message",
    [
        (["{tmp}/broken.parquet"], "broken.parquet could not be loaded: Parquet magic bytes not found"),
        (["{tmp}/good.jsonl", "--column=id"], "--column='id' is not a column of text in .*which has: id, text$"),
        (["{tmp}/one.jsonl"], "the text has too few documents, and none is left for train"),
        (["hf:no/such"], "no/such could not be loaded: the hub is away"),
    ],
)
def test_mistakes_with_rows_are_one_line_and_leave_no_dataset(tmp_path, monkeypatch, args, message):
    write(tmp_path / "good.jsonl"), write(tmp_path / "one.jsonl", ["a"])
    (tmp_path / "broken.parquet").write_text("no parquet")
    if args == ["hf:no/such"]:
        monkeypatch.setattr(datasets, "load_dataset", Mock(side_effect=ConnectionError("the hub\n is away")))
    with pytest.raises(ValueError, match=message) as error:
        main([f"--name={tmp_path}/new", CHAR, *(a.format(tmp=tmp_path) for a in args)])
    assert "\n" not in str(error.value)
    assert not (tmp_path / "new").exists()


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ValueError, match="needs one more package: pip install datasets"):
        main(["hf:a/b", CHAR, f"--name={tmp_path}/new"])
