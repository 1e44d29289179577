"""Writes a model in Hugging Face's format:  python -m tools.export out/rope

learnable becomes a GPT-2, rope a GPT-NeoX and alibi an MPT; no architecture there computes the other schemes. The
export is loaded back and compared with our logits before it stays. Needs  pip install transformers
"""

from dataclasses import dataclass
from pathlib import Path

import torch

import config
import data
from run import checkpoint as checkpoints
from run import files
from run.script import script
from run.foreign import import_transformers, to_hugging_face

TOLERANCE = 1e-3  # of the logits' spread: transformers computes angles and biases in float32, less exactly far out


@dataclass(frozen=True)
class ExportConfig:
    runs: tuple = ()  # given without a flag: one run folder, or whatever else sample.py takes
    hf_dir: str = ""  # the folder to write; default: hf in the run's folder

    def __post_init__(self):
        if len(self.runs) != 1:
            raise ValueError("which run? Name one: python -m tools.export out/rope")


def to_hugging_face_tokenizer(transformers, tokenizer):
    """transformers' tokenizer that encodes and decodes as ours does."""
    if tokenizer.eot is None:  # characters; without an entry for unknown ones they are an error, as here
        from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

        fast = Tokenizer(models.WordLevel({c: i for i, c in enumerate(tokenizer.chars)}, unk_token="none"))
        fast.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
        fast.decoder = decoders.Fuse()
        special = {}
    else:
        from transformers.convert_slow_tokenizer import TikTokenConverter

        encoding, converter = tokenizer.encoding, TikTokenConverter(pattern=data.GPT2_PATTERN)
        ranks = {token: encoding.encode_single_token(token) for token in encoding.token_byte_values()}
        converter.load_tiktoken_bpe = lambda path: ranks  # it would read them from a file
        fast = converter.converted()
        special = {"eos_token": data.END_OF_TEXT}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=fast, clean_up_tokenization_spaces=False, **special)


@torch.no_grad()
def largest_difference(model, exported, n):
    """The largest difference between the logits of the two over n random tokens, and the standard deviation of ours."""
    idx = torch.randint(model.config.vocab_size, (1, n), generator=torch.Generator().manual_seed(0))
    logits = model.lm_head(model.hidden(idx))
    return (logits - exported(idx).logits).abs().max().item(), logits.std().item()


def main(argv):
    cfg = config.load(ExportConfig, argv, list_field="runs")
    checkpoint = checkpoints.load(cfg.runs[0])
    target = Path(cfg.hf_dir) if cfg.hf_dir else checkpoint.folder / "hf"
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ValueError(f"{target} exists and is not empty: choose another --hf_dir")
    model = checkpoint.model(torch.device("cpu"))
    tokenizer = checkpoint.tokenizer() if checkpoint.tokenizer_spec else None
    exported = to_hugging_face(model, tokenizer.eot if tokenizer else None)
    transformers = import_transformers()

    with files.making(target) as folder:
        exported.save_pretrained(folder)
        if tokenizer:
            to_hugging_face_tokenizer(transformers, tokenizer).save_pretrained(folder)
        loaded = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        n = model.config.block_size
        for length in (n, 4 * n) if model.config.max_positions is None else (n,):
            difference, spread = largest_difference(model, loaded, length)
            print(f"largest difference of logits over {length} tokens: {difference:.1e}, of a spread of {spread:.1f}")
            if not difference <= TOLERANCE * spread:
                raise ValueError(f"{checkpoint.path}: transformers computes other logits, so nothing was written")
        folder.replace(target)
    print(f"{target}: {type(loaded).__name__}, {'with its' if tokenizer else 'without a'} tokenizer")
    return 0


if __name__ == "__main__":
    script(main)
