"""The texts that `python -m data.prepare` takes, and how they are divided into documents for training and validation.

A text's `read(cfg)` returns {"train": documents, "val": documents}. `documents()` yields (name, text), and may be
called again. To add a text with a name, give it an entry in TEXTS and a line in data/prepare.py.
"""

import functools
import hashlib
import importlib.util
import itertools
import json
import math
import os
import re
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePath

import numpy as np
from tqdm import tqdm

from data import file_hash, recall, tasks
from data.tokenizers import load_error, read_escapes
from run.files import json_hash

NOWHERE = re.compile("(?!)")  # a pattern that no text has
SYMPY = "1.14.0"
SYMPY_SHA256 = "9346b3de2c4ecb7bb0ee7655a86a73d4f8f023d7fc75ca9ef45ebe9961625598"
SHAKESPEARE = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
SHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"


@dataclass(frozen=True)
class Text:
    read: Callable  # read(cfg), for a PrepareConfig, returns the documents of both splits
    dataset: str  # its name as a dataset in the default tokenizer; "": the user gives one
    source: str  # what meta.json says it is
    tokenizer: str = "char"  # the default
    flags: tuple = ()  # the flags that it takes, of those that only some texts take
    state: str = ""  # identifies the user's files: changes when they do
    recipe: str = "config/rope.py"  # the config files to train with


# ----------------------------------------------------------------------------------------------------------
# Files and other whole texts


def split_texts(texts, separator="", val_names=()):
    """Divides {name: text or file} into documents {"train": …, "val": …}. Validation uses the texts val_names or, if
    there are none, about a tenth of all: whole texts, otherwise the last tenth of each. Each part of a text between
    separators, if one is given, is a document. ValueError if no text has one."""
    separator = read_escapes(separator)
    pattern = NOWHERE
    if separator:  # a text may have the line ends of Windows
        pattern = re.compile(f"({re.escape(separator)})".replace("\\\n", "\r?\n"))
        if not any(pattern.search(text_of(source)) for source in texts.values()):
            raise ValueError(f"--split_on={separator!r} is in no text: write it as the text does, or leave it out")
    rule = "whole texts"
    if not val_names:
        val_names = choose_validation(texts)
    if not val_names:
        rule = "the last tenth of each text"
        texts = cut_ends(texts, pattern)
        val_names = [*texts][1::2]
    print(f"for validation: {rule} ({len(val_names):,})")
    return divided(texts, val_names, pattern)


def divided(texts, val_names, pattern=NOWHERE):
    """The documents {"train": …, "val": …} of {name: text or file}: those of the texts val_names, in this order, are
    for validation."""
    val = {name: texts[name] for name in val_names}
    train = {name: source for name, source in texts.items() if name not in val}
    return {
        "train": functools.partial(read_texts, train, pattern),
        "val": functools.partial(read_texts, val, pattern),
    }


def choose_validation(texts, smallest=0, largest=math.inf):
    """The names of whole texts for validation, of `smallest` to `largest` bytes each, drawn by the hash of their names
    until they hold a tenth of all bytes. None if there are fewer than ten texts, or if those that fit hold less than a
    fiftieth."""
    sizes = {name: len(text_of(source).encode()) for name, source in texts.items()}
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
    if len(texts) < 10 or total < 0.2 * wanted:
        return []
    return [name for name in texts if name in names]


def cut_ends(texts, pattern):
    """Each of {name: text or file} in two parts, one behind the other: its last tenth starts after a separator if there
    is one in it."""
    parts = {}
    for name, source in texts.items():
        text = text_of(source)
        start = int(0.9 * len(text))
        separator = pattern.search(text, start, int(0.98 * len(text)))
        if separator:
            start = separator.end()
        parts[name] = text[:start]
        parts[f"{name}/end"] = text[start:]  # no file has such a name
    return parts


def read_texts(texts, pattern):
    """Yields (name, document) of {name: text or file}: whole texts, or their parts between separators."""
    for name, source in texts.items():
        parts = pattern.split(text_of(source))  # a document, its separator, the next document, …
        for part, end in itertools.zip_longest(parts[::2], parts[1::2], fillvalue=""):
            if part:
                yield name, part + end if end.isspace() else part  # a document keeps the blank line after it


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
    n_left_out = 0
    for path in queue:
        is_chosen = path in given or not path.name.startswith(".")
        if is_chosen and path.is_dir():
            if path.resolve() not in folders:  # a link may lead back
                queue += sorted(path.iterdir())
            folders.add(path.resolve())
            continue
        if path not in given:
            is_chosen &= any(map(PurePath(str(path).lower()).match, patterns))
        content = file_hash(path) if is_chosen and path.stat().st_size > 0 else None
        if content is None or content in files:
            n_left_out += 1
        else:
            files[content] = path.parent.resolve() / path.name
    if not files:
        raise ValueError(f"no text found: {' '.join(paths)} is empty, or has no file that matches --glob={glob!r}")
    print(f"{len(files):,} files; left out: {n_left_out:,} (not {glob}, hidden, empty, or copies)")
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


def rows_in_file(path, column):
    """(number, row) for each row of a file: a line of JSON or, of parquet, a dict, which has this column if there is
    one."""
    with open(path, "rb") as file:
        if path.suffix.lower() != ".parquet":
            yield from ((number, line) for number, line in enumerate(file, 1) if line.strip())
            return
        import pyarrow.parquet  # optional

        table = pyarrow.parquet.ParquetFile(file)
        columns = [column] if column in table.schema_arrow.names else None
        batches = table.iter_batches(1000, columns=columns)
        yield from enumerate(itertools.chain.from_iterable(batch.to_pylist() for batch in batches), 1)


def read_rows(tables, rows_in, column):
    """Yields (name, text) of each row of the tables; the text may be empty. ValueError for a row that cannot be read or
    has no text."""
    for table in tables:
        number = 1
        try:
            for number, row in rows_in(table, column):
                row = json.loads(row) if isinstance(row, bytes) else row
                columns = row if isinstance(row, dict) else {}
                text = columns.get(column, row)
                if not isinstance(text, str | None):
                    raise ValueError(
                        f"--column={column!r} is {'missing' if text is row else type(text).__name__}, not text; "
                        f"the columns are {', '.join(columns) or 'none'}"
                    )
                (text or "").encode()  # an error for half a surrogate pair
                yield f"{table}, row {number}", text or ""
        except Exception as error:  # whatever a damaged file provokes
            raise load_error(f"{table}, row {number}", error) from None


def split_rows(cfg, train, val, rows_in):
    """The documents {"train": …, "val": …} of tables, whose rows rows_in(table, column) yields. Validation uses the
    tables `val` or, without any, 0.05% of the rows as in nanoGPT, but up to a tenth of a small dataset."""
    read_train = functools.partial(read_rows, train, rows_in, cfg.column)
    if val:
        return {"train": read_train, "val": functools.partial(read_rows, val, rows_in, cfg.column)}
    has_text = np.array([text != "" for _, text in tqdm(read_train(), "counting rows")])
    rows = np.flatnonzero(has_text)
    n_val = math.ceil(max(0.0005 * len(rows), min(100, 0.1 * len(rows))))
    is_val = np.zeros_like(has_text)
    is_val[rows[np.random.default_rng(2357).permutation(len(rows))[:n_val]]] = True
    print(f"for validation: {n_val:,} of {len(rows):,} rows with text, drawn at random")
    return {
        "train": lambda: itertools.compress(read_train(), ~is_val),
        "val": lambda: itertools.compress(read_train(), is_val),
    }


def hub_rows(cfg, path):
    """The documents of a dataset of the Hugging Face hub. ValueError if it cannot be loaded."""
    import datasets  # optional

    datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # the error below says what went wrong
    try:
        splits = datasets.load_dataset(path, cfg.config or None).select_columns(cfg.column)
    except Exception as error:  # whatever the network or the hub provokes
        raise load_error(path, error) from None
    if "train" not in splits:
        raise ValueError(f"{path} has no split 'train', only: {', '.join(splits)}")
    val = [name for name in splits if split_named(name) == "val"]
    left_out = [name for name in splits if name not in ("train", *val)]
    print(f"splits for validation: {', '.join(val) or 'none'}; left out: {', '.join(left_out) or 'none'}")
    return split_rows(cfg, ["train"], val, lambda split, column: enumerate(splits[split], 1))


# ----------------------------------------------------------------------------------------------------------
# The texts with a name


def sympy(cfg):
    folder = Path(importlib.util.find_spec("sympy").origin).resolve().parent  # without importing it
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
    return divided(files, choose_validation(files, smallest=4_000, largest=50_000))


def shakespeare(cfg):
    try:
        content = urllib.request.urlopen(SHAKESPEARE, timeout=60).read()
    except OSError as error:
        raise load_error(f"{SHAKESPEARE} (save it as a file and prepare that, if there is no network)", error) from None
    if hashlib.sha256(content).hexdigest() != SHAKESPEARE_SHA256:
        raise ValueError(f"{SHAKESPEARE} is not Tiny Shakespeare")
    return split_texts({"input.txt": content.decode()})


def hub(path):
    """The Text of the dataset OWNER/NAME of the Hugging Face hub."""
    return Text(lambda cfg: hub_rows(cfg, path), Path(path).name, path, "gpt2", ("column", "config"))


def generated(document, name, source, config):
    """The Text of what document(seed) makes for many seeds. config: the config file for it."""

    def read(cfg):
        return split_texts({f"{i:04}.txt": document(i) for i in range(recall.DOCUMENTS)})

    return Text(read, f"{name}_char", source, recipe=f"config/{config}.py config/rope.py")


TEXTS = {
    "sympy": Text(sympy, "sympy_char", f"sympy {SYMPY}"),
    "shakespeare_char": Text(shakespeare, "shakespeare_char", "tiny shakespeare"),
    "shakespeare": Text(shakespeare, "shakespeare", "tiny shakespeare", "gpt2"),
    "recall": generated(recall.document, "recall", recall.SOURCE, "recall"),
    "openwebtext": hub("Skylion007/openwebtext"),
}


# ----------------------------------------------------------------------------------------------------------
# The text that a command line names


def find_text(names, glob):
    """The Text that a command line asks for: a name in TEXTS, a task, hf:NAME, or paths of the user's files."""
    name = " ".join(names)
    if name in TEXTS:
        return TEXTS[name]
    if name in tasks.TASKS:  # no other one is called: it may be unfinished
        return generated(functools.partial(tasks.document, name), name, tasks.source_of(name), "task")
    if name.startswith("hf:"):
        return hub(name.removeprefix("hf:"))
    return files_text(names, glob)


def files_text(paths, glob):
    """The Text in the user's files and folders. ValueError if only some of them hold rows."""
    for path in paths:
        if not Path(path).exists():
            raise ValueError(
                f"{path!r} is not a file or a folder; TEXT is one of {', '.join([*TEXTS, *tasks.TASKS])}, or hf:NAME "
                "from the Hugging Face hub, or your own files and folders"
            )
    files = find_files(paths, glob)
    kinds = {file.suffix.lower() in ROWS: file for file in files.values()}  # whether it holds rows: one such file
    if len(kinds) > 1:
        raise ValueError(f"{kinds[True]} holds rows and {kinds[False]} text: prepare them separately (--glob)")
    train, val = named_splits(files)
    source = " ".join(str(Path(path).resolve()) for path in paths)
    state = json_hash({path: file_hash(file) for path, file in files.items()})
    if True in kinds:
        tables = train.values(), val.values()
        return Text(lambda cfg: split_rows(cfg, *tables, rows_in_file), "", source, "gpt2", ("glob", "column"), state)
    texts = train | val
    return Text(lambda cfg: split_texts(texts, cfg.split_on, val), "", source, "char", ("glob", "split_on"), state)
