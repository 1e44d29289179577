"""
Writes text from a checkpoint:  python sample.py --out_dir=out/rope --start="def "

The first sample appears as it is written, the others when they are done. Text goes on past the training length wherever
the position scheme is defined there.
"""

import codecs
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

import config
import data
import run


@dataclass(frozen=True)
class SampleConfig(run.Overrides):
    out_dir: str = "out/rope"  # a run folder (its best checkpoint), a checkpoint file, nanoGPT's too, or a GPT-2 (gpt2)
    tokenizer: str = ""  # gpt2: of a checkpoint that carries none
    dataset: str = ""  # or that of this prepared text
    start: str = "\n"  # the prompt, or FILE:path of a text file that holds it
    num_samples: int = 3
    max_new_tokens: int = 0  # default: as many as fit into the training length
    temperature: float = 0.8  # 0: always the likeliest token
    top_k: int = 200  # draw among the k likeliest; 0: among all
    top_p: float = 1.0  # draw among the likeliest that together have this probability
    seed: int = 1337
    device: str = "auto"  # auto, cpu, cuda, cuda:1, mps
    dtype: str = "auto"  # float32, bfloat16; auto: bfloat16 on a GPU that has it

    def __post_init__(self):
        super().__post_init__()
        config.at_least(1, self, "num_samples")
        config.at_least(0, self, "max_new_tokens", "temperature", "top_k", "seed")
        config.one_of(run.DTYPES, self, "dtype")
        if self.tokenizer not in ("", "gpt2") or (self.tokenizer and self.dataset):
            raise ValueError("give either --tokenizer=gpt2 or --dataset=NAME, for that of a prepared text")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p={self.top_p} must lie in (0, 1]")


def read_prompt(start):
    if not start.startswith("FILE:"):
        return start
    try:
        return Path(start[5:]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"the prompt {start!r} cannot be read: {error}") from None


def sample(cfg, out=sys.stdout):
    """Writes cfg.num_samples continuations of the prompt to `out`; returns them, prompt included."""
    checkpoint = run.load_checkpoint(cfg.out_dir)
    given, whose = None, f"--tokenizer={cfg.tokenizer}"
    if cfg.dataset:
        given, whose = data.load(cfg.dataset).tokenizer, f"dataset {cfg.dataset!r}"
    elif cfg.tokenizer:
        given = data.tokenizer_from({"kind": cfg.tokenizer})
    tokenizer = run.load_tokenizer(checkpoint, given, whose)
    prompt = read_prompt(cfg.start)
    ids = list(tokenizer.encode(prompt))
    if not ids:
        raise ValueError("the prompt is empty: give at least one character with --start=TEXT or --start=FILE:path")
    device = run.pick_device(cfg.device)
    dtype = run.pick_dtype(cfg.dtype, device)
    model = run.load_model(checkpoint, device)
    n_new = cfg.max_new_tokens or max(1, model.config.block_size - len(ids))
    model = run.override(model, checkpoint, cfg, len(ids) + n_new)
    limit, total = model.pos.max_positions, len(ids) + n_new
    if limit is not None and total > limit:
        scheme = checkpoint["model_args"]["pos_scheme"]
        print(
            f"note: {scheme} positions end at block_size={limit}: past it, a token sees only the last {limit} tokens",
            file=sys.stderr,
        )
    elif total > model.config.block_size:
        print(f"note: the text goes past the training length, {model.config.block_size} tokens", file=sys.stderr)

    idx = torch.tensor([ids] * cfg.num_samples, device=device)
    tokens = model.stream(
        idx,
        n_new,
        cfg.temperature,
        cfg.top_k,
        cfg.top_p,
        torch.Generator(device).manual_seed(cfg.seed),
        tokenizer.n_vocab,
    )
    # A character may lie across two tokens, so each row is decoded by a decoder that waits for whole ones.
    decoders = [codecs.getincrementaldecoder("utf-8")("replace") for _ in range(cfg.num_samples)]
    texts = [prompt] * cfg.num_samples
    out.write(prompt)
    with run.autocast(device, dtype):
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
    config.script(main)
