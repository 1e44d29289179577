"""Turns text into a prepared dataset, in bounded memory: the one implementation behind every data/NAME/prepare.py.

A document is a file, or the training or validation part of one. Documents are tokenised in pieces that are cut before
white space, where GPT-2's pattern always cuts, so that the ids are those of the whole document. Byte-pair encodings
put <|endoftext|> between documents; characters have no such sign.
"""

import argparse
import base64
import hashlib
import json
import math
import os
import platform
import re
import sysconfig
import tempfile
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

import data
from run.files import Lock, file_hash, making, read_json

PIECE = 1 << 20  # characters read at a time
SHAKESPEARE_URL = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
SHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"


# ----------------------------------------------------------------------------------------------------------
# Reading


def read_pieces(path, first=0, last=math.inf):
    """The characters first … last−1 of a UTF-8 file, in pieces as cut_pieces makes them."""
    try:
        with open(path, encoding="utf-8", newline="") as f:  # line ends stay as they are
            yield from cut_pieces(f, first, last)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text (byte {error.start}): leave it out, or convert it") from None


def cut_pieces(f, first=0, last=math.inf):
    """The characters first … last−1 of an open text, in pieces that (but for the first) begin with white space."""
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
    """Where the last run of white space begins that follows another character; text without one is cut at its end once
    it is long, so that memory stays bounded."""
    for size in (1 << 10, 1 << 15, len(text)):  # it is nearly always close to the end
        if ends := [found.end() for found in re.finditer(r"\S(?=[ \n])", text[-size:])]:
            return max(0, len(text) - size) + ends[-1]
    return len(text) if len(text) > 4 * PIECE else 0


def find_files(paths, glob="*"):
    """The files among `paths`, and those in its folders that match `glob`: sorted, none of them empty."""
    found = set()
    for path in map(Path, paths):
        if not path.exists():
            raise ValueError(f"there is no file or folder {path}")
        found.update(path.rglob(glob) if path.is_dir() else [path])
    return sorted(p for p in found if p.is_file() and p.stat().st_size > 0)


def stdlib_files():
    """Python's own standard library: its pure ASCII .py files, without tests and without installed packages."""
    root = Path(sysconfig.get_paths()["stdlib"])
    outside = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
    inside = [p for p in find_files([root], "*.py") if not outside & set(p.relative_to(root).parts)]
    return [p for p in inside if p.read_bytes().isascii()], root


def split_documents(files, root):
    """{"train": […], "val": […]}, lists of arguments for read_pieces. With fewer than ten files, the last tenth of each
    file's characters is for validation; else whole files, drawn by the hash of their names, about a tenth of all."""
    if len(files) < 10:
        cuts = {p: int(0.9 * sum(map(len, read_pieces(p)))) for p in files}
        return {"train": [(p, 0, cut) for p, cut in cuts.items() if cut], "val": list(cuts.items())}

    def name_hash(path):
        return hashlib.sha256(Path(os.path.relpath(path, root)).as_posix().encode()).digest()

    sizes = {p: p.stat().st_size for p in sorted(files, key=name_hash)}
    wanted, taken, val = 0.1 * sum(sizes.values()), 0, set()
    for p, size in sizes.items():
        # one huge file must not be all there is, nor may it be all that is left for training
        if taken < wanted and taken + size <= 2 * wanted and len(val) < max(1, len(files) // 5):
            val.add(p)
            taken += size
    return {"train": [(p,) for p in files if p not in val], "val": [(p,) for p in files if p in val]}


# ----------------------------------------------------------------------------------------------------------
# Tokenizers from text


def check_tokenizer(kind):
    """ValueError unless make_tokenizer knows it."""
    size = re.fullmatch(r"bpe:(\d+)", kind)
    if kind not in ("char", "gpt2") and (not size or int(size[1]) < 257):
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

    size = int(kind.removeprefix("bpe:")) - 1  # one id is for <|endoftext|>
    trainer = rustbpe.Tokenizer()
    trainer.train_from_iterator(pieces("train"), size, buffer_size=64, pattern=data.GPT2_PATTERN)
    ranks = sorted(trainer.get_mergeable_ranks(), key=lambda pair: pair[1])
    if len(ranks) < size:
        raise ValueError(f"the text is too small for --tokenizer={kind}: it gives {len(ranks) + 1} ids; ask for fewer")
    tokens = [base64.b64encode(bytes(token)).decode() for token, _ in ranks]
    return data.tokenizer_from({"kind": "bpe", "pattern": data.GPT2_PATTERN, "tokens": tokens})


# ----------------------------------------------------------------------------------------------------------
# Writing


def id_type(tokenizer):
    return "uint16" if tokenizer.n_vocab <= 65536 else "uint32"


class TokenWriter:
    """Writes one split: token ids and document starts."""

    def __init__(self, folder, split, tokenizer):
        self.split, self.tokenizer = split, tokenizer
        self.tokens_file = open(folder / f"{split}.bin", "wb")
        self.docs_file = open(folder / f"{split}_docs.bin", "wb")
        self.tokens = self.documents = self.bytes = 0

    def begin_document(self):
        if self.documents and self.tokenizer.eot is not None:
            self.add([self.tokenizer.eot], 0)
        self.docs_file.write(np.int64(self.tokens).tobytes())
        self.documents += 1

    def add(self, ids, n_bytes):
        """Adds the ids of a text that has n_bytes in UTF-8."""
        self.tokens_file.write(np.asarray(ids).astype(id_type(self.tokenizer)).tobytes())
        self.tokens += len(ids)
        self.bytes += n_bytes

    def close(self):
        """Returns what meta.json says about the split. ValueError if it is empty."""
        if not self.documents:
            raise ValueError(f"the text has too few documents: none is left for {self.split}; give more text")
        self.tokens_file.close()
        self.docs_file.close()
        counts = {"tokens": self.tokens, "documents": self.documents, "bytes": self.bytes}
        files = {"sha256": self.tokens_file, "docs_sha256": self.docs_file}
        return counts | {key: file_hash(file.name) for key, file in files.items()}


def prepare(name, files, kind, source, root):
    """Makes the files the dataset `name`. Nothing in its folder changes before all is written. `source` goes into
    meta.json; the files' names count from `root`."""
    documents = split_documents(files, root)

    def pieces(split):
        for document in tqdm(documents[split], desc=f"collecting {kind} tokens from {split}", unit="doc"):
            yield from read_pieces(*document)

    tokenizer, folder = make_tokenizer(kind, pieces), data.folder_of(name)
    text_hash, splits = hashlib.sha256(), {}
    with Lock(folder), making(folder / "dataset") as temporary:
        for split in documents:
            writer = TokenWriter(temporary, split, tokenizer)
            for document in tqdm(documents[split], desc=f"writing {split}", unit="doc"):
                writer.begin_document()
                for piece in read_pieces(*document):
                    raw = piece.encode()
                    text_hash.update(raw)
                    writer.add(tokenizer.encode_plain(piece), len(raw))
            splits[split] = writer.close()
        publish(folder, temporary, tokenizer, splits, source | {"sha256": text_hash.hexdigest()})


def prepare_texts(name, texts, source):
    """As `prepare`, by character, of {document's name: text} that no files hold."""
    with tempfile.TemporaryDirectory() as folder:
        files = {Path(folder) / f"{document}.txt": text for document, text in texts.items()}
        for file, text in files.items():
            file.write_text(text, encoding="utf-8", newline="")
        prepare(name, list(files), "char", source, Path(folder))


def publish(folder, temporary, tokenizer, splits, source):
    """Makes the token files in `temporary` the dataset of `folder`."""
    meta = {"source": source, "vocab_size": tokenizer.n_vocab, "dtype": id_type(tokenizer)}
    meta |= {"splits": splits, "tokenizer": tokenizer.spec}
    (temporary / "meta.json").write_text(json.dumps(meta, indent=1))
    (folder / "meta.json").unlink(missing_ok=True)  # without it a folder is not prepared: it goes first and comes last
    for file in (*temporary.glob("*.bin"), temporary / "meta.json"):
        os.replace(file, folder / file.name)
    counts = ", ".join(f"{s} {v['tokens']:,} tokens in {v['documents']:,} documents" for s, v in splits.items())
    print(f"{folder}: {counts}; vocabulary {tokenizer.n_vocab:,} ({tokenizer.spec['kind']})")


# ----------------------------------------------------------------------------------------------------------
# The commands


class Parser(argparse.ArgumentParser):
    """Reports a mistake in one line, as the other scripts do."""

    def __init__(self, description):
        super().__init__(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)

    def error(self, message):
        raise ValueError(f"{message}; --help says more")


def stdlib_main(argv):
    parser = Parser(description="The source of Python's standard library.")
    parser.add_argument("--tokenizer", default="char", help="char, gpt2, or bpe:N (default: %(default)s)")
    kind = parser.parse_args(argv).tokenizer
    check_tokenizer(kind)
    files, root = stdlib_files()
    name, python = f"stdlib_{kind.replace(':', '')}", platform.python_version()
    print(f"preparing {name}: the source of Python {python}'s standard library, {len(files)} files")
    prepare(name, files, kind, {"text": f"standard library of Python {python}"}, root)
    return 0


def shakespeare_main(argv, name, kind):
    parser = Parser(description=f"Tiny Shakespeare (1.1 MB): data/{name}, tokenizer {kind}.")
    parser.add_argument("--file", help="a copy of the text that you have; without it, it is downloaded")
    args = parser.parse_args(argv)
    path = Path(args.file or data.folder_of(name) / "input.txt")
    if not args.file:
        download(SHAKESPEARE_URL, SHAKESPEARE_SHA256, path)
    elif not path.is_file() or file_hash(path) != SHAKESPEARE_SHA256:
        raise ValueError(f"--file={args.file} is not Tiny Shakespeare; for other text: python data/folder/prepare.py")
    prepare(name, [path], kind, {"text": "tiny shakespeare"}, path.parent)
    return 0


def check_name(name):
    """ValueError unless a user may give his dataset this name."""
    if (data.folder_of(name) / "prepare.py").is_file():
        raise ValueError(f"--name={name!r} is a dataset of this code: choose another")
    if "/" not in name and not re.fullmatch(r"[\w-]+", name):
        raise ValueError(f"--name={name!r} must be of letters, digits, '-' and '_': choose another")


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
    if meta.is_file() and not args.overwrite and (held := read_json(meta, data.META)["source"]["text"]) != source:
        raise ValueError(f"{meta.parent} holds another dataset, of {held}: choose another --name, or --overwrite")
    files = find_files(args.paths, args.glob)
    if not files:
        raise ValueError(f"no text found: {', '.join(args.paths)} has no file that matches --glob={args.glob!r}")
    root = os.path.commonpath([p.resolve().parent for p in files])
    prepare(args.name, files, args.tokenizer, {"text": source}, root)
    print(f"train on it: python train.py config/rope.py --dataset={args.name} --out_dir=out/{Path(args.name).name}")
    return 0


def download(url, sha256, path):
    """Fetches url to path unless it is there. ValueError without a network, or if the text is not the expected one."""
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            torch.hub.download_url_to_file(url, str(path))
        except OSError as error:
            raise ValueError(f"{url} could not be downloaded ({error}): get it yourself and give --file=PATH") from None
    if file_hash(path) != sha256:
        raise ValueError(f"{path} is not the expected text (sha256 {sha256[:16]}…): delete it and try again")
    return path
