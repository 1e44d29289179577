"""Exports a model in Hugging Face's format:  python -m tools.export out/rope

learnable becomes a GPT-2, rope a GPT-NeoX and alibi an MPT; no Hugging Face architecture computes the other schemes.
The export is loaded again and must give the same logits before it is kept. Needs  pip install transformers
"""

from dataclasses import dataclass
from pathlib import Path

import torch

import config
from data.tokenizers import END_OF_TEXT, GPT2_PATTERN, tokenizer_from
from run import files
from run.checkpoint import load_checkpoint
from run.foreign import import_transformers, to_hugging_face
from run.script import script

TOLERANCE = 1e-3  # of the logits' spread: at far positions, transformers' float32 angles and biases are less exact


@dataclass(frozen=True)
class ExportConfig:
    # what is exported
    runs: tuple = ()  # given without a flag: one run folder, or anything else that sample.py accepts
    hf_dir: str = ""  # the folder to write; default: hf in the run's folder

    def __post_init__(self):
        if len(self.runs) != 1:
            raise ValueError("which run? Name one: python -m tools.export out/rope")


def from_characters(tokenizer):
    """By character. There is no entry for unknown characters, so they are an error, as in our tokenizer."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    fast = Tokenizer(models.WordLevel({c: i for i, c in enumerate(tokenizer.chars)}, unk_token="none"))
    fast.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    fast.decoder = decoders.Fuse()
    return fast


def from_tiktoken(tokenizer):
    from transformers.convert_slow_tokenizer import TikTokenConverter

    encoding = tokenizer.encoding
    converter = TikTokenConverter(pattern=GPT2_PATTERN, extra_special_tokens=[END_OF_TEXT])
    ranks = {token: encoding.encode_single_token(token) for token in encoding.token_byte_values()}
    converter.load_tiktoken_bpe = lambda path: ranks  # instead of reading them from a file
    return converter.converted()


def from_json(tokenizer):
    from tokenizers import Tokenizer, decoders

    fast = Tokenizer.from_str(tokenizer.spec["json"])
    fast.decoder = decoders.ByteLevel()  # the file may have none
    return fast


# kind of tokenizer -> the function that gives the same one of the package `tokenizers`
TOKENIZERS = {"char": from_characters, "bpe": from_tiktoken, "gpt2": from_tiktoken, "hf": from_json}


@torch.no_grad()
def largest_difference(model, exported, n):
    """The largest difference between both models' logits over n random tokens, and the standard deviation of ours."""
    idx = torch.randint(model.config.vocab_size, (1, n), generator=torch.Generator().manual_seed(0))
    logits = model.lm_head(model.hidden(idx))
    return (logits - exported(idx).logits).abs().max().item(), logits.std().item()


def main(argv):
    cfg = config.load(ExportConfig, argv, bare_field="runs")
    checkpoint = load_checkpoint(cfg.runs[0])
    target = Path(cfg.hf_dir) if cfg.hf_dir else checkpoint.folder / "hf"
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ValueError(f"{target} exists and is not empty: choose another --hf_dir")
    model, spec = checkpoint.model(torch.device("cpu")), checkpoint.tokenizer_spec
    tokenizer = tokenizer_from(spec) if spec else None
    eot = tokenizer.eot if tokenizer else None
    exported = to_hugging_face(model, eot)
    transformers = import_transformers()

    with files.Lock(target.parent, f".{target.name}.lock"), files.making(target) as folder:
        exported.save_pretrained(folder)
        if tokenizer:
            fast = TOKENIZERS[spec["kind"]](tokenizer)
            eos = None if eot is None else fast.id_to_token(eot)
            options = dict(eos_token=eos, clean_up_tokenization_spaces=False)
            transformers.PreTrainedTokenizerFast(tokenizer_object=fast, **options).save_pretrained(folder)
        loaded = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        n = model.config.block_size
        for length in (n, 4 * n) if model.config.max_positions is None else (n,):
            difference, spread = largest_difference(model, loaded, length)
            print(f"largest difference of logits over {length} tokens: {difference:.1e}; their spread: {spread:.1f}")
            if not difference <= TOLERANCE * spread:
                raise ValueError(f"{checkpoint.path}: transformers computes other logits, so nothing was written")
        folder.replace(target)
    print(f"{target}: {type(loaded).__name__}, {'with its' if tokenizer else 'without a'} tokenizer")
    return 0


if __name__ == "__main__":
    script(main)
