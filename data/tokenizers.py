"""Tokenizers turn text into ids and back.

A tokenizer has n_vocab (every id is below it), eot (the id between documents, or None), decode_bytes(ids), and
encode(text, plain). If plain, the name of a special token is ordinary text. meta.json and every checkpoint keep its
spec: plain types from which tokenizer_from rebuilds it.
"""

import base64
import re
from pathlib import Path

import numpy as np
import tiktoken

from run.files import json_hash

GPT2_PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""


def read_escapes(text):
    r"""A text of the command line, where a shell passes \n as two characters."""
    return text.replace(r"\n", "\n").replace(r"\r", "\r").replace(r"\t", "\t")


def load_error(what, error):
    """What to raise, in one line, for whatever a network, a hub or a damaged file provokes."""
    if isinstance(error, ModuleNotFoundError):  # an optional package
        return error
    error = error.__cause__ or error
    return ValueError(f"{what} could not be loaded: {' '.join(str(error).split())[:300] or repr(error)}")


class CharTokenizer:
    """One id per character, in sorted order, as in nanoGPT."""

    eot = None

    def __init__(self, chars):
        self.chars = "".join(sorted(chars))
        self.n_vocab = len(self.chars)
        self.ids = {character: id for id, character in enumerate(self.chars)}
        self.spec = {"kind": "char", "chars": self.chars}

    def encode(self, text, plain=False):  # there are no special tokens
        unknown = set(text) - self.ids.keys()
        if unknown:
            raise ValueError(f"the tokenizer lacks {min(unknown)!r} (a bpe:N tokenizer lacks nothing)")
        return np.fromiter(map(self.ids.get, text), np.int64)

    def decode_bytes(self, ids):
        return "".join(self.chars[i] for i in ids).encode()


class Tiktoken:
    """A tiktoken.Encoding."""

    def __init__(self, encoding, spec):
        self.encoding = encoding
        self.spec = spec
        self.n_vocab = encoding.n_vocab
        self.eot = encoding.eot_token

    def encode(self, text, plain=False):
        return self.encoding.encode_ordinary(text) if plain else self.encoding.encode(text, allowed_special="all")

    def decode_bytes(self, ids):
        return self.encoding.decode_bytes(ids)


def gpt2_tokenizer():
    """GPT-2's BPE, which tiktoken downloads once."""
    try:
        encoding = tiktoken.get_encoding("gpt2")
    except OSError as error:
        raise load_error("GPT-2's tokenizer (--tokenizer=bpe:N needs no network)", error) from None
    return Tiktoken(encoding, {"kind": "gpt2"})


def bpe_tokenizer(pattern, tokens):
    """A byte-pair encoding trained here. `tokens` are all its tokens except <|endoftext|>, in base64, by id."""
    ranks = {base64.b64decode(token): rank for rank, token in enumerate(tokens)}
    special = {"<|endoftext|>": len(ranks)}
    encoding = tiktoken.Encoding("bpe", pat_str=pattern, mergeable_ranks=ranks, special_tokens=special)
    return Tiktoken(encoding, {"kind": "bpe", "pattern": pattern, "tokens": tokens})


class HubTokenizer:
    """The tokenizer of a model of the Hugging Face hub, or in a folder in its format. ValueError if its vocabulary has
    not the hash `sha256`, if one is given."""

    def __init__(self, name, sha256=""):
        import transformers  # optional

        if Path(name).is_dir():
            name = str(Path(name).resolve())
        try:
            self.tokenizer = transformers.AutoTokenizer.from_pretrained(name)
        except Exception as error:  # whatever the network or the hub provokes
            raise load_error(f"the tokenizer of {name}", error) from None
        vocabulary = self.tokenizer.get_vocab()
        self.n_vocab = max(vocabulary.values()) + 1
        self.eot = self.tokenizer.eos_token_id
        self.spec = {"kind": "hf", "name": name, "sha256": json_hash(vocabulary)}
        if sha256 not in ("", self.spec["sha256"]):
            raise ValueError(f"the tokenizer of {name} has changed since the text was prepared: prepare it again")
        # how its tokens are written: a character for each byte, as in GPT-2's, or ▁ for a space, as in SentencePiece's
        writes_bytes = "Ġ" in vocabulary and "▁" not in vocabulary
        bytes_to_unicode = transformers.convert_slow_tokenizer.bytes_to_unicode
        self.bytes = {character: byte for byte, character in bytes_to_unicode().items() if writes_bytes}

    def encode(self, text, plain=False):
        return self.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=plain, verbose=False)

    def decode_bytes(self, ids):
        tokens = self.tokenizer.convert_ids_to_tokens(ids)  # None for an id that no token has
        return b"".join(map(self.token_bytes, filter(None, tokens)))

    def token_bytes(self, token):
        if self.bytes.keys() >= set(token):
            return bytes(self.bytes[character] for character in token)
        if re.fullmatch("<0x[0-9A-F]{2}>", token):
            return bytes.fromhex(token[3:5])
        return token.replace("▁", " ").encode()


KINDS = {"char": CharTokenizer, "gpt2": gpt2_tokenizer, "bpe": bpe_tokenizer, "hf": HubTokenizer}


def tokenizer_from(spec):
    """The tokenizer that `spec` describes. ValueError if it is invalid, or if a package or download is missing."""
    try:
        arguments = dict(spec)
        return KINDS[arguments.pop("kind")](**arguments)
    except (KeyError, TypeError):
        raise ValueError(f"invalid tokenizer {str(spec)[:80]!r}: its kind must be one of {', '.join(KINDS)}") from None


def named_tokenizer(name):
    """An existing tokenizer, as --tokenizer=NAME takes it: gpt2, data:NAME for that of a prepared dataset, or hf:NAME
    for that of a model of the Hugging Face hub or in a folder."""
    kind, _, source = name.partition(":")
    if name == "gpt2":
        return gpt2_tokenizer()
    if kind == "data":
        from data import load  # it imports this module

        return load(source).tokenizer
    if kind == "hf":
        return HubTokenizer(source)
    raise ValueError(f"--tokenizer={name!r} must be gpt2, data:NAME or hf:NAME; data.prepare also takes char and bpe:N")


def make_tokenizer(name, documents):
    """The tokenizer that --tokenizer=char or bpe:N asks for, from the documents {"train": …, "val": …}. char: every
    character of them. bpe:N: trained on the training texts, N ids with <|endoftext|>."""
    if name == "char":
        chars = set()
        for split in documents:
            for _, text in documents[split]():
                chars.update(text)
        return CharTokenizer(chars)
    size = name.removeprefix("bpe:")
    if not size.isdecimal() or int(size) < 257:
        raise ValueError(f"--tokenizer={name!r} must be bpe:N with N of at least 257 (256 bytes and <|endoftext|>)")
    import rustbpe  # only needed to train a BPE

    texts = (text for _, text in documents["train"]())
    trainer = rustbpe.Tokenizer()
    # one id is for <|endoftext|>
    trainer.train_from_iterator(texts, int(size) - 1, buffer_size=64, pattern=GPT2_PATTERN)
    ranks = trainer.get_mergeable_ranks()  # by id
    return bpe_tokenizer(GPT2_PATTERN, [base64.b64encode(bytes(token)).decode() for token, _ in ranks])
