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
from run.foreign import import_transformers, transposed
from run.script import script

TOLERANCE = 1e-3  # of the logits' spread: at far positions, transformers' float32 angles and biases are less exact


@dataclass(frozen=True)
class ExportConfig:
    # what is exported
    run: str = ""  # given without a flag: a run folder, or anything else that sample.py accepts
    hf_dir: str = ""  # the folder to write; default: hf in the run's folder


NAMES = (  # a part of our weights' names, and the same part in GPT-2, GPT-NeoX and MPT
    ("transformer.", "transformer.", "gpt_neox.", "transformer."),
    ("wte.", "wte.", "embed_in.", "wte."),
    (".h.", ".h.", ".layers.", ".blocks."),
    ("ln_1.", "ln_1.", "input_layernorm.", "norm_1."),
    ("ln_2.", "ln_2.", "post_attention_layernorm.", "norm_2."),
    ("attn.c_attn.", "attn.c_attn.", "attention.query_key_value.", "attn.Wqkv."),
    ("attn.c_proj.", "attn.c_proj.", "attention.dense.", "attn.out_proj."),
    ("mlp.c_fc.", "mlp.c_fc.", "mlp.dense_h_to_4h.", "ffn.up_proj."),
    ("mlp.c_proj.", "mlp.c_proj.", "mlp.dense_4h_to_h.", "ffn.down_proj."),
    ("ln_f.", "ln_f.", "final_layer_norm.", "norm_f."),
    ("pos.", "transformer.", "", ""),
)


def own_settings(c):
    """The settings that only the architecture of c.pos_scheme has."""
    gelu, length = "gelu_new" if c.gelu_tanh else "gelu", c.rope_block_size or c.block_size
    if c.pos_scheme == "learnable":
        dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), c.dropout)
        return {"max_position_embeddings": c.block_size, "activation_function": gelu} | dropout
    if c.pos_scheme == "alibi":
        return {"max_seq_len": 16 * c.block_size}  # ALiBi needs no limit, but MPT wants one
    rope = {"rope_type": "default", "rope_theta": c.rope_theta, "partial_rotary_factor": 1.0}
    if c.rope_scaling == "ntk":  # changes only the base
        D = c.n_embd // c.n_head
        rope["rope_theta"] *= c.rope_factor ** (D / (D - 2))
    elif c.rope_scaling != "none":
        rope |= {"rope_type": c.rope_scaling, "factor": c.rope_factor, "original_max_position_embeddings": length}
    if c.rope_fraction < 1:
        rope |= {"rope_type": "proportional", "partial_rotary_factor": c.rope_fraction}
    return {
        "max_position_embeddings": max(c.block_size, round(c.rope_factor * length)), "rope_parameters": rope,
        "intermediate_size": 4 * c.n_embd, "use_parallel_residual": False, "hidden_act": gelu,
        "attention_dropout": c.dropout, "hidden_dropout": c.dropout,
    }  # fmt: skip


def paired(name, w, n_head):
    """c_attn as in GPT-NeoX: q, k and v of one head are adjacent there, and channel j is rotated with j + D/2, not 2j
    with 2j + 1."""
    if "c_attn" not in name:
        return w
    qkv = w.unflatten(0, (3, n_head, -1))  # (3, H, D, …)
    turning = torch.cat((qkv[:2, :, 0::2], qkv[:2, :, 1::2]), dim=2)
    return torch.cat((turning, qkv[2:])).transpose(0, 1).flatten(0, 2)


# pos_scheme -> its architecture and the form of its weights there, in the order of NAMES
ARCHITECTURES = {
    "learnable": ("gpt2", lambda name, w, n_head: transposed(name, w)),
    "rope": ("gpt_neox", paired),
    "alibi": ("mpt", lambda name, w, n_head: w),
}


@torch.no_grad()
def to_hugging_face(model, eot):
    """The model as one of transformers' models. eot: the id between documents, or None. ValueError if no architecture
    there computes the same."""
    c = model.config
    if c.pos_scheme not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise ValueError(f"cannot export pos_scheme={c.pos_scheme}: Hugging Face has architectures only for {known}")
    if c.window or "0" in c.pos_pattern or c.qk_norm:
        raise ValueError("cannot export a window, a pos_pattern or qk_norm: Hugging Face has no such architecture")
    transformers = import_transformers()
    architecture, converted = ARCHITECTURES[c.pos_scheme]
    shared = dict(hidden_size=c.n_embd, num_hidden_layers=c.n_layer, num_attention_heads=c.n_head)
    shared |= dict(vocab_size=c.vocab_size, bos_token_id=eot, eos_token_id=eot, tie_word_embeddings=True)
    same = transformers.AutoConfig.for_model(architecture, **shared, **own_settings(c))
    exported = transformers.AutoModelForCausalLM.from_config(same)
    for p in exported.parameters():  # they may have biases that our model lacks
        p.zero_()
    column, state = list(ARCHITECTURES).index(c.pos_scheme), {}
    for name, w in model.state_dict().items():
        w = converted(name, w, c.n_head)
        for ours, *theirs in NAMES:
            name = name.replace(ours, theirs[column])
        state[name] = w
    exported.load_state_dict(state, strict=False)  # main compares the logits
    return exported


def fast_tokenizer(tokenizer):
    """The same tokenizer, of the package `tokenizers`."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers.convert_slow_tokenizer import TikTokenConverter

    if tokenizer.spec["kind"] == "hf":
        fast = Tokenizer.from_str(tokenizer.spec["json"])
        fast.decoder = decoders.ByteLevel()  # the file may have none
        return fast
    if tokenizer.spec["kind"] == "char":  # no entry for unknown characters, so they are an error, as in our tokenizer
        fast = Tokenizer(models.WordLevel({c: i for i, c in enumerate(tokenizer.chars)}, unk_token="none"))
        fast.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
        fast.decoder = decoders.Fuse()
        return fast
    encoding = tokenizer.encoding
    ranks = {token: encoding.encode_single_token(token) for token in encoding.token_byte_values()}
    converter = TikTokenConverter(pattern=GPT2_PATTERN, extra_special_tokens=[END_OF_TEXT])
    converter.load_tiktoken_bpe = lambda path: ranks  # instead of reading them from a file
    return converter.converted()


@torch.no_grad()
def largest_difference(model, exported, n):
    """The largest difference between both models' logits over n random tokens, and the standard deviation of ours."""
    idx = torch.randint(model.config.vocab_size, (1, n), generator=torch.Generator().manual_seed(0))
    logits = model.lm_head(model.hidden(idx))
    return (logits - exported(idx).logits).abs().max().item(), logits.std().item()


def main(argv):
    cfg = config.load(ExportConfig, argv, bare_field="run")
    checkpoint = load_checkpoint(cfg.run)
    target = Path(cfg.hf_dir) if cfg.hf_dir else checkpoint.folder / "hf"
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ValueError(f"{target} exists and is not empty: choose another --hf_dir")
    model = checkpoint.model(torch.device("cpu"))
    tokenizer = tokenizer_from(checkpoint.tokenizer_spec) if checkpoint.tokenizer_spec else None
    eot = tokenizer.eot if tokenizer else None
    exported = to_hugging_face(model, eot)
    transformers = import_transformers()

    with files.making(target) as folder:
        exported.save_pretrained(folder)
        if tokenizer:
            fast = fast_tokenizer(tokenizer)
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
