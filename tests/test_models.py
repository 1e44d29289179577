"""Each recipe of config/models/ against the code of its model in Hugging Face's transformers."""

import importlib
import math
import runpy
from dataclasses import dataclass, field

import pytest
import torch
import torch.nn.functional as F
import transformers
from conftest import ROOT

import config
import train
from model import GPT, GPTConfig, attend, rope_frequencies
from run.checkpoint import Checkpoint, Overrides
from tools.import_weights import import_transformers
from train import TrainConfig

import_transformers()

FILES = {path.stem: path for path in sorted((ROOT / "config/models").glob("*.py"))}
SMALL = 64  # block_size where whole layers are compared


@dataclass(frozen=True)
class Published:
    """A model's published numbers. What is missing here is the default of its configuration class, except head_size."""

    module: str  # in transformers.models
    prefix: str  # of its classes
    length: int  # tokens in training
    n_layer: int
    head_size: int = 128
    rotation: dict | None = None  # its rope_parameters without stretching
    stretched: dict | None = None  # and with it
    numbers: dict = field(default_factory=dict)  # also what makes it comparable: one head size, few experts
    n_head: int = 2
    interleaved: bool = False  # rotates channels 2j and 2j + 1, as we do; the others rotate j and j + half

    def classes(self):
        """Its configuration, its rotary embedding (None: it has no rotation) and its decoder."""
        path = f"transformers.models.{self.module}"
        found = pytest.importorskip(f"{path}.modeling_{self.module}", reason=f"transformers has no {self.module}")
        rotary = getattr(found, f"{self.prefix}RotaryEmbedding", None)
        rotary = rotary or getattr(found, f"{self.prefix.removesuffix('Text')}RotaryEmbedding", None)
        configuration = importlib.import_module(f"{path}.configuration_{self.module}")
        return getattr(configuration, f"{self.prefix}Config"), rotary, getattr(found, f"{self.prefix}Model")

    def configuration(self, form, n_layer, length, **numbers):
        """Its configuration in a form, trained or stretched, after training at this length."""
        rotation = self.stretched if form == "stretched" else self.rotation
        settings = {
            "num_hidden_layers": n_layer,
            "head_dim": self.head_size,
            "hidden_size": self.n_head * self.head_size,
            "num_attention_heads": self.n_head,
            "num_key_value_heads": 1,
        }
        if rotation:
            settings["rope_parameters"] = from_length(rotation, length)
        return self.classes()[0](**settings | self.numbers | numbers)


def rotation(theta, **more):
    return {"rope_type": "default", "rope_theta": theta, **more}


def yarn(theta, factor, **more):
    return rotation(theta, factor=factor, **more) | {"rope_type": "yarn"}


def from_length(rotation, length):
    """The rotation, or that of each type of layer, with the length from which it is stretched."""
    if "rope_type" in rotation:
        return rotation | {"original_max_position_embeddings": length}
    return {layer_type: from_length(inner, length) for layer_type, inner in rotation.items()}


MODELS = {
    "smollm3": Published("smollm3", "SmolLM3", 65536, 36, rotation=rotation(5e6)),
    "command_a": Published("cohere2", "Cohere2", 8192, 64, rotation=rotation(5e4), interleaved=True),
    "k_exaone": Published(
        "exaone_moe",
        "ExaoneMoe",
        length=8192,
        n_layer=48,
        rotation=rotation(1e6),
        numbers={"sliding_window": 128},
    ),
    "trinity": Published("afmoe", "Afmoe", 4096, 32, numbers={"sliding_window": 2048}),
    "llama4": Published("llama4", "Llama4Text", 262144, 48, numbers={"use_qk_norm": False}, interleaved=True),
    "olmo3": Published(
        "olmo3",
        "Olmo3",
        length=8192,
        n_layer=32,
        stretched={"full_attention": yarn(5e5, 8.0), "sliding_attention": rotation(5e5)},
        n_head=1,  # its norm spans all heads
    ),
    "gemma3": Published(
        "gemma3",
        "Gemma3Text",
        length=32768,
        n_layer=34,
        head_size=256,
        stretched={
            "full_attention": rotation(1e6, factor=8.0) | {"rope_type": "linear"},
            "sliding_attention": rotation(1e4),
        },
        numbers={"sliding_window": 1024},
    ),
    "gemma4": Published(
        "gemma4",
        "Gemma4Text",
        length=16384,
        n_layer=30,
        head_size=256,
        numbers={"global_head_dim": 256, "hidden_size_per_layer_input": 0},
    ),
    "gpt_oss": Published(
        "gpt_oss",
        "GptOss",
        length=4096,
        n_layer=36,
        head_size=64,
        rotation=rotation(150000.0),
        stretched=yarn(150000.0, 32.0, truncate=False),
    ),
    "granite_swa": Published("granite_swa", "GraniteSWA", 8192, 24, numbers={"attention_multiplier": 128**-0.5}),
    "mimo_v2": Published(
        "mimo_v2_flash",
        "MiMoV2Flash",
        length=32768,
        n_layer=48,
        head_size=192,
        numbers={"num_experts_per_tok": 2},
    ),
    "ministral3": Published(
        "ministral3",
        "Ministral3",
        length=16384,
        n_layer=34,
        rotation=rotation(1e6, llama_4_scaling_beta=0.1),
        stretched=yarn(1e6, 16.0, mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.1),
    ),
    "qwen3": Published("qwen3", "Qwen3", 32768, 36, rotation=rotation(1e6), stretched=yarn(1e6, 4.0)),
    "glm4": Published(
        "glm4_moe",
        "Glm4Moe",
        length=131072,
        n_layer=92,
        rotation=rotation(1e6, partial_rotary_factor=0.5),
        numbers={"use_qk_norm": True},
    ),
    "inkling": Published(
        "inkling",
        "InklingText",
        length=2048,
        n_layer=66,
        numbers={"swa_num_attention_heads": 2, "swa_num_key_value_heads": 1},
    ),
}
FORMS = [(name, "trained") for name in MODELS] + [(name, "stretched") for name, m in MODELS.items() if m.stretched]


def recipe(name, form, block_size, n_layer):
    """Our GPTConfig of a model, with heads of its size."""
    theirs = MODELS[name]
    values = config.read_file(TrainConfig, FILES[name])
    if form == "stretched":
        values["layers"] = runpy.run_path(str(FILES[name]))["_stretched"]
    size = dict(
        block_size=block_size,
        vocab_size=50,
        n_layer=n_layer,
        n_head=theirs.n_head,
        n_embd=theirs.n_head * theirs.head_size,
        bias=False,
    )
    return GPTConfig(**values | size)


def published_recipe(name, form):
    return recipe(name, form, MODELS[name].length, MODELS[name].n_layer)


@pytest.mark.parametrize("name, form", FORMS)
def test_frequencies_and_windows_at_the_published_size(name, form):
    """They compute frequencies, and the factor on q and k, in float32."""
    theirs = MODELS[name]
    configuration = theirs.configuration(form, theirs.n_layer, theirs.length)
    rotary_class = theirs.classes()[1]
    rotary = rotary_class and rotary_class(configuration)
    kinds = published_recipe(name, form).kinds
    if form == "stretched":  # as an evaluation stretches it
        overrides = Overrides(layers=published_recipe(name, form).layers)
        kinds = Checkpoint({}, published_recipe(name, "trained"), 0).config_with(overrides, 4 * theirs.length).kinds
    layer_types = getattr(configuration, "layer_types", None) or ["full_attention"] * len(kinds)
    for kind, layer_type in zip(kinds, layer_types, strict=True):
        window = math.inf
        if "sliding" in layer_type:
            window = configuration.sliding_window
        if "chunked" in layer_type:
            window = configuration.attention_chunk_size
        assert kind.n_keys == window
        if kind.pos_scheme != "rope":
            continue
        prefix = f"{layer_type}_" if hasattr(rotary, f"{layer_type}_inv_freq") else ""
        their_freqs = getattr(rotary, f"{prefix}inv_freq").double()
        factor = getattr(rotary, f"{prefix}attention_scaling")
        freqs, size = rope_frequencies(kind, torch.device("cpu"))
        padded = F.pad(their_freqs, (0, len(freqs) - len(their_freqs)))  # with partial rotation, theirs are fewer
        torch.testing.assert_close(freqs, padded, rtol=1e-6, atol=0)
        assert size == pytest.approx(factor, rel=1e-6)


def test_llama3_scales_as_transformers_do():
    """At the sizes of Llama 3.1 8B."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    parameters = rotation(5e5, factor=8, low_freq_factor=1, high_freq_factor=4, original_max_position_embeddings=8192)
    theirs = transformers.LlamaConfig(rope_parameters=parameters | {"rope_type": "llama3"})
    their_freqs, factor = ROPE_INIT_FUNCTIONS["llama3"](theirs, "cpu")
    settings = dict(pos_scheme="rope", rope_theta=5e5, rope_scaling="llama3", rope_factor=8)
    freqs, size = rope_frequencies(GPTConfig(8192, 8, 1, 32, 4096, **settings), torch.device("cpu"))
    torch.testing.assert_close(freqs, their_freqs.double(), rtol=1e-6, atol=0)
    assert size == factor == 1


def their_attention(name, form, ours, n_tokens):
    """Runs a small decoder of transformers. Returns each layer's module, its input, and how much each query attends
    to each key (H, T, T)."""
    theirs = MODELS[name]
    window = min(kind.n_keys for kind in ours.kinds)
    settings = {
        "intermediate_size": 16,
        "moe_intermediate_size": 16,
        "vocab_size": 50,
        "pad_token_id": 0,
        "eos_token_id": 0,
        "initializer_range": 0.1,
        "rms_norm_eps": 1e-9,
        "query_pre_attn_scalar": theirs.head_size,
        "attn_implementation": "eager",
        "sliding_window": window if window < math.inf else None,
        "sliding_window_size": window,
        "attention_chunk_size": window,
        "floor_scale": SMALL,
        "rel_extent": SMALL // 2,
    }
    configuration_class, _, decoder_class = theirs.classes()
    known = configuration_class().to_dict() | {"attn_implementation": None}
    settings = {key: value for key, value in settings.items() if key in known}
    torch.manual_seed(0)
    decoder = decoder_class(theirs.configuration(form, ours.n_layer, SMALL, **settings)).eval()
    layers = []

    def keep(module, args, inputs, outputs):
        x = args[0] if args else inputs["hidden_states"]
        y, weights = outputs
        if name == "granite_swa":  # its sinks are a factor on the output, which is here W·V, and V the values
            plain = weights @ module.v_proj(x)[:, None]
            weights = weights * (y.unflatten(-1, (theirs.n_head, -1)).transpose(1, 2) / plain).mean(-1, keepdim=True)
        layers.append((module, x, weights[0]))

    for layer in decoder.layers:
        attention = layer.self_attn
        attention.register_forward_hook(keep, with_kwargs=True)
        for parameter_name, parameter in attention.named_parameters():
            if parameter_name == "sinks":
                torch.nn.init.normal_(parameter)
            if "sconv" in parameter_name:
                torch.nn.init.zeros_(parameter)  # no convolution
        if name == "granite_swa":
            torch.nn.init.eye_(attention.o_proj.weight)
        scale = theirs.head_size**-0.5 / attention.scaling
        if not math.isclose(scale, 1):  # a model with another scale, which weights of its norm undo
            torch.nn.init.constant_(attention.q_norm.weight, scale)
    with torch.no_grad():
        decoder(torch.randint(1, 50, (1, n_tokens)))
    return layers


def our_attention(model, context, module, x, interleaved):
    """How much each query attends to each key (H, T, T) in our layer, with transformers' weights and input."""
    kind = context.config
    layer = context.layer
    attention = model.transformer.h[layer].attn
    order = torch.arange(kind.head_size)
    if kind.pos_scheme == "rope" and not interleaved:  # puts two channels that rotate together side by side
        order[: kind.rotated] = order[: kind.rotated].view(2, -1).T.flatten()
    C = model.config.n_embd
    q_weight = module.q_proj.weight.unflatten(0, (-1, kind.head_size))[:, order]
    k_weight = module.k_proj.weight.unflatten(0, (-1, kind.head_size))[:, order]
    k_weight = k_weight.repeat_interleave(kind.n_head // len(k_weight), dim=0)
    attention.c_attn.weight[:C] = q_weight.flatten(0, 1)
    attention.c_attn.weight[C : 2 * C] = k_weight.flatten(0, 1)
    if attention.sink is not None:
        attention.sink[:] = module.sinks
    if kind.pos_scheme == "inkling":
        scheme = context.scheme
        extent = min(len(scheme.p), module.rel_extent)
        scheme.w[layer] = module.r_proj.weight
        scheme.p[:extent, layer] = module.rel_logits_proj.proj.T[:extent]
    q, k, _ = attention.project(x, context, {})
    T = x.size(1)
    columns = torch.eye(T).expand(1, kind.n_head, T, T).split(kind.head_size, dim=-1)
    parts = []
    for values in columns:  # with these values, the average is a part of the weights
        n = values.size(-1)
        values = F.pad(values, (0, kind.head_size - n))
        parts.append(attend(q, k, values, context, 0.0, attention.sink)[..., :n])
    return torch.cat(parts, dim=-1)[0]


def comparable_queries(name, kind, T):
    """The queries that see and weigh the same keys in both codes: what the docstrings of two recipes say is different."""
    queries = torch.arange(T)
    if name == "llama4" and kind.window:  # the last query of a chunk sees all of it
        return queries[(queries + 1) % kind.n_keys == 0]
    if name == "llama4":  # its temperature rises a token earlier
        return queries[(queries + 1) % SMALL > 0]
    if name == "inkling" and not kind.window:  # its temperature is off here
        return queries[:SMALL]
    return queries


@pytest.mark.parametrize("name, form", FORMS)
@torch.no_grad()
def test_every_layer_attends_as_theirs(name, form):
    """How much each query attends to each key, in six layers and twice the training length: which layers rotate, with
    which pairs; norms, windows, sinks and temperatures."""
    n_tokens = 2 * SMALL
    ours = recipe(name, form, SMALL, n_layer=6)
    model = GPT(ours).eval()
    _, contexts = model.enter(torch.zeros(1, n_tokens, dtype=torch.long))
    their_layers = their_attention(name, form, ours, n_tokens)
    for kind, context, (module, x, expected) in zip(ours.kinds, contexts, their_layers, strict=True):
        assert expected.std() > 1e-3
        weights = our_attention(model, context, module, x, MODELS[name].interleaved)
        queries = comparable_queries(name, kind, n_tokens)
        torch.testing.assert_close(weights[:, queries], expected[:, queries], rtol=0, atol=1e-5)


# ----------------------------------------------------------------------------------------------------------
# The files


def test_every_file_is_compared_and_on_the_page():
    assert FILES.keys() == MODELS.keys()
    page = (ROOT / "docs/models.md").read_text()
    for name, path in FILES.items():
        row = next(line for line in page.splitlines() if line.startswith(f"| `{name}` |"))
        layers = config.read_file(TrainConfig, path).get("layers", "")
        assert all(kind.split(" *")[0] in row for kind in layers.split(" | "))
    kinds = published_recipe("smollm3", "trained").kinds
    numbers = MODELS["smollm3"].configuration("trained", len(kinds), SMALL).no_rope_layers
    assert [kind.pos_scheme == "none" for kind in kinds] == [number == 0 for number in numbers]
    assert "| `no_rope_layers` with 0" in page  # 1 is a layer with RoPE


@pytest.mark.parametrize("name", MODELS)
def test_every_file_has_every_kind_of_layer_at_every_size_and_trains_and_is_evaluated(
    name, dataset, tmp_path, evaluate
):
    """A recipe that the baseline is too shallow for brings its own depth, which is GPT-2's."""

    def kinds_of(ours):
        return {(kind.pos_scheme, kind.window, kind.rope_theta) for kind in ours.kinds}

    for files_and_flags in ([], ["--block_size=16"], [ROOT / "config/gpt2.py"]):
        arguments = [*map(str, files_and_flags), str(FILES[name])]
        ours = config.load(TrainConfig, arguments).model_config(50304)
        assert kinds_of(ours) == kinds_of(published_recipe(name, "trained"))
    assert (ours.n_layer, ours.n_embd, ours.block_size) == (12, 768, 1024)
    size = "--n_head=2 --n_embd=24 --block_size=16 --batch_size=2 --max_iters=1 --device=cpu".split()
    train.main([str(FILES[name]), *size, f"--dataset={dataset}", f"--out_dir={tmp_path}"])
    assert evaluate(tmp_path, "--lengths=16,64").out
