"""Imports weights from nanoGPT's ckpt.pt and from GPT-2 models in Hugging Face's format."""

HUB = ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")  # names on the hub; any other GPT-2 there: hf:OWNER/NAME


def import_transformers():
    """Hugging Face's optional package, set to report only errors and downloads."""
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.hf_hub_utils.enable_progress_bars()
    return transformers


def from_nanogpt(state_dict, args, step):
    """The fields of a Checkpoint from weights with nanoGPT's names, which may be 16-bit. Drops what torch.compile and
    DistributedDataParallel add to the names, and the causal masks that old versions saved."""
    weights = {}
    for name, tensor in state_dict.items():
        if not name.endswith((".attn.bias", ".attn.masked_bias")):
            name = name.replace("_orig_mod.", "").replace("module.", "").replace("transformer.wpe.", "pos.wpe.")
            weights[name] = tensor.float()
    return {"weights": weights, "config": args | {"pos_scheme": "learnable"}, "step": step}


def from_hugging_face(name):
    """The fields of a Checkpoint from a GPT-2 in a folder in Hugging Face's format or on the hub. ValueError if
    model.py computes something else."""
    transformers = import_transformers()
    source = name.removeprefix("hf:")
    config_class = transformers.GPT2Config
    c = config_class().to_dict() | config_class.get_config_dict(source)[0]
    computed = {  # settings that change the result -> the values that model.py computes
        "model_type": ["gpt2"],
        "activation_function": ["gelu", "gelu_new", "gelu_pytorch_tanh"],
        "n_inner": [None, 4 * c["n_embd"]],
        "layer_norm_epsilon": [1e-5],
        "scale_attn_weights": [True],
        "scale_attn_by_inverse_layer_idx": [False],
    }
    for key, values in computed.items():
        if c[key] not in values:
            raise ValueError(f"it has {key}={c[key]!r}, but model.py computes {' or '.join(map(repr, values))}")
    model, report = transformers.GPT2LMHeadModel.from_pretrained(
        source,
        output_loading_info=True,
        ignore_mismatched_sizes=True,
    )
    more_layers = {key for key in report["unexpected_keys"] if "ln_1" in key}
    differences = report["missing_keys"] | report["mismatched_keys"] | more_layers
    if differences:
        raise ValueError(f"its weights and its config.json differ in {min(map(str, differences))}")
    args = {name: c[name] for name in ("vocab_size", "n_layer", "n_head", "n_embd")}
    args |= {"block_size": c["n_positions"], "gelu_tanh": c["activation_function"] != "gelu"}
    weights = {key: transposed(key, w) for key, w in model.state_dict().items()}
    return from_nanogpt(weights, args, step=0)


def transposed(name, w):
    """Hugging Face's GPT-2 has the blocks' matrices as (in, out), so transposing converts in either direction."""
    return w.T.contiguous() if ".h." in name and w.dim() == 2 else w
