"""Prepares a text for training: python -m data.prepare TEXT

TEXT is one of these names, your own files and folders, or hf:NAME for a dataset of the Hugging Face hub:

  sympy             Python source, the same on every machine (the default)
  shakespeare_char  Tiny Shakespeare, as in nanoGPT
  shakespeare       the same in GPT-2's tokens
  recall            generated facts to look up
  copy, sort, …     generated examples of a task with exact answers; all tasks are listed below
  openwebtext       the hub's OpenWebText, in GPT-2's tokens

  python -m data.prepare ~/books --glob='*.md' --tokenizer=data:sympy_char --name=books

A document is a file, a part of it (--split_on='\\n\\n'), or a row of a .parquet or .jsonl file. Files and folders that
are named train, validation or test are used as that: a test is left out. The hub needs `pip install datasets`, .parquet
pyarrow. If a file has the name of a text, write ./NAME.
"""

import json
import os
import shlex
from array import array
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tqdm import tqdm

import config
import data
from data.tasks import LONGEST, TASKS
from data.texts import find_text
from data.tokenizers import make_tokenizer, named_tokenizer
from run.files import locked, making, write
from run.script import script

__doc__ += f"\nTasks: {', '.join(TASKS)}"


@dataclass(frozen=True)
class PrepareConfig:
    # the dataset
    tokenizer: config.PathName = ""  # char (default), gpt2 (default for rows), bpe:N, data:NAME, hf:NAME
    name: config.PathName = ""  # train with --dataset=NAME; needed for your own files
    overwrite: bool = False  # replace a dataset of this name
    # flags that only some texts take
    glob: str = "*.txt"  # which files of a folder; may be given several times
    longest: config.Count = LONGEST  # the most symbols of an example of a task
    split_on: str = ""  # separator between the documents of a text file; \n\n: blank lines
    column: str = "text"  # the column of the rows that holds the text
    config: str = ""  # which configuration of a dataset of the hub

    def __post_init__(self):
        config.check_values(self)


def write_split(folder, split, documents, tokenizer):
    """Writes the token ids of one split, and where its documents start. Returns what meta.json says about it."""
    dtype = data.token_dtype(tokenizer.n_vocab)
    tokens_path = folder / f"{split}.bin"
    docs_path = folder / f"{split}_docs.bin"
    starts = array("q")  # of the documents, in tokens
    n_bytes = 0
    n_changed = 0
    with open(tokens_path, "wb") as file:
        for name, text in tqdm(documents(), f"tokenising {split}", unit="doc"):
            if starts and tokenizer.eot is not None:
                file.write(np.array(tokenizer.eot, dtype))
            starts.append(file.tell() // dtype.itemsize)
            try:
                content = text.encode()  # an error for half a surrogate pair
                ids = tokenizer.encode(text, plain=True)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
            file.write(np.asarray(ids, dtype))
            n_bytes += len(content)
            if len(starts) <= 100 and tokenizer.decode_bytes(ids).strip() != content.strip():
                n_changed += 1
    docs_path.write_bytes(starts)
    if n_changed:
        print(f"note: the tokenizer changes or drops characters, in {n_changed} of the first 100 documents of {split}")
    if not starts:
        raise ValueError(f"the text has too few documents, and none is left for {split}: give more text")
    return {
        "tokens": tokens_path.stat().st_size // dtype.itemsize,
        "documents": len(starts),
        "bytes": n_bytes,
        "sha256": data.file_hash(tokens_path),
        "docs_sha256": data.file_hash(docs_path),
    }


def write_dataset(folder, temporary, documents, tokenizer, source):
    """Writes the token files into `temporary`, then makes them the dataset of `folder`."""
    splits = {split: write_split(temporary, split, documents[split], tokenizer) for split in data.SPLITS}
    meta = {"source": source, "splits": splits, "tokenizer": tokenizer.spec}
    (folder / "meta.json").unlink(missing_ok=True)  # deleted first, written last: a folder without it is not prepared
    for path in temporary.iterdir():
        os.replace(path, folder / path.name)
    write(folder / "meta.json", json.dumps(meta, indent=1))
    for split, info in splits.items():
        print(f"{folder}/{split}.bin: {info['tokens']:,} tokens in {info['documents']:,} documents")
    if splits["val"]["documents"] < 20:
        print("note: evaluations need 20 validation documents for ±: give more documents, or divide them (--split_on)")


def main(argv):
    # here, a .py file is a text and not a config file
    names = [arg for arg in argv if not arg.startswith("-")]
    flags, _ = config.parse(PrepareConfig, [arg for arg in argv if arg.startswith("-")])
    globs = [arg.removeprefix("--glob=") for arg in argv if arg.startswith("--glob=")]
    if globs:
        flags["glob"] = "|".join(globs)
    cfg = PrepareConfig(**flags)
    if not names:
        raise ValueError("which text? Name one: python -m data.prepare sympy (--help lists them)")
    text = find_text(names, cfg)
    kind = cfg.tokenizer or text.tokenizer
    unused = flags.keys() - {"tokenizer", "name", "overwrite", *text.flags}
    if unused:
        raise ValueError(f"--{min(unused)} has no meaning for {' '.join(names)}")
    source = {"text": text.source, "tokenizer": kind} | {flag: getattr(cfg, flag) for flag in text.flags}
    tokenizer = None if kind == "char" or kind.startswith("bpe:") else named_tokenizer(kind)  # None: made from the text
    name = cfg.name
    if kind == text.tokenizer:
        name = name or text.dataset
    if not name:
        raise ValueError("this dataset needs a name: --name=NAME")
    folder = data.folder_of(name)
    files = {path.name for path in folder.glob("[!.]*")}
    if files and "train_docs.bin" not in files and not cfg.overwrite:
        raise ValueError(f"{folder} holds other files, such as {min(files)}: choose another --name, or --overwrite")
    with locked(folder, wait=True), making(folder / "dataset") as temporary:
        if (folder / "meta.json").is_file() and not cfg.overwrite:
            prepared = data.load(name).meta["source"]
            if source | prepared != prepared | source:
                raise ValueError(
                    f"{folder} was prepared from another text or with other flags, or the text has changed: choose "
                    "another --name, or --overwrite"
                )
            print(f"{folder} is prepared already (--overwrite prepares it again)")
            return 0
        documents = text.read(cfg)
        write_dataset(folder, temporary, documents, tokenizer or make_tokenizer(kind, documents), source)
    if name != data.DEFAULT:  # which is prepared when a training needs it
        folder = f"out/{Path(name).name}"
        print(
            f"train on it: python train.py {text.recipe} --dataset={shlex.quote(name)} --out_dir={shlex.quote(folder)}"
        )
    return 0


if __name__ == "__main__":
    script(main)
