"""Writes text from a checkpoint:  python sample.py out/rope --start="def "

The first sample is printed as it is generated, the others at the end. Text can run past the training length if the
position scheme is defined past it.
"""

import codecs
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch

import config
from data.tokenizers import read_escapes, tokenizer_from
from run.checkpoint import Overrides, load_checkpoint
from run.device import autocast, pick_device, pick_dtype
from run.script import script


@dataclass(frozen=True)
class SampleConfig(Overrides):
    # what is written
    out_dir: config.PathName = "out/rope"  # also without --out_dir=: a run folder (its best.pt) or a .pt file
    start: str = "\n"  # the prompt (\n: a line end, or another character in a text without); FILE:path: in a file
    num_samples: config.Count = 3  # how many continuations of the prompt
    max_new_tokens: config.Count = 500  # the length of a continuation
    stop: bool = False  # end a continuation where its document ends
    temperature: float = 0.8  # 0: always the likeliest token
    top_k: int = 200  # draw from the k likeliest tokens; 0: from all
    top_p: float = 1.0  # draw from the fewest likeliest tokens whose probabilities add up to this
    seed: config.Seed = 1337  # another seed gives other texts

    def __post_init__(self):
        super().__post_init__()
        config.at_least(1e-6, self, "top_p")


def find_prompt(cfg, tokenizer):
    """The prompt that --start gives or, if the text has no line ends, a character of it instead of the default."""
    prompt = read_escapes(cfg.start)
    if prompt.startswith("FILE:"):
        prompt = Path(prompt.removeprefix("FILE:")).expanduser().read_bytes().decode("utf-8-sig")
    if not prompt:
        raise ValueError(f"--start={cfg.start}: the prompt must not be empty")
    chars = getattr(tokenizer, "chars", prompt)  # other tokenizers encode any text
    if prompt == "\n" and prompt not in chars:
        prompt = chars[0]
    return prompt


def sample(cfg, out):
    """Writes cfg.num_samples continuations of the prompt to `out`. Returns them, including the prompt."""
    # the tokenizer and the prompt
    checkpoint = load_checkpoint(cfg.out_dir)
    tokenizer = tokenizer_from(checkpoint.tokenizer_spec)
    if cfg.stop and tokenizer.eot is None:
        raise ValueError("--stop: the tokenizer has no mark for the end of a document")
    prompt = find_prompt(cfg, tokenizer)
    ids = list(tokenizer.encode(prompt))

    # the model, with the overrides, for as many tokens as asked for
    device = pick_device(cfg.device)
    total = len(ids) + cfg.max_new_tokens
    model = checkpoint.model(device).override(checkpoint.config_with(cfg, total))
    if total > model.config.block_size:
        note = f"note: the text runs past the training length, {model.config.block_size} tokens"
        limit = model.config.max_positions
        if limit:
            note += f"; there are no more than {limit} positions, so a token sees only the last {limit}"
        print(note, file=sys.stderr)

    # draw tokens, and write the first row as it grows
    idx = torch.tensor([ids] * cfg.num_samples, device=device)
    tokens = model.generate(
        idx,
        cfg.max_new_tokens,
        tokenizer.n_vocab,
        temperature=cfg.temperature,
        top_k=cfg.top_k,
        top_p=cfg.top_p,
        generator=torch.Generator(device).manual_seed(cfg.seed),
    )
    # a character may be split across tokens, so each row's decoder waits for complete characters
    decoders = [codecs.getincrementaldecoder("utf-8")("replace") for _ in range(cfg.num_samples)]
    texts = [prompt] * cfg.num_samples
    start = time.perf_counter()
    out.write(prompt)
    with autocast(device, pick_dtype(cfg.dtype, device)):
        for step, new in enumerate(tokens, start=1):
            is_past = len(ids) + step == model.config.block_size + 1  # the first token past the training length
            mark = "▌" if is_past and out.isatty() else ""
            for row, id in enumerate(new.tolist()):
                if cfg.stop and id == tokenizer.eot:
                    decoders[row] = None  # the row has ended
                if decoders[row]:
                    part = tokenizer.decode_bytes([id])
                    text = mark + decoders[row].decode(part, final=step == cfg.max_new_tokens)
                    texts[row] += text
                    if row == 0:
                        out.write(text)
                        out.flush()
            if not any(decoders):
                break
    out.write("\n---------------\n".join(["", *texts[1:]]) + "\n")
    out.flush()
    seconds = time.perf_counter() - start
    n_tokens = cfg.num_samples * step
    print(f"{n_tokens:,} tokens in {seconds:.1f} s: {n_tokens / seconds:,.0f} tokens/s", file=sys.stderr)
    return texts


def main(argv):
    sample(config.load(SampleConfig, argv, bare_field="out_dir"), sys.stdout)
    return 0


if __name__ == "__main__":
    script(main)
