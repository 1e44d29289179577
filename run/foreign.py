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


def from_nanogpt(state_dict, args, step):
    """The fields of a Checkpoint from weights with nanoGPT's names. Drops the prefix of compiled models, and the causal
    masks that old versions saved."""
    weights = {}
    for name, tensor in state_dict.items():
        if not str(name).endswith((".attn.bias", ".attn.masked_bias")):
            name = str(name).removeprefix("_orig_mod.").replace("transformer.wpe.", "pos.wpe.")
            weights[name] = tensor
    return {"weights": weights, "config": args | {"pos_scheme": "learnable"}, "step": step}


def from_hugging_face(name):
    """The fields of a Checkpoint from a GPT-2 in a folder in Hugging Face's format or on the hub. ValueError, in one
    line, if it cannot be loaded or if model.py computes something else."""
    transformers = import_transformers()
    source = name.removeprefix("hf:")
    try:
        settings = transformers.GPT2Config.get_config_dict(source)[0]
        c = transformers.GPT2Config.from_dict(settings)
        check_gpt2(c.to_dict() | {"model_type": settings.get("model_type")})
        model, report = transformers.GPT2LMHeadModel.from_pretrained(source, output_loading_info=True)
        if report["missing_keys"]:
            raise ValueError(f"it lacks {min(report['missing_keys'])}")
    except Exception as error:  # anything can come from the hub, the network or a damaged file
        message = " ".join(str(error).split()).split(". ")[0][:200]
        if isinstance(error, OSError) and not Path(source).is_dir():
            message += ": connect to the network, or name a folder with the model"
        raise ValueError(message) from None
    args = {
        "block_size": c.n_positions,
        "vocab_size": c.vocab_size,
        "n_layer": c.n_layer,
        "n_head": c.n_head,
        "n_embd": c.n_embd,
        "gelu_tanh": c.activation_function != "gelu",
    }
    weights = {key: transposed(key, w) for key, w in model.state_dict().items()}
    return from_nanogpt(weights, args, step=0)


def check_gpt2(settings):
    """ValueError unless model.py computes what a GPT-2 with these settings does."""
    computed = {  # settings that change the result -> the values that model.py computes
        "model_type": ["gpt2"],
        "activation_function": ["gelu", "gelu_new", "gelu_pytorch_tanh"],
        "n_inner": [None, 4 * settings["n_embd"]],
        "layer_norm_epsilon": [1e-5],
        "scale_attn_by_inverse_layer_idx": [False],
        "reorder_and_upcast_attn": [False],
        "tie_word_embeddings": [True],
    }
    for key, values in computed.items():
        if settings[key] not in values:
            raise ValueError(f"it has {key}={settings[key]!r}, but model.py computes {' or '.join(map(repr, values))}")


def transposed(name, w):
    """Hugging Face's GPT-2 has the blocks' matrices as (in, out), so transposing converts in either direction."""
    return w.T.contiguous() if ".h." in name and w.dim() == 2 else w
