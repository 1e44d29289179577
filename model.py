"""
A GPT decoder whose position scheme is a flag: GPTConfig(pos_scheme="rope").

Position enters a transformer in three places only: the residual stream, the queries and keys, and the
attention scores. A scheme is one class with a hook for each; everything else in this file is GPT-2 as
nanoGPT writes it, with the same state-dict keys, and does not know which scheme it runs.

Two laws keep it whole:
1. Positions, never lengths: the hooks are given the positions of the queries and of the keys, so training,
   prefill, decoding and long evaluation are one path.
2. No position buffers: what depends on positions alone is computed from them in every forward, in float32 or
   better. A checkpoint holds only what was learned.

Shapes: B batch, T new tokens, S all visible tokens (S = T without a cache), C = n_embd, H heads, D = C/H.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

INIT_STD = 0.02  # GPT-2's, for every matrix and embedding
QUERY_BLOCK = 256  # queries that attend at a time where a mask is needed: it is (QUERY_BLOCK, S), never (T, S)


@dataclass(frozen=True)
class GPTConfig:
    block_size: int = 1024  # tokens of context in training
    vocab_size: int = 50304
    n_layer: int = 12
    n_head: int = 12
    n_embd: int = 768
    dropout: float = 0.0
    bias: bool = True  # biases in Linear and LayerNorm, as in GPT-2
    pos_scheme: str = "learnable"  # where position enters the model, see SCHEMES

    def __post_init__(self):
        for name in ("block_size", "vocab_size", "n_layer", "n_head", "n_embd"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout={self.dropout} must lie in [0, 1)")
        if self.n_embd % self.n_head:
            raise ValueError(f"n_embd={self.n_embd} must be a multiple of n_head={self.n_head}")
        if self.pos_scheme not in SCHEMES:
            raise ValueError(f"pos_scheme={self.pos_scheme!r} is not one of: {', '.join(SCHEMES)}")


# ----------------------------------------------------------------------------------------------------------
# Position schemes

SCHEMES = {}  # name -> class; a class enters itself by naming its flag: class RoPE(PositionScheme, name="rope")


class PositionScheme(nn.Module):
    """The hooks through which a scheme acts on the model. Each one here does nothing."""

    max_positions = None  # how many positions the scheme is defined for; None: any number
    no_decay = ()  # names of its parameters that get no weight decay

    def __init_subclass__(cls, name):
        SCHEMES[name] = cls

    def __init__(self, config):
        super().__init__()

    def init_weights(self, generator):
        """Draws its parameters from a generator of its own, so that the backbone is the same for all schemes."""
        for p in self.parameters():
            nn.init.normal_(p, std=INIT_STD, generator=generator)

    def prepare(self, q_pos, k_pos):
        """Once per forward, q_pos (T,) and k_pos (S,) int64: what `rotate` and `bias` of every layer need."""

    def embed(self, x, pos):
        """Once, on the token embeddings x (B, T, C) at pos (T,)."""
        return x

    def rotate(self, q, k, prepared):
        """Per layer, on the new tokens' q and k (B, H, T, D), before the cache. May widen both alike."""
        return q, k

    def bias(self, q, k, q_pos, k_pos, prepared, layer):
        """Per layer and block of queries: (1 or B, H, queries, keys), added to the scores after 1/sqrt(D)."""


class NoPE(PositionScheme, name="none"):
    """No positional encoding: order is known from the causal mask alone. Haviv et al. 2022 (arXiv 2203.16634),
    Kazemnejad et al. 2023 (arXiv 2305.19466)."""


def angles(pos, dim):
    """p·10000^(-2i/dim) for p in pos (T,) and i < dim/2: (T, dim/2) radians, in float64 where the device has it.
    A low i turns fast, a high i slowly."""
    dtype = torch.float32 if pos.device.type == "mps" else torch.float64
    i = torch.arange(dim // 2, device=pos.device, dtype=dtype)
    return pos.to(dtype)[:, None] * 10000.0 ** (-2 * i / dim)


class Sinusoidal(PositionScheme, name="sinusoidal"):
    """Vaswani et al. 2017 (arXiv 1706.03762): PE(p, 2i) = sin(p/10000^(2i/C)), PE(p, 2i+1) = cos(same), added
    to the token embedding and defined for every p.

    Deviation: the table is scaled to the embeddings' size. Sines have RMS 1/sqrt(2), GPT-2's embeddings 0.02,
    and at full size the sines drown the tokens. (Vaswani scales the embedding by sqrt(C) instead.)
    """

    amplitude = INIT_STD * math.sqrt(2)

    def __init__(self, config):
        super().__init__(config)
        if config.n_embd % 2:
            raise ValueError(f"n_embd={config.n_embd} must be even: sinusoidal pairs its channels")

    def embed(self, x, pos):
        a = angles(pos, x.size(-1))
        table = torch.stack((a.sin(), a.cos()), dim=-1).flatten(-2)  # (T, C), interleaved
        return x + self.amplitude * table.to(x.dtype)


class Learnable(PositionScheme, name="learnable"):
    """GPT-2's (Radford et al. 2019): a learned vector per position, added to the token embedding. There is no
    vector past block_size, so the scheme is undefined there."""

    def __init__(self, config):
        super().__init__(config)
        self.max_positions = config.block_size
        self.wpe = nn.Embedding(config.block_size, config.n_embd)

    def embed(self, x, pos):
        return x + self.wpe(pos)


def precompute_freqs_cis(pos, head_size):
    """e^(i·p·θ_j), θ_j = 10000^(-2j/D): (T, D/2) complex64."""
    a = angles(pos, head_size)
    return torch.polar(torch.ones_like(a), a).to(torch.complex64)


def apply_rotary_emb(q, k, freqs_cis):
    """Turns the channel pairs (2j, 2j+1) of q and k (B, H, T, D), read as complex numbers, by freqs_cis."""

    def turn(x):
        wide = x.to(torch.promote_types(x.dtype, torch.float32))  # complex numbers have no bfloat16
        pairs = torch.view_as_complex(wide.unflatten(-1, (-1, 2)))  # (B, H, T, D/2)
        return torch.view_as_real(pairs * freqs_cis).flatten(-2).to(x.dtype)

    return turn(q), turn(k)


class RoPE(PositionScheme, name="rope"):
    """Su et al. 2021 (arXiv 2104.09864), in LLaMA's complex form: q and k are turned by angles proportional to
    their positions, so that q_i·k_j depends on the positions through i−j alone."""

    def __init__(self, config):
        super().__init__(config)
        self.head_size = config.n_embd // config.n_head
        if self.head_size % 2:
            raise ValueError(
                f"the head size n_embd/n_head = {config.n_embd}/{config.n_head} = {self.head_size} must be even: "
                f"rope turns pairs of channels"
            )

    def prepare(self, q_pos, k_pos):
        return precompute_freqs_cis(q_pos, self.head_size)

    def rotate(self, q, k, prepared):
        return apply_rotary_emb(q, k, prepared)


def alibi_slopes(n_head):
    """2^(-8h/H) for h = 1 … H where H is a power of two; else those of the largest power of two below H, then
    every other slope of twice that many. As in the authors' code."""
    power = 1 << (n_head.bit_length() - 1)
    slopes = [2 ** (-8 * h / power) for h in range(1, power + 1)]
    return slopes + [2 ** (-4 * h / power) for h in range(1, 2 * (n_head - power), 2)]


class ALiBi(PositionScheme, name="alibi"):
    """Press et al. 2022 (arXiv 2108.12409): scores − m_h·(i−j) for query i and key j, before the softmax and
    after 1/sqrt(D), with a fixed slope m_h per head.

    Computed without a mask, so that the flash kernel serves it: −m·i is constant within a row and drops out of
    the softmax, and m·j is a product of a query channel m·sqrt(D) and a key channel j. bfloat16 holds 8 bits, so
    j has three digits (exact below 2^24) and the slope two parts (16 bits).
    """

    def __init__(self, config):
        super().__init__(config)
        self.head_size = config.n_embd // config.n_head
        self.slopes = alibi_slopes(config.n_head)

    def prepare(self, q_pos, k_pos):
        pad = -(self.head_size + 6) % 8  # kernels want a width that is a multiple of 8
        m = torch.tensor(self.slopes, device=q_pos.device) * math.sqrt(self.head_size)
        high = m.to(torch.bfloat16).float()
        q_channels = torch.stack([high] * 3 + [m - high] * 3, dim=-1)[None, :, None]  # (1, H, 1, 6)
        digits = [q_pos // 65536 * 65536, q_pos // 256 % 256 * 256, q_pos % 256]
        k_channels = torch.stack(digits * 2, dim=-1).float()  # (T, 6)
        return F.pad(q_channels, (0, pad)), F.pad(k_channels, (0, pad))

    def rotate(self, q, k, prepared):
        q_channels, k_channels = (c.to(q.dtype).expand(*q.shape[:3], -1) for c in prepared)
        return torch.cat((q, q_channels), dim=-1), torch.cat((k, k_channels), dim=-1)


# ----------------------------------------------------------------------------------------------------------
# The model


class KVCache:
    """The keys and values of every layer so far, as `rotate` left them, and `pos`, the number of tokens seen.
    Hand the same one to successive forwards: tokens in chunks of any size give the logits of one forward."""

    def __init__(self):
        self.pos = 0
        self.stores = {}  # (layer, 0 for keys or 1 for values) -> (B, H, capacity, width)

    def append(self, layer, k, v):
        """Adds the new k and v (B, H, T, ·) of a layer; returns all of them, (B, H, pos + T, ·)."""
        return self._append((layer, 0), k), self._append((layer, 1), v)

    def _append(self, key, new):
        end = self.pos + new.size(2)
        old = self.stores.get(key)
        if old is None or old.size(2) < end:  # room for twice as many, so that appending costs O(1) a token
            self.stores[key] = new.new_empty(*new.shape[:2], 2 * end, new.size(3))
            if old is not None:
                self.stores[key][:, :, : self.pos] = old[:, :, : self.pos]
        self.stores[key][:, :, self.pos : end] = new
        return self.stores[key][:, :, :end]


def attend(q, k, v, q_pos, k_pos, scheme, prepared, layer, dropout_p):
    """Causal attention of q (B, H, T, W) over k (B, H, S, W) and v (B, H, S, D): (B, H, T, D).

    W is D, or more where the scheme widened q and k. Without a bias and without a cache this is one flash
    call. Else blocks of queries attend one after the other, each with the mask and bias of that block only,
    so that no (T, S) tensor exists.
    """
    T, S, D = q.size(2), k.size(2), v.size(3)
    if q.size(3) > D:
        v = F.pad(v, (0, q.size(3) - D))  # flash kernels want equal widths
    scale = 1 / math.sqrt(D)
    biased = type(scheme).bias is not PositionScheme.bias
    if not biased and T in (1, S):  # a single query sees every key
        y = F.scaled_dot_product_attention(q, k, v, is_causal=T > 1, scale=scale, dropout_p=dropout_p)
    else:
        blocks = []
        for start in range(0, T, QUERY_BLOCK):
            end = min(T, start + QUERY_BLOCK)
            seen = slice(S - T + end)  # the keys up to the block's last query
            queries, pos = q[:, :, start:end], q_pos[start:end]
            mask = (pos[:, None] >= k_pos[seen])[None, None]  # four dimensions keep the fast kernel
            if biased:
                bias = scheme.bias(queries, k[:, :, seen], pos, k_pos[seen], prepared, layer)
                mask = bias.masked_fill(~mask, -torch.inf).to(q.dtype)
            y = F.scaled_dot_product_attention(queries, k[:, :, seen], v[:, :, seen], mask, dropout_p, scale=scale)
            blocks.append(y)
        y = torch.cat(blocks, dim=2)
    return y[..., :D]


class CausalSelfAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.n_head = config.n_head
        self.dropout = config.dropout
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd, bias=config.bias)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)
        self.resid_dropout = nn.Dropout(config.dropout)

    def forward(self, x, scheme, prepared, q_pos, k_pos, layer, cache):
        q, k, v = (  # each (B, T, C) -> (B, H, T, D)
            t.unflatten(-1, (self.n_head, -1)).transpose(1, 2) for t in self.c_attn(x).chunk(3, dim=-1)
        )
        q, k = scheme.rotate(q, k, prepared)
        if cache is not None:
            k, v = cache.append(layer, k, v)
        y = attend(q, k, v, q_pos, k_pos, scheme, prepared, layer, self.dropout if self.training else 0.0)
        y = y.transpose(1, 2).flatten(-2)  # (B, T, C)
        return self.resid_dropout(self.c_proj(y))


class MLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.c_fc = nn.Linear(config.n_embd, 4 * config.n_embd, bias=config.bias)
        self.c_proj = nn.Linear(4 * config.n_embd, config.n_embd, bias=config.bias)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x):
        return self.dropout(self.c_proj(F.gelu(self.c_fc(x))))


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.n_embd, bias=config.bias)
        self.attn = CausalSelfAttention(config)
        self.ln_2 = nn.LayerNorm(config.n_embd, bias=config.bias)
        self.mlp = MLP(config)

    def forward(self, x, *position):
        x = x + self.attn(self.ln_1(x), *position)
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    """GPT-2's decoder. The same `seed` gives bit-identical shared weights whatever the position scheme."""

    def __init__(self, config, seed=1337):
        super().__init__()
        self.config = config
        self.transformer = nn.ModuleDict(
            dict(
                wte=nn.Embedding(config.vocab_size, config.n_embd),
                drop=nn.Dropout(config.dropout),
                h=nn.ModuleList(Block(config) for _ in range(config.n_layer)),
                ln_f=nn.LayerNorm(config.n_embd, bias=config.bias),
            )
        )
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.lm_head.weight = self.transformer.wte.weight
        generator = torch.Generator().manual_seed(seed)
        for name, p in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(p)
            elif p.dim() == 2:  # residual projections are scaled down by the number of additions, as in GPT-2
                residual = name.endswith("c_proj.weight")
                std = INIT_STD / math.sqrt(2 * config.n_layer) if residual else INIT_STD
                nn.init.normal_(p, std=std, generator=generator)
        self.pos = SCHEMES[config.pos_scheme](config)
        self.pos.init_weights(
            torch.Generator().manual_seed(seed + 1)
        )  # the backbone's draws again would be its weights

    def hidden(self, idx, cache=None):
        """Final hidden states (B, T, C) of the tokens idx (B, T), which follow those already in the cache, so
        that a caller scores only the positions it needs. ValueError past the scheme's max_positions."""
        start = cache.pos if cache is not None else 0
        end = start + idx.size(1)
        if self.pos.max_positions is not None and end > self.pos.max_positions:
            raise ValueError(
                f"{self.config.pos_scheme} positions are defined for {self.pos.max_positions} tokens, not for {end}"
            )
        k_pos = torch.arange(end, device=idx.device)
        q_pos = k_pos[start:]
        prepared = self.pos.prepare(q_pos, k_pos)
        x = self.transformer.drop(self.pos.embed(self.transformer.wte(idx), q_pos))
        for layer, block in enumerate(self.transformer.h):
            x = block(x, self.pos, prepared, q_pos, k_pos, layer, cache)
        if cache is not None:
            cache.pos = end
        return self.transformer.ln_f(x)

    def forward(self, idx, targets=None, cache=None):
        """With targets (B, T): logits (B, T, V) and their mean loss in nats per token. Without: the last
        position's logits (B, 1, V) and None."""
        x = self.hidden(idx, cache)
        if targets is None:
            return self.lm_head(x[:, -1:]), None
        logits = self.lm_head(x)
        return logits, F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    def configure_optimizer(self, weight_decay, learning_rate, betas):
        """AdamW; matrices and embeddings decay, biases, norms and what the scheme exempts do not."""
        exempt = {f"pos.{name}" for name in self.pos.no_decay}
        params = list(self.named_parameters())
        decay = [p for name, p in params if p.dim() >= 2 and name not in exempt]
        no_decay = [p for name, p in params if p.dim() < 2 or name in exempt]
        groups = [dict(params=decay, weight_decay=weight_decay), dict(params=no_decay, weight_decay=0.0)]
        return torch.optim.AdamW(groups, lr=learning_rate, betas=betas, fused=True)

    @torch.no_grad()
    def stream(self, idx, max_new_tokens, temperature=1.0, top_k=0, top_p=1.0, generator=None, n_vocab=None):
        """Yields max_new_tokens times the next token of every row of idx (B, T), as (B,). Ids from n_vocab on,
        which only pad the vocabulary, are never drawn. Where the scheme's positions end, each further token sees
        the last max_positions tokens, as in nanoGPT."""
        cache, new, limit = KVCache(), idx, self.pos.max_positions
        for _ in range(max_new_tokens):
            if limit is not None and cache.pos + new.size(1) > limit:
                cache, new = KVCache(), idx[:, -limit:]
            logits = self(new, cache=cache)[0][:, -1, :n_vocab].float()
            new = draw(logits, temperature, top_k, top_p, generator)
            yield new[:, 0]
            if limit is not None:
                idx = torch.cat((idx, new), dim=1)

    def generate(self, idx, max_new_tokens, **sampling):
        """idx (B, T) and what `stream` yields after it: (B, T + max_new_tokens)."""
        return torch.cat([idx, *(new[:, None] for new in self.stream(idx, max_new_tokens, **sampling))], dim=1)


def draw(logits, temperature, top_k, top_p, generator=None):
    """One id (B, 1) from each row of logits (B, V). temperature 0: the likeliest. top_k > 0: among the k likeliest.
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
