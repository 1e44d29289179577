"""Causal language models of Hugging Face:  python eval_length.py hf:NAME_OR_FOLDER --dataset=NAME"""

from dataclasses import dataclass
from pathlib import Path

import torch.nn as nn

from data.tokenizers import load_error, named_tokenizer
from run.files import json_hash

LENGTHS = ("max_position_embeddings", "seq_length", "max_seq_len")  # what their configs call the training length


@dataclass(frozen=True)
class HuggingFaceConfig:
    pos_scheme: str  # the type of the model, such as llama
    block_size: int  # its training length
    max_positions: int | None  # how many positions it is defined for; None: any number
    kinds = ()


def import_transformers():
    """Hugging Face's optional package, set to report only errors and downloads."""
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.hf_hub_utils.enable_progress_bars()
    return transformers


class HuggingFaceRun:
    """What eval_length.py asks of a Checkpoint and of its model. Its `hidden` gives logits, so lm_head does nothing."""

    settings = {}
    history = ()
    dataset_hash = None
    step = None
    lm_head = nn.Identity()

    def __init__(self, name, results_dir):
        transformers = import_transformers()
        self.path = f"hf:{name}"
        self.folder = results_dir / Path(name).name
        try:
            self.causal = transformers.AutoModelForCausalLM.from_pretrained(name).eval()
        except Exception as error:  # whatever the network or a damaged folder provokes
            raise load_error(f"the model {name}", error) from None
        theirs = self.causal.config.get_text_config()
        trained = next((getattr(theirs, name) for name in LENGTHS if hasattr(theirs, name)), None)
        if not trained:
            raise ValueError(f"{self.path}: its config does not have {LENGTHS[0]}, the length that it was trained at")
        _, *tables = [m.num_embeddings for m in self.causal.modules() if isinstance(m, nn.Embedding)]
        is_limited = any(trained <= n <= trained + 2 for n in tables)  # by a table of learned positions
        self.config = HuggingFaceConfig(theirs.model_type, trained, trained if is_limited else None)
        sums = {name: p.double().sum().item() for name, p in self.causal.named_parameters()}
        self.hash = json_hash([self.causal.config.to_json_string(), sums])

    def model(self, device):
        self.causal.to(device)
        return self

    def config_with(self, overrides, length, temperature=None):
        if overrides.changes():
            flags = " ".join(f"--{change}" for change in overrides.changes())
            raise ValueError(f"{self.path} takes no {flags}: set sliding_window or rope_parameters in its config.json")
        return self.config

    def override(self, config):
        return self

    def hidden(self, idx, last, positions=None):
        return self.causal(idx, use_cache=False, logits_to_keep=last).logits[:, -last:]

    def dataset_name(self):
        raise ValueError(f"which text? python -m data.prepare TEXT --tokenizer={self.path} --name=NAME; --dataset=NAME")

    def check_dataset(self, dataset, named):
        """ValueError unless the text is in the model's own tokens."""
        vocabulary = named_tokenizer(self.path).spec["sha256"]
        if dataset.tokenizer.spec.get("sha256") != vocabulary:
            raise ValueError(f"dataset {dataset.name!r} has other tokens: prepare it with --tokenizer={self.path}")
