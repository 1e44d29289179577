import io
import json
import re
import tarfile
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from conftest import ROOT, documents, prepare, shared, write_texts
from hypothesis import given
from hypothesis import strategies as st

import data
from data import texts
from data.prepare import main
from data.texts import split_texts
from sample import SampleConfig, find_prompt

# ----------------------------------------------------------------------------------------------------------
# Texts and their documents


def test_tiny_shakespeare_is_nanogpts(tmp_path, monkeypatch, gpt2_bpe):
    text = shared("tinyshakespeare.txt").read_text()
    monkeypatch.setattr(texts, "SHAKESPEARE", shared("tinyshakespeare.txt").as_uri())
    ds = prepare(tmp_path, "shakespeare_char")
    assert (len(ds.train.tokens), len(ds.val.tokens)) == (1_003_854, 111_540)
    assert ds.tokenizer.chars == "".join(sorted(set(text)))
    assert ds.tokenizer.decode_bytes(ds.val.tokens).decode() == text[1_003_854:]
    ds = prepare(tmp_path, "shakespeare", name="bpe")
    assert (len(ds.train.tokens), len(ds.val.tokens), ds.tokenizer.n_vocab) == (301_966, 36_059, 50_257)


@pytest.mark.parametrize("sizes", [[9], [3], [1000] * 20, [345_000] * 3 + [30] * 7, [10**6] + [200] * 11])
def test_validation_is_a_tenth_of_whole_texts_or_of_each_text(sizes):
    parts = split_texts({str(i): chr(97 + i) * size for i, size in enumerate(sizes)})
    train, val = ("".join(text for _, text in parts[split]()) for split in data.SPLITS)
    assert sorted(train + val) == sorted("".join(chr(97 + i) * size for i, size in enumerate(sizes)))
    assert 0.02 < len(val) / sum(sizes) <= max(0.2, 1 / sum(sizes))


@pytest.mark.parametrize(
    "separator, typed, ending",
    [
        ("\n\n", r"\n\n", "\n\n"),
        ("\r\n\r\n", r"\n\n", "\r\n\r\n"),
        ("\r\n\r\n", r"\r\n\r\n", "\r\n\r\n"),
        ("\t", r"\t", "\t"),
        ("<|é|>", "<|é|>", ""),
    ],
)
def test_a_separator_makes_many_documents_of_one_file(separator, typed, ending, tmp_path):
    parts = [f"story {i}\nand its end" for i in range(400)]
    path = tmp_path / "a.py"  # a text, not a config file
    path.write_bytes(separator.join(["", *parts, ""]).encode())
    ds = prepare(tmp_path, path, f"--split_on={typed}")
    assert documents(ds, ds.train) + documents(ds, ds.val) == [part + ending for part in parts]  # none is cut in two
    assert len(ds.val.docs) in (39, 40)
    assert find_prompt(SampleConfig(start=typed), ds.tokenizer) in (separator, "\n\n")  # of sample.py


def test_a_file_is_read_once_and_what_is_left_out_is_counted(tmp_path, capsys):
    folder = tmp_path / "texts"
    for i, name in enumerate(["a.txt", "B.TXT", "sub/c.md", "sub/d.txt", ".e.txt", ".ipynb_checkpoints/f.txt", "g.py"]):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{i}" * 100)
    (folder / "copy of a.txt").write_text("0" * 100)
    (folder / "empty.txt").write_text("")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "h.txt").write_bytes(b"\xef\xbb\xbf" + b"h" * 100)  # with a byte order mark
    for name, target in {"i.txt": "texts/a.txt", "j": "elsewhere", "k": "elsewhere", "back": "texts"}.items():
        (folder / name).symlink_to(tmp_path / target)
    ds = prepare(tmp_path, folder, "--glob=*.txt", "--glob=**/*.md")
    assert sorted(map("".join, zip(documents(ds, ds.train), documents(ds, ds.val), strict=True))) == [
        character * 100 for character in "0123h"
    ]
    assert "5 files; left out: 6 (" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["{}/a.txt", "x/{}.txt", "wiki.{}.tokens", "{}-00000-of-00001.jsonl"])
@pytest.mark.parametrize("validation", ["validation", "valid", "dev"])
def test_files_named_for_splits_are_used_as_that(name, validation, tmp_path, capsys):
    for split in ("train", validation, "test", "read me"):
        path = tmp_path / "texts" / name.format(split)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"text": split}) if path.suffix == ".jsonl" else split)
    ds = prepare(tmp_path, tmp_path / "texts", f"--glob=*{path.suffix}", "--tokenizer=char")
    assert (sorted(documents(ds, ds.train)), documents(ds, ds.val)) == (["read me", "train"], [validation])
    assert "1 files for validation; left out: 1 for tests" in capsys.readouterr().out


def test_the_default_text_prepares_itself_and_in_other_tokens_it_is_another_dataset(tmp_path, monkeypatch):
    parts = split_texts({path.name: path for path in write_texts(tmp_path / "texts").iterdir()})
    monkeypatch.setattr(data, "folder_of", lambda name: tmp_path / name)
    monkeypatch.setattr(texts, "divided", lambda files, val_names: parts)
    assert data.load(data.DEFAULT).meta["source"]["text"] == "sympy 1.14.0"
    main(["sympy", "--tokenizer=bpe:260"])
    assert data.load("sympy_bpe260").tokenizer.n_vocab == 260


def test_sympy_is_one_version_with_unchanged_files(monkeypatch):
    splits = texts.sympy(None)
    assert len([*splits["train"]()]) == 726 and len([*splits["val"]()]) == 104
    monkeypatch.setattr(texts, "SYMPY_SHA256", "")
    with pytest.raises(ValueError, match="sympy==1.14.0"):
        texts.sympy(None)


# ----------------------------------------------------------------------------------------------------------
# Mistakes and changes


@pytest.mark.parametrize(
    "args, part",
    {
        "nowhere": "'nowhere'",
        "{tmp}/texts --name=/": "--name",
        "{tmp}/texts --name={tmp}/binary": "binary'",
        "{tmp}/texts --name={tmp}/texts": "00.txt: choose another --name",  # hours of work by another program
        "sympy --split_on=x": "--split_on",
        "{tmp}/texts --glob=/abs/*.txt": "--glob='/abs/*.txt'",
        "{tmp}/texts --split_on=<|end|>": "--split_on='<|end|>'",
        "{tmp}/texts --tokenizer=word": "--tokenizer='word'",
        "{tmp}/texts --tokenizer=bpe:256": "--tokenizer='bpe:256'",
        "{tmp}/texts --tokenizer=data:no_such": "'no_such'",
        "README.md --tokenizer=data:{dataset}": "README.md",  # it has characters that the tokenizer lacks
        "{tmp}/binary": "binary is not UTF-8",
        "{tmp}/utf-16": "utf-16 is not UTF-8",  # without its mark
        "{tmp}/a.tar": "a.tar is not UTF-8",
        "{tmp}/binary --name=": "--name=NAME",
        "": "data.prepare sympy",
        "shakespeare_char": "http://127.0.0.1:9/",  # no network
        "README.md --tokenizer=gpt2": "GPT-2's tokenizer (--tokenizer=bpe:N needs no network)",
    }.items(),
)
def test_mistakes_in_preparation_write_nothing(tmp_path, args, part, dataset, monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(texts, "SHAKESPEARE", "http://127.0.0.1:9/")
    monkeypatch.setattr("tiktoken.get_encoding", Mock(side_effect=ConnectionError("away")))
    write_texts(tmp_path / "texts", words=40)
    (tmp_path / "binary").write_bytes(b"\xff\xfe" * 500)
    (tmp_path / "utf-16").write_bytes(("text " * 500).encode("utf-16-le"))
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        tar.addfile(tarfile.TarInfo("a.txt"), io.BytesIO())
    with pytest.raises((ValueError, OSError), match=re.escape(part)):  # both are one line
        main([f"--name={tmp_path}/new", *args.format(tmp=tmp_path, dataset=dataset).split()])
    assert not (tmp_path / "new").exists()


def test_a_folder_that_may_not_be_read_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "iterdir", Mock(side_effect=PermissionError(13, "Permission denied")))
    with pytest.raises(PermissionError):
        prepare(tmp_path, write_texts(tmp_path / "texts"))


def test_a_dataset_is_replaced_only_with_overwrite_and_a_changed_text_is_noticed(tmp_path, monkeypatch, capsys):
    def is_noticed(*args):
        with pytest.raises(ValueError, match="set was prepared from another .* --overwrite"):
            prepare(tmp_path, *args)

    a = write_texts(tmp_path / "a", n=2)
    b = write_texts(tmp_path / "b", n=2)
    before = prepare(tmp_path, a).hash
    with monkeypatch.context() as patch:
        patch.setattr(texts, "text_of", None)  # reading the text again would fail
        assert prepare(tmp_path, a).hash == before
    assert "is prepared already" in capsys.readouterr().out
    is_noticed(b)
    is_noticed(a, "--tokenizer=bpe:300")
    is_noticed(a, "--glob=0*")
    (a / "99.txt").write_bytes(b"\xff" * 100)
    is_noticed(a)
    with pytest.raises(ValueError, match="99.txt"):
        prepare(tmp_path, a, "--overwrite")
    (a / "99.txt").unlink()
    (a / "00.txt").write_text((a / "00.txt").read_text().replace("def", "fed"))  # of the same size
    is_noticed(a)
    assert data.load(f"{tmp_path}/set").hash == before
    prepare(tmp_path, a, name="other")
    arguments = b, f"--tokenizer=data:{tmp_path}/other"
    assert prepare(tmp_path, *arguments, "--overwrite").hash == before  # the same text in the same tokens
    assert "note: data:" in capsys.readouterr().out  # it has no end of text
    prepare(tmp_path, ROOT / "README.md", "--overwrite", name="other")
    is_noticed(*arguments)


@pytest.mark.parametrize("name, argument", [("no_such", "PATH --name="), ("recall_char", "recall"), ("copy", "copy")])
def test_a_missing_dataset_is_named_with_the_command_that_prepares_it(name, argument, tmp_path):
    with pytest.raises(ValueError, match=f"{name}' .* python -m data.prepare {argument}"):
        data.load(f"{tmp_path}/{name}")


# ----------------------------------------------------------------------------------------------------------
# Batches


def batches(n_tokens=1000, block_size=16, rows=4, seed=0):
    split = data.Split(np.arange(n_tokens, dtype=np.uint16), np.zeros(1, np.int64), n_vocab=n_tokens)
    return data.Batches(split, block_size, rows, seed)


@given(st.integers(0, 500), st.integers(1, 3), st.integers(0, 3))
def test_a_row_depends_on_seed_step_and_row_alone(step, cut, seed):
    whole = batches(seed=seed)(step, 0, 4)[0].tolist()
    fresh = batches(seed=seed)
    fresh(max(0, step - 300), 0, 4)  # whatever was asked for before
    assert fresh(step, 0, cut)[0].tolist() + fresh(step, cut, 4)[0].tolist() == whole


def test_an_epoch_visits_every_window_once_in_an_order_and_from_an_offset_of_its_own():
    b = batches(rows=61)
    x, y = b(0, 0, 61)
    assert (y == x + 1).all() and x.shape == (61, 16) and len(x.unique()) == 61 * 16
    further, _ = b(1, 0, 61)
    assert further.min() != x.min() and (further.argsort(0) != x.argsort(0)).any()
    assert (batches(rows=61, seed=1)(0, 0, 61)[0] != x).any()


def test_validation_windows_cover_all_or_spread_evenly_and_hold_no_id_past_the_vocabulary():
    split = data.Split(np.arange(1001), np.zeros(1, np.int64), n_vocab=1000)
    with pytest.raises(ValueError, match="1000"):
        split.windows(np.array([990]), 10)
    assert split.val_starts(10).tolist() == list(range(0, 1000, 10))
    assert data.tuning_part(1001) == 500  # an eighth, or 65,536 tokens, but at most half
    assert [data.tuning_part(n) for n in (100_000, 200_000, 800_000)] == [50_000, 65_536, 100_000]
    assert split.val_starts(10, 50).tolist() == [0, 100, 200, 300, 400]
    assert split.val_starts(800, 600).tolist() == [0]
