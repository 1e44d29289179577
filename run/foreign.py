"""Imports weights from nanoGPT's ckpt.pt and from Hugging Face's GPT-2, and exports models to Hugging Face."""

import logging
from pathlib import Path

import torch

HUB = ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")  # names on the hub; any other GPT-2 there: hf:OWNER/NAME


def import_transformers():
    """Hugging Face's optional package, set to report errors only."""
    try:
        import transformers
    except ImportError:
        raise ValueError("Hugging Face's format needs one more package: pip install transformers") from None
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    return transformers


# ----------------------------------------------------------------------------------------------------------
# Import


def from_nanogpt(content):
    """The fields of a Checkpoint from the content of nanoGPT's ckpt.pt, or None if it is something else."""
    kinds = {"model": dict, "model_args": dict, "iter_num": int}
    if all(isinstance(content.get(key), kind) for key, kind in kinds.items()):
        return fields_of(content["model"], content["model_args"], content["iter_num"])
    return None


def fields_of(weights, args, step):
    """The fields of a Checkpoint from weights with nanoGPT's names. Drops the prefix of compiled models, and the causal
    masks that old versions saved."""
    weights = {
        str(name).removeprefix("_orig_mod.").replace("transformer.wpe.", "pos.wpe."): w
        for name, w in weights.items()
        if not str(name).endswith((".attn.bias", ".attn.masked_bias"))
    }
    return {"weights": weights, "config": args | {"pos_scheme": "learnable"}, "step": step}


def from_hugging_face(name):
    """The fields of a Checkpoint from a GPT-2 in a folder in Hugging Face's format or on the hub."""
    c, weights = load_gpt2(name)
    computed = {  # settings that change the result -> the values that model.py computes
        "activation_function": ("gelu", "gelu_new", "gelu_pytorch_tanh"), "n_inner": (None, 4 * c.n_embd),
        "layer_norm_epsilon": (1e-5,), "scale_attn_weights": (True,), "scale_attn_by_inverse_layer_idx": (False,),
        "reorder_and_upcast_attn": (False,), "add_cross_attention": (False,), "tie_word_embeddings": (True,),
    }  # fmt: skip
    for key, values in computed.items():
        if getattr(c, key) not in values:
            allowed = " or ".join(map(repr, values))
            raise ValueError(f"{name} has {key}={getattr(c, key)!r}, but model.py computes only {allowed}")
    args = dict(block_size=c.n_positions, vocab_size=c.vocab_size, n_layer=c.n_layer, n_head=c.n_head, n_embd=c.n_embd)
    return fields_of(weights, args | {"gelu_tanh": c.activation_function != "gelu"}, step=0)


def load_gpt2(name):
    """The GPT2Config of a folder or of a model on the hub, and its weights with nanoGPT's names. ValueError, in one
    line, if they cannot be loaded. No model is built, because the config may claim any size."""
    transformers, source = import_transformers(), name.removeprefix("hf:")
    try:
        settings = transformers.GPT2Config.get_config_dict(source)[0]
        architecture = settings.get("model_type")
        if architecture == "gpt2":
            return transformers.GPT2Config.from_dict(settings), read_weights(source)
    except Exception as error:  # anything can come from the hub, the network or a damaged file
        advice = "" if Path(source).is_dir() else ": connect to the network, or name a folder with the model"
        why = " ".join(str(error).split()).split(". ")[0][:200]
        raise ValueError(f"{name} could not be loaded ({why}){advice}") from None
    raise ValueError(f"{name} has the architecture {architecture!r}: only Hugging Face's 'gpt2' can be loaded")


def read_weights(source):
    """The weights of a GPT-2 in a folder or, if there is no such folder, on the hub, where they are downloaded once."""
    import huggingface_hub  # these two come with transformers
    from safetensors.torch import load_file

    huggingface_hub.utils.enable_progress_bars()
    for files in ("model.safetensors", "model-*-of-*.safetensors", "pytorch_model.bin", "pytorch_model-*-of-*.bin"):
        folder = source if Path(source).is_dir() else huggingface_hub.snapshot_download(source, allow_patterns=files)
        if found := sorted(Path(folder).glob(files)):
            break
    else:
        raise ValueError("there is no model.safetensors")
    weights = {}
    for path in found:
        is_new = path.suffix == ".safetensors"
        weights |= load_file(path) if is_new else torch.load(path, map_location="cpu", weights_only=True)
    named = {f"transformer.{name.removeprefix('transformer.')}": w for name, w in weights.items()}  # "gpt2" lacks it
    parts = ("transformer.wte.", "transformer.wpe.", "transformer.h.", "transformer.ln_f.")  # no classifier
    kept = {name: transposed(name, w) for name, w in named.items() if name.startswith(parts)}
    return kept | {"lm_head.weight": weights.get("lm_head.weight", kept["transformer.wte.weight"])}


def transposed(name, w, n_head=None):
    """Hugging Face's GPT-2 has the blocks' matrices as (in, out), so transposing converts in either direction."""
    return w.T.contiguous() if ".h." in name and w.dim() == 2 else w


# ----------------------------------------------------------------------------------------------------------
# Export

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


def gpt2_config(transformers, c, shared):
    return transformers.GPT2Config(
        n_positions=c.block_size, n_embd=c.n_embd, n_layer=c.n_layer, n_head=c.n_head, resid_pdrop=c.dropout,
        embd_pdrop=c.dropout, attn_pdrop=c.dropout, activation_function="gelu_new" if c.gelu_tanh else "gelu",
        **shared,
    )  # fmt: skip


def gpt_neox_config(transformers, c, shared):
    D, length = c.n_embd // c.n_head, c.rope_block_size or c.block_size
    rope = {"rope_type": "default", "rope_theta": c.rope_theta, "partial_rotary_factor": 1.0}
    if c.rope_scaling == "ntk":  # changes only the base
        rope["rope_theta"] *= c.rope_factor ** (D / (D - 2))
    elif c.rope_scaling != "none":
        rope |= {"rope_type": c.rope_scaling, "factor": c.rope_factor}
    if c.rope_fraction < 1:
        if c.rope_scaling == "yarn":
            raise ValueError("cannot export rope_fraction with yarn: Hugging Face has no such architecture")
        rope |= {"rope_type": "proportional", "partial_rotary_factor": c.rope_fraction}
    if c.rope_scaling == "yarn":
        rope["original_max_position_embeddings"] = length
    return transformers.GPTNeoXConfig(
        max_position_embeddings=max(c.block_size, round(c.rope_factor * length)), hidden_size=c.n_embd,
        intermediate_size=4 * c.n_embd, num_hidden_layers=c.n_layer, num_attention_heads=c.n_head,
        rope_parameters=rope, use_parallel_residual=False, attention_dropout=c.dropout, hidden_dropout=c.dropout,
        hidden_act="gelu_new" if c.gelu_tanh else "gelu", **shared,
    )  # fmt: skip


def mpt_config(transformers, c, shared):
    if c.bias or c.gelu_tanh:
        given = f"bias={c.bias}, gelu_tanh={c.gelu_tanh}"
        raise ValueError(f"cannot export {given} to MPT, which has no biases and the exact GELU")
    longest = 16 * c.block_size  # ALiBi needs no limit, but MPT wants one
    return transformers.MptConfig(max_seq_len=longest, d_model=c.n_embd, n_layers=c.n_layer, n_heads=c.n_head, **shared)


def paired(name, w, n_head):
    """c_attn as in GPT-NeoX: q, k and v of one head are adjacent there, and channel j is rotated with j + D/2, not 2j
    with 2j + 1."""
    if "c_attn" not in name:
        return w
    qkv = w.unflatten(0, (3, n_head, -1))  # (3, H, D, …)
    turning = torch.cat((qkv[:2, :, 0::2], qkv[:2, :, 1::2]), dim=2)
    return torch.cat((turning, qkv[2:])).transpose(0, 1).flatten(0, 2)


def unchanged(name, w, n_head):
    return w


# pos_scheme -> the config of its architecture and the form of its weights there, in the order of NAMES
ARCHITECTURES = {
    "learnable": (gpt2_config, transposed), "rope": (gpt_neox_config, paired), "alibi": (mpt_config, unchanged)
}  # fmt: skip


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
    shared = dict(vocab_size=c.vocab_size, bos_token_id=eot, eos_token_id=eot, tie_word_embeddings=True)
    make_config, converted = ARCHITECTURES[c.pos_scheme]
    exported = transformers.AutoModelForCausalLM.from_config(make_config(transformers, c, shared))
    for p in exported.parameters():  # they may have biases that our model lacks
        p.zero_()
    column, state = list(ARCHITECTURES).index(c.pos_scheme), {}
    for name, w in model.state_dict().items():
        w = converted(name, w, c.n_head)
        for ours, *theirs in NAMES:
            name = name.replace(ours, theirs[column])
        state[name] = w
    exported.load_state_dict(state, strict=False)  # tools/export.py compares the logits
    return exported
