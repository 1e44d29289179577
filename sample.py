"""Writes text from a checkpoint:  python sample.py --out_dir=out/rope --start="def "

The first sample appears as it is written, the others when they are done. Text goes on past the training length where
the position scheme is defined there.
"""

import codecs
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

import config
import data
from run import checkpoint as checkpoints
from run.checkpoint import Overrides
from run.script import script
from run.device import autocast, pick_device, pick_dtype

MOST_BYTES, MOST_SAMPLES = 10_000_000, 10_000  # of a prompt; of one call


@dataclass(frozen=True)
class SampleConfig(Overrides):
    out_dir: str = "out/rope"  # a run folder (its best checkpoint), a checkpoint file, nanoGPT's too, or a GPT-2 (gpt2)
    tokenizer: str = ""  # gpt2: for a checkpoint that carries no tokenizer
    dataset: str = ""  # or the name of a prepared text, to use its tokenizer
    start: str = "\n"  # the prompt, or FILE:path to read it from a text file
    num_samples: int = 3
    max_new_tokens: int = 0  # default: as many as fit into the training length
    temperature: float = 0.8  # 0: always the likeliest token
    top_k: int = 200  # draw among the k likeliest; 0: among all
    top_p: float = 1.0  # draw among the likeliest tokens that together have this probability
    seed: int = 1337

    def __post_init__(self):
        super().__post_init__()
        config.at_least(1, self, "num_samples")
        if self.num_samples > MOST_SAMPLES:
            raise ValueError(f"num_samples={self.num_samples} must be at most {MOST_SAMPLES:,}: they are drawn at once")
        config.at_least(0, self, "max_new_tokens", "temperature", "top_k", "seed")
        if self.tokenizer not in ("", "gpt2") or (self.tokenizer and self.dataset):
            raise ValueError("give either --tokenizer=gpt2 or --dataset=NAME, to use a prepared text's tokenizer")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p={self.top_p} must lie in (0, 1]")


def sample(cfg, out=sys.stdout):
    """Writes cfg.num_samples continuations of the prompt to `out`. Returns them, prompt included."""
    # the model's tokenizer, and the prompt
    checkpoint = checkpoints.load(cfg.out_dir)
    tokenizer = checkpoint.tokenizer(data.load(cfg.dataset) if cfg.dataset else None, cfg.tokenizer)
    prompt = cfg.start
    if prompt.startswith("FILE:"):
        path = Path(prompt.removeprefix("FILE:"))
        if not path.is_file() or path.stat().st_size > MOST_BYTES:
            raise ValueError(f"the prompt {prompt!r} is not a file of at most {MOST_BYTES:,} bytes")
        try:
            prompt = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"the prompt {prompt!r} cannot be read: {error}") from None
    ids = list(tokenizer.encode(prompt))
    if not ids:
        raise ValueError("the prompt is empty: give at least one character with --start=TEXT or --start=FILE:path")

    # the model, under the overrides, for as many tokens as are asked for
    device = pick_device(cfg.device)
    n_new = cfg.max_new_tokens or max(1, checkpoint.config.block_size - len(ids))
    total = len(ids) + n_new
    model = checkpoint.model(device).override(checkpoint.under(cfg, total))
    trained, limit = model.config.block_size, model.config.max_positions
    if total > trained:
        end = f"positions end: past {limit} tokens, a token sees only the last {limit}"
        print(f"note: {end if limit else f'the text goes past the training length, {trained} tokens'}", file=sys.stderr)

    # draw tokens, and write the first row as it grows
    idx = torch.tensor([ids], device=device)
    generator = torch.Generator(device).manual_seed(cfg.seed)
    drawing = (cfg.temperature, cfg.top_k, cfg.top_p, generator, tokenizer.n_vocab, cfg.num_samples)
    tokens = model.stream(idx, n_new, *drawing)
    # a character may lie across two tokens, so each row's decoder waits for whole characters
    decoders = [codecs.getincrementaldecoder("utf-8")("replace") for _ in range(cfg.num_samples)]
    texts = [prompt] * cfg.num_samples
    out.write(prompt)
    with autocast(device, pick_dtype(cfg.dtype, device)):
        for step, new in enumerate(tokens, start=1):
            for row, id in enumerate(new.tolist()):
                text = decoders[row].decode(tokenizer.decode_bytes([id]), final=step == n_new)
                texts[row] += text
                if row == 0:
                    out.write(text)
                    out.flush()
    for text in texts[1:]:
        out.write(f"\n---------------\n{text}")
    out.write("\n")
    return texts


def main(argv):
    sample(config.load(SampleConfig, argv))
    return 0


if __name__ == "__main__":
    script(main)
