"""
Writes a model in Hugging Face's format:  python export.py out/rope

learnable becomes a GPT-2, rope a GPT-NeoX and alibi an MPT; no architecture there computes the other schemes. What was
written is loaded back and held against our logits before it stays. Needs  pip install transformers
"""

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch

import config
import data
import run

TOLERANCE = 1e-3  # of the logits' spread: transformers knows angles and biases in float32, the less well the further


@dataclass(frozen=True)
class ExportConfig:
    runs: tuple = ()  # given without a flag: one run folder, or whatever else sample.py takes
    hf_dir: str = ""  # where to; default: hf in the run's folder

    def __post_init__(self):
        if len(self.runs) != 1:
            raise ValueError("which run? Name one: python export.py out/rope")


# ----------------------------------------------------------------------------------------------------------
# Architectures: each one's config, and what becomes of a weight

OURS = "transformer. wte. .h. ln_1. ln_2. attn.c_attn. attn.c_proj. mlp.c_fc. mlp.c_proj. ln_f. pos."
NAMES = {  # theirs, in the same order; only GPT-2 has the last
    "learnable": "transformer. wte. .h. ln_1. ln_2. attn.c_attn. attn.c_proj. mlp.c_fc. mlp.c_proj. ln_f. transformer.",
    "rope": "gpt_neox. embed_in. .layers. input_layernorm. post_attention_layernorm. attention.query_key_value. "
    "attention.dense. mlp.dense_h_to_4h. mlp.dense_4h_to_h. final_layer_norm.",
    "alibi": "transformer. wte. .blocks. norm_1. norm_2. attn.Wqkv. attn.out_proj. ffn.up_proj. ffn.down_proj. norm_f.",
}
GELU = {False: "gelu", True: "gelu_new"}  # by gelu_tanh


def gpt2(transformers, c, shared):
    settings = transformers.GPT2Config(
        n_positions=c.block_size, n_embd=c.n_embd, n_layer=c.n_layer, n_head=c.n_head, resid_pdrop=c.dropout,
        embd_pdrop=c.dropout, attn_pdrop=c.dropout, activation_function=GELU[c.gelu_tanh], **shared,
    )  # fmt: skip

    def transpose(name, w):
        return w.T.contiguous() if ".h." in name and w.dim() == 2 else w

    return settings, transpose


def gpt_neox(transformers, c, shared):
    D, length = c.n_embd // c.n_head, c.rope_block_size or c.block_size
    rope = {"rope_type": "default", "rope_theta": c.rope_theta, "partial_rotary_factor": 1.0}
    if c.rope_scaling == "ntk":  # is nothing but another base
        rope["rope_theta"] *= c.rope_factor ** (D / (D - 2))
    elif c.rope_scaling != "none":
        rope |= {"rope_type": c.rope_scaling, "factor": c.rope_factor}
    if c.rope_scaling == "yarn":
        rope["original_max_position_embeddings"] = length
    settings = transformers.GPTNeoXConfig(
        max_position_embeddings=max(c.block_size, round(c.rope_factor * length)), hidden_size=c.n_embd,
        intermediate_size=4 * c.n_embd, num_hidden_layers=c.n_layer, num_attention_heads=c.n_head,
        rope_parameters=rope, use_parallel_residual=False, attention_dropout=c.dropout, hidden_dropout=c.dropout,
        hidden_act=GELU[c.gelu_tanh], **shared,
    )  # fmt: skip

    def reorder(name, w):
        """There q, k and v of one head lie together, and channel j is paired with j + D/2, not 2j with 2j + 1."""
        if "c_attn" not in name:
            return w
        qkv = w.unflatten(0, (3, c.n_head, D))
        paired = torch.cat((qkv[:2, :, 0::2], qkv[:2, :, 1::2]), dim=2)
        return torch.cat((paired, qkv[2:])).transpose(0, 1).flatten(0, 2)

    return settings, reorder


def mpt(transformers, c, shared):
    if c.bias or c.gelu_tanh:
        raise ValueError(f"MPT has no biases and the exact GELU: bias={c.bias}, gelu_tanh={c.gelu_tanh} do not fit it")
    longest = 16 * c.block_size  # ALiBi has no end, but MPT has
    settings = transformers.MptConfig(
        max_seq_len=longest, d_model=c.n_embd, n_layers=c.n_layer, n_heads=c.n_head, use_cache=True, **shared
    )
    return settings, lambda name, w: w


ARCHITECTURES = {"learnable": gpt2, "rope": gpt_neox, "alibi": mpt}


@torch.no_grad()
def to_hugging_face(transformers, model, eot):
    """The model as one of transformers. ValueError where none there computes the same."""
    c = model.config
    if c.pos_scheme not in ARCHITECTURES:
        raise ValueError(
            f"no architecture of Hugging Face computes pos_scheme={c.pos_scheme}: "
            f"only {', '.join(ARCHITECTURES)} can be exported"
        )
    if c.window or "0" in c.pos_pattern:
        raise ValueError("no architecture of Hugging Face has this scheme with a window or a pos_pattern")
    shared = dict(vocab_size=c.vocab_size, bos_token_id=eot, eos_token_id=eot, tie_word_embeddings=True)
    settings, change = ARCHITECTURES[c.pos_scheme](transformers, c, shared)
    state = {}
    for name, weight in model.state_dict().items():
        theirs = name
        for old, new in zip(OURS.split(), NAMES[c.pos_scheme].split(), strict=False):
            theirs = theirs.replace(old, new)
        state[theirs] = change(name, weight)
    exported = transformers.AutoModelForCausalLM.from_config(settings)
    for p in exported.parameters():  # they have biases where we may have none
        p.zero_()
    left = exported.load_state_dict(state, strict=False)
    assert not left.unexpected_keys and all(k.endswith("bias") for k in left.missing_keys), left
    return exported


def to_hugging_face_tokenizer(transformers, tokenizer):
    """transformers' tokenizer that encodes and decodes as ours does."""
    if tokenizer.eot is None:  # characters: byte pairs without a merge
        from tokenizers import Tokenizer, decoders, models

        fast = Tokenizer(models.BPE({c: i for i, c in enumerate(tokenizer.chars)}, []))
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


# ----------------------------------------------------------------------------------------------------------
# Writing


@torch.no_grad()
def largest_difference(model, exported, n):
    """Between the logits of the two over n random tokens; and the standard deviation of ours."""
    idx = torch.randint(model.config.vocab_size, (1, n), generator=torch.Generator().manual_seed(0))
    logits = model.lm_head(model.hidden(idx))
    return (logits - exported(idx).logits).abs().max().item(), logits.std().item()


def main(argv):
    cfg = config.load(ExportConfig, argv, list_field="runs")
    transformers = run.import_transformers()
    checkpoint = run.load_checkpoint(cfg.runs[0])
    target = Path(cfg.hf_dir) if cfg.hf_dir else checkpoint["folder"] / "hf"
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ValueError(f"{target} is there and not empty: choose another --hf_dir")
    model = run.load_model(checkpoint, torch.device("cpu"))
    tokenizer = run.load_tokenizer(checkpoint) if checkpoint["tokenizer"] else None
    exported = to_hugging_face(transformers, model, tokenizer.eot if tokenizer else None)

    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".writing-") as temporary:
        folder = Path(temporary) / target.name
        exported.save_pretrained(folder)
        if tokenizer:
            to_hugging_face_tokenizer(transformers, tokenizer).save_pretrained(folder)
        loaded = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        n = model.config.block_size
        for length in (n, 4 * n) if model.pos.max_positions is None else (n,):
            difference, spread = largest_difference(model, loaded, length)
            print(f"largest difference of logits over {length} tokens: {difference:.1e}, of a spread of {spread:.1f}")
            if not difference <= TOLERANCE * spread:
                raise ValueError(f"{checkpoint['path']}: transformers computes other logits, so nothing was written")
        os.replace(folder, target)
    print(f"{target}: {type(loaded).__name__}, {'with its' if tokenizer else 'without a'} tokenizer")
    return 0


if __name__ == "__main__":
    config.script(main)
