"""The texts that `python -m data.prepare` takes, and how they are divided into documents for training and validation.

A text's `read(cfg)` returns {"train": documents, "val": documents}. `documents()` yields (name, text), and may be
called again. To add a text with a name, give it an entry in TEXTS and a line in data/prepare.py.
"""

import functools
import hashlib
import itertools
import json
import math
import os
import re
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tqdm import tqdm

from data import file_hash, recall, tasks
from data.tokenizers import load_error, read_escapes
from run.files import json_hash

NOWHERE = "\0"  # a separator that no text has: see text_of
SYMPY = "1.14.0"
SYMPY_SHA256 = "9346b3de2c4ecb7bb0ee7655a86a73d4f8f023d7fc75ca9ef45ebe9961625598"
SHAKESPEARE = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"


@dataclass(frozen=True)
class Text:
    read: Callable  # read(cfg), for a PrepareConfig, returns the documents of both splits
    dataset: str  # its name as a dataset in the default tokenizer; "": the user gives one
    source: str  # what meta.json says it is: changes when the text does
    tokenizer: str = "char"  # the default
    flags: tuple = ()  # the flags that it takes, of those that only some texts take
    recipe: str = "config/rope.py"  # the config files to train with


# ----------------------------------------------------------------------------------------------------------
# Files and other whole texts


def split_texts(texts, separator="", val=()):
    """Divides {name: text or file} into documents {"train": …, "val": …}. Validation uses those in `val` or, if there
    are none, about a tenth of the texts: whole texts, otherwise the last tenth of each. Each part of a text between
    separators, if one is given, is a document. ValueError if no text has one."""
    separator = read_escapes(separator)
    if not any(separator in text_of(source) for source in texts.values()):
        raise ValueError(f"--split_on={separator!r} is in no text: write it as the text does, or leave it out")
    separator = separator or NOWHERE
    rule = "whole texts"
    train, val = (texts, val) if val else choose_validation(texts)
    if not val:
        rule = "the last tenth of each text"
        train, val = cut_ends(texts, separator)
    print(f"for validation: {rule} ({len(val):,})")
    return documents_of(read_texts, train, val, separator)


def documents_of(read, train, val, detail):
    """The documents {"train": …, "val": …} that read_texts or read_rows finds in two {name: source}."""
    return {"train": functools.partial(read, train, detail), "val": functools.partial(read, val, detail)}


def choose_validation(texts, smallest=0, largest=math.inf):
    """({name: text or file} for training, those for validation): whole texts of `smallest` to `largest` bytes each,
    drawn by the hash of their names until they hold a tenth of all bytes. None if there are fewer than ten texts, or if
    those that fit hold less than a fiftieth."""
    sizes = {name: len(text_of(source).encode()) for name, source in texts.items()}
    wanted = 0.1 * sum(sizes.values())
    train = dict(texts)
    val = {}
    total = 0
    for name in sorted(sizes, key=lambda name: hashlib.sha256(os.fsencode(name)).digest()):
        # one huge document must be neither all of the validation text nor all of the training text
        fits = smallest <= sizes[name] <= largest and total + sizes[name] <= 2 * wanted
        if fits and total < wanted and len(val) < len(texts) // 5:
            val[name] = train.pop(name)
            total += sizes[name]
    if len(texts) < 10 or total < 0.2 * wanted:
        return texts, {}
    return train, {name: texts[name] for name in texts if name in val}


def cut_ends(texts, separator):
    """Both parts of {name: text or file}: the last tenth of each text, which starts after a separator if there is one
    in it, is for validation."""
    train = {}
    val = {}
    for name, source in texts.items():
        text = text_of(source)
        start = int(0.9 * len(text))
        place = text.find(separator, start, int(0.98 * len(text)))
        if place >= 0:
            start = place + len(separator)
        train[name] = text[:start]
        val[name] = text[start:]
    return train, val


def read_texts(texts, separator):
    """Yields (name, document) of {name: text or file}: whole texts, or their parts between separators."""
    end = separator if separator.isspace() else ""  # a document keeps the blank line after it
    for name, source in texts.items():
        *parts, last = text_of(source).split(separator)
        for part in parts:
            if part:
                yield name, part + end
        if last:
            yield name, last


def text_of(source):
    """A text, or that of a file in UTF-8. Line ends stay as they are, a byte order mark is left out."""
    if isinstance(source, str):
        return source
    try:
        # NUL is not text either: it is UTF-16 or an archive
        return source.read_bytes().replace(b"\0", b"\xff").decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{source} is not UTF-8 text (byte {error.start}): leave it out, or convert it") from None


def find_files(paths, glob):
    """{path: file} of the files among `paths`, and of those in its folders that match `glob`, sorted. A path
    starts at the folder that all files share. ValueError if there are no files."""
    patterns = [part.lower().removeprefix("**/") for part in glob.split("|")]
    given = {Path(path) for path in paths}
    queue = sorted(given)
    folders = set()
    files = {}  # the hash of the content -> the file
    n_found = 0
    for path in queue:
        is_visible = path in given or not path.name.startswith(".")
        if is_visible and path.is_dir():
            if path.resolve() not in folders:  # a link may lead back
                queue += sorted(path.iterdir())
            folders.add(path.resolve())
            continue
        n_found += 1
        has_name = path in given or any(map(Path(str(path).lower()).match, patterns))
        if is_visible and has_name and path.stat().st_size > 0:
            files.setdefault(file_hash(path), path.parent.resolve() / path.name)
    if not files:
        raise ValueError(f"no text found: {' '.join(paths)} is empty, or has no file that matches --glob={glob!r}")
    print(f"{len(files):,} files; left out: {n_found - len(files):,} (not {glob}, hidden, empty, or copies)")
    root = os.path.commonpath([file.parent for file in files.values()])
    return {file.relative_to(root).as_posix(): file for file in sorted(files.values())}


def split_named(name):
    """train, val or test if a word of the name says so, such as data/test-00000-of-00002.parquet; otherwise ""."""
    word = re.search("(?<![a-z])(train|test|val|dev)((id)?(ation)?|ing)(?![a-z])", name.lower())
    return {"dev": "val"}.get(word[1], word[1]) if word else ""


def named_splits(files):
    """(train, val) of {path: file}, if most of the paths name a split; what is named test is left out.
    Otherwise val is empty."""
    splits = {"train": {}, "val": {}, "test": {}, "": {}}
    for path, file in files.items():
        splits[split_named(path)][path] = file
    others = splits["val"] | splits["test"]
    if not splits["train"] or not others or len(splits[""]) >= len(files) / 2:
        return files, {}
    print(f"by their names: {len(splits['val'])} files for validation; left out: {len(splits['test'])} for tests")
    return splits["train"] | splits[""], splits["val"]


# ----------------------------------------------------------------------------------------------------------
# Rows of a table


ROWS = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet")  # the endings of files that hold a document per row


def rows_of(table, column):
    """The rows of a table, which is a file or a dataset of the hub: dicts or, in a file of JSON, lines."""
    if not isinstance(table, Path):
        yield from table
    elif table.suffix.lower() == ".parquet":
        import pyarrow.parquet  # optional

        file = pyarrow.parquet.ParquetFile(table)
        columns = [column] if column in file.schema_arrow.names else None
        for batch in file.iter_batches(1000, columns=columns):
            yield from batch.to_pylist()
    else:
        with open(table, "rb") as lines:
            yield from lines


def read_rows(tables, column):
    """Yields (name, text) of each row of {name: table} that has text. ValueError for a row that cannot be read, or has
    something else."""
    for name, table in tables.items():
        number = 1
        try:
            for number, row in enumerate(rows_of(table, column), 1):
                if isinstance(row, bytes):
                    row = json.loads(row.strip() or "null")
                text = row.get(column, row) if isinstance(row, dict) else row
                if not isinstance(text, str | None):
                    raise ValueError(f"--column={column!r} is not text in {str(row)[:100]}")
                if text:
                    yield f"{name}, row {number}", text
        except Exception as error:  # whatever a damaged file provokes
            raise load_error(f"{name}, row {number}", error) from None


def split_rows(train, val, column):
    """The documents {"train": …, "val": …} of two {name: table}. If `val` is empty, validation uses 0.05% of the rows
    as in nanoGPT, but up to a tenth of a small dataset."""
    documents = documents_of(read_rows, train, val, column)
    if val:
        return documents
    n_rows = sum(1 for _ in tqdm(documents["train"](), "counting rows"))
    n_val = math.ceil(max(0.0005 * n_rows, min(100, 0.1 * n_rows)))
    is_val = np.zeros(n_rows, bool)
    is_val[np.random.default_rng(2357).permutation(n_rows)[:n_val]] = True
    print(f"for validation: {n_val:,} of {n_rows:,} rows with text, drawn at random")
    return {
        "train": lambda: itertools.compress(documents["train"](), ~is_val),
        "val": lambda: itertools.compress(documents["train"](), is_val),
    }


def hub_rows(path, cfg):
    """The documents of a dataset of the Hugging Face hub."""
    import datasets  # optional

    splits = datasets.load_dataset(path, cfg.config or None).select_columns(cfg.column)
    if "train" not in splits:
        raise ValueError(f"{path} has no split 'train', only: {', '.join(splits)}")
    val = {name: splits[name] for name in splits if split_named(name) == "val"}
    left_out = [name for name in splits if name not in ("train", *val)]
    print(f"splits for validation: {', '.join(val) or 'none'}; left out: {', '.join(left_out) or 'none'}")
    return split_rows({"train": splits["train"]}, val, cfg.column)


# ----------------------------------------------------------------------------------------------------------
# The texts with a name


def sympy(cfg):
    import sympy

    folder = Path(sympy.__file__).parent
    files = {}
    content = hashlib.sha256()
    for file in sorted(folder.rglob("*.py")):
        name = file.relative_to(folder).as_posix()
        source = file.read_bytes()
        if source and source.isascii() and "tests" not in name.split("/"):
            files[name] = file
            content.update(source)
    if content.hexdigest() != SYMPY_SHA256:
        raise ValueError(
            f"the text is the source of sympy {SYMPY}, which is not installed unchanged: "
            f"pip install --force-reinstall sympy=={SYMPY}"
        )
    # the validation text has room for long contexts in many documents, none of which weighs much
    return documents_of(read_texts, *choose_validation(files, smallest=4_000, largest=50_000), NOWHERE)


def shakespeare(cfg):
    try:
        content = urllib.request.urlopen(SHAKESPEARE, timeout=60).read()
    except OSError as error:
        raise load_error(f"{SHAKESPEARE} (save it as a file and prepare that, if there is no network)", error) from None
    return split_texts({"input.txt": content.decode()})


def hub(path):
    """The Text of the dataset OWNER/NAME of the Hugging Face hub."""
    return Text(functools.partial(hub_rows, path), Path(path).name, path, "gpt2", ("column", "config"))


def generated(document, name, source, recipe, flags=()):
    """The Text of what document(seed) makes for many seeds."""

    def read(cfg):
        return split_texts({f"{i:04}.txt": document(i) for i in range(recall.DOCUMENTS)})

    return Text(read, f"{name}_char", source, flags=flags, recipe=recipe)


TEXTS = {
    "sympy": Text(sympy, "sympy_char", f"sympy {SYMPY}"),
    "shakespeare_char": Text(shakespeare, "shakespeare_char", "tiny shakespeare"),
    "shakespeare": Text(shakespeare, "shakespeare", "tiny shakespeare", "gpt2"),
    "recall": generated(recall.document, "recall", recall.SOURCE, "config/recall.py config/rope.py"),
    "openwebtext": hub("Skylion007/openwebtext"),
}


# ----------------------------------------------------------------------------------------------------------
# The text that a command line names


def find_text(names, cfg):
    """The Text that a command line asks for: a name in TEXTS, a task, hf:NAME, or paths of the user's files."""
    name = " ".join(names)
    if name in TEXTS:
        return TEXTS[name]
    if name in tasks.TASKS:  # no other one is called: it may be unfinished
        document = functools.partial(tasks.document, name, longest=cfg.longest)
        source = tasks.source_of(name, cfg.longest)
        return generated(document, name, source, "config/task.py config/rope.py", ("longest",))
    if name.startswith("hf:"):
        return hub(name.removeprefix("hf:"))
    return files_text(names, cfg.glob)


def files_text(paths, glob):
    """The Text in the user's files and folders: rows if one of them has an ending of ROWS."""
    for path in paths:
        if not Path(path).exists():
            raise ValueError(
                f"{path!r} is not a file, a folder or the name of a text: python -m data.prepare --help lists them"
            )
    files = find_files(paths, glob)
    train, val = named_splits(files)
    content = json_hash({path: file_hash(file) for path, file in files.items()})
    source = f"{' '.join(str(Path(path).resolve()) for path in paths)}, {content[:10]}"
    if any(file.suffix.lower() in ROWS for file in files.values()):
        return Text(lambda cfg: split_rows(train, val, cfg.column), "", source, "gpt2", ("glob", "column"))
    return Text(lambda cfg: split_texts(train, cfg.split_on, val), "", source, "char", ("glob", "split_on"))
