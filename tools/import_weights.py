"""Makes a run folder of other people's weights:  python -m tools.import_weights gpt2 out/gpt2

They are nanoGPT's ckpt.pt, a folder of GPT-2 in Hugging Face's format, or the name of one on its hub (needs pip install
transformers). The folder can then be sampled, evaluated and trained further like any other.
"""

from dataclasses import dataclass
from pathlib import Path

import torch

import config
from data.tokenizers import named_tokenizer
from evaluation.huggingface import import_transformers
from model import GPTConfig
from run.checkpoint import Checkpoint
from run.script import script


@dataclass(frozen=True)
class ImportConfig:
    # what is imported
    source: config.PathName = ""  # also without --source=: a ckpt.pt, a folder, or a name on the hub
    out_dir: config.PathName = "out/gpt2"  # also without --out_dir=, after the source: the run's folder
    tokenizer: config.PathName = "gpt2"  # gpt2, or data:NAME for that of a text


def from_nanogpt(state_dict, args, step):
    """The fields of a Checkpoint from weights with nanoGPT's names, which may be 16-bit. Drops what torch.compile and
    DistributedDataParallel add to the names, and the causal masks that old versions saved."""
    weights = {}
    for name, tensor in state_dict.items():
        if not name.endswith((".attn.bias", ".attn.masked_bias")):
            name = name.replace("_orig_mod.", "").replace("module.", "").replace("transformer.wpe.", "pos.wpe.")
            weights[name] = tensor.float()
    return {"weights": weights, "config": args | {"pos_scheme": "learnable"}, "step": step}


def from_hugging_face(source):
    """The fields of a Checkpoint from a GPT-2 in a folder in Hugging Face's format or on the hub. ValueError if
    model.py computes something else."""
    transformers = import_transformers()
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
    weights = {}
    for name, w in model.state_dict().items():
        is_matrix = ".h." in name and w.dim() == 2  # there, the blocks' matrices are (in, out)
        weights[name] = w.T.contiguous() if is_matrix else w
    return from_nanogpt(weights, args, step=0)


def main(argv):
    cfg = config.load(ImportConfig, argv, bare_field="source out_dir")
    if Path(cfg.source).is_file():
        file = torch.load(cfg.source, map_location="cpu", weights_only=True)
        fields = from_nanogpt(file["model"], file["model_args"], file["iter_num"])
    else:
        fields = from_hugging_face(cfg.source)
    tokenizer = named_tokenizer(cfg.tokenizer)
    checkpoint = Checkpoint(**fields | {"config": GPTConfig(**fields["config"])}, tokenizer_spec=tokenizer.spec)
    checkpoint.check_tokenizer(tokenizer, f"--tokenizer={cfg.tokenizer}")
    path = Path(cfg.out_dir, "best.pt")
    checkpoint.save(path)
    print(f"{path}: {checkpoint.config.n_layer} layers, {checkpoint.config.n_embd} channels")
    return 0


if __name__ == "__main__":
    script(main)
