import json
import re
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from conftest import documents, prepare, shared, write_texts

import data
from data import texts
from data.prepare import main
from data.texts import split_texts
from sample import SampleConfig, find_prompt

# ----------------------------------------------------------------------------------------------------------
# Texts and their documents


def test_tiny_shakespeare_is_nanogpts(tmp_path, monkeypatch, gpt2_bpe):
    monkeypatch.setattr(texts, "SHAKESPEARE", shared("tinyshakespeare.txt").as_uri())
    ds = prepare(tmp_path, "shakespeare_char")
    assert (len(ds.train.tokens), len(ds.val.tokens)) == (1_003_854, 111_540)
    assert ds.tokenizer.decode_bytes(ds.val.tokens) == shared("tinyshakespeare.txt").read_bytes()[1_003_854:]
    ds = prepare(tmp_path, "shakespeare", name="bpe")
    assert (len(ds.train.tokens), len(ds.val.tokens), ds.tokenizer.n_vocab) == (301_966, 36_059, 50_257)


@pytest.mark.parametrize("sizes", [[9], [3], [1000] * 20, [345_000] * 3 + [30] * 7, [10**6] + [200] * 11])
def test_validation_is_a_tenth_of_whole_texts_or_of_each_text(sizes):
    parts = split_texts({str(i): chr(97 + i) * size for i, size in enumerate(sizes)})
    train, val = ("".join(text for _, text in parts[split]()) for split in data.SPLITS)
    assert len(train + val) == sum(sizes)
    assert 0.02 < len(val) / sum(sizes) <= max(0.2, 1 / sum(sizes))


@pytest.mark.parametrize(
    "typed, separator", [(r"\n\n", "\n\n"), (r"\r\n\r\n", "\r\n\r\n"), (r"\t", "\t"), ("<|é|>", "<|é|>")]
)
def test_a_separator_makes_many_documents_of_one_file(typed, separator, tmp_path):
    ending = separator if separator.isspace() else ""
    parts = [f"story {i}\nand its end" for i in range(400)]
    path = tmp_path / "a.py"  # a text, not a config file
    path.write_bytes(separator.join(["", *parts, ""]).encode())
    ds = prepare(tmp_path, path, f"--split_on={typed}")
    assert documents(ds, ds.train) + documents(ds, ds.val) == [part + ending for part in parts]  # none is cut in two
    assert len(ds.val.docs) in (39, 40)
    assert find_prompt(SampleConfig(start=typed), ds.tokenizer) == separator  # of sample.py


def test_a_file_is_read_once_and_what_is_left_out_is_counted(tmp_path, capsys):
    folder = tmp_path / "texts"
    names = ["a.txt", "B.TXT", "sub/c.md", ".e.txt", ".ipynb_checkpoints/f.txt", "g.py", "empty.txt", "copy of a.txt"]
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(Path(name).stem[-1] * 100)
    (folder / "empty.txt").write_text("")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "h.txt").write_bytes(b"\xef\xbb\xbf" + b"h" * 100)  # with a byte order mark
    for name, target in {"i.txt": "texts/a.txt", "j": "elsewhere", "k": "elsewhere", "back": "texts"}.items():
        (folder / name).symlink_to(tmp_path / target)
    ds = prepare(tmp_path, folder, "--glob=*.txt", "--glob=**/*.md")
    assert sorted(part[0] for part in documents(ds, ds.train)) == ["B", "a", "c", "h"]
    assert "4 files; left out: 6 (" in capsys.readouterr().out


@pytest.mark.parametrize(
    "name, validation",
    [("{}/a.txt", "val"), ("x/{}.txt", "validation"), ("wiki.{}.tokens", "valid"), ("{}-00000-of-00001.jsonl", "dev")],
)
def test_files_named_for_splits_are_used_as_that(name, validation, tmp_path, capsys):
    for split in ("train", validation, "test", "read me"):
        path = tmp_path / "texts" / name.format(split)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"text": split}) if path.suffix == ".jsonl" else split)
    ds = prepare(tmp_path, tmp_path / "texts", f"--glob=*{path.suffix}", "--tokenizer=char")
    assert (sorted(documents(ds, ds.train)), documents(ds, ds.val)) == (["read me", "train"], [validation])
    assert "1 files for validation; left out: 1 for tests" in capsys.readouterr().out


def test_the_default_text_prepares_itself(tmp_path, monkeypatch):
    parts = split_texts({path.name: path for path in write_texts(tmp_path / "texts").iterdir()})
    monkeypatch.setattr(data, "folder_of", lambda name: tmp_path / name)
    monkeypatch.setattr(texts, "documents_of", lambda *_: parts)
    assert data.load(data.DEFAULT).meta["source"]["text"] == "sympy 1.14.0"


def test_sympy_is_one_version_with_unchanged_files(monkeypatch):
    assert [len([*documents()]) for documents in texts.sympy(None).values()] == [726, 104]
    monkeypatch.setattr(texts, "SYMPY_SHA256", "")
    with pytest.raises(ValueError, match="sympy==1.14.0"):
        texts.sympy(None)


# ----------------------------------------------------------------------------------------------------------
# Mistakes and changes


MISTAKES = {  # files -> what the line must name
    "nowhere": "'nowhere'",
    "texts --name=./texts": "00.txt: choose another --name",  # hours of work by another program
    "sympy --split_on=x": "--split_on",
    "texts --glob=*.md": "--glob='*.md'",
    "texts --split_on=<|end|>": "--split_on='<|end|>'",
    "texts --tokenizer=word": "--tokenizer='word'",
    "texts --tokenizer=bpe:256": "--tokenizer='bpe:256'",
    "texts --tokenizer=data:no_such": "'no_such'",
    "utf-8 --tokenizer=data:{dataset}": "utf-8",  # it has characters that the tokenizer lacks
    "binary": "binary is not UTF-8",
    "utf-16": "utf-16 is not UTF-8",  # without its mark: NUL bytes are no text, as in an archive
    "sympy --tokenizer=bpe:260 --name=": "--name=NAME",  # not the name of the default text
    "": "data.prepare sympy",
    "shakespeare_char": "http://127.0.0.1:9/",  # no network
    "utf-8 --tokenizer=gpt2": "GPT-2's tokenizer (--tokenizer=bpe:N needs no network)",
    "broken.parquet --tokenizer=char": "broken.parquet, row 1",
    "one.jsonl --tokenizer=char": "train",
    "one.jsonl --tokenizer=char --column=x": "one.jsonl, row 1 could not be loaded: --column='x'",
    "half.jsonl --tokenizer=char": "half.jsonl, row 2",
    "list.jsonl --tokenizer=char": "list.jsonl, row 3",
    "cut.jsonl --tokenizer=char": "cut.jsonl, row 3",
    "one.jsonl utf-8 --tokenizer=char": "utf-8, row 1",
}
CONTENTS = {
    "utf-8": 500 * "é".encode(),
    "binary": 500 * b"\xff\xfe",
    "utf-16": 500 * b"t\0e\0",
    "broken.parquet": b"no parquet",
    "one.jsonl": b'{"text": "a"}',
    "half.jsonl": b'{"text": "a"}\n{"text": "half a surrogate pair: \\ud800"}',
    "list.jsonl": b'{"text": "a"}\n\n["b"]\n',
    "cut.jsonl": b'{"text": "a"}\n\n{"text": ',
}


@pytest.mark.parametrize("args", MISTAKES)
def test_mistakes_in_preparation_write_nothing(tmp_path, args, dataset, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(texts, "SHAKESPEARE", "http://127.0.0.1:9/")
    monkeypatch.setattr("tiktoken.get_encoding", Mock(side_effect=ConnectionError("away")))
    write_texts(tmp_path / "texts", words=40)
    for name, content in CONTENTS.items():
        Path(name).write_bytes(content)
    with pytest.raises((ValueError, OSError), match=re.escape(MISTAKES[args])):  # both are one line
        main(["--name=./new", *args.format(dataset=dataset).split()])
    assert not Path("new").exists()


def test_a_folder_that_may_not_be_read_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "iterdir", Mock(side_effect=PermissionError(13, "Permission denied")))
    with pytest.raises(PermissionError):
        prepare(tmp_path, write_texts(tmp_path / "texts"))


def test_a_dataset_is_replaced_only_with_overwrite_and_a_changed_text_is_noticed(tmp_path, capsys):
    def is_noticed(*args):
        with pytest.raises(ValueError, match="set was prepared from another .* --overwrite"):
            prepare(tmp_path, *args)

    a = write_texts(tmp_path / "a", n=2)
    b = write_texts(tmp_path / "b", n=2)
    before = prepare(tmp_path, a).hash
    assert prepare(tmp_path, a).hash == before
    assert "is prepared already" in capsys.readouterr().out
    is_noticed(b)
    is_noticed(a, "--tokenizer=bpe:300")
    (a / "00.txt").write_text((a / "00.txt").read_text().replace("def", "fed"))  # of the same size
    is_noticed(a)
    (a / "00.txt").write_bytes(b"\xff" * 100)
    with pytest.raises(ValueError, match="00.txt"):
        prepare(tmp_path, a, "--overwrite")
    assert data.load(f"{tmp_path}/set").hash == before
    assert prepare(tmp_path, b, f"--tokenizer=data:{tmp_path}/set", name="other").hash == before


@pytest.mark.parametrize("name, argument", [("no_such", "PATH --name="), ("recall_char", "recall")])
def test_a_missing_dataset_is_named_with_the_command_that_prepares_it(name, argument, tmp_path):
    with pytest.raises(ValueError, match=f"{name}'.* python -m data.prepare {argument}"):
        data.load(f"{tmp_path}/{name}")


# ----------------------------------------------------------------------------------------------------------
# Batches


def test_an_epoch_visits_every_window_once_in_an_order_and_from_an_offset_of_its_own():
    split = data.Split(np.arange(1000, dtype=np.uint16), np.zeros(1, np.int64), n_vocab=1000)
    batches, others = (data.Batches(split, 16, 61, seed) for seed in (0, 1))
    x, y = batches(0, 0, 61)
    assert (y == x + 1).all() and x.shape == (61, 16) and len(x.unique()) == 61 * 16
    further, _ = batches(1, 0, 61)
    assert further.min() != x.min() and (further.argsort(0) != x.argsort(0)).any()
    assert (others(0, 0, 61)[0] != x).any()


def test_validation_windows_cover_all_or_spread_evenly_and_hold_no_id_past_the_vocabulary():
    split = data.Split(np.arange(1001), np.zeros(1, np.int64), n_vocab=1000)
    with pytest.raises(ValueError, match="1000"):
        split.windows(np.array([990]), 10)
    assert split.val_starts(10).tolist() == list(range(0, 1000, 10))
    # an eighth, or 65,536 tokens, but at most half
    assert [*map(data.tuning_part, (100_000, 200_000, 800_000))] == [50_000, 65_536, 100_000]
    assert split.val_starts(10, 50).tolist() == [0, 100, 200, 300, 400]
