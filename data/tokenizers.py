"""Tokenizers turn text into ids and back.

A tokenizer has n_vocab (every id is below it), eot (the id between documents, or None), decode_bytes(ids), and
encode(text, plain). If plain, the name of a special token is ordinary text. meta.json and every checkpoint keep its
spec: plain types from which tokenizer_from rebuilds it.
"""

import base64
import os
import re
from pathlib import Path

import numpy as np
import tiktoken

GPT2_PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
END_OF_TEXT = "<|endoftext|>"
# the names of its end mark in a tokenizer.json
END = re.compile(r"(?i)(?<![a-z])eo[sd](?![a-z])|end.?of.?(text|sentence|document)|</s>")


class CharTokenizer:
    """One id per character, in sorted order, as in nanoGPT."""

    eot = None

    def __init__(self, chars):
        self.chars = "".join(sorted(chars))
        self.n_vocab = len(self.chars)
        self.codes = codepoints(self.chars)
        self.spec = {"kind": "char", "chars": self.chars}

    def encode(self, text, plain=False):  # there are no special tokens
        unknown = set(text).difference(self.chars)
        if unknown:
            raise ValueError(f"the tokenizer lacks {''.join(sorted(unknown))[:20]!r} (a bpe:N tokenizer lacks nothing)")
        return np.searchsorted(self.codes, codepoints(text))

    def decode_bytes(self, ids):
        return "".join(self.chars[i] for i in ids).encode()


def codepoints(text):
    return np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)


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
    return Tiktoken(tiktoken.get_encoding("gpt2"), {"kind": "gpt2"})


def bpe_tokenizer(pattern, tokens):
    """A byte-pair encoding trained here. `tokens` are all its tokens except <|endoftext|>, in base64, by id."""
    ranks = {base64.b64decode(token): rank for rank, token in enumerate(tokens)}
    special = {END_OF_TEXT: len(ranks)}
    encoding = tiktoken.Encoding("bpe", pat_str=pattern, mergeable_ranks=ranks, special_tokens=special)
    return Tiktoken(encoding, {"kind": "bpe", "pattern": pattern, "tokens": tokens})


class HuggingFaceTokenizer:
    """A byte-level BPE from a Hugging Face tokenizer.json (GPT-2, Llama 3, Qwen, …), through the package `tokenizers`.
    ValueError for any other kind of tokenizer.json, and for a text that decoding does not restore exactly."""

    def __init__(self, json):
        import tokenizers  # optional

        self.spec = {"kind": "hf", "json": json}
        try:
            self.inner = tokenizers.Tokenizer.from_str(json)
            self.inner.no_truncation()
            added = self.inner.get_added_tokens_decoder()  # {id: token}, stored as text
            alphabet = byte_alphabet()
            self.bytes = {
                id: token.encode() if id in added else bytes(alphabet[char] for char in token)
                for token, id in self.inner.get_vocab().items()
            }
        except Exception as error:  # the package raises nothing more specific
            raise ValueError(f"not a tokenizer.json of byte-level BPE ({error!r})") from None
        self.n_vocab = max(self.bytes) + 1
        self.eot = next((id for id in sorted(added) if END.search(added[id].content)), None)
        if self.eot is not None:
            self.inner.add_special_tokens([added[self.eot].content])  # the file may not call it special

    def encode(self, text, plain=False):
        content = text.encode()  # an error for half a surrogate pair
        self.inner.encode_special_tokens = plain
        ids = self.inner.encode(text, add_special_tokens=False).ids
        if self.decode_bytes(ids) != content:
            raise ValueError("the tokenizer changes the text: it must not have a normalizer, nor add a space")
        return ids

    def decode_bytes(self, ids):
        return b"".join(self.bytes.get(id, b"") for id in ids)  # a vocabulary may have gaps


def byte_alphabet():
    """{character: byte} of byte-level BPE files, in which every byte is a printable character (GPT-2's encoder.py)."""
    others = [byte for byte in range(256) if byte == 32 or not chr(byte).isprintable()]
    return {chr(byte): byte for byte in range(256)} | {chr(256 + n): byte for n, byte in enumerate(others)}


KINDS = {"char": CharTokenizer, "gpt2": gpt2_tokenizer, "bpe": bpe_tokenizer, "hf": HuggingFaceTokenizer}


def tokenizer_from(spec):
    """The tokenizer that `spec` describes. ValueError if it is invalid, or if a package or download is missing."""
    try:
        arguments = dict(spec)
        return KINDS[arguments.pop("kind")](**arguments)
    except (KeyError, TypeError):
        raise ValueError(f"invalid tokenizer {str(spec)[:80]!r}: its kind must be one of {', '.join(KINDS)}") from None


def named_tokenizer(name):
    """An existing tokenizer, as --tokenizer=NAME takes it: gpt2, PATH/tokenizer.json, or data:NAME for the tokenizer of
    a prepared dataset."""
    if name == "gpt2":
        return gpt2_tokenizer()
    if name.startswith("data:"):
        from data import load  # it imports this module

        return load(os.path.expanduser(name.removeprefix("data:"))).tokenizer
    if not Path(name).is_file():
        raise ValueError(
            f"--tokenizer={name!r} must be gpt2, PATH/tokenizer.json or data:NAME; data.prepare also takes char and "
            "bpe:N"
        )
    return HuggingFaceTokenizer(Path(name).read_text(encoding="utf-8-sig"))


def make_tokenizer(name, documents):
    """The tokenizer that --tokenizer=char or bpe:N asks for, from the documents {"train": …, "val": …}. char: every
    character of them. bpe:N: trained on the training texts, N ids with <|endoftext|>."""
    if name == "char":
        chars = set()
        for split in documents:
            for _, text in documents[split](f"reading {split}"):
                chars.update(text)
        return CharTokenizer(chars)
    size = name.removeprefix("bpe:")
    if not size.isdecimal() or int(size) < 257:
        raise ValueError(f"--tokenizer={name!r} must be bpe:N with N of at least 257 (256 bytes and <|endoftext|>)")
    import rustbpe  # only needed to train a BPE

    texts = (text for _, text in documents["train"]("reading train"))
    trainer = rustbpe.Tokenizer()
    # one id is for <|endoftext|>
    trainer.train_from_iterator(texts, int(size) - 1, buffer_size=64, pattern=GPT2_PATTERN)
    ranks = trainer.get_mergeable_ranks()  # by id
    return bpe_tokenizer(GPT2_PATTERN, [base64.b64encode(bytes(token)).decode() for token, _ in ranks])
