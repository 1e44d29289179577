"""Prepared text: token files, and the batches that training draws from them.

A prepared dataset is a folder: train.bin and val.bin (token ids, uint16 or uint32), train_docs.bin and val_docs.bin
(int64, where each document starts), meta.json (tokenizer, counts, sha256 of every file). data/prepare.py writes it.
"""

import hashlib
import json
import shlex
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from data.tokenizers import load_error, tokenizer_from
from run.files import json_hash

ROOT = Path(__file__).resolve().parent
DEFAULT = "sympy_char"  # needs no download, so it is prepared when it is missing
HASHED_BELOW = 100e6  # bytes; of larger files only the size is checked
SPLITS = ("train", "val")


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
        if rows.max() >= self.n_vocab:  # the hash of a large file is not checked
            raise ValueError(f"the text contains token id {rows.max()}, but the vocabulary ends at {self.n_vocab - 1}")
        return torch.from_numpy(rows.astype(np.int64))

    def val_starts(self, length, max_tokens=None):
        """Where validation windows of `length` predictions start: side by side over all of the text, or up to
        max_tokens evenly spread over its tuning part. ValueError if the text is too short."""
        n_tokens = len(self.tokens)
        n_windows = (n_tokens - 1) // length
        if n_windows < 1:
            raise ValueError(f"the validation text has {n_tokens:,} tokens, too few for block_size={length}")
        if max_tokens is None:
            return length * np.arange(n_windows)
        n_windows = max(1, tuning_part(n_tokens) // length)
        n_chosen = min(n_windows, max(1, max_tokens // length))
        return length * (np.arange(n_chosen) * n_windows // n_chosen)


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
    path = folder / "meta.json"
    if not path.is_file():
        prepare_default(name)
    try:
        meta = json.loads(path.read_text(encoding="utf-8"))
        tokenizer = tokenizer_from(meta["tokenizer"])
        splits = {}
        for split in SPLITS:
            info = meta["splits"][split]
            dtype = token_dtype(tokenizer.n_vocab)  # never a type that the file names, which could be one of pointers
            tokens = open_array(folder / f"{split}.bin", dtype, info["tokens"], info["sha256"])
            docs = open_array(folder / f"{split}_docs.bin", "int64", info["documents"], info["docs_sha256"])
            splits[split] = Split(tokens, docs, tokenizer.n_vocab)
    except Exception as error:  # whatever a damaged file provokes
        raise load_error(path, error) from None
    return Dataset(name, **splits, tokenizer=tokenizer, meta=meta, hash=json_hash([meta["splits"], meta["tokenizer"]]))


def prepare_default(name):
    """Prepares the default text. ValueError, with the command to run, for any other one."""
    from data import prepare, texts  # only here: most calls find it prepared

    if name == DEFAULT:
        prepare.main(["sympy"])
        return
    argument = f"PATH --name={shlex.quote(name)}"
    for text_name in (*texts.TEXTS, *texts.tasks.TASKS):
        if Path(name).name in (text_name, f"{text_name}_char"):
            argument = text_name
    raise ValueError(f"no dataset {name!r}: run  python -m data.prepare {argument}  and use the name that it gives")


def token_dtype(n_vocab):
    """The type of token ids in a file."""
    return np.dtype("uint16" if n_vocab <= 65536 else "uint32")


def file_hash(path):
    """sha256 of a file."""
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def open_array(path, dtype, count, sha256):
    """The array in a file. ValueError unless the file is what meta.json says."""
    size = path.stat().st_size
    if size != count * np.dtype(dtype).itemsize or (size < HASHED_BELOW and file_hash(path) != sha256):
        raise ValueError(f"{path} is damaged or incomplete: prepare the dataset again, with --overwrite")
    return np.memmap(path, dtype=dtype, mode="r")


def sampled_positions(n, below, seed):
    """A sorted sample of n positions below a limit, (n,) int64; None without a limit. A model that is trained on short
    windows at such positions meets all of them. Ruoss et al. 2023 (arXiv 2305.16843)."""
    if not below:
        return None
    positions = np.random.default_rng(seed).permutation(below)[:n]
    return torch.from_numpy(np.sort(positions))


@dataclass
class Batches:
    """Rows of block_size tokens and their targets, `rows_per_step` per step. Row r of step n depends only on (seed, n,
    r): no state has to be saved, and the data are the same however rows are divided among micro-steps and processes. An
    epoch visits every window once, in shuffled order, from a random offset."""

    split: Split
    block_size: int
    rows_per_step: int
    seed: int
    device: torch.device = torch.device("cpu")

    def __post_init__(self):
        n_tokens = len(self.split.tokens)
        self.n_windows = (n_tokens - self.block_size) // self.block_size
        if self.n_windows < 1:
            raise ValueError(f"the training text has {n_tokens:,} tokens, too few for block_size={self.block_size}")
        self.epoch = None  # the latest epoch, whose offset and order are kept

    def __call__(self, step, first, last):
        """Rows first … last−1 of a step: inputs and targets, (2, last − first, block_size) int64, on the device."""
        first_row = step * self.rows_per_step
        starts = np.array([self.start(first_row + r) for r in range(first, last)])
        rows = self.split.windows(starts, self.block_size)
        batch = torch.stack((rows[:, :-1], rows[:, 1:]))  # in one piece, so that one copy brings both to a GPU
        if self.device.type == "cuda":  # the GPU computes while pinned memory is copied
            batch = batch.pin_memory()
        return batch.to(self.device, non_blocking=True)

    def start(self, row):
        """Where a row starts in the text. Rows are counted from the first step."""
        epoch, i = divmod(row, self.n_windows)
        if epoch != self.epoch:
            rng = np.random.default_rng((self.seed, epoch))
            self.offset = rng.integers(self.block_size)
            self.order = rng.permutation(self.n_windows)
            self.epoch = epoch
        return self.offset + self.block_size * self.order[i]
