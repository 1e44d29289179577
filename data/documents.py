"""Where a dataset's text comes from: files, strings, or the rows of a Hugging Face dataset.

Both classes have pieces(split), the text from which a tokenizer is made, and tokenised(tokenizer), which yields
(split, [(ids, bytes of UTF-8), …]) for every document. Long documents are read in pieces, so memory stays bounded.
"""

import functools
import hashlib
import io
import math
import os
import re
import signal
import threading
import time
from pathlib import Path

import numpy as np
from tqdm import tqdm

from run.files import json_hash

PIECE = 1 << 20  # characters read at a time


def cut_pieces(f, first=0, last=math.inf):
    """The characters first … last−1 of an open text, in pieces. They are cut before white space, where the patterns of
    tokenizers always cut, so that the ids are those of the whole text."""
    for _ in range(first // PIECE):
        f.read(PIECE)
    f.read(first % PIECE)
    left, rest = last - first, ""
    while text := f.read(min(PIECE, left)):
        left -= len(text)
        text = rest + text
        cut = _last_cut(text)
        rest = text[cut:]
        if cut:
            yield text[:cut]
    if rest:
        yield rest


def _last_cut(text):
    """Where the last space between two words is, or else the last white space that follows another character. A text
    without either is cut at its end once it is long."""
    # the first pattern is for tokenizers that join a line end to the sign before it
    found = re.match(r".*\w(?= \w)", text, re.S) or re.match(r".*\S(?=[ \n])", text, re.S)
    return found.end() if found else len(text) if len(text) > 4 * PIECE else 0


def find_files(paths, glob):
    """The files among `paths`, and those in its folders that match `glob`, sorted; empty files are left out."""
    found = set()
    for path in map(Path, paths):
        try:
            found.update(path.rglob(glob) if path.is_dir() else [path])
        except (ValueError, NotImplementedError):  # NotImplementedError for an absolute pattern
            raise ValueError(f"--glob={glob!r} must be a pattern for names inside a folder, such as '*.txt'") from None
    return sorted(p for p in found if p.is_file() and p.stat().st_size > 0)


class Texts:
    """Documents that are files or strings. About a tenth of the text is for validation."""

    def __init__(self, texts):
        self.texts = texts  # {name: Path of a UTF-8 file, or the text itself}
        self.hash = hashlib.sha256()  # of all text that was tokenised

    @classmethod
    def of(cls, files, root):
        """The files, named by their paths from `root`."""
        return cls({Path(os.path.relpath(p, root)).as_posix(): p for p in files})

    def read(self, name, first=0, last=math.inf):
        """The characters first … last−1 of a document, in pieces."""
        text = self.texts[name]
        try:
            # newline="": line ends stay as they are
            with io.StringIO(text) if isinstance(text, str) else open(text, encoding="utf-8", newline="") as f:
                yield from cut_pieces(f, first, last)
        except UnicodeDecodeError as error:
            raise ValueError(f"{text} is not UTF-8 text (byte {error.start}): leave it out, or convert it") from None

    @functools.cached_property
    def parts(self):
        """{"train": […], "val": […]}, lists of arguments for `read`. The last tenth of each
        document is for validation if there are fewer than ten; otherwise documents drawn by the hash of their names."""
        if len(self.texts) < 10:
            cuts = {name: int(0.9 * sum(map(len, self.read(name)))) for name in self.texts}
            return {"train": [(name, 0, cut) for name, cut in cuts.items() if cut], "val": list(cuts.items())}
        sizes = {name: len(t.encode()) if isinstance(t, str) else t.stat().st_size for name, t in self.texts.items()}
        wanted, taken, val = 0.1 * sum(sizes.values()), 0, set()
        for name in sorted(sizes, key=lambda name: hashlib.sha256(name.encode()).digest()):
            # one huge document must be neither all of the validation text nor all of the training text
            if taken < wanted and taken + sizes[name] <= 2 * wanted and len(val) < max(1, len(sizes) // 5):
                val.add(name)
                taken += sizes[name]
        return {"train": [(n,) for n in sizes if n not in val], "val": [(n,) for n in sizes if n in val]}

    def pieces(self, split):
        for document in tqdm(self.parts[split], desc=f"reading {split}", unit="doc"):
            yield from self.read(*document)

    def tokenised(self, tokenizer):
        for split, documents in self.parts.items():
            for document in tqdm(documents, desc=f"tokenising {split}", unit="doc"):
                yield split, self._encoded(document, tokenizer)

    def _encoded(self, document, tokenizer):
        for piece in self.read(*document):
            raw = piece.encode()
            self.hash.update(raw)
            try:
                yield tokenizer.encode_plain(piece), len(raw)
            except ValueError as error:
                raise ValueError(f"{document[0]}: {error}") from None


CHUNK = 100_000  # rows that are tokenised, and kept, at a time
# The kinds of local files with one document per row -> their names in load_dataset.
ROWS = {".parquet": "parquet", ".jsonl": "json"}


class Rows:
    """Documents that are rows of a dataset: of the Hugging Face hub's, or of local .parquet or .jsonl files."""

    def __init__(self, name, files=(), config=None, column=None, num_proc=None):
        self.column, self.num_proc = column or "text", num_proc or os.cpu_count()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=_end_with_parent)
        splits = _load(name, files, config)
        types = {key: getattr(feature, "dtype", "nested") for key, feature in splits["train"].features.items()}
        if types.get(self.column) not in ("string", "large_string"):
            known = ", ".join(f"{key} ({dtype})" for key, dtype in types.items())
            raise ValueError(f"--column={self.column!r} is not a column of text in {name}, which has: {known}")
        import datasets

        parts = [splits[split].select_columns(self.column) for split in ("train", "validation") if split in splits]
        self.rows, n = datasets.concatenate_datasets(parts), len(parts[0])
        self.held = np.arange(len(self.rows)) >= n  # is the row for validation?
        if len(parts) == 1:  # nanoGPT's 0.05% in its draw, but up to a tenth of a small dataset
            count = max(math.ceil(0.0005 * n), min(100, math.ceil(0.1 * n)))
            self.held[np.random.default_rng(2357).permutation(n)[:count]] = True

    def pieces(self, split):
        for row, held in zip(tqdm(self.rows, desc=f"reading {split}", unit="doc"), self.held, strict=True):
            if row[self.column] and held == (split == "val"):
                yield from cut_pieces(io.StringIO(row[self.column]))

    def tokenised(self, tokenizer):
        """`datasets` tokenises in num_proc processes, and keeps every finished chunk in its cache: after a stop, the
        same command resumes."""
        n = len(self.rows)
        for first in range(0, n, CHUNK):
            documents = self._tokenised(self.rows.select(range(first, min(n, first + CHUNK))), tokenizer)
            for document, held in zip(documents, self.held[first:], strict=False):
                if document["bytes"]:
                    yield ("val" if held else "train"), [(document["ids"], int(document["bytes"]))]

    def _tokenised(self, chunk, tokenizer):
        try:
            return chunk.map(
                _tokenise, input_columns=self.column, remove_columns=self.column, fn_kwargs={"tokenizer": tokenizer},
                num_proc=min(self.num_proc, len(chunk)), writer_batch_size=50, desc="tokenising",
                new_fingerprint=json_hash([chunk._fingerprint, tokenizer.spec])[:32],
            ).with_format("numpy")  # fmt: skip
        except ValueError:  # from the tokenizer
            raise
        except Exception as error:  # whatever `datasets` makes of Ctrl-C, or of a process that died
            if isinstance(error.__context__, KeyboardInterrupt):
                raise KeyboardInterrupt from None
            why = " ".join(str(error).split()) or type(error).__name__
            raise ValueError(f"tokenising stopped ({why}): the same command resumes") from None


def _end_with_parent():
    """For a process that tokenises: after Ctrl-C its parent ends it. It also ends when the parent is killed, since it
    would keep the dataset's folder locked."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = os.getppid()

    def watch():
        while os.getppid() == parent:
            time.sleep(0.1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _load(name, files, config):
    """The splits of a dataset. ValueError if it cannot be loaded."""
    try:
        import datasets
    except ImportError:
        raise ValueError(f"{name} needs one more package: pip install datasets") from None
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # the errors below say what went wrong
    what = {"path": name, "name": config}
    if files:
        what = {"path": ROWS[files[0].suffix], "data_files": [str(f.resolve()) for f in files]}
    try:
        splits = datasets.load_dataset(**what)
    except Exception as error:  # of any type: from the network, the hub or a file
        why = " ".join(str(error.__cause__ or error).split())[:300]
        raise ValueError(f"{name} could not be loaded: {why}") from None
    if "train" not in splits:
        raise ValueError(f"{name} has no split 'train', only: {', '.join(splits)}")
    return splits


def _tokenise(text, tokenizer):
    """A document's ids, and its length in UTF-8."""
    text = text or ""  # a row may hold None
    ids = [np.asarray(tokenizer.encode_plain(piece), np.uint32) for piece in cut_pieces(io.StringIO(text))]
    return {"ids": np.concatenate([np.empty(0, np.uint32), *ids]), "bytes": len(text.encode())}
