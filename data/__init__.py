"""Prepared text: token files, and the batches that training draws from them.

A prepared dataset is a folder: train.bin and val.bin (token ids, uint16 or uint32), train_docs.bin and val_docs.bin
(int64, where each document starts), meta.json (tokenizer, counts, sha256 of every file). data/prepare.py writes it.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from data.tokenizers import tokenizer_from
from run.files import json_hash, matches

ROOT = Path(__file__).resolve().parent
DEFAULT = "sympy_char"  # needs no download, so it is prepared when it is missing
HASHED_BELOW = 100e6  # bytes; of larger files only the size is checked
SPLITS = ("train", "val")
SPLIT = {"tokens": int, "documents": int, "bytes": int, "sha256": str, "docs_sha256": str}
META = {  # the form of meta.json; a type is never taken from a file
    "source": {"text": str}, "vocab_size": int, "dtype": ("uint16", "uint32"), "tokenizer": {"kind": str},
    "splits": {"train": SPLIT, "val": SPLIT},
}  # fmt: skip


def tuning_part(n_tokens):
    """The number of tokens at the start of a validation text of n_tokens that may be used to choose checkpoints and
    settings. The length evaluation scores only the tokens after them."""
    return min(max(n_tokens // 8, 65_536), n_tokens // 2)


@dataclass(frozen=True)
class Split:
    """One part of a prepared text, for training or for validation."""

    tokens: np.ndarray  # token ids, mapped from disk
    docs: np.ndarray  # (documents,) int64: where each document starts
    n_vocab: int  # every id is below it

    def windows(self, starts, length):
        """The tokens of windows of `length` predictions at `starts`: (len(starts), length + 1) int64. The inputs are
        all but the last, the targets all but the first."""
        rows = self.tokens[starts[:, None] + np.arange(length + 1)]
        if rows.max(initial=0) >= self.n_vocab:  # the hash of a large file is not checked
            raise ValueError(f"the text contains token id {rows.max()}, but the vocabulary ends at {self.n_vocab - 1}")
        return torch.from_numpy(rows.astype(np.int64))

    def val_starts(self, length, max_tokens=None):
        """Where validation windows of `length` predictions start: side by side over all of the text, or up to
        max_tokens evenly spread over its tuning part. ValueError if the text is too short."""
        n = (len(self.tokens) - 1) // length
        if n < 1:
            short = f"{len(self.tokens):,} tokens, too few for block_size={length}"
            raise ValueError(f"the validation text has {short}: at least {length + 1:,} are needed")
        if max_tokens is None:
            return length * np.arange(n)
        n = max(1, tuning_part(len(self.tokens)) // length)
        keep = min(n, max(1, max_tokens // length))
        return length * (np.arange(keep) * n // keep)


@dataclass(frozen=True)
class Dataset:
    name: str
    train: Split
    val: Split
    tokenizer: object
    meta: dict
    hash: str  # of tokens, splits and tokenizer: the same wherever the text was prepared


def folder_of(name):
    """data/NAME, or a folder anywhere if `name` is a path."""
    return ROOT / name if Path(name).name == name else Path(name)


def load(name):
    """The prepared dataset `name`. ValueError if it is missing or if its files do not match its meta.json."""
    folder = folder_of(name)
    if not (folder / "meta.json").is_file():
        from data import prepare, texts  # only here: most calls find it prepared

        if name != DEFAULT:
            known = {key: what for what, text in texts.TEXTS.items() for key in (what, text.dataset)}
            prepared = ", ".join(sorted(p.parent.name for p in ROOT.glob("*/meta.json"))) or "none"
            how = f"run  python -m data.prepare {known.get(folder.name, f'PATH --name={name}')}"
            raise ValueError(f"dataset {name!r} is not prepared (prepared are: {prepared}): {how}")
        prepare.main(["sympy"])
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        meta = None
    if not matches(meta, META):
        raise ValueError(f"{folder / 'meta.json'} is damaged or not of the expected kind: prepare it again")
    tokenizer, splits = tokenizer_from(meta["tokenizer"]), {}
    for split in SPLITS:
        info = meta["splits"][split]
        tokens = _open(folder / f"{split}.bin", meta["dtype"], info["tokens"], info["sha256"])
        docs = _open(folder / f"{split}_docs.bin", "int64", info["documents"], info["docs_sha256"])
        splits[split] = Split(tokens, docs, tokenizer.n_vocab)
    return Dataset(name, **splits, tokenizer=tokenizer, meta=meta, hash=json_hash([meta["splits"], meta["tokenizer"]]))


def file_hash(path):
    """sha256 of a file."""
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def _open(path, dtype, count, sha256):
    """The array in a file. ValueError unless the file is what meta.json says."""
    size = path.stat().st_size if path.is_file() else 0
    if not 0 < size == count * np.dtype(dtype).itemsize or (size < HASHED_BELOW and file_hash(path) != sha256):
        raise ValueError(f"{path} is damaged or incomplete: prepare the dataset again, with --overwrite")
    return np.memmap(path, dtype=dtype, mode="r")


def sampled_positions(n, below, seed):
    """A sorted sample of n positions below a limit, (n,) int64; None without a limit. A model that is trained on short
    windows at such positions meets all of them. Ruoss et al. 2023 (arXiv 2305.16843)."""
    if below:
        return torch.from_numpy(np.sort(np.random.default_rng(seed).permutation(below)[:n]))


class Batches:
    """Rows of block_size tokens and their targets, `rows_per_step` per step. Row r of step n depends only on (seed, n,
    r): no state has to be saved, and the data are the same however rows are divided among micro-steps and processes. An
    epoch visits every window once, in shuffled order, from a random offset."""

    def __init__(self, split, block_size, rows_per_step, seed):
        self.split, self.block_size, self.rows_per_step, self.seed = split, block_size, rows_per_step, seed
        self.n_windows = (len(split.tokens) - block_size) // block_size
        if self.n_windows < 1:
            short = f"{len(split.tokens):,} tokens, too few for block_size={block_size}"
            raise ValueError(f"the training text has {short}: at least {2 * block_size:,} are needed")
        self.epoch = None  # the latest epoch, whose offset and order are kept

    def __call__(self, step, first, last):
        """Rows first … last−1 of a step: inputs and targets, both (last − first, block_size) int64."""
        starts = np.array([self._start(step * self.rows_per_step + r) for r in range(first, last)])
        rows = self.split.windows(starts, self.block_size)
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()

    def _start(self, row):
        epoch, i = divmod(row, self.n_windows)
        if epoch != self.epoch:
            rng = np.random.default_rng((self.seed, epoch))
            self.offset, self.order = rng.integers(self.block_size), rng.permutation(self.n_windows)
            self.epoch = epoch
        return self.offset + self.block_size * self.order[i]
