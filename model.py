"""A GPT decoder whose position scheme is a flag: GPTConfig(pos_scheme="rope").

Position enters a transformer in three places only: the residual stream, the queries and keys, and the attention
scores. A scheme is one class with a hook for each place. The rest of this file is GPT-2 as nanoGPT writes it, with the
same state-dict keys, and contains nothing that depends on the scheme. Further schemes are files in schemes/.

Two laws keep it simple:
1. Positions, never lengths: a scheme computes from the positions of the queries and of the keys. So training,
   prefill, decoding and long evaluation share one path.
2. No position buffers: whatever depends on positions alone is computed from them in every forward pass, in float32 or
   better. The state dict holds only what was learned.

Shapes: B batch, T new tokens, S all visible tokens (S = T without a cache), C = n_embd, H heads, D = C/H.
"""

import importlib
import math
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F

INIT_STD = 0.02  # GPT-2's standard deviation for matrices and embeddings
LOGITS = 2**26  # above this many logits, training computes the loss in chunks
QUERY_BLOCK = 128  # with a mask, at most this many queries attend at a time, so that no (T, S) mask exists


@dataclass(frozen=True)
class GPTConfig:
    # the model
    block_size: int = 1024  # tokens of context in training
    vocab_size: int = 50304  # token ids
    n_layer: int = 12  # blocks of attention and MLP
    n_head: int = 12  # attention heads in a layer
    n_embd: int = 768  # channels
    dropout: float = 0.0  # share of activations that training sets to zero
    bias: bool = True  # biases in Linear and LayerNorm, as in GPT-2
    gelu_tanh: bool = False  # the tanh approximation of GELU, as in OpenAI's GPT-2; nanoGPT uses the exact GELU
    qk_norm: bool = False  # normalise each head's queries and keys to length sqrt(D), as in DroPE's paper
    pos_scheme: str = "learnable"  # how position enters the model; an unknown name lists all schemes
    pos_options: str = ""  # options of a scheme in schemes/, such as size=32 (t5)
    pos_pattern: str = ""  # 1s and 0s, repeated over the layers: 1110 disables the scheme in every fourth layer
    pos_init: float = INIT_STD  # initial standard deviation of the scheme's parameters
    window: int = 0  # a query sees only the last `window` keys; 0: all
    window_pattern: str = ""  # 1s and 0s, repeated over the layers: 1110 removes the window from every fourth layer
    sinks: int = 0  # with a window, a query also sees the first `sinks` keys, as if they stood just before the window
    sinusoidal_size: float = INIT_STD  # RMS of the sinusoidal table; token embeddings start at 0.02 and grow
    rope_theta: float = 10000.0  # rope's base
    rope_fraction: float = 1.0  # the share of rope's channel pairs that turn, the fastest of them (p-RoPE)
    rope_scaling: str = "none"  # how rope extends past rope_block_size: none, linear (PI), ntk, yarn
    rope_factor: float = 1.0  # the context to reach, as a multiple of rope_block_size
    rope_block_size: int = 0  # the length that rope was trained at without scaling; 0: block_size

    def __post_init__(self):
        for name, low in dict(block_size=1, vocab_size=1, n_layer=1, n_head=1, n_embd=1, window=0, sinks=0).items():
            if getattr(self, name) < low:
                raise ValueError(f"{name}={getattr(self, name)} must be at least {low}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout={self.dropout} must lie in [0, 1)")
        if self.n_embd % self.n_head:
            raise ValueError(f"n_embd={self.n_embd} must be a multiple of n_head={self.n_head}")
        scheme = find_scheme(self.pos_scheme)
        owned = {name for cls in SCHEMES.values() for name in cls.reads}
        for name in sorted(owned, reverse=True):  # rope_scaling before rope_factor
            value = getattr(self, name)
            if name not in scheme.reads and value != getattr(GPTConfig, name):
                readers = " and ".join(other for other in scheme_names() if name in find_scheme(other).reads)
                raise ValueError(f"{name} is an option of pos_scheme {readers}, not of {self.pos_scheme}")
            if type(value) is float and not 0 < value < math.inf:
                raise ValueError(f"{name}={value} must be above 0 and finite")
        scheme.own_options(self)
        scheme.check(self)
        for name in ("pos_pattern", "window_pattern"):
            if getattr(self, name).strip("01"):
                raise ValueError(f"{name}={getattr(self, name)!r} must consist of 1s and 0s, such as 1110")
        if "0" in self.pos_pattern and scheme.embed is not PositionScheme.embed:
            raise ValueError(f"pos_pattern={self.pos_pattern!r}: {self.pos_scheme} acts on the embedding only")
        if self.sinks and not (self.window and scheme.pairwise):
            raise ValueError(f"sinks={self.sinks} need a window, and scores by distance alone, not {self.pos_scheme}")

    @property
    def max_positions(self):
        return find_scheme(self.pos_scheme).max_positions(self)

    def check_gaps(self, below):
        """ValueError if the scheme cannot take positions below a limit with gaps between them."""
        who = "a model with sinks" if self.sinks else self.pos_scheme
        if self.sinks or not find_scheme(self.pos_scheme).gaps or (self.max_positions or below) < below:
            raise ValueError(f"{who} cannot take positions with gaps below {below}")

    def layers(self, pattern):
        """One bool per layer: does the pattern have a 1 there?"""
        return [not pattern or pattern[layer % len(pattern)] == "1" for layer in range(self.n_layer)]


# ----------------------------------------------------------------------------------------------------------
# Position schemes

SCHEMES = {}  # name -> class; a subclass registers itself: class RoPE(PositionScheme, name="rope")


def scheme_names():
    """The names of all schemes: those of this file, then the files of schemes/, without importing them."""
    here = [name for name, cls in SCHEMES.items() if cls.__module__ == __name__]
    return here + sorted(path.stem for path in Path(__file__).with_name("schemes").glob("[!_]*.py"))


def find_scheme(name):
    """The class of a scheme, from this file or from schemes/NAME.py. ValueError for an unknown name."""
    if name not in SCHEMES:
        if name not in scheme_names():
            raise ValueError(f"pos_scheme={name!r} is not one of: {', '.join(scheme_names())}, in model.py or schemes/")
        importlib.import_module(f"schemes.{name}")
        if name not in SCHEMES:
            raise ValueError(f"schemes/{name}.py must define a class ...(PositionScheme, name={name!r})")
    return SCHEMES[name]


class PositionScheme(nn.Module):
    """The hooks through which a scheme acts on the model. Here, each hook does nothing."""

    reads = ()  # the fields of GPTConfig that the scheme reads and other schemes may not
    options = {}  # its own options and their defaults, set as pos_options="name=value,…"
    no_decay = ()  # names of its parameters that get no weight decay
    gaps = True  # may there be gaps between positions?
    shift_invariant = True  # does a shift of all positions change no attention weight?
    pairwise = True  # are its scores functions of query, key and distance? `sinks` need that

    def __init_subclass__(cls, name):
        SCHEMES[name] = cls

    def __init__(self, config):
        super().__init__()
        self.config = config

    @classmethod
    def own_options(cls, config):
        """`options` with the changes in config.pos_options: {name: number}. ValueError for an unknown name."""
        values = dict(cls.options)
        for item in filter(None, config.pos_options.split(",")):
            name, _, text = item.partition("=")
            if name not in values:
                known = ", ".join(values) or "none"
                raise ValueError(f"pos_options: {config.pos_scheme} has no option {name!r}; its options: {known}")
            try:
                values[name] = float(text)
            except ValueError:
                raise ValueError(f"pos_options={config.pos_options!r} must be a list such as size=32,b=5") from None
        return values

    @staticmethod
    def check(config):
        """Called by every new GPTConfig: ValueError if the scheme cannot run with it."""

    @staticmethod
    def max_positions(config):
        """How many positions the scheme is defined for; None: any number."""

    def init_weights(self, generator):
        """Draws the scheme's parameters. It has its own generator, so that all schemes share the same backbone."""
        for p in self.parameters():
            nn.init.normal_(p, std=self.config.pos_init, generator=generator)

    def start_from(self, config):
        """Called after the scheme's parameters were copied from a run with this config."""

    def prepare(self, q_pos, k_pos):
        """Once per forward pass, with q_pos (T,) and k_pos (S,) int64: what `rotate` and `bias` of all layers need."""

    def embed(self, x, pos):
        """Once, on the token embeddings x (B, T, C) at positions pos (T,)."""
        return x

    def rotate(self, q, k, x, prepared, layer, past):
        """Per layer, on q and k (B, H, T, D) of the new tokens, before the cache. May add channels to both. x (B, T, C)
        is what they were made from, and `past` a dict for what the layer's next chunk of tokens needs."""
        return q, k

    def bias(self, q, k, q_pos, k_pos, prepared, layer):
        """Per layer and block of queries: (1 or B, H, queries, keys), added to the scores after 1/sqrt(D)."""


class NoPE(PositionScheme, name="none"):
    """No position encoding: only the causal mask tells the model about order. Haviv et al. 2022 (arXiv 2203.16634),
    Kazemnejad et al. 2023 (arXiv 2305.19466)."""


def frequencies(dim, device, theta=10000.0):
    """θ_i = theta^(-2i/dim) for i < dim/2, in float64 if the device supports it. Low i turn fast, high i slowly."""
    dtype = torch.float32 if device.type == "mps" else torch.float64
    return theta ** (-2 * torch.arange(dim // 2, device=device, dtype=dtype) / dim)


class Sinusoidal(PositionScheme, name="sinusoidal"):
    """Vaswani et al. 2017 (arXiv 1706.03762): PE(p, 2i) = sin(p/10000^(2i/C)), PE(p, 2i+1) = cos(same), added
    to the token embedding and defined for every p.

    Deviation: the table is scaled to an RMS of sinusoidal_size, which is tuned like a learning rate. Unscaled, its RMS
    of 1/sqrt(2) drowns embeddings of GPT-2's size. (Vaswani scales the embeddings by sqrt(C) instead.)
    """

    reads = ("sinusoidal_size",)

    @staticmethod
    def check(config):
        if config.n_embd % 2:
            raise ValueError(f"n_embd={config.n_embd} must be even: {config.pos_scheme} pairs its channels")

    def embed(self, x, pos):
        a = pos[:, None] * frequencies(x.size(-1), pos.device)
        table = torch.stack((a.sin(), a.cos()), dim=-1).flatten(-2)  # (T, C), interleaved
        return x + self.config.sinusoidal_size * math.sqrt(2) * table.to(x.dtype)


class Learnable(PositionScheme, name="learnable"):
    """Radford et al. 2019 (GPT-2): a learned vector per position, added to the token embedding. There are no vectors
    past block_size, so the scheme is undefined there."""

    reads = ("pos_init",)

    @staticmethod
    def max_positions(config):
        return config.block_size

    def __init__(self, config):
        super().__init__(config)
        self.wpe = nn.Embedding(config.block_size, config.n_embd)

    def embed(self, x, pos):
        return x + self.wpe(pos)


def rope_frequencies(config, device):
    """RoPE's frequencies (D/2,) and the factor on q and on k under config.rope_scaling, with s = rope_factor:

    linear: p → p/s, position interpolation. Chen et al. 2023 (arXiv 2306.15595).
    ntk: theta → theta·s^(D/(D−2)), which slows the slowest pair by s and leaves the fastest unchanged. bloc97 2023.
    yarn: keeps pairs that turn more than 32 times within the training length, slows pairs that turn less than once by
    s, and interpolates between them with a ramp that is linear in the pair index, as in the authors' code (the paper's
    text: linear in the number of turns). q and k grow by 0.1·ln(s) + 1. Peng et al. 2023 (arXiv 2309.00071).

    Only the fastest pairs turn, a share rope_fraction; the others have frequency 0. Barbero et al. 2024
    (arXiv 2410.06205).
    """
    D, theta, s = config.n_embd // config.n_head, config.rope_theta, config.rope_factor
    if config.rope_scaling == "ntk":
        theta *= s ** (D / (D - 2))
    freqs = frequencies(D, device, theta)
    freqs[int(config.rope_fraction * D / 2 + 1e-6) :] = 0
    if config.rope_scaling == "linear":
        return freqs / s, 1.0
    if config.rope_scaling == "yarn":
        L = config.rope_block_size or config.block_size
        low, high = (D * math.log(L / (2 * math.pi * turns)) / (2 * math.log(theta)) for turns in (32, 1))
        low, high = max(0, math.floor(low)), min(D - 1, math.ceil(high))
        ramp = ((torch.arange(D // 2, device=device, dtype=freqs.dtype) - low) / max(high - low, 0.001)).clamp(0, 1)
        return freqs * (1 - ramp) + freqs / s * ramp, 0.1 * math.log(s) + 1
    return freqs, 1.0


def precompute_freqs_cis(pos, freqs, size=1.0):
    """size·e^(i·p·θ_j) for p in pos (T,) and θ in freqs (D/2,): (T, D/2) complex64."""
    angles = pos[:, None] * freqs
    return torch.polar(torch.full_like(angles, size), angles).to(torch.complex64)


def apply_rotary_emb(x, freqs_cis):
    """Reads the channel pairs (2j, 2j+1) of x (B, H, T, D) as complex numbers and multiplies them by freqs_cis."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))  # there are no complex bfloat16 numbers
    pairs = torch.view_as_complex(wide.unflatten(-1, (-1, 2)))  # (B, H, T, D/2)
    return torch.view_as_real(pairs * freqs_cis).flatten(-2).to(x.dtype)


class RoPE(PositionScheme, name="rope"):
    """Su et al. 2021 (arXiv 2104.09864), in LLaMA's complex form: rotates q and k by angles proportional to their
    positions, so that q_i·k_j depends on positions only through i−j. For scaling, see rope_frequencies."""

    reads = ("rope_theta", "rope_fraction", "rope_scaling", "rope_factor", "rope_block_size")

    @staticmethod
    def check(config):
        if (D := config.n_embd // config.n_head) % 2:
            shape = f"{config.n_embd}/{config.n_head} = {D}"
            raise ValueError(f"the head size n_embd/n_head = {shape} must be even: rope rotates channel pairs")
        if config.rope_scaling not in ("none", "linear", "ntk", "yarn"):
            raise ValueError(f"rope_scaling={config.rope_scaling!r} is not one of: none, linear, ntk, yarn")
        if config.rope_scaling == "none" and config.rope_factor != 1:
            raise ValueError(f"rope_factor={config.rope_factor} does nothing without rope_scaling: linear, ntk or yarn")
        if config.rope_fraction > 1 or int(config.rope_fraction * D / 2 + 1e-6) < 1:
            raise ValueError(f"rope_fraction={config.rope_fraction} must be at most 1, and turn one of {D // 2} pairs")
        for name, low in dict(rope_factor=1, rope_theta=1.001, rope_block_size=0).items():
            if getattr(config, name) < low:
                raise ValueError(f"{name}={getattr(config, name)} must be at least {low}")

    def prepare(self, q_pos, k_pos):
        return precompute_freqs_cis(q_pos, *rope_frequencies(self.config, q_pos.device))

    def rotate(self, q, k, x, prepared, layer, past):
        return apply_rotary_emb(q, prepared), apply_rotary_emb(k, prepared)


def alibi_slopes(n_head):
    """2^(-8h/H) for h = 1 … H if H is a power of two. Otherwise the slopes of the largest power of two below H, then
    every other slope of twice that many heads, as in the authors' code."""
    power = 1 << (n_head.bit_length() - 1)
    slopes = [2 ** (-8 * h / power) for h in range(1, power + 1)]
    return slopes + [2 ** (-4 * h / power) for h in range(1, 2 * (n_head - power), 2)]


def widen(x, channels):
    """Adds channels (B|1, H|1, T|1, n) to x (B, H, T, D)."""
    pad = -(x.size(-1) + channels.size(-1)) % 8 if x.is_cuda else 0  # CUDA kernels need a multiple of 8
    return torch.cat((x, F.pad(channels.to(x.dtype), (0, pad)).expand(*x.shape[:3], -1)), dim=-1)


class ALiBi(PositionScheme, name="alibi"):
    """Press et al. 2022 (arXiv 2108.12409): scores − m_h·(i−j) for query i and key j, before the softmax and
    after 1/sqrt(D), with a fixed slope m_h per head.

    Computed without a mask, so that the flash kernel can be used: −m·i is constant within a row, so it cancels in the
    softmax, and m·j is the product of a query channel m·sqrt(D) and a key channel j. bfloat16 has 8 significant bits,
    so j is split into three digits (exact below 2^24) and the slope into two parts (16 bits): six channels. In float32
    the rounding error is that of the score itself, 8e-4 at j = 65,536 for the steepest slope.
    """

    pairwise = False  # −m·i is left out

    def __init__(self, config):
        super().__init__(config)
        m = torch.tensor(alibi_slopes(config.n_head), device="cpu") * math.sqrt(config.n_embd // config.n_head)
        self.m = m.tolist(), m.to(torch.bfloat16).tolist()  # rounded here, because compiled code skips such casts

    def prepare(self, q_pos, k_pos):
        """The channels of q (H, 1, n) and of k (T, n), for float32 and for 16-bit floats."""
        m, high = torch.tensor(self.m, device=q_pos.device)[..., None, None]
        digits = torch.stack([q_pos // 65536 * 65536, q_pos // 256 % 256 * 256, q_pos % 256], dim=-1)
        return (m, q_pos[:, None]), (torch.cat([high] * 3 + [m - high] * 3, dim=-1), digits.repeat(1, 2))

    def rotate(self, q, k, x, prepared, layer, past):
        full, half = prepared
        for_q, for_k = half if q.dtype.itemsize < 4 else full
        return widen(q, for_q), widen(k, for_k)


# ----------------------------------------------------------------------------------------------------------
# The model


@dataclass(frozen=True)
class Positions:
    """The positions of one layer's queries and keys, and what the scheme prepared for them in this forward pass."""

    scheme: PositionScheme
    q: torch.Tensor  # (T,) int64
    k: torch.Tensor  # (S,) int64, ascending; the queries' are the last of them
    prepared: object  # what scheme.prepare returned
    far: "Positions | None" = None  # of the same queries and of the sinks, as these queries see them

    def part(self, queries, keys):
        """The same for a slice of the queries and a slice of the keys; `prepared` is not sliced."""
        far = self.far and self.far.part(queries, slice(None))
        return Positions(self.scheme, self.q[queries], self.k[keys], self.prepared, far)

    @property
    def biased(self):
        return type(self.scheme).bias is not PositionScheme.bias

    def rotate(self, q, k, x, layer, past):
        new_q, new_k = self.scheme.rotate(q, k, x, self.prepared, layer, past)
        if self.far is not None:  # twice as wide; `attend` parts them again
            new_q = torch.cat((new_q, self.far.rotate(q, k, x, layer, {})[0]), dim=-1)
        return new_q, new_k

    def bias(self, q, k, layer):
        got = self.scheme.bias(q, k, self.q, self.k, self.prepared, layer)
        B, *others = *q.shape[:3], k.size(2)
        if tuple(got.shape) not in ((B, *others), (1, *others)):  # another shape might be broadcast in silence
            name, shape = type(self.scheme).__name__, tuple(got.shape)
            raise ValueError(f"{name}.bias returned {shape}, expected {(B, *others)} or {(1, *others)}")
        return got

    def mask(self, q, k, layer, visible):
        """What attention adds to the scores: (1 or B, 1 or H, queries, keys); the fast kernels need four dimensions."""
        mask = torch.where(visible, 0.0, -torch.inf)[None, None]
        return (mask + self.bias(q, k, layer) if self.biased else mask).to(q.dtype)

    def visible(self, window):
        """Which keys each query sees, itself and the `window` − 1 keys before it: (queries, keys) bool. Counts keys, so
        positions may have gaps."""
        i, j = (torch.arange(len(pos), device=pos.device) - len(pos) for pos in (self.q, self.k))
        distance = i[:, None] - j
        return (distance >= 0) & (distance < window)


class KVCache:
    """The rotated keys and the values of all layers, and `pos`, the number of tokens seen. Pass the same cache to
    successive forward passes: chunks of any size give the same logits as a single pass."""

    def __init__(self):
        self.pos = 0
        self.stores = {}  # (layer, "k" or "v") -> (buffer (B, H, capacity, width), start, end of the kept part)
        self.past = defaultdict(dict)  # layer -> what its scheme keeps

    def append(self, key, new, window):
        """Adds a layer's new keys or values (B, H, T, ·) and returns all of them, (B, H, S, ·). Keeps only those that
        the next token sees through its window (0: all)."""
        store, first, last = self.stores.get(key, (new[:, :, :0], 0, 0))
        if last + new.size(2) > store.size(2):  # room for twice as many, so that appending costs O(1) a token
            store = F.pad(store[:, :, first:last], (0, 0, 0, last - first + 2 * new.size(2)))
            first, last = 0, last - first
        end = last + new.size(2)
        store[:, :, last:end] = new
        self.stores[key] = store, max(first, end - window + 1) if window else first, end
        return store[:, :, first:end]


def attend(q, k, v, positions, layer, window, dropout_p):
    """Causal attention of q (B, H, T, W) over the last `window` (0: all) of k (B, H, S, W) and v (B, H, S, D). Returns
    (B, H, T, D). W is D, or more if the scheme added channels to q and k.

    If no mask or bias is needed, this is one flash call. Otherwise blocks of queries attend one after another, each to
    the keys it can see, with the mask and bias of that block only. So no (T, S) tensor exists, and the cost of a window
    is T·window.
    """
    if (far := positions.far) is not None:
        q, far_q = q.chunk(2, dim=-1)
    T, S, D = q.size(2), k.size(2), v.size(3)
    if q.size(3) > D:
        v = F.pad(v, (0, q.size(3) - D))  # flash kernels need equal widths
    scale = 1 / math.sqrt(D)
    window = window or S
    if not positions.biased and T in (1, S) and S <= window:  # a single query sees every key
        return F.scaled_dot_product_attention(q, k, v, is_causal=T > 1, scale=scale, dropout_p=dropout_p)[..., :D]
    blocks, size = [], min(QUERY_BLOCK, -(-T // 2))  # at least two: half of the queries cannot see half of the keys
    for start in reversed(range(0, T, size)):  # the last block first: the others fit into its buffers
        end = min(T, start + size)
        seen = slice(max(0, S - T + start - window + 1), S - T + end)  # the keys that this block can see
        block = positions.part(slice(start, end), seen)
        queries, keys, values = q[:, :, start:end], k[:, :, seen], v[:, :, seen]
        mask = block.mask(queries, keys, layer, block.visible(window))
        if far is None and (mask.is_cuda or not mask.requires_grad):  # no other kernel has gradients for the bias
            blocks.append(F.scaled_dot_product_attention(queries, keys, values, mask, dropout_p, scale=scale))
            continue
        scores = (queries * scale @ keys.mT).add_(mask)
        if far is not None:
            n, outside = len(far.k), block.q[:, None] - far.k >= window  # nearer sinks are ordinary keys
            queries, keys = far_q[:, :, start:end], k[:, :, :n]
            of_sinks = (queries * scale @ keys.mT).add_(block.far.mask(queries, keys, layer, outside))
            scores, values = torch.cat((of_sinks, scores), dim=-1), torch.cat((v[:, :, :n], values), dim=2)
        blocks.append(F.dropout(scores.softmax(dim=-1), dropout_p) @ values)
    return torch.cat(blocks[::-1], dim=2)[..., :D]


class ChunkedLoss(torch.autograd.Function):
    """Mean cross-entropy, in nats, of hidden (N, C) @ weight.T (V, C) against targets (N,), without holding all (N, V)
    logits at a time: the forward pass also computes the gradients, chunk by chunk."""

    @staticmethod
    def forward(ctx, hidden, weight, targets):
        total, grad_hidden, grad_weight = 0.0, torch.empty_like(hidden), torch.zeros_like(weight)
        rows = max(1, LOGITS // len(weight))
        for h, t, grad_h in zip(hidden.split(rows), targets.split(rows), grad_hidden.split(rows), strict=True):
            logits = F.linear(h, weight)
            log_probs = logits.float().log_softmax(dim=-1)
            total = total + F.nll_loss(log_probs, t, reduction="sum")
            if ctx.needs_input_grad[0]:  # needs_input_grad of the weight is true even under no_grad
                grad = log_probs.exp_()  # the gradient of the cross-entropy: probabilities, minus 1 at the target
                grad[torch.arange(len(t), device=t.device), t] -= 1
                grad = grad.to(logits.dtype)
                grad_h.copy_(grad @ weight)
                grad_weight += grad.T @ h
        ctx.save_for_backward(grad_hidden, grad_weight)
        return total / len(targets)

    @staticmethod
    def backward(ctx, grad):
        grad_hidden, grad_weight = ctx.saved_tensors
        return grad_hidden * (grad / len(grad_hidden)), grad_weight * (grad / len(grad_hidden)), None


class CausalSelfAttention(nn.Module):
    def __init__(self, config, layer):
        super().__init__()
        self.layer = layer
        self.n_head = config.n_head
        self.dropout, self.qk_norm = config.dropout, config.qk_norm
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd, bias=config.bias)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)
        self.resid_dropout = nn.Dropout(config.dropout)

    def project(self, x, positions, past):
        """The rotated queries and keys, and the values, of x (B, T, C): each (B, H, T, ·)."""
        q, k, v = (t.unflatten(-1, (self.n_head, -1)).transpose(1, 2) for t in self.c_attn(x).chunk(3, dim=-1))
        if self.qk_norm:
            q, k = (F.rms_norm(t, t.shape[-1:]) for t in (q, k))
        return *positions.rotate(q, k, x, self.layer, past), v

    def forward(self, x, positions, window, cache, last):
        q, k, v = self.project(x, positions, {} if cache is None else cache.past[self.layer])
        if cache is not None:
            k, v = cache.append((self.layer, "k"), k, window), cache.append((self.layer, "v"), v, window)
        positions = positions.part(slice(-last, None), slice(-k.size(2), None))
        y = attend(q[:, :, -last:], k, v, positions, self.layer, window, self.dropout if self.training else 0.0)
        y = y.transpose(1, 2).flatten(-2)  # (B, last, C)
        return self.resid_dropout(self.c_proj(y))


class MLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.c_fc = nn.Linear(config.n_embd, 4 * config.n_embd, bias=config.bias)
        self.c_proj = nn.Linear(4 * config.n_embd, config.n_embd, bias=config.bias)
        self.dropout = nn.Dropout(config.dropout)
        self.gelu = "tanh" if config.gelu_tanh else "none"

    def forward(self, x):
        return self.dropout(self.c_proj(F.gelu(self.c_fc(x), approximate=self.gelu)))


class Block(nn.Module):
    def __init__(self, config, layer):
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.n_embd, bias=config.bias)
        self.attn = CausalSelfAttention(config, layer)
        self.ln_2 = nn.LayerNorm(config.n_embd, bias=config.bias)
        self.mlp = MLP(config)

    def forward(self, x, positions, window, cache, last):
        """The output of this block for x (B, T, C), for the last tokens only: (B, last, C)."""
        x = x[:, -last:] + self.attn(self.ln_1(x), positions, window, cache, last)
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    """GPT-2's decoder. Models with the same seed have bit-identical shared weights, whatever the position scheme. With
    seed=None the weights are undefined until they are loaded."""

    def __init__(self, config, seed=1337):
        super().__init__()
        self.config = config
        self.transformer = nn.Module()  # gives the state dict GPT-2's names
        self.transformer.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.transformer.drop = nn.Dropout(config.dropout)
        self.transformer.h = nn.ModuleList(Block(config, layer) for layer in range(config.n_layer))
        self.transformer.ln_f = nn.LayerNorm(config.n_embd, bias=config.bias)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.lm_head.weight = self.transformer.wte.weight
        self.pos = find_scheme(config.pos_scheme)(config)
        self.no_pos = PositionScheme(config)  # for the layers that pos_pattern leaves out
        if seed is not None:
            self.init_weights(torch.Generator().manual_seed(seed))
            # a different seed: with the same one, wpe would start as a copy of wte
            self.pos.init_weights(torch.Generator().manual_seed(seed + 1))

    def init_weights(self, generator):
        """Draws the shared weights as GPT-2 does: the more layers, the smaller the residual projections."""
        for name, p in self.transformer.named_parameters():
            if p.dim() == 2:
                share = 2 * self.config.n_layer if name.endswith("c_proj.weight") else 1
                nn.init.normal_(p, std=INIT_STD / math.sqrt(share), generator=generator)
            elif name.endswith("bias"):
                nn.init.zeros_(p)

    @classmethod
    def from_weights(cls, config, weights):
        """The model with these weights (a state dict), without copying them. RuntimeError if they do not fit."""
        with torch.device("meta"):  # takes no memory and no time
            model = cls(config, seed=None)
        model.load_state_dict(weights, assign=True)
        model.lm_head.weight = model.transformer.wte.weight
        return model

    def flops_per_token(self):
        """6 per weight that multiplies, plus 12·L·C·T for attention (Chowdhery et al. 2022, arXiv 2204.02311)."""
        c = self.config
        return 6 * sum(p.numel() for p in self.transformer.parameters()) + 12 * c.n_layer * c.n_embd * c.block_size

    def override(self, config):
        """Changes the window, the patterns or the scheme's options in place. Returns the model."""
        pos = find_scheme(config.pos_scheme)(config).to(self.lm_head.weight)  # its device and dtype
        pos.load_state_dict(self.pos.state_dict())
        self.config, self.pos = config, pos
        return self

    def enter(self, idx, start=0, given=None):
        """Embeds the tokens idx (B, T) at the positions from `start`, or at the `given` positions (T,). Returns x
        (B, T, C) and what each layer needs, [(block, positions, window)]. ValueError past the scheme's max_positions or
        if it cannot take gaps."""
        c, end = self.config, start + idx.size(1)
        if given is not None:
            c.check_gaps(end)
        if c.max_positions is not None:
            end = end if given is None else given[-1].item() + 1
            if end > c.max_positions:
                raise ValueError(f"{c.pos_scheme} positions are defined for {c.max_positions} tokens, not for {end}")
        windows = [c.window if on else 0 for on in c.layers(c.window_pattern)]
        first = 0 if 0 in windows else max(0, start - c.window + 1)  # the first key that any layer sees
        k_pos = torch.arange(first, end, device=idx.device) if given is None else given.to(idx.device)
        q_pos = k_pos[start - first :]

        def positions_of(scheme):
            far = None
            if c.sinks:  # for them, a query never stands farther than just past its window
                near, sinks = q_pos.clamp(max=c.sinks + c.window - 1), k_pos[: c.sinks]
                far = Positions(scheme, near, sinks, scheme.prepare(near, sinks))
            return Positions(scheme, q_pos, k_pos, scheme.prepare(q_pos, k_pos), far)

        acting, absent = positions_of(self.pos), positions_of(self.no_pos)
        positions = [acting if on else absent for on in c.layers(c.pos_pattern)]
        x = self.transformer.drop(self.pos.embed(self.transformer.wte(idx), q_pos))
        return x, list(zip(self.transformer.h, positions, windows, strict=True))

    def hidden(self, idx, cache=None, last=None, positions=None):
        """The final hidden states (B, last, C) of the `last` tokens (None: all) of idx (B, T), which follow those in
        the cache. Without a cache, positions (T,) may have gaps but must ascend. ValueError as from `enter`."""
        assert cache is None or positions is None, "a cache counts its positions itself"
        if cache is not None and self.config.sinks:
            raise ValueError("a model with sinks has no cache: it can be evaluated, but not sampled")
        T, start = idx.size(1), cache.pos if cache is not None else 0
        x, layers = self.enter(idx, start, positions)
        for block, positions, window in layers:
            needed = last if last and block is self.transformer.h[-1] else T  # the last layer needs only those
            x = block(x, positions, window, cache, needed)
        if cache is not None:
            cache.pos = start + T
        return self.transformer.ln_f(x)

    def forward(self, idx, targets=None, cache=None, positions=None):
        """With targets (B, T): logits (B, T, V), or None if they are more than LOGITS, and the mean loss in nats per
        token. Without targets: the logits of the last position (B, 1, V), and None."""
        if targets is None:
            return self.lm_head(self.hidden(idx, cache, 1, positions)), None
        hidden = self.hidden(idx, cache, None, positions)
        if targets.numel() * self.config.vocab_size > LOGITS:
            return None, ChunkedLoss.apply(hidden.flatten(0, 1), self.lm_head.weight, targets.flatten())
        logits = self.lm_head(hidden)
        return logits, F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    @torch.no_grad()
    def stream(self, idx, max_new_tokens, n_vocab=None, **drawing):
        """Yields the next tokens (B,) of idx (B, T), max_new_tokens times. Only ids below n_vocab are drawn; the others
        pad the vocabulary. Past max_positions, a token sees the last max_positions tokens, as in nanoGPT."""
        cache, new, limit = KVCache(), idx, self.config.max_positions
        for _ in range(max_new_tokens):
            if limit is not None and cache.pos + new.size(1) > limit:
                cache, new = KVCache(), idx[:, -limit:]
            logits = self(new, cache=cache)[0][:, -1, :n_vocab].float()
            new = draw(logits, **drawing)
            yield new[:, 0]
            if limit is not None:
                idx = torch.cat((idx, new), dim=1)

    def generate(self, idx, max_new_tokens, **more):
        """Every row of idx (B, T), followed by what `stream` yields: (B, T + max_new_tokens)."""
        return torch.cat([idx, *(new[:, None] for new in self.stream(idx, max_new_tokens, **more))], dim=1)


def draw(logits, temperature=1.0, top_k=0, top_p=1.0, generator=None):
    """Draws one id (B, 1) per row of logits (B, V). temperature 0 takes the likeliest. top_k > 0 draws from the k
    likeliest. top_p < 1 draws from the fewest likeliest ids whose probabilities add up to top_p (Holtzman et al. 2020,
    arXiv 1904.09751)."""
    if temperature == 0:
        return logits.argmax(dim=-1, keepdim=True)
    logits, ids = (logits / temperature).sort(dim=-1, descending=True)
    if top_k:
        logits[:, top_k:] = -torch.inf
    probs = logits.softmax(dim=-1)
    before = probs.cumsum(dim=-1) - probs  # the probability of all likelier ids
    probs = probs.masked_fill(before >= top_p, 0)
    return ids.gather(1, torch.multinomial(probs, 1, generator=generator))
