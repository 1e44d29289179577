"""Imports weights from nanoGPT's ckpt.pt and from GPT-2 models in Hugging Face's format."""

from pathlib import Path

HUB = ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")  # names on the hub; any other GPT-2 there: hf:OWNER/NAME


def import_transformers():
    """Hugging Face's optional package, set to report only errors and downloads."""
    try:
        import transformers
    except ImportError:
        raise ValueError("Hugging Face's format needs one more package: pip install transformers") from None
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.hf_hub_utils.enable_progress_bars()
    return transformers


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
    """The fields of a Checkpoint from a GPT-2 in a folder in Hugging Face's format or on the hub. ValueError, in one
    line, if it cannot be loaded or if model.py computes something else."""
    transformers, source = import_transformers(), name.removeprefix("hf:")
    try:
        settings = transformers.GPT2Config.get_config_dict(source)[0]
        c = transformers.GPT2Config.from_dict(settings)
        given = c.to_dict() | {"model_type": settings.get("model_type")}
        computed = {  # settings that change the result -> the values that model.py computes
            "model_type": ("gpt2",), "activation_function": ("gelu", "gelu_new", "gelu_pytorch_tanh"),
            "n_inner": (None, 4 * c.n_embd), "layer_norm_epsilon": (1e-5,), "scale_attn_weights": (True,),
            "scale_attn_by_inverse_layer_idx": (False,), "reorder_and_upcast_attn": (False,),
            "add_cross_attention": (False,), "tie_word_embeddings": (True,),
        }  # fmt: skip
        for key, values in computed.items():
            if given[key] not in values:
                raise ValueError(f"it has {key}={given[key]!r}, but model.py computes {' or '.join(map(repr, values))}")
        model, about = transformers.GPT2LMHeadModel.from_pretrained(source, output_loading_info=True)
        if about["missing_keys"]:
            raise ValueError(f"it lacks {min(about['missing_keys'])}")
    except Exception as error:  # anything can come from the hub, the network or a damaged file
        is_offline = isinstance(error, OSError) and not Path(source).is_dir()
        advice = ": connect to the network, or name a folder with the model" if is_offline else ""
        why = " ".join(str(error).split()).split(". ")[0][:200]
        raise ValueError(f"{name} could not be loaded ({why}){advice}") from None
    args = dict(block_size=c.n_positions, vocab_size=c.vocab_size, n_layer=c.n_layer, n_head=c.n_head, n_embd=c.n_embd)
    weights = {key: transposed(key, w) for key, w in model.state_dict().items()}
    return fields_of(weights, args | {"gelu_tanh": c.activation_function != "gelu"}, step=0)


def transposed(name, w):
    """Hugging Face's GPT-2 has the blocks' matrices as (in, out), so transposing converts in either direction."""
    return w.T.contiguous() if ".h." in name and w.dim() == 2 else w
