"""Tokenizers turn text into ids and back.

A tokenizer has n_vocab (every id is below it), eot (the id between documents, or None), decode_bytes(ids), and
encode(text, plain). If plain, the name of a special token is ordinary text. meta.json and every checkpoint keep its
spec: plain types from which tokenizer_from rebuilds it.
"""

import base64
import os

import numpy as np
import tiktoken

GPT2_PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
END_OF_TEXT = "<|endoftext|>"


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


KINDS = {"char": CharTokenizer, "gpt2": gpt2_tokenizer, "bpe": bpe_tokenizer}


def tokenizer_from(spec):
    """The tokenizer that `spec` describes. ValueError if it is invalid, or if a package or download is missing."""
    try:
        arguments = dict(spec)
        return KINDS[arguments.pop("kind")](**arguments)
    except (KeyError, TypeError):
        raise ValueError(f"invalid tokenizer {str(spec)[:80]!r}: its kind must be one of {', '.join(KINDS)}") from None


def named_tokenizer(name):
    """An existing tokenizer, as --tokenizer=NAME takes it: gpt2, or data:NAME for that of a prepared dataset."""
    if name == "gpt2":
        return gpt2_tokenizer()
    if name.startswith("data:"):
        from data import load  # it imports this module

        return load(os.path.expanduser(name.removeprefix("data:"))).tokenizer
    raise ValueError(f"--tokenizer={name!r} must be gpt2 or data:NAME; data.prepare also takes char and bpe:N")


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
