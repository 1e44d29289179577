"""Prepares a text for training: python -m data.prepare TEXT

TEXT is one of the names below, your own files and folders, or hf:NAME for a dataset of the Hugging Face hub:

{texts}

  python -m data.prepare stdlib --tokenizer=bpe:1024
  python -m data.prepare ~/books --glob='*.md' --tokenizer=data:stdlib_bpe1024 --name=books
  python -m data.prepare ~/pages/*.jsonl --column=content --tokenizer=PATH/tokenizer.json --name=pages
  python -m data.prepare hf:HuggingFaceFW/fineweb-edu --config=sample-10BT --name=fineweb

A document is a file, or a row of a .parquet or .jsonl file. Those files and the hub need: pip install datasets
A tokenizer.json needs: pip install tokenizers
If a file has the name of a text, write ./NAME.
"""

import argparse
import json
import os
import re
import sys
from pathlib import Path

import numpy as np

import data
from data.documents import Texts
from data.texts import TEXTS, find_text
from data.tokenizers import is_trained, make_tokenizer, named_tokenizer
from run.files import Lock, file_hash, making, read_json
from run.script import script


class TokenWriter:
    """Writes one split: token ids and document starts."""

    def __init__(self, folder, split, tokenizer):
        self.split, self.eot, self.dtype = split, tokenizer.eot, id_type(tokenizer)
        self.tokens_file = open(folder / f"{split}.bin", "wb")
        self.docs_file = open(folder / f"{split}_docs.bin", "wb")
        self.tokens = self.documents = self.bytes = 0

    def start_document(self):
        if self.documents and self.eot is not None:
            self.add([self.eot], 0)
        self.docs_file.write(np.int64(self.tokens).tobytes())
        self.documents += 1

    def add(self, ids, n_bytes):
        """Adds the ids of a text that has n_bytes in UTF-8."""
        self.tokens_file.write(np.asarray(ids).astype(self.dtype).tobytes())
        self.tokens += len(ids)
        self.bytes += n_bytes

    def close(self):
        """Returns what meta.json says about the split. ValueError if it is empty."""
        self.tokens_file.close()
        self.docs_file.close()
        if not self.documents:
            raise ValueError(f"the text has too few documents, and none is left for {self.split}: give more text")
        counts = {"tokens": self.tokens, "documents": self.documents, "bytes": self.bytes}
        files = {"sha256": self.tokens_file, "docs_sha256": self.docs_file}
        return counts | {key: file_hash(file.name) for key, file in files.items()}


def id_type(tokenizer):
    return "uint16" if tokenizer.n_vocab <= 65536 else "uint32"


def write_dataset(folder, temporary, documents, tokenizer, source):
    """Writes the token files into `temporary`, then makes them the dataset of `folder`."""
    writers = {split: TokenWriter(temporary, split, tokenizer) for split in data.SPLITS}
    for split, pieces in documents.tokenised(tokenizer):
        writers[split].start_document()
        for ids, n_bytes in pieces:
            writers[split].add(ids, n_bytes)
    splits = {split: writer.close() for split, writer in writers.items()}
    if isinstance(documents, Texts):
        source = source | {"sha256": documents.hash.hexdigest()}
    meta = {"source": source, "vocab_size": tokenizer.n_vocab, "dtype": id_type(tokenizer)}
    meta |= {"splits": splits, "tokenizer": tokenizer.spec}
    (temporary / "meta.json").write_text(json.dumps(meta, indent=1))
    (folder / "meta.json").unlink(missing_ok=True)  # a folder without it is not prepared: it goes first and comes last
    for file in (*temporary.glob("*.bin"), temporary / "meta.json"):
        os.replace(file, folder / file.name)
    counts = ", ".join(f"{s} {v['tokens']:,} tokens in {v['documents']:,} documents" for s, v in splits.items())
    print(f"{folder}: {counts}; vocabulary {tokenizer.n_vocab:,} ({tokenizer.spec['kind']})")


def dataset_name(args, text, kind):
    """The dataset's name: --name, or one made of the text's name and the tokenizer. ValueError for an invalid one."""
    usual = text.dataset
    if usual and kind != text.tokenizer:
        fit = is_trained(kind) or kind == "gpt2"
        usual = f"{usual.removesuffix('_char')}_{kind.replace(':', '')}" if fit else ""
    name = args.name or usual
    if not name:
        raise ValueError("this dataset needs a name: --name=NAME")
    if owner := [known for known in TEXTS if TEXTS[known].dataset == name != usual]:
        raise ValueError(f"--name={name!r} is kept for  python -m data.prepare {owner[0]}: choose another")
    if "/" not in name and not re.fullmatch(r"[\w-]+", name):
        raise ValueError(f"--name={name!r} may contain only letters, digits, '-' and '_': choose another")
    return name


def locked(folder):
    try:
        return Lock(folder, partial=("input.txt",))
    except OSError as error:
        raise ValueError(f"{folder} cannot be a folder ({error.strerror}): choose another --name") from None


def is_prepared(folder, source, tokenizer):
    """Whether the dataset exists. ValueError if it was made from another text or differently, or if it is damaged."""
    if not (folder / "meta.json").is_file():
        return False
    meta = read_json(folder / "meta.json", data.META)
    spec = meta["tokenizer"]
    kind = f"bpe:{meta['vocab_size']}" if spec["kind"] == "bpe" else spec["kind"]
    held = {"tokenizer": kind} | meta["source"]  # older ones say less about their source
    unlike = [f"{key}={held[key]!r}" for key in source if held.get(key, source[key]) != source[key]]
    if not unlike and tokenizer and tokenizer.spec != spec:
        unlike = [f"another {held['tokenizer']}"]
    if unlike:
        raise ValueError(f"{folder} holds another dataset ({', '.join(unlike)}): choose another --name, or --overwrite")
    data.load(str(folder.resolve()))
    return True


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
    add("--column", help="the column of the rows that holds the text (default: text)")
    add("--config", help="which configuration of a dataset of the hub")
    add("--num_proc", type=int, help="processes that tokenise rows (default: one per core)")
    add("--overwrite", action="store_true", help="replace a dataset of this name")
    return made


def main(argv):
    args = parser().parse_args(argv)
    text = find_text(args)
    for flag in ("glob", "file", "column", "config", "num_proc"):
        if getattr(args, flag) is not None and flag not in text.flags:
            raise ValueError(f"--{flag} has no meaning for {' '.join(args.text)}")
    if args.num_proc is not None and args.num_proc < 1:
        raise ValueError(f"--num_proc={args.num_proc} must be at least 1")
    kind = args.tokenizer or text.tokenizer
    tokenizer = None if is_trained(kind) else named_tokenizer(kind)
    name = dataset_name(args, text, kind)
    folder = data.folder_of(name)
    how = {"glob": args.glob or "*.txt", "column": args.column or "text", "config": args.config}
    source = {"text": text.source, "tokenizer": kind} | {key: how[key] for key in how if key in text.flags}
    with locked(folder), making(folder / "dataset") as temporary:
        if not args.overwrite and is_prepared(folder, source, tokenizer):
            print(f"{folder} is prepared already; --overwrite prepares it again")
            return 0
        print(f"preparing {name}: {text.source}")
        try:
            documents = text.documents(args, folder)
            tokenizer = tokenizer or make_tokenizer(kind, documents.pieces)
            write_dataset(folder, temporary, documents, tokenizer, source)
        except KeyboardInterrupt:
            print("\nstopped: nothing has changed; to resume, run the same command", file=sys.stderr)
            raise
    print(f"train on it: python train.py config/rope.py --dataset={name} --out_dir=out/{Path(name).name}")
    return 0


if __name__ == "__main__":
    script(main)
