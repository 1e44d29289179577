"""Prepares a text for training: python -m data.prepare TEXT

TEXT is one of these names, your own files and folders, or hf:NAME for a dataset of the Hugging Face hub:

  sympy             Python source, the same on every machine (the default)
  shakespeare_char  Tiny Shakespeare, as in nanoGPT
  shakespeare       the same in GPT-2's tokens
  recall            generated facts to look up
  copy, sort, …     generated examples of a task with exact answers; all tasks are listed below
  openwebtext       the hub's OpenWebText, in GPT-2's tokens

  python -m data.prepare ~/books --glob='*.md' --tokenizer=data:sympy_bpe1024 --name=books

A document is a file, a part of it (--split_on='\\n\\n'), or a row of a .parquet or .jsonl file. Files and folders that
are named train, validation or test are used as that: a test is left out. The hub needs `pip install datasets`, .parquet
pyarrow. If a file has the name of a text, write ./NAME.
"""

import hashlib
import json
import os
import shlex
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tqdm import tqdm

import config
import data
from data.tasks import TASKS
from data.texts import find_text
from data.tokenizers import make_tokenizer, named_tokenizer
from run.files import locked, making
from run.script import script

__doc__ += f"\nTasks: {', '.join(TASKS)}"
FILES = ("train_docs.bin", "val_docs.bin", "train.bin", "val.bin", "meta.json")  # of a dataset, as they are written


@dataclass(frozen=True)
class PrepareConfig:
    # the dataset
    tokenizer: config.PathName = ""  # char (default), gpt2 (default for rows), bpe:N, data:NAME, hf:NAME
    name: config.PathName = ""  # train with --dataset=NAME; needed for your own files
    overwrite: bool = False  # replace a dataset of this name
    # flags that only some texts take
    glob: str = "*.txt"  # which files of a folder; may be given several times
    split_on: str = ""  # separator between the documents of a text file; \n\n: blank lines
    column: str = "text"  # the column of the rows that holds the text
    config: str = ""  # which configuration of a dataset of the hub


def write_split(folder, split, documents, tokenizer, dtype, text_hash):
    """Writes the token ids of one split, and where its documents start. Returns what meta.json says about it."""
    tokens_path = folder / f"{split}.bin"
    docs_path = folder / f"{split}_docs.bin"
    n_bytes = 0
    n_empty = 0
    n_changed = 0
    with open(tokens_path, "wb") as tokens, open(docs_path, "wb") as docs:
        for i, (name, text) in enumerate(tqdm(documents(), f"tokenising {split}", unit="doc")):
            if not text:
                n_empty += 1
                continue
            if docs.tell() and tokenizer.eot is not None:
                tokens.write(np.array(tokenizer.eot, dtype))
            docs.write(np.int64(tokens.tell() // dtype.itemsize))
            try:
                ids = tokenizer.encode(text, plain=True)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
            tokens.write(np.asarray(ids, dtype))
            content = text.encode()
            if i < 100 and tokenizer.decode_bytes(ids).strip() != content.strip():
                n_changed += 1
            text_hash.update(content)
            n_bytes += len(content)
    if n_empty:
        print(f"left out of {split}: {n_empty:,} rows without text")
    if n_changed:
        print(f"note: the tokenizer changes or drops characters, in {n_changed} of the first 100 documents of {split}")
    if not n_bytes:
        raise ValueError(f"the text has too few documents, and none is left for {split}: give more text")
    return {
        "tokens": tokens_path.stat().st_size // dtype.itemsize,
        "documents": docs_path.stat().st_size // 8,
        "bytes": n_bytes,
        "sha256": data.file_hash(tokens_path),
        "docs_sha256": data.file_hash(docs_path),
    }


def write_dataset(folder, temporary, documents, tokenizer, source):
    """Writes the token files into `temporary`, then makes them the dataset of `folder`."""
    dtype = data.token_dtype(tokenizer.n_vocab)
    text_hash = hashlib.sha256()
    splits = {}
    for split in data.SPLITS:
        splits[split] = write_split(temporary, split, documents[split], tokenizer, dtype, text_hash)
    meta = {
        "source": source | {"sha256": text_hash.hexdigest()},
        "vocab_size": tokenizer.n_vocab,
        "dtype": dtype.name,
        "splits": splits,
        "tokenizer": tokenizer.spec,
    }
    (temporary / "meta.json").write_text(json.dumps(meta, indent=1))
    (folder / "meta.json").unlink(missing_ok=True)  # deleted first, written last: a folder without it is not prepared
    for name in FILES:
        os.replace(temporary / name, folder / name)
    print(f"{folder}: vocabulary of {tokenizer.n_vocab:,}")
    n_tokens = sum(info["tokens"] for info in splits.values())
    for split, info in splits.items():
        share = info["tokens"] / n_tokens
        print(f"{folder}/{split}.bin: {info['tokens']:,} tokens ({share:.2%}) in {info['documents']:,} documents")
    if splits["val"]["documents"] < 20:
        print("note: evaluations need 20 validation documents for ±: give more documents, or divide them (--split_on)")


def dataset_name(cfg, text):
    """The name that --name gives, or the text's own: with another tokenizer than its default, such as sympy_bpe1024."""
    if cfg.name:
        return cfg.name
    if not text.dataset:
        raise ValueError("this dataset needs a name: --name=NAME")
    if cfg.tokenizer in ("", text.tokenizer):
        return text.dataset
    return f"{text.dataset.removesuffix('_char')}_{Path(cfg.tokenizer).name.replace(':', '')}"


def check_unchanged(name, source, tokenizer):
    """ValueError if the prepared dataset `name` is from another source, or in the tokens of another tokenizer."""
    meta = data.load(name).meta
    given = {"source": source | {"sha256": meta["source"].get("sha256")}}  # of the whole text, which is not read again
    if tokenizer:
        given["tokenizer"] = tokenizer.spec
    if meta | given != meta:
        raise ValueError(
            f"{data.folder_of(name)} was prepared from another text or with other flags, or the text or the tokenizer "
            "has changed: choose another --name, or --overwrite"
        )


def main(argv):
    # here, a .py file is a text and not a config file
    names = [os.path.expanduser(arg) for arg in argv if not arg.startswith("-")]
    flags, _ = config.parse(PrepareConfig, [arg for arg in argv if arg.startswith("-")])
    globs = [arg.removeprefix("--glob=") for arg in argv if arg.startswith("--glob=")]
    if globs:
        flags["glob"] = "|".join(globs)
    cfg = PrepareConfig(**flags)
    if not names:
        raise ValueError("which text? Name one: python -m data.prepare sympy (--help lists them)")
    text = find_text(names, cfg.glob)
    kind = cfg.tokenizer or text.tokenizer
    source = {"text": text.source, "tokenizer": kind, "state": text.state}
    for flag in sorted(flags.keys() - {"tokenizer", "name", "overwrite"}):
        if flag not in text.flags:
            raise ValueError(f"--{flag} has no meaning for {' '.join(names)}")
        source[flag] = flags[flag]
    tokenizer = None if kind == "char" or kind.startswith("bpe:") else named_tokenizer(kind)  # None: made from the text
    if tokenizer and tokenizer.eot is None:
        print(f"note: {kind} has no token for the end of a text, so nothing marks where a document ends")
    name = dataset_name(cfg, text)
    folder = data.folder_of(name)
    files = {path.name for path in folder.glob("[!.]*")}
    if files and FILES[0] not in files and not cfg.overwrite:
        raise ValueError(f"{folder} holds other files, such as {min(files)}: choose another --name, or --overwrite")
    with locked(folder, wait=True), making(folder / "dataset") as temporary:
        if (folder / "meta.json").is_file() and not cfg.overwrite:
            check_unchanged(name, source, tokenizer)
            print(f"{folder} is prepared already (--overwrite prepares it again)")
            return 0
        print(f"preparing {name}: {text.source}")
        documents = text.read(cfg)
        tokenizer = tokenizer or make_tokenizer(kind, documents)
        write_dataset(folder, temporary, documents, tokenizer, source)
    if name != data.DEFAULT:  # which is prepared when a training needs it
        folder = f"out/{Path(name).name}"
        print(
            f"train on it: python train.py {text.recipe} --dataset={shlex.quote(name)} --out_dir={shlex.quote(folder)}"
        )
    return 0


if __name__ == "__main__":
    script(main)
