"""Prepares a text for training: python -m data.prepare TEXT

TEXT is one of the names below, your own files and folders, or hf:NAME for a dataset of the Hugging Face hub:

{texts}

  python -m data.prepare sympy --tokenizer=bpe:1024
  python -m data.prepare ~/books --glob='*.md' --tokenizer=data:sympy_bpe1024 --name=books
  python -m data.prepare ~/pages/*.jsonl --column=content --tokenizer=PATH/tokenizer.json --name=pages
  python -m data.prepare hf:HuggingFaceFW/fineweb-edu --config=sample-10BT --name=fineweb

A document is a file, a part of it (--split_on='\\n\\n'), or a row of a .parquet or .jsonl file. Those two and the hub
need: pip install datasets
A tokenizer.json needs: pip install tokenizers
If a file has the name of a text, write ./NAME.
"""

import argparse
import hashlib
import inspect
import json
import os
import sys
from pathlib import Path

import numpy as np
from tqdm import tqdm

import data
from data.texts import TEXTS, find_text
from data.tokenizers import is_trained, make_tokenizer, named_tokenizer
from run.files import locked, making
from run.script import script

FILES = ("train_docs.bin", "val_docs.bin", "train.bin", "val.bin", "meta.json")  # of a dataset, as they are written
OPTIONS = ("glob", "split_on", "file", "column", "config")  # flags that only some texts take


def write_split(folder, split, documents, tokenizer, dtype, text_hash):
    """Writes the token ids of one split, and where its documents start. Returns what meta.json says about it."""
    tokens_path, docs_path, n_bytes = folder / f"{split}.bin", folder / f"{split}_docs.bin", 0
    with open(tokens_path, "wb") as tokens, open(docs_path, "wb") as docs:
        for document in tqdm(documents, desc=f"tokenising {split}", unit="doc"):
            if docs.tell() and tokenizer.eot is not None:
                tokens.write(np.array(tokenizer.eot, dtype))
            docs.write(np.int64(tokens.tell() // dtype.itemsize))
            for piece in document.pieces():
                try:
                    tokens.write(np.asarray(tokenizer.encode_plain(piece), dtype))
                except ValueError as error:
                    raise ValueError(f"{document.name}: {error}") from None
                raw = piece.encode()
                n_bytes += len(raw)
                text_hash.update(raw)
        counts = {"tokens": tokens.tell() // dtype.itemsize, "documents": docs.tell() // 8, "bytes": n_bytes}
    if not counts["documents"]:
        raise ValueError(f"the text has too few documents, and none is left for {split}: give more text")
    return counts | {"sha256": data.file_hash(tokens_path), "docs_sha256": data.file_hash(docs_path)}


def write_dataset(folder, temporary, documents, tokenizer, source):
    """Writes the token files into `temporary`, then makes them the dataset of `folder`."""
    dtype, text_hash = np.dtype("uint16" if tokenizer.n_vocab <= 65536 else "uint32"), hashlib.sha256()
    splits = {s: write_split(temporary, s, documents[s], tokenizer, dtype, text_hash) for s in data.SPLITS}
    meta = {"source": source | {"sha256": text_hash.hexdigest()}, "vocab_size": tokenizer.n_vocab}
    meta |= {"dtype": dtype.name, "splits": splits, "tokenizer": tokenizer.spec}
    (temporary / "meta.json").write_text(json.dumps(meta, indent=1))
    (folder / "meta.json").unlink(missing_ok=True)  # deleted first, written last: a folder without it is not prepared
    for name in FILES:
        os.replace(temporary / name, folder / name)
    if splits["val"]["documents"] < 20:
        print("note: evaluations need 20 validation documents for ±: give more documents, or divide them (--split_on)")
    counts = ", ".join(f"{s} {v['tokens']:,} tokens in {v['documents']:,} documents" for s, v in splits.items())
    print(f"{folder}: {counts}; vocabulary {tokenizer.n_vocab:,} ({tokenizer.spec['kind']})")


def unescaped(text):
    """A separator as it is meant: \\n is a line end."""
    return text.encode("latin-1", "backslashreplace").decode("unicode_escape")


def check_same(folder, source, tokenizer):
    """ValueError if the dataset in `folder` was not made from `source` and, unless it is None, with the tokenizer."""
    meta = data.read_json(folder / "meta.json", data.META)
    held = meta["source"]
    keys = sorted((source.keys() | held.keys()) - {"sha256", "state"})
    if unlike := ", ".join(f"{key}={held.get(key)!r}" for key in keys if held.get(key) != source.get(key)):
        raise ValueError(f"{folder} holds another dataset ({unlike}): choose another --name, or --overwrite")
    if held.get("state", source["state"]) != source["state"]:
        raise ValueError(f"the text has changed since {folder} was prepared: --overwrite prepares it again")
    if tokenizer and meta["tokenizer"] != tokenizer.spec:
        raise ValueError(f"the tokenizer has changed since {folder} was prepared: --overwrite prepares it again")


def parser():
    class Parser(argparse.ArgumentParser):
        def error(self, message):  # in one line, as the other scripts do
            raise ValueError(f"{message}; --help says more")

    texts = "\n".join(f"  {name:17} {text.about}" for name, text in TEXTS.items())
    layout = argparse.RawDescriptionHelpFormatter
    made = Parser("python -m data.prepare", description=__doc__.format(texts=texts), formatter_class=layout)
    add = made.add_argument
    add("text", nargs="+", metavar="TEXT", help="a name, hf:NAME, or files and folders")
    add("--tokenizer", help="char, bpe:N (trained on the text), gpt2, PATH/tokenizer.json (Hugging Face's format), or "
        "data:NAME (that of a prepared dataset). Default: char; gpt2 for rows")  # fmt: skip
    add("--name", help="train with --dataset=NAME; needed for your own files")
    add("--glob", help="which files of a folder (default: *.txt)")
    add("--file", help="a copy of Tiny Shakespeare that you have")
    add("--split_on", type=unescaped, help="separator between the documents of a text file; '\\n\\n': blank lines")
    add("--column", help="the column of the rows that holds the text (default: text)")
    add("--config", help="which configuration of a dataset of the hub")
    add("--overwrite", action="store_true", help="replace a dataset of this name")
    return made


def main(argv):
    args = parser().parse_args(argv)
    text = find_text(args.text, args.glob or "*.txt")
    given = {flag: value for flag in OPTIONS if (value := getattr(args, flag))}
    if odd := given.keys() - inspect.signature(text.read).parameters.keys():
        raise ValueError(f"--{min(odd)} has no meaning for {' '.join(args.text)}")
    kind = args.tokenizer or text.tokenizer
    tokenizer = None if is_trained(kind) else named_tokenizer(kind)
    usual = text.dataset
    if usual and kind != text.tokenizer:
        usual = f"{usual.removesuffix('_char')}_{Path(kind).stem.replace(':', '')}"  # sympy_bpe1024
    if not (name := args.name or usual):
        raise ValueError("this dataset needs a name: --name=NAME")
    folder = data.folder_of(name)
    held = {p.name for p in folder.iterdir() if not p.name.startswith(".")} if folder.is_dir() else set()
    if others := held - {*FILES, "prepare.py"}:  # prepare.py is nanoGPT's
        raise ValueError(f"--name={name}: {folder} holds other files, such as {min(others)}: choose another name")
    if "train.bin" in held and "train_docs.bin" not in held and not args.overwrite:
        raise ValueError(f"{folder} holds the tokens of another program: choose another --name, or --overwrite")
    source = {"text": text.source, "tokenizer": kind, "state": text.state} | given
    source.pop("file", None)  # every copy is the same text
    with locked(folder), making(folder / "dataset") as temporary:
        if (folder / "meta.json").is_file() and not args.overwrite:
            check_same(folder, source, tokenizer)
            print(f"{folder} is prepared already (--overwrite prepares it again)")
            return 0
        print(f"preparing {name}: {text.source}")
        try:
            documents = text.read(**given)
            tokenizer = tokenizer or make_tokenizer(kind, lambda split: pieces(documents, split))
            write_dataset(folder, temporary, documents, tokenizer, source)
        except KeyboardInterrupt:
            print("\nstopped: nothing has changed", file=sys.stderr)
            raise
    print(f"train on it: python train.py config/rope.py --dataset={name} --out_dir=out/{Path(name).name}")
    return 0


def pieces(documents, split):
    for document in tqdm(documents[split], desc=f"reading {split}", unit="doc"):
        yield from document.pieces()


if __name__ == "__main__":
    script(main)
