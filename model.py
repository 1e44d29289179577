"""A GPT decoder whose position scheme is a flag: GPTConfig(pos_scheme="rope").

Position enters a transformer in three places only: the residual stream, the queries and keys, and the
attention scores. A scheme is one class with a hook for each; everything else in this file is GPT-2 as
nanoGPT writes it, with its state-dict keys, and does not know which scheme it runs.

Two laws keep it whole:
1. Positions, never lengths: a scheme computes from the positions of the queries and of the keys, so training,
   prefill, decoding and long evaluation are one path.
2. No position buffers: what depends on positions alone is computed from them in every forward, in float32 or
   better. The state dict holds only what was learned.

Shapes: B batch, T new tokens, S all visible tokens (S = T without a cache), C = n_embd, H heads, D = C/H.
"""

import math
from dataclasses import dataclass, fields

import torch
import torch.nn as nn
import torch.nn.functional as F

INIT_STD = 0.02  # GPT-2's, for every matrix and embedding
LOGITS = 2**26  # of more logits than these, training holds a part at a time
QUERY_BLOCK = 128  # at most so many queries attend at once under a mask, which is (QUERY_BLOCK, S), never (T, S)


@dataclass(frozen=True)
class GPTConfig:
    block_size: int = 1024  # tokens of context in training
    vocab_size: int = 50304
    n_layer: int = 12
    n_head: int = 12
    n_embd: int = 768
    dropout: float = 0.0
    bias: bool = True  # biases in Linear and LayerNorm, as in GPT-2
    gelu_tanh: bool = False  # GELU by its tanh formula, as in OpenAI's GPT-2; nanoGPT has the exact one
    qk_norm: bool = False  # queries and keys of each head at length sqrt(D) before positions enter, as in DroPE's paper
    pos_scheme: str = "learnable"  # how position enters the model; an unknown name lists them
    pos_pattern: str = ""  # 1s and 0s, repeated over the layers: 1110 leaves positions out of every fourth layer
    window: int = 0  # a query sees only the last `window` keys; 0: all
    window_pattern: str = ""  # likewise: 1110 lets every fourth layer see all keys
    sinusoidal_size: float = INIT_STD  # sinusoidal's: the RMS of its table. Token embeddings start at 0.02 and grow
    pos_init: float = INIT_STD  # learnable, t5, transformer_xl: standard deviation of the scheme's parameters at first
    t5_size: float = 64.0  # t5's: its table counts this many times
    rope_theta: float = 10000.0  # rope's base
    rope_scaling: str = "none"  # rope past rope_block_size: none, linear (PI), ntk, yarn
    rope_factor: float = 1.0  # the context to reach, as a multiple of rope_block_size
    rope_block_size: int = 0  # the length that rope was trained at without scaling; 0: block_size

    def __post_init__(self):
        """ValueError unless a model can be built from these fields."""
        for name, low in dict(block_size=1, vocab_size=1, n_layer=1, n_head=1, n_embd=1, window=0).items():
            if getattr(self, name) < low:
                raise ValueError(f"{name}={getattr(self, name)} must be at least {low}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout={self.dropout} must lie in [0, 1)")
        if self.n_embd % self.n_head:
            raise ValueError(f"n_embd={self.n_embd} must be a multiple of n_head={self.n_head}")
        if self.pos_scheme not in SCHEMES:
            raise ValueError(f"pos_scheme={self.pos_scheme!r} is not one of: {', '.join(SCHEMES)}")
        for f in fields(self):
            owners = [name for name, cls in SCHEMES.items() if f.name in cls.options]
            if owners and self.pos_scheme not in owners and getattr(self, f.name) != f.default:
                raise ValueError(f"{f.name} is an option of pos_scheme={' or '.join(owners)}, not of {self.pos_scheme}")
            if owners and f.type is float and not 0 < getattr(self, f.name) < math.inf:
                raise ValueError(f"{f.name}={getattr(self, f.name)} must be above 0 and finite")
        scheme = SCHEMES[self.pos_scheme]
        scheme.check(self)
        for name in ("pos_pattern", "window_pattern"):
            if set(getattr(self, name)) - set("01"):
                raise ValueError(f"{name}={getattr(self, name)!r} must be of 1s and 0s, such as 1110")
        if "0" in self.pos_pattern and scheme.embed is not PositionScheme.embed:
            raise ValueError(f"pos_pattern={self.pos_pattern!r}: {self.pos_scheme} enters once, at the embedding")

    @property
    def max_positions(self):
        """How many positions the scheme is defined for; None: any number."""
        return SCHEMES[self.pos_scheme].max_positions(self)

    def layers(self, pattern):
        """Whether the pattern is on, layer by layer."""
        return [not pattern or pattern[layer % len(pattern)] == "1" for layer in range(self.n_layer)]


# ----------------------------------------------------------------------------------------------------------
# Position schemes

SCHEMES = {}  # name -> class; a subclass registers itself: class RoPE(PositionScheme, name="rope")


class PositionScheme(nn.Module):
    """The hooks through which a scheme acts on the model. Each hook here does nothing."""

    options = ()  # fields of GPTConfig that this scheme alone reads
    no_decay = ()  # names of its parameters that get no weight decay
    matrices = ()  # names of its ParameterLists that hold a matrix for each layer: Muon trains those, too

    def __init_subclass__(cls, name):
        SCHEMES[name] = cls

    def __init__(self, config):
        super().__init__()
        self.init_std = config.pos_init

    @staticmethod
    def check(config):
        """Called by GPTConfig when it is made: ValueError where the scheme cannot run under it."""

    @staticmethod
    def max_positions(config):
        """How many positions the scheme is defined for; None: any number."""

    def init_weights(self, generator):
        """Draws the scheme's parameters. The generator is separate, so the backbone is the same in all schemes."""
        for p in self.parameters():
            nn.init.normal_(p, std=self.init_std, generator=generator)

    def begin_from(self, config):
        """Called when the scheme's parameters have been taken over from a run under `config`."""

    def prepare(self, q_pos, k_pos):
        """Once per forward, q_pos (T,) and k_pos (S,) int64. Returns what `rotate` and `bias` of every layer need."""

    def embed(self, x, pos):
        """Once, on the token embeddings x (B, T, C) at pos (T,)."""
        return x

    def rotate(self, q, k, prepared):
        """Per layer, on the new tokens' q and k (B, H, T, D), before the cache. May add channels to both."""
        return q, k

    def bias(self, q, k, q_pos, k_pos, prepared, layer):
        """Per layer and block of queries: (1 or B, H, queries, keys), added to the scores after 1/sqrt(D)."""


class NoPE(PositionScheme, name="none"):
    """No positional encoding: the model knows order from the causal mask alone. Haviv et al. 2022 (arXiv 2203.16634),
    Kazemnejad et al. 2023 (arXiv 2305.19466)."""


def frequencies(dim, device, theta=10000.0):
    """θ_i = theta^(-2i/dim) for i < dim/2, in float64 where the device has it. A low i turns fast, a high i slowly."""
    dtype = torch.float32 if device.type == "mps" else torch.float64
    return theta ** (-2 * torch.arange(dim // 2, device=device, dtype=dtype) / dim)


class Sinusoidal(PositionScheme, name="sinusoidal"):
    """Vaswani et al. 2017 (arXiv 1706.03762): PE(p, 2i) = sin(p/10000^(2i/C)), PE(p, 2i+1) = cos(same), added
    to the token embedding and defined for every p.

    Deviation: the table is scaled to an RMS of sinusoidal_size, to be tuned like a learning rate. Unscaled it has
    1/sqrt(2), in which embeddings of GPT-2's size drown. (Vaswani scales the embedding by sqrt(C) instead.)
    """

    options = ("sinusoidal_size",)

    @staticmethod
    def check(config):
        if config.n_embd % 2:
            raise ValueError(f"n_embd={config.n_embd} must be even: {config.pos_scheme} pairs its channels")

    def __init__(self, config):
        super().__init__(config)
        self.amplitude = config.sinusoidal_size * math.sqrt(2)

    def embed(self, x, pos):
        a = pos[:, None] * frequencies(x.size(-1), pos.device)
        table = torch.stack((a.sin(), a.cos()), dim=-1).flatten(-2)  # (T, C), interleaved
        return x + self.amplitude * table.to(x.dtype)


class Learnable(PositionScheme, name="learnable"):
    """GPT-2's (Radford et al. 2019): a learned vector per position, added to the token embedding. There is no
    vector past block_size, so the scheme is undefined there."""

    options = ("pos_init",)

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
    ntk: theta → theta·s^(D/(D−2)), which slows the slowest pair by s and the fastest not at all. bloc97 2023.
    yarn: keeps pairs that turn more than 32 times within the training length, slows pairs that turn less than once by
    s, and uses a ramp between them. The ramp is linear in the pair index as in the authors' code (in the paper's text:
    in the number of turns). q and k grow by 0.1·ln(s) + 1. Peng et al. 2023 (arXiv 2309.00071).
    """
    D, theta, s = config.n_embd // config.n_head, config.rope_theta, config.rope_factor
    plain = frequencies(D, device, theta)
    if config.rope_scaling == "linear":
        return plain / s, 1.0
    if config.rope_scaling == "ntk":
        return frequencies(D, device, theta * s ** (D / (D - 2))), 1.0
    if config.rope_scaling == "yarn":
        L = config.rope_block_size or config.block_size

        def pair_that_turns(times):
            return D * math.log(L / (2 * math.pi * times)) / (2 * math.log(theta))

        low, high = max(0, math.floor(pair_that_turns(32))), min(D - 1, math.ceil(pair_that_turns(1)))
        ramp = ((torch.arange(D // 2, device=device, dtype=plain.dtype) - low) / max(high - low, 0.001)).clamp(0, 1)
        return plain * (1 - ramp) + plain / s * ramp, 0.1 * math.log(s) + 1
    return plain, 1.0


def precompute_freqs_cis(pos, freqs, size=1.0):
    """size·e^(i·p·θ_j) for p in pos (T,) and θ in freqs (D/2,): (T, D/2) complex64."""
    angles = pos[:, None] * freqs
    return torch.polar(torch.full_like(angles, size), angles).to(torch.complex64)


def apply_rotary_emb(q, k, freqs_cis):
    """Multiplies the channel pairs (2j, 2j+1) of q and k (B, H, T, D), read as complex numbers, by freqs_cis."""

    def turn(x):
        wide = x.to(torch.promote_types(x.dtype, torch.float32))  # complex numbers have no bfloat16
        pairs = torch.view_as_complex(wide.unflatten(-1, (-1, 2)))  # (B, H, T, D/2)
        return torch.view_as_real(pairs * freqs_cis).flatten(-2).to(x.dtype)

    return turn(q), turn(k)


class RoPE(PositionScheme, name="rope"):
    """Su et al. 2021 (arXiv 2104.09864), in LLaMA's complex form: rotates q and k by angles proportional to their
    positions, so that q_i·k_j depends on the positions through i−j alone. Scaling: see rope_frequencies."""

    options = ("rope_theta", "rope_scaling", "rope_factor", "rope_block_size")

    @staticmethod
    def check(config):
        C, H = config.n_embd, config.n_head
        D = C // H
        if D % 2:
            raise ValueError(f"the head size n_embd/n_head = {C}/{H} = {D} must be even: rope turns pairs of channels")
        if config.rope_scaling not in ("none", "linear", "ntk", "yarn"):
            raise ValueError(f"rope_scaling={config.rope_scaling!r} is not one of: none, linear, ntk, yarn")
        if config.rope_scaling == "none" and config.rope_factor != 1:
            raise ValueError(f"rope_factor={config.rope_factor} does nothing without rope_scaling: linear, ntk or yarn")
        if config.rope_scaling == "ntk" and D == 2:
            raise ValueError("rope_scaling=ntk needs a head size of at least 4: one pair has nothing to spread over")
        for name, low in dict(rope_factor=1, rope_theta=1.001, rope_block_size=0).items():
            if getattr(config, name) < low:
                raise ValueError(f"{name}={getattr(config, name)} must be at least {low}")

    def __init__(self, config):
        super().__init__(config)
        self.config = config

    def prepare(self, q_pos, k_pos):
        return precompute_freqs_cis(q_pos, *rope_frequencies(self.config, q_pos.device))

    def rotate(self, q, k, prepared):
        return apply_rotary_emb(q, k, prepared)


def alibi_slopes(n_head):
    """2^(-8h/H) for h = 1 … H where H is a power of two. Otherwise the slopes of the largest power of two below H,
    then every other slope of twice that many heads, as in the authors' code."""
    power = 1 << (n_head.bit_length() - 1)
    slopes = [2 ** (-8 * h / power) for h in range(1, power + 1)]
    return slopes + [2 ** (-4 * h / power) for h in range(1, 2 * (n_head - power), 2)]


class ALiBi(PositionScheme, name="alibi"):
    """Press et al. 2022 (arXiv 2108.12409): scores − m_h·(i−j) for query i and key j, before the softmax and
    after 1/sqrt(D), with a fixed slope m_h per head.

    Computed without a mask, so that the flash kernel serves it: −m·i is constant within a row and drops out of
    the softmax, and m·j is the product of a query channel m·sqrt(D) and a key channel j. bfloat16 holds 8 bits, so
    there j is split into three digits (exact below 2^24) and the slope into two parts (16 bits): six channels. In
    float32 a score is exact to its own last digit, which for m·j is 8e-4 at j = 65,536 and the steepest slope.
    """

    def __init__(self, config):
        super().__init__(config)
        self.head_size = config.n_embd // config.n_head
        self.slopes = alibi_slopes(config.n_head)

    def prepare(self, q_pos, k_pos):
        """For each width of float the channels of q (H, 1, n) and of k (T, n)."""
        m = torch.tensor(self.slopes, device=q_pos.device)[:, None, None] * math.sqrt(self.head_size)
        high = m.to(torch.bfloat16).float()
        digits = torch.stack([q_pos // 65536 * 65536, q_pos // 256 % 256 * 256, q_pos % 256], dim=-1)
        return (m, q_pos[:, None]), (torch.cat([high] * 3 + [m - high] * 3, dim=-1), digits.repeat(1, 2))

    def rotate(self, q, k, prepared):
        channels = prepared[q.dtype.itemsize < 4]
        pad = -(self.head_size + channels[0].size(-1)) % 8 if q.is_cuda else 0  # its kernels want a multiple of 8

        def widen(x, channels):
            return torch.cat((x, F.pad(channels.to(x.dtype), (0, pad)).expand(*x.shape[:3], -1)), dim=-1)

        return widen(q, channels[0]), widen(k, channels[1])


class T5(PositionScheme, name="t5"):
    """Raffel et al. 2020 (arXiv 1910.10683): scores + b[bucket(i−j), h], one learned table for all layers. Of the 32
    causal buckets, 16 are single distances and 16 widen logarithmically up to 128; the last that training reaches holds
    all beyond.

    Deviations: T5 leaves out 1/sqrt(D); here scores are scaled as in every other scheme. The table counts t5_size
    times: a step of Adam moves a parameter by at most the learning rate, and biases reach several nats.
    """

    n_buckets, max_distance = 32, 128
    options = ("pos_init", "t5_size")
    no_decay = ("table",)

    def __init__(self, config):
        super().__init__(config)
        self.table = nn.Parameter(torch.empty(self.n_buckets, config.n_head))
        self.size, self.last = config.t5_size, self.last_bucket(config)

    def last_bucket(self, config):
        """The last that training reaches. Farther distances share it: what is untrained is never used."""
        return self.bucket(torch.tensor(config.block_size - 1, device="cpu")).item()

    def begin_from(self, config):
        last = self.last_bucket(config)
        self.table.data[last + 1 :] = self.table.data[last]

    def bucket(self, n):
        """Of distances n, int64."""
        exact = self.n_buckets // 2
        far = (n.clamp(min=exact) / exact).log() / math.log(self.max_distance / exact) * (self.n_buckets - exact)
        return torch.where(n < exact, n, (exact + far.long()).clamp(max=self.n_buckets - 1))

    def prepare(self, q_pos, k_pos):
        """The bias by distance 0 … S−1: (S, H)."""
        bucket = self.bucket(torch.arange(len(k_pos), device=k_pos.device)).clamp(max=self.last)
        return self.size * F.embedding(bucket, self.table)

    def bias(self, q, k, q_pos, k_pos, prepared, layer):
        distance = (q_pos[:, None] - k_pos).clamp(min=0)
        return F.embedding(distance, prepared).permute(2, 0, 1)[None].contiguous()  # (1, H, queries, keys)


class TransformerXL(PositionScheme, name="transformer_xl"):
    """Dai et al. 2019 (arXiv 1901.02860): scores (q·k + q·r + u·k + v·r)/sqrt(D) with r = W_r·R(i−j), R the sinusoids
    [sin ‖ cos] of the distance, W_r learned per layer, u and v learned once. No segment memory here."""

    options = ("pos_init",)
    no_decay, matrices = ("u", "v"), ("w_r",)
    check = staticmethod(Sinusoidal.check)  # n_embd must be even here, too

    def __init__(self, config):
        super().__init__(config)
        C, H = config.n_embd, config.n_head
        self.w_r = nn.ParameterList(torch.empty(C, C) for _ in range(config.n_layer))
        self.u, self.v = nn.Parameter(torch.empty(H, C // H)), nn.Parameter(torch.empty(H, C // H))

    def prepare(self, q_pos, k_pos):
        """r of every layer by distance S−1 … 0: (n_layer, H, D, S)."""
        distance = torch.arange(len(k_pos), device=k_pos.device).flip(0)
        a = distance[:, None] * frequencies(self.u.numel(), k_pos.device)
        R = torch.cat((a.sin(), a.cos()), dim=-1).to(self.u.dtype)  # (S, C)
        return (torch.stack(tuple(self.w_r)) @ R.T).unflatten(1, self.u.shape)

    def rotate(self, q, k, prepared):
        return q + self.u[:, None], k  # (q + u)·k

    def bias(self, q, k, q_pos, k_pos, prepared, layer):
        Q, K = len(q_pos), len(k_pos)  # both run to the same position without a gap
        r = F.pad(prepared[layer, ..., -K:], (1, 0))  # (H, D, 1 + K): nothing, then distance K−1 … 0
        by_distance = (q + (self.v - self.u)[:, None]) / math.sqrt(q.size(-1)) @ r
        # The paper's relative shift: key c is at distance K−Q+i−c from query i, which is column Q−i+c. Entries above
        # the diagonal are rubbish; the causal mask removes them.
        return by_distance.flatten(-2)[..., Q:].unflatten(-1, (Q, K))


# ----------------------------------------------------------------------------------------------------------
# The model


@dataclass(frozen=True)
class Positions:
    """Where the queries and keys of one layer stand, and what the scheme prepared for them, once per forward."""

    scheme: PositionScheme
    q: torch.Tensor  # (T,) int64
    k: torch.Tensor  # (S,) int64, ascending to the last query's position
    prepared: object  # what scheme.prepare returned

    def rotate(self, q, k):
        return self.scheme.rotate(q, k, self.prepared)

    def part(self, queries, keys):
        """The same for a slice of the queries and a slice of the keys. `prepared` stays whole."""
        return Positions(self.scheme, self.q[queries], self.k[keys], self.prepared)

    @property
    def biased(self):
        return type(self.scheme).bias is not PositionScheme.bias

    def bias(self, q, k, layer):
        return self.scheme.bias(q, k, self.q, self.k, self.prepared, layer)

    def visible(self, window):
        """Whether each query sees each key, itself and the `window` − 1 keys before it: (queries, keys)."""
        distance = self.q[:, None] - self.k
        return (distance >= 0) & (distance < window)


class KVCache:
    """The rotated keys, and the values, of every layer so far, and `pos`, the number of tokens seen.
    Hand the same cache to successive forwards: chunks of any size give the logits of one forward."""

    def __init__(self):
        self.pos = 0
        self.stores = {}  # (layer, "k" or "v") -> buffer (B, H, capacity, width), begin and end of what is kept

    def repeat(self, n):
        """Makes n rows of each."""
        self.stores = {key: (store.repeat_interleave(n, 0), *span) for key, (store, *span) in self.stores.items()}

    def append(self, key, new, keep):
        """Adds a layer's new keys or values (B, H, T, ·). Returns the kept and the new ones, (B, H, S, ·), and keeps
        the last `keep` of them for the next call (None: all)."""
        store, first, last = self.stores.get(key, (new[:, :, :0], 0, 0))
        end = last + new.size(2)
        if end > store.size(2):  # room for twice as many, so that appending costs O(1) a token
            grown = new.new_empty(*new.shape[:2], 2 * (end - first), new.size(3))
            grown[:, :, : last - first] = store[:, :, first:last]
            store, first, last, end = grown, 0, last - first, end - first
        store[:, :, last:end] = new
        self.stores[key] = store, first if keep is None else max(first, end - keep), end
        return store[:, :, first:end]


def attend(q, k, v, positions, layer, window, dropout_p):
    """Causal attention of q (B, H, T, W) over the last `window` (0: all) of k (B, H, S, W) and v (B, H, S, D). Returns
    (B, H, T, D). W is D, or more where the scheme widened q and k.

    Where no mask or bias is needed this is one flash call. Otherwise blocks of queries attend one after the other,
    each to the keys it can see, with the mask and bias of that block only: no (T, S) tensor exists, and a window costs
    T·window.
    """
    T, S, D = q.size(2), k.size(2), v.size(3)
    if q.size(3) > D:
        v = F.pad(v, (0, q.size(3) - D))  # flash kernels want equal widths
    scale = 1 / math.sqrt(D)
    window = window or S
    if not positions.biased and T in (1, S) and S <= window:  # a single query sees every key
        return F.scaled_dot_product_attention(q, k, v, is_causal=T > 1, scale=scale, dropout_p=dropout_p)[..., :D]
    blocks, size = [], min(QUERY_BLOCK, -(-T // 2))  # two at least: half of the keys is hidden from half of the queries
    for start in reversed(range(0, T, size)):  # last block first: the others reuse its buffer, the largest
        end = min(T, start + size)
        seen = slice(max(0, S - T + start - window + 1), S - T + end)  # keys that any of the block's queries sees
        block = positions.part(slice(start, end), seen)
        queries, keys = q[:, :, start:end], k[:, :, seen]
        mask = block.visible(window)[None, None]  # four dimensions keep the fast kernel
        if positions.biased:
            mask = (block.bias(queries, keys, layer) + torch.where(mask, 0.0, -torch.inf)).to(q.dtype)
        if mask.requires_grad and not mask.is_cuda:  # only CUDA has a fast kernel that learns a bias
            scores = (queries * scale @ keys.mT).add_(mask)
            blocks.append(F.dropout(scores.softmax(dim=-1), dropout_p) @ v[:, :, seen])
        else:
            blocks.append(F.scaled_dot_product_attention(queries, keys, v[:, :, seen], mask, dropout_p, scale=scale))
    return torch.cat(blocks[::-1], dim=2)[..., :D]


class LossInParts(torch.autograd.Function):
    """Mean cross-entropy, in nats, of hidden (N, C) @ weight.T (V, C) against targets (N,), without ever holding all
    (N, V) logits. Where `learning`, each part's gradients are computed along with it: nothing is computed twice."""

    @staticmethod
    def forward(ctx, hidden, weight, targets, learning):
        total, grad_hidden, grad_weight = 0.0, torch.empty_like(hidden), torch.zeros_like(weight)
        rows = max(1, LOGITS // len(weight))
        for h, t, grad_h in zip(hidden.split(rows), targets.split(rows), grad_hidden.split(rows), strict=True):
            logits = F.linear(h, weight)
            log_probs = logits.float().log_softmax(dim=-1)
            total = total + F.nll_loss(log_probs, t, reduction="sum")
            if learning:  # ctx.needs_input_grad is true under no_grad, too
                grad = log_probs.exp_()  # of cross-entropy: the probabilities, minus 1 at the target
                grad[torch.arange(len(t), device=t.device), t] -= 1
                grad = grad.to(logits.dtype)
                grad_h.copy_(grad @ weight)
                grad_weight += grad.T @ h
        ctx.save_for_backward(grad_hidden, grad_weight)
        return total / len(targets)

    @staticmethod
    def backward(ctx, grad):
        grad_hidden, grad_weight = ctx.saved_tensors
        return grad_hidden * (grad / len(grad_hidden)), grad_weight * (grad / len(grad_hidden)), None, None


class CausalSelfAttention(nn.Module):
    def __init__(self, config, layer):
        super().__init__()
        self.layer = layer
        self.n_head = config.n_head
        self.dropout, self.qk_norm = config.dropout, config.qk_norm
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd, bias=config.bias)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)
        self.resid_dropout = nn.Dropout(config.dropout)

    def project(self, x, positions):
        """Queries and keys, rotated, and values of x (B, T, C): each (B, H, T, ·)."""
        q, k, v = (t.unflatten(-1, (self.n_head, -1)).transpose(1, 2) for t in self.c_attn(x).chunk(3, dim=-1))
        if self.qk_norm:
            q, k = (F.rms_norm(t, t.shape[-1:]) for t in (q, k))
        return *positions.rotate(q, k), v

    def forward(self, x, positions, window, cache, last):
        q, k, v = self.project(x, positions)
        if cache is not None:
            keep = window - 1 if window else None
            k = cache.append((self.layer, "k"), k, keep)
            v = cache.append((self.layer, "v"), v, keep)
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
        """x (B, T, C) after this block, for the last tokens only: (B, last, C)."""
        x = x[:, -last:] + self.attn(self.ln_1(x), positions, window, cache, last)
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    """GPT-2's decoder. The same `seed` gives bit-identical shared weights whatever the position scheme."""

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
        generator = torch.Generator().manual_seed(seed)
        for name, p in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(p)
            elif p.dim() == 2:  # as in GPT-2, residual projections are smaller the more of them there are
                residual = name.endswith("c_proj.weight")
                std = INIT_STD / math.sqrt(2 * config.n_layer) if residual else INIT_STD
                nn.init.normal_(p, std=std, generator=generator)
        self.pos = SCHEMES[config.pos_scheme](config)
        # another seed: with the backbone's, wpe would start as a copy of wte
        self.pos.init_weights(torch.Generator().manual_seed(seed + 1))
        self.no_pos = PositionScheme(config)  # for the layers that pos_pattern leaves out

    def n_params(self):
        return sum(p.numel() for p in self.parameters())

    def flops_per_token(self):
        """6 per weight that multiplies plus 12·L·C·T for attention (Chowdhery et al. 2022, arXiv 2204.02311)."""
        c = self.config
        return 6 * sum(p.numel() for p in self.transformer.parameters()) + 12 * c.n_layer * c.n_embd * c.block_size

    def override(self, config):
        """Changes the window, the patterns or the scheme's options in place; the weights stay. Returns the model."""
        pos = SCHEMES[config.pos_scheme](config).to(self.lm_head.weight)  # its device and dtype
        pos.load_state_dict(self.pos.state_dict())
        self.config, self.pos = config, pos
        return self

    def enter(self, idx, start=0):
        """Embeds the tokens idx (B, T) at the positions from `start` on, and lists what each layer needs: x (B, T, C),
        [(block, positions, window)]. ValueError past the scheme's max_positions."""
        c, end = self.config, start + idx.size(1)
        if c.max_positions is not None and end > c.max_positions:
            raise ValueError(f"{c.pos_scheme} positions are defined for {c.max_positions} tokens, not for {end}")
        windows = [c.window if on else 0 for on in c.layers(c.window_pattern)]
        first = 0 if 0 in windows else max(0, start - c.window + 1)  # the first key that any layer sees
        k_pos = torch.arange(first, end, device=idx.device)
        q_pos = k_pos[start - first :]
        acting = Positions(self.pos, q_pos, k_pos, self.pos.prepare(q_pos, k_pos))
        absent = Positions(self.no_pos, q_pos, k_pos, None)
        positions = [acting if on else absent for on in c.layers(c.pos_pattern)]
        x = self.transformer.drop(self.pos.embed(self.transformer.wte(idx), q_pos))
        return x, list(zip(self.transformer.h, positions, windows, strict=True))

    def hidden(self, idx, cache=None, last=None):
        """Final hidden states of the `last` tokens (None: all) of idx (B, T), which follow those already in the cache:
        (B, last, C), so that a caller scores only what it needs. ValueError past the scheme's max_positions."""
        T, start = idx.size(1), cache.pos if cache is not None else 0
        x, layers = self.enter(idx, start)
        for block, positions, window in layers:
            needed = last if last and block is self.transformer.h[-1] else T  # no later layer needs the other tokens
            x = block(x, positions, window, cache, needed)
        if cache is not None:
            cache.pos = start + T
        return self.transformer.ln_f(x)

    def forward(self, idx, targets=None, cache=None):
        """With targets (B, T): logits (B, T, V), or None where they are more than LOGITS, and their mean loss in nats
        per token. Without: the logits of the last position (B, 1, V), and None."""
        if targets is None:
            return self.lm_head(self.hidden(idx, cache, last=1)), None
        hidden = self.hidden(idx, cache)
        if targets.numel() * self.config.vocab_size > LOGITS:
            parts = hidden.flatten(0, 1), self.lm_head.weight, targets.flatten()
            return None, LossInParts.apply(*parts, torch.is_grad_enabled())
        logits = self.lm_head(hidden)
        return logits, F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    @torch.no_grad()
    def stream(
        self, idx, max_new_tokens, temperature=1.0, top_k=0, top_p=1.0, generator=None, n_vocab=None, num_samples=1
    ):
        """Yields the next token of num_samples continuations of every row of idx (B, T), as (B·num_samples,),
        max_new_tokens times. The prompt is read once for all of a row's samples. Draws only ids below n_vocab; the
        others pad the vocabulary. Past max_positions, each token sees the last max_positions tokens, as in nanoGPT."""
        cache, new, limit = KVCache(), idx, self.config.max_positions
        for n in range(max_new_tokens):
            if limit is not None and cache.pos + new.size(1) > limit:
                cache, new = KVCache(), idx[:, -limit:]
            logits = self(new, cache=cache)[0][:, -1, :n_vocab].float()
            if n == 0:
                logits, idx = (t.repeat_interleave(num_samples, 0) for t in (logits, idx))
                cache.repeat(num_samples)
            new = draw(logits, temperature, top_k, top_p, generator)
            yield new[:, 0]
            if limit is not None:
                idx = torch.cat((idx, new), dim=1)

    def generate(self, idx, max_new_tokens, num_samples=1, **sampling):
        """Every row of idx (B, T), num_samples times, followed by what `stream` yields: (B·num_samples, T + new)."""
        tokens = self.stream(idx, max_new_tokens, num_samples=num_samples, **sampling)
        return torch.cat([idx.repeat_interleave(num_samples, 0), *(new[:, None] for new in tokens)], dim=1)


def draw(logits, temperature, top_k, top_p, generator=None):
    """Draws one id (B, 1) per row of logits (B, V). temperature 0: the likeliest. top_k > 0: among the k likeliest.
    top_p < 1: among the likeliest that together reach probability top_p (Holtzman et al. 2020, arXiv 1904.09751)."""
    if temperature == 0:
        return logits.argmax(dim=-1, keepdim=True)
    logits, ids = (logits / temperature).sort(dim=-1, descending=True)
    if top_k:
        logits[:, top_k:] = -torch.inf
    probs = logits.softmax(dim=-1)
    before = probs.cumsum(dim=-1) - probs  # the probability of what is likelier
    probs = probs.masked_fill(before >= top_p, 0)
    return ids.gather(1, torch.multinomial(probs, 1, generator=generator))
