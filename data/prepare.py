"""
Turns text into a prepared dataset, in bounded memory: the one implementation behind every data/NAME/prepare.py.

A document is a file, or the training or validation part of one. Documents are tokenised in pieces that are cut before
white space, where GPT-2's pattern always cuts, so that the ids are those of the whole document. Byte-pair encodings
put <|endoftext|> between documents; characters have no such sign.
"""

import argparse
import base64
import hashlib
import json
import os
import shutil
import sys
import sysconfig
import tempfile
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

import data

PIECE = 1 << 20  # characters read at a time
SHAKESPEARE_URL = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
SHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"


# ----------------------------------------------------------------------------------------------------------
# Reading


def read_pieces(path, first=0, last=None):
    """The characters first … last−1 of a UTF-8 file, in pieces as cut_pieces makes them."""
    try:
        with open(path, encoding="utf-8") as f:
            yield from cut_pieces(f, first, last)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text (byte {error.start}): leave it out, or convert it") from None


def cut_pieces(f, first=0, last=None):
    """The characters first … last−1 of an open text, in pieces that (but for the first) begin with white space."""
    position, rest = 0, ""
    while last is None or position < last:
        text = f.read(PIECE)
        if not text:
            break
        begin, end = position, position + len(text)
        position = end
        text = text[max(0, first - begin) : None if last is None else max(0, last - begin)]
        text = rest + text
        cut = _last_cut(text)
        rest = text[cut:]
        if cut:
            yield text[:cut]
    if rest:
        yield rest


def _last_cut(text):
    """Where the last run of white space begins that follows another character; text without one is cut at its end once
    it is long, so that memory stays bounded."""
    end = len(text)
    while end > 0:
        cut = max(text.rfind(" ", 0, end), text.rfind("\n", 0, end))
        if cut <= 0:
            break
        if not text[cut - 1].isspace():
            return cut
        end = cut
    return len(text) if len(text) > 4 * PIECE else 0


def find_files(paths, glob):
    """The text files under `paths` (files, or folders searched for `glob`), sorted, none of them empty."""
    found = set()
    for path in map(Path, paths):
        if path.is_dir():
            found |= {p for p in path.rglob(glob) if p.is_file()}
        elif path.is_file():
            found.add(path)
        else:
            raise ValueError(f"there is no file or folder {path}")
    files = sorted(p for p in found if p.stat().st_size > 0)
    if not files:
        raise ValueError(f"no text found: {', '.join(map(str, paths))} has no file that matches --glob={glob!r}")
    return files


def stdlib_files():
    """Python's own standard library: its pure ASCII .py files, without tests and without installed packages."""
    root = Path(sysconfig.get_paths()["stdlib"])
    outside = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
    files = [p for p in root.rglob("*.py") if not outside & set(p.relative_to(root).parts)]
    return sorted(p for p in files if p.stat().st_size > 0 and p.read_bytes().isascii()), root


def split_documents(files, root, val_share=0.1):
    """{"train": [(path, first, last)], "val": […]}: from ten files on whole files, drawn by the hash of their names;
    with fewer, the last tenth of each file's characters is for validation."""
    if len(files) < 10:
        lengths = [sum(map(len, read_pieces(p))) for p in files]
        cuts = [int(n * (1 - val_share)) for n in lengths]
        train = [(p, 0, c) for p, c in zip(files, cuts, strict=True) if c]
        return {"train": train, "val": [(p, c, n) for p, c, n in zip(files, cuts, lengths, strict=True) if c < n]}
    name = {p: os.path.relpath(p, root).replace(os.sep, "/") for p in files}
    wanted, taken, val = val_share * sum(p.stat().st_size for p in files), 0, set()
    for p in sorted(files, key=lambda p: hashlib.sha256(name[p].encode()).digest()):
        size = p.stat().st_size
        if taken < wanted and taken + size <= 2 * wanted:  # one huge file is not to be all there is
            val.add(p)
            taken += size
    return {split: [(p, 0, None) for p in files if (p in val) == (split == "val")] for split in ("train", "val")}


# ----------------------------------------------------------------------------------------------------------
# Tokenizers from text


def check_tokenizer(kind):
    """ValueError unless make_tokenizer knows it."""
    size = kind.removeprefix("bpe:")
    if kind not in ("char", "gpt2") and (size == kind or not size.isdecimal() or int(size) < 257):
        raise ValueError(f"--tokenizer={kind!r} must be char, gpt2 or bpe:N with N at least 257 (256 bytes and one)")


def make_tokenizer(kind, pieces):
    """char: every character of the text. gpt2. bpe:N: trained on the training documents, N ids with <|endoftext|>.
    pieces(split) yields the text of a split in pieces."""
    check_tokenizer(kind)
    if kind == "char":
        return data.CharTokenizer({c for split in ("train", "val") for piece in pieces(split) for c in set(piece)})
    if kind == "gpt2":
        return data.tokenizer_from({"kind": "gpt2"})
    import rustbpe  # only where a BPE is trained

    size = kind.removeprefix("bpe:")
    trainer = rustbpe.Tokenizer()
    trainer.train_from_iterator(pieces("train"), int(size) - 1, buffer_size=64, pattern=data.GPT2_PATTERN)
    tokens = [token for token, _ in sorted(trainer.get_mergeable_ranks(), key=lambda pair: pair[1])]
    if len(tokens) < int(size) - 1:
        raise ValueError(
            f"the text is too small for --tokenizer={kind}: it yields {len(tokens) + 1} ids; ask for fewer"
        )
    encoded = [base64.b64encode(bytes(token)).decode() for token in tokens]
    return data.tokenizer_from({"kind": "bpe", "pattern": data.GPT2_PATTERN, "tokens": encoded})


# ----------------------------------------------------------------------------------------------------------
# Writing


def id_type(tokenizer):
    return "uint16" if tokenizer.n_vocab <= 65536 else "uint32"


class TokenWriter:
    """Writes one split: token ids, document starts, and their hashes as they pass."""

    def __init__(self, folder, split, dtype):
        self.dtype = dtype
        self.tokens_file = open(folder / f"{split}.bin", "wb")
        self.docs_file = open(folder / f"{split}_docs.bin", "wb")
        self.tokens = self.documents = self.bytes = 0
        self.hash, self.docs_hash = hashlib.sha256(), hashlib.sha256()

    def begin_document(self, separator):
        if separator is not None and self.documents:
            self.add([separator])
        raw = np.int64(self.tokens).tobytes()
        self.docs_file.write(raw)
        self.docs_hash.update(raw)
        self.documents += 1

    def add(self, ids):
        raw = np.asarray(ids).astype(self.dtype).tobytes()
        self.tokens_file.write(raw)
        self.hash.update(raw)
        self.tokens += len(ids)

    def close(self):
        self.tokens_file.close()
        self.docs_file.close()
        return {
            "tokens": self.tokens,
            "documents": self.documents,
            "bytes": self.bytes,  # of the text, UTF-8
            "sha256": self.hash.hexdigest(),
            "docs_sha256": self.docs_hash.hexdigest(),
        }


def write_dataset(folder, documents, tokenizer, source):
    """Tokenises the documents into `folder`. Nothing of it changes before all is written."""
    created = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    encode = getattr(tokenizer, "encode_plain", tokenizer.encode)
    text_hash, splits = hashlib.sha256(), {}
    temporary = Path(tempfile.mkdtemp(dir=folder, prefix=".writing-"))
    try:
        for split in ("train", "val"):
            writer = TokenWriter(temporary, split, id_type(tokenizer))
            for document in tqdm(documents[split], desc=split, unit="doc"):
                writer.begin_document(tokenizer.eot)
                for piece in read_pieces(*document):
                    raw = piece.encode()
                    text_hash.update(raw)
                    writer.bytes += len(raw)
                    writer.add(encode(piece))
            splits[split] = writer.close()
        publish(folder, temporary, tokenizer, splits, source | {"sha256": text_hash.hexdigest()})
    finally:
        shutil.rmtree(temporary)
        if created and not any(folder.iterdir()):
            folder.rmdir()


def publish(folder, temporary, tokenizer, splits, source):
    """Makes the token files in `temporary` the dataset of `folder`."""
    meta = {
        "source": source,
        "vocab_size": tokenizer.n_vocab,
        "dtype": id_type(tokenizer),
        "splits": splits,
        "tokenizer": tokenizer.spec,
    }
    (temporary / "meta.json").write_text(json.dumps(meta, indent=1))
    (folder / "meta.json").unlink(missing_ok=True)  # last out, first in: without it a folder is not prepared
    for file in sorted(temporary.iterdir(), key=lambda p: p.name == "meta.json"):
        os.replace(file, folder / file.name)
    counts = ", ".join(f"{s} {v['tokens']:,} tokens in {v['documents']:,} documents" for s, v in splits.items())
    print(f"{folder}: {counts}; vocabulary {tokenizer.n_vocab:,} ({tokenizer.spec['kind']})")


def prepare(name, files, kind, source, root):
    documents = split_documents(files, root)
    for split in ("train", "val"):
        if not documents[split]:
            raise ValueError(f"the text is too short to be split: nothing is left for {split}")

    def pieces(split):
        for document in tqdm(documents[split], desc=f"{split} for {kind}", unit="doc"):
            yield from read_pieces(*document)

    write_dataset(data.folder_of(name), documents, make_tokenizer(kind, pieces), source)


def prepare_stdlib():
    files, root = stdlib_files()
    python = ".".join(map(str, sys.version_info[:3]))
    print(f"preparing stdlib_char: the source of Python {python}'s standard library, {len(files)} files")
    prepare("stdlib_char", files, "char", {"text": f"standard library of Python {python}"}, root)


# ----------------------------------------------------------------------------------------------------------
# The commands


class Parser(argparse.ArgumentParser):
    """Tells of a mistake in one line, as the other scripts do."""

    def error(self, message):
        raise ValueError(f"{message}; --help tells more")


def stdlib_main(argv):
    Parser(description="The source of Python's standard library, by character.").parse_args(argv)
    prepare_stdlib()
    return 0


def shakespeare_main(argv, name, kind):
    parser = Parser(description=f"Tiny Shakespeare (1.1 MB): data/{name}, tokenizer {kind}.")
    parser.add_argument("--file", help="a copy of the text that you have; without it, it is downloaded")
    args = parser.parse_args(argv)
    if args.file:
        path = Path(args.file)
        if not path.is_file():
            raise ValueError(f"--file={args.file}: there is no such file")
    else:
        path = download(SHAKESPEARE_URL, SHAKESPEARE_SHA256, data.folder_of(name) / "input.txt")
    prepare(name, [path], kind, {"text": "tiny shakespeare" if not args.file else path.name}, path.parent)
    return 0


def check_name(name):
    """ValueError unless a user may give his dataset this name."""
    reserved = (data.folder_of(name) / "prepare.py").is_file()
    if reserved or (not name.replace("_", "").replace("-", "").isalnum() and "/" not in name):
        why = "is a dataset of this code" if reserved else "must be of letters, digits, '-' and '_'"
        raise ValueError(f"--name={name!r} {why}: choose another")


def folder_main(argv):
    parser = Parser(description="Your own text files, as data/NAME.")
    parser.add_argument("paths", nargs="+", metavar="PATH", help="a text file, or a folder of them")
    parser.add_argument("--glob", default="*.txt", help="which files of a folder (default: %(default)s)")
    parser.add_argument("--tokenizer", default="char", help="char, gpt2, or bpe:N, trained here (default: %(default)s)")
    parser.add_argument("--name", required=True, help="the dataset's name: train with --dataset=NAME")
    parser.add_argument("--overwrite", action="store_true", help="replace a dataset of this name made from other paths")
    args = parser.parse_args(argv)
    check_name(args.name)
    meta, source = data.folder_of(args.name) / "meta.json", " ".join(args.paths)
    if meta.is_file() and not args.overwrite and (held := json.loads(meta.read_text())["source"]["text"]) != source:
        raise ValueError(f"{meta.parent} holds another dataset, of {held}: choose another --name, or --overwrite")
    files = find_files(args.paths, args.glob)
    root = os.path.commonpath([p.resolve().parent for p in files])
    prepare(args.name, files, args.tokenizer, {"text": source}, root)
    print(f"train on it: python train.py --dataset={args.name} --out_dir=out/{Path(args.name).name}")
    return 0


def download(url, sha256, path):
    """Fetches url to path unless it is there. ValueError where there is no network, or where the text is another."""
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            torch.hub.download_url_to_file(url, str(path))
        except OSError as error:
            raise ValueError(f"{url} could not be downloaded ({error}): get it yourself and give --file=PATH") from None
    if data.file_hash(path) != sha256:
        raise ValueError(f"{path} is not the expected text (sha256 {sha256[:16]}…): delete it and try again")
    return path
