"""Exports a model in Hugging Face's format:  python -m tools.export out/rope

learnable becomes a GPT-2, rope a GPT-NeoX and alibi an MPT; no Hugging Face architecture computes the other schemes.
The export is loaded again and must give the same logits before it is kept, as hf in the run's folder. Needs  pip
install transformers
"""

import json
from dataclasses import dataclass

import torch

import config
from data.tokenizers import END_OF_TEXT, GPT2_PATTERN, tokenizer_from
from model import scaled_theta
from run import files
from run.checkpoint import load_checkpoint
from run.foreign import import_transformers, transposed
from run.script import script

TOLERANCE = 1e-3  # standard deviations: at far positions, transformers' float32 angles and biases are less exact


@dataclass(frozen=True)
class ExportConfig:
    # what is exported
    run: config.PathName = ""  # given without a flag: a run folder, or anything else that sample.py accepts


def gpt2_config(transformers, c, shared):
    return transformers.GPT2Config(
        n_positions=c.block_size,
        activation_function="gelu_new" if c.gelu_tanh else "gelu",
        **shared,
    )


def gpt_neox_config(transformers, c, shared):
    rope = {"rope_type": "default", "rope_theta": scaled_theta(c), "partial_rotary_factor": c.rope_fraction}
    if c.rope_scaling in ("linear", "yarn"):
        rope |= {
            "rope_type": c.rope_scaling,
            "factor": c.rope_factor,
            "original_max_position_embeddings": c.rope_block_size or c.block_size,
        }
    if c.rope_fraction < 1:
        if c.rope_scaling == "yarn":
            raise ValueError("cannot export yarn with a rope_fraction: a GPT-NeoX has one of the two")
        rope["rope_type"] = "proportional"
    neox_config = transformers.GPTNeoXConfig(
        max_position_embeddings=c.block_size,
        intermediate_size=4 * c.n_embd,
        hidden_act="gelu_new" if c.gelu_tanh else "gelu",
        rope_parameters=rope,
        use_parallel_residual=False,
        **shared,
    )
    # the same for transformers before 5.4: it reads these, and fails if it lacks the rope_type
    vars(neox_config).update(
        rotary_pct=rope["partial_rotary_factor"],
        rotary_emb_base=rope["rope_theta"],
        rope_scaling=rope,
    )
    return neox_config


def mpt_config(transformers, c, shared):
    if c.gelu_tanh or c.bias:
        raise ValueError("cannot export alibi with gelu_tanh or bias: an MPT has neither")
    print(f"an MPT ends at a number of tokens; for this one it is {16 * c.block_size:,}, 16 × block_size")
    return transformers.MptConfig(max_seq_len=16 * c.block_size, **shared)


def neox_weight(name, w, n_head):
    """A weight as in GPT-NeoX. In its c_attn, q, k and v of one head are adjacent, and channel j is rotated with j +
    D/2, not 2j with 2j + 1."""
    if "c_attn" not in name:
        return w
    qkv = w.unflatten(0, (3, n_head, -1))  # (3, H, D, …)
    qk = qkv[:2].unflatten(2, (-1, 2)).transpose(2, 3).flatten(2, 3)  # even channels, then odd ones
    return torch.cat((qk, qkv[2:])).transpose(0, 1).flatten(0, 2)


# parts of our weights' names -> the same parts in GPT-2, GPT-NeoX and MPT
GPT2_NAMES = {"pos.": "transformer."}
GPT_NEOX_NAMES = {
    "transformer.": "gpt_neox.",
    "wte.": "embed_in.",
    ".h.": ".layers.",
    "ln_1.": "input_layernorm.",
    "ln_2.": "post_attention_layernorm.",
    "attn.c_attn.": "attention.query_key_value.",
    "attn.c_proj.": "attention.dense.",
    "mlp.c_fc.": "mlp.dense_h_to_4h.",
    "mlp.c_proj.": "mlp.dense_4h_to_h.",
    "ln_f.": "final_layer_norm.",
}
MPT_NAMES = {
    ".h.": ".blocks.",
    "ln_1.": "norm_1.",
    "ln_2.": "norm_2.",
    "attn.c_attn.": "attn.Wqkv.",
    "attn.c_proj.": "attn.out_proj.",
    "mlp.c_fc.": "ffn.up_proj.",
    "mlp.c_proj.": "ffn.down_proj.",
    "ln_f.": "norm_f.",
}
ARCHITECTURES = {  # pos_scheme -> the config of its architecture, and the names and the form of its weights there
    "learnable": (gpt2_config, GPT2_NAMES, lambda name, w, n_head: transposed(name, w)),
    "rope": (gpt_neox_config, GPT_NEOX_NAMES, neox_weight),
    "alibi": (mpt_config, MPT_NAMES, lambda name, w, n_head: w),
}


@torch.no_grad()
def to_hugging_face(model, eot):
    """The model as one of transformers' models. eot: the id between documents, or None. ValueError if no architecture
    there computes the same."""
    c = model.config
    if c.pos_scheme not in ARCHITECTURES:
        raise ValueError(f"cannot export pos_scheme={c.pos_scheme}, only {', '.join(ARCHITECTURES)}")
    if c.window or c.layers or c.sink or c.temperature or c.qk_norm:
        raise ValueError(
            "cannot export a window, layers, a sink, a temperature or qk_norm: Hugging Face has no such architecture"
        )
    transformers = import_transformers()
    shared = {
        "vocab_size": c.vocab_size,
        "hidden_size": c.n_embd,
        "num_hidden_layers": c.n_layer,
        "num_attention_heads": c.n_head,
        "tie_word_embeddings": True,
        "bos_token_id": eot,
        "eos_token_id": eot,
    }
    make_config, names, convert = ARCHITECTURES[c.pos_scheme]
    exported = transformers.AutoModelForCausalLM.from_config(make_config(transformers, c, shared))
    weights = {}
    for name, w in model.state_dict().items():
        w = convert(name, w, c.n_head)
        for part, other in names.items():
            name = name.replace(part, other)
        weights[name] = w
    exported.load_state_dict(weights, strict=False)  # biases that our model lacks start at 0; main compares the logits
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
        ids = {char: id for id, char in enumerate(tokenizer.chars)}
        fast = Tokenizer(models.WordLevel(ids, unk_token="none"))
        fast.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
        fast.decoder = decoders.Fuse()
        return fast
    encoding = tokenizer.encoding
    converter = TikTokenConverter(pattern=GPT2_PATTERN, extra_special_tokens=[END_OF_TEXT])
    ranks = {token: encoding.encode_single_token(token) for token in encoding.token_byte_values()}
    converter.load_tiktoken_bpe = lambda path: ranks  # instead of reading them from a file
    return converter.converted()


@torch.no_grad()
def compare(model, exported):
    """The largest difference between both models' logits over random tokens, in standard deviations of ours. There are
    four times block_size tokens or, if the scheme is not defined there, block_size."""
    c = model.config
    n = c.max_positions or 4 * c.block_size
    idx = torch.randint(c.vocab_size, (1, n), generator=torch.Generator().manual_seed(0))
    logits = model.lm_head(model.hidden(idx))
    difference = (logits - exported(idx).logits).abs().max()
    return (difference / logits.std()).item()


def main(argv):
    cfg = config.load(ExportConfig, argv, bare_field="run")
    checkpoint = load_checkpoint(cfg.run)
    target = checkpoint.folder / "hf"
    model = checkpoint.model("cpu")
    tokenizer = tokenizer_from(checkpoint.tokenizer_spec) if checkpoint.tokenizer_spec else None
    eot = tokenizer.eot if tokenizer else None
    exported = to_hugging_face(model, eot)
    transformers = import_transformers()

    with files.making(target) as folder:
        exported.save_pretrained(folder)
        if tokenizer:
            fast = fast_tokenizer(tokenizer)
            end = None if eot is None else fast.id_to_token(eot)
            fast.save(f"{folder}/tokenizer.json")
            settings = {"eos_token": end, "tokenizer_class": "PreTrainedTokenizerFast"}  # a name that all versions know
            (folder / "tokenizer_config.json").write_text(json.dumps(settings))
            theirs = transformers.AutoTokenizer.from_pretrained(folder)
            ids = range(tokenizer.n_vocab)
            text = tokenizer.decode_bytes(ids).decode(errors="replace")
            read = theirs.encode(text, add_special_tokens=False)
            if read != list(tokenizer.encode(text)) or theirs.decode(ids) != text:
                raise ValueError(
                    f"{checkpoint.path}: transformers reads or writes text differently, so nothing was written"
                )
        loaded = transformers.AutoModelForCausalLM.from_pretrained(folder)
        difference = compare(model, loaded)
        if not difference <= TOLERANCE:
            raise ValueError(f"{checkpoint.path}: transformers computes other logits, so nothing was written")
        folder.replace(target)  # an error if it exists and is not empty
    print(f"{target}: {type(loaded).__name__}, {'with its' if tokenizer else 'without a'} tokenizer")
    print(f"largest difference of logits: {difference:.1e} of their standard deviation")
    return 0


if __name__ == "__main__":
    script(main)
