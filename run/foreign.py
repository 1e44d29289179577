"""Imports weights from nanoGPT's ckpt.pt and from Hugging Face's GPT-2, and exports models to Hugging Face."""

import logging
from pathlib import Path

import torch

HUB = ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")  # names on the hub; any other GPT-2 there: hf:OWNER/NAME


def from_nanogpt(content):
    """The fields of a Checkpoint from the content of nanoGPT's ckpt.pt, or None if it is something else."""
    kinds = {"model": dict, "model_args": dict, "iter_num": int}
    if all(isinstance(content.get(key), kind) for key, kind in kinds.items()) and all(
        isinstance(name, str) for name in content["model"]
    ):
        return fields_of(content["model"], content["model_args"], content["iter_num"])
    return None


def fields_of(weights, args, step):
    """The fields of a Checkpoint from weights with nanoGPT's names. Drops the prefix of compiled models, and the causal
    masks that old versions saved."""
    weights = {
        k.removeprefix("_orig_mod.").replace("transformer.wpe.", "pos.wpe."): v
        for k, v in weights.items()
        if not k.endswith(".attn.bias")
    }
    return {"weights": weights, "config": args | {"pos_scheme": "learnable"}, "step": step}


# Parts of our weights' names. Each architecture below lists its own name for every part.
OURS = "transformer. wte. .h. ln_1. ln_2. attn.c_attn. attn.c_proj. mlp.c_fc. mlp.c_proj. ln_f. pos.".split()


class GPT2:
    """One of Hugging Face's architectures. `settings` turns a GPTConfig c into its config, with ValueError for what the
    architecture cannot compute. `weight` turns our weight `name` into its form."""

    names = "transformer. wte. .h. ln_1. ln_2. attn.c_attn. attn.c_proj. mlp.c_fc. mlp.c_proj. ln_f. transformer."

    def settings(self, transformers, c, shared):
        return transformers.GPT2Config(
            n_positions=c.block_size, n_embd=c.n_embd, n_layer=c.n_layer, n_head=c.n_head, resid_pdrop=c.dropout,
            embd_pdrop=c.dropout, attn_pdrop=c.dropout, activation_function="gelu_new" if c.gelu_tanh else "gelu",
            **shared,
        )  # fmt: skip

    def weight(self, name, w, n_head):
        """The blocks' matrices are (in, out) there, so transposing converts in either direction."""
        return w.T.contiguous() if ".h." in name and w.dim() == 2 else w


class GPTNeoX:
    names = (
        "gpt_neox. embed_in. .layers. input_layernorm. post_attention_layernorm. attention.query_key_value. "
        "attention.dense. mlp.dense_h_to_4h. mlp.dense_4h_to_h. final_layer_norm."
    )

    def settings(self, transformers, c, shared):
        D, length = c.n_embd // c.n_head, c.rope_block_size or c.block_size
        rope = {"rope_type": "default", "rope_theta": c.rope_theta, "partial_rotary_factor": 1.0}
        if c.rope_scaling == "ntk":  # changes only the base
            rope["rope_theta"] *= c.rope_factor ** (D / (D - 2))
        elif c.rope_scaling != "none":
            rope |= {"rope_type": c.rope_scaling, "factor": c.rope_factor}
        if c.rope_scaling == "yarn":
            rope["original_max_position_embeddings"] = length
        return transformers.GPTNeoXConfig(
            max_position_embeddings=max(c.block_size, round(c.rope_factor * length)), hidden_size=c.n_embd,
            intermediate_size=4 * c.n_embd, num_hidden_layers=c.n_layer, num_attention_heads=c.n_head,
            rope_parameters=rope, use_parallel_residual=False, attention_dropout=c.dropout, hidden_dropout=c.dropout,
            hidden_act="gelu_new" if c.gelu_tanh else "gelu", **shared,
        )  # fmt: skip

    def weight(self, name, w, n_head):
        """q, k and v of one head are adjacent there, and channel j is rotated with j + D/2, not 2j with 2j + 1."""
        if "c_attn" not in name:
            return w
        qkv = w.unflatten(0, (3, n_head, -1))  # (3, H, D, …)
        paired = torch.cat((qkv[:2, :, 0::2], qkv[:2, :, 1::2]), dim=2)
        return torch.cat((paired, qkv[2:])).transpose(0, 1).flatten(0, 2)


class MPT:
    names = "transformer. wte. .blocks. norm_1. norm_2. attn.Wqkv. attn.out_proj. ffn.up_proj. ffn.down_proj. norm_f."

    def settings(self, transformers, c, shared):
        if c.bias or c.gelu_tanh:
            given = f"bias={c.bias}, gelu_tanh={c.gelu_tanh}"
            raise ValueError(f"cannot export {given} to MPT, which has no biases and the exact GELU")
        longest = 16 * c.block_size  # ALiBi needs no limit, but MPT wants one
        return transformers.MptConfig(
            max_seq_len=longest, d_model=c.n_embd, n_layers=c.n_layer, n_heads=c.n_head, use_cache=True, **shared
        )

    def weight(self, name, w, n_head):
        return w


ARCHITECTURES = {"learnable": GPT2(), "rope": GPTNeoX(), "alibi": MPT()}  # by pos_scheme


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


def from_hugging_face(name):
    """The fields of a Checkpoint from a GPT-2 in a folder in Hugging Face's format or on the hub."""
    model, loading = load_gpt2(name)
    c = model.config
    computed = {  # settings that change the result -> the values that model.py computes
        "activation_function": ("gelu", "gelu_new", "gelu_pytorch_tanh"), "n_inner": (None, 4 * c.n_embd),
        "layer_norm_epsilon": (1e-5,), "scale_attn_weights": (True,), "scale_attn_by_inverse_layer_idx": (False,),
        "reorder_and_upcast_attn": (False,), "add_cross_attention": (False,), "tie_word_embeddings": (True,),
    }  # fmt: skip
    for key, values in computed.items():
        if getattr(c, key) not in values:
            allowed = " or ".join(map(repr, values))
            raise ValueError(f"{name} has {key}={getattr(c, key)!r}, but model.py computes only {allowed}")
    if lacking := sorted(loading["missing_keys"]):
        raise ValueError(f"{name} is incomplete: {len(lacking)} weights are missing, such as {lacking[0]}")
    args = dict(block_size=c.n_positions, vocab_size=c.vocab_size, n_layer=c.n_layer, n_head=c.n_head, n_embd=c.n_embd)
    weights = {name: GPT2().weight(name, w, c.n_head) for name, w in model.state_dict().items()}
    return fields_of(weights, args | {"gelu_tanh": c.activation_function != "gelu"}, step=0)


def load_gpt2(name):
    """The model in transformers, and the report on its loading. ValueError, in one line, if it cannot be loaded."""
    transformers, source = import_transformers(), name.removeprefix("hf:")
    if not Path(source).is_dir():  # show the progress of a download
        transformers.utils.logging.enable_progress_bar()
    try:
        architecture = transformers.GPT2Config.get_config_dict(source)[0].get("model_type")
        if architecture == "gpt2":
            return transformers.GPT2LMHeadModel.from_pretrained(
                source, dtype=torch.float32, weights_only=True, output_loading_info=True
            )
    except Exception as error:  # anything can come from the hub, the network or a damaged file
        advice = "" if Path(source).is_dir() else ": connect to the network, or name a folder with the model"
        why = " ".join(str(error).split()).split(". ")[0][:200]
        raise ValueError(f"{name} could not be loaded ({why}){advice}") from None
    raise ValueError(f"{name} has the architecture {architecture!r}: only Hugging Face's 'gpt2' can be loaded")


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
    transformers, architecture = import_transformers(), ARCHITECTURES[c.pos_scheme]
    shared = dict(vocab_size=c.vocab_size, bos_token_id=eot, eos_token_id=eot, tie_word_embeddings=True)
    exported = transformers.AutoModelForCausalLM.from_config(architecture.settings(transformers, c, shared))
    for p in exported.parameters():  # they may have biases that our model lacks
        p.zero_()
    state = {}
    for name, w in model.state_dict().items():
        renamed = name
        for old, new in zip(OURS, architecture.names.split(), strict=False):
            renamed = renamed.replace(old, new)
        state[renamed] = architecture.weight(name, w, c.n_head)
    report = exported.load_state_dict(state, strict=False)
    assert not report.unexpected_keys and all(k.endswith("bias") for k in report.missing_keys), report
    return exported
