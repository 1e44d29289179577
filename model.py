"""A GPT decoder whose position scheme is a flag: GPTConfig(pos_scheme="rope").

Position enters a transformer in three places only: the residual stream, the queries and keys, and the attention
scores. A scheme is one class with a hook for each place. The rest is GPT-2 as nanoGPT writes it, with the same
state-dict keys; it asks a scheme only whether it adds a bias. In this file: the transformer, the paths of attention
and the cache, sampling, the schemes, the settings. Further schemes are files in schemes/.

Two laws keep it simple:
1. Positions, never lengths: a scheme computes from the positions of the queries and of the keys. So training,
   prefill, decoding and long evaluation share one path.
2. No position buffers: whatever depends on positions alone is computed from them in every forward pass, in float32 or
   better. The state dict holds only what was learned.

Shapes: B batch, T new tokens, S all visible tokens (S = T without a cache), C = n_embd, H heads, D = C/H,
V = vocab_size. `1 or B`: the dimension is broadcast.
"""

import importlib
import math
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
import torch.nn as nn
import torch.nn.functional as F

from config import Count, Share, at_least, check_values, read_layers, read_options

INIT_STD = 0.02  # GPT-2's standard deviation for matrices and embeddings
MAX_LOGITS = 2**23  # above this many logits, the loss is computed without keeping them
CPU_ROWS = 256  # of logits at a time in such a loss on a CPU, so that they fit into its cache
QUERY_BLOCK = 128  # with a mask, at most this many queries attend at a time, so that no (T, S) mask exists


# ----------------------------------------------------------------------------------------------------------
# The transformer. A LayerContext, below, is what a layer knows besides x: its .config and .scheme, what the scheme has
# .prepared from the positions, and where queries and keys stand, .q_pos (T,) and .k_pos (S,).


class CausalSelfAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.sink = nn.Parameter(torch.empty(config.n_head)) if config.sink else None
        self.c_attn = Linear(config.n_embd, 3 * config.n_embd, bias=config.bias)
        self.c_proj = Linear(config.n_embd, config.n_embd, bias=config.bias)
        self.resid_dropout = nn.Dropout(config.dropout)

    def project(self, x, context, past):
        """The queries, keys and values of x (B, T, C): each (B, H, T, ·)."""
        qkv = self.c_attn(x).unflatten(-1, (3, context.config.n_head, -1))  # (B, T, 3, H, D)
        q, k, v = [part.transpose(1, 2) for part in qkv.unbind(2)]  # each (B, H, T, D); the gradient is copied once
        if context.config.qk_norm:
            q = F.rms_norm(q, q.shape[-1:])
            k = F.rms_norm(k, k.shape[-1:])
        q, k = context.scheme.rotate(q, k, x, context.prepared, context.layer, past)
        return q, k, v

    def forward(self, x, context, cache=None):
        """x (B, T, C) -> (B, n, C): the last n tokens, one for each query in `context`."""
        past = cache.past[context.layer] if cache else {}
        q, k, v = self.project(x, context, past)
        if cache:
            k = cache.append(context, "k", k)  # (B, H, S, ·)
            v = cache.append(context, "v", v)  # (B, H, S, D)
            context = context.part(slice(None), slice(-k.size(2), None))  # the keys in this layer's window
        q = q[:, :, -len(context.q_pos) :]  # all, or only the last: see GPT.hidden
        dropout_p = context.config.dropout if self.training else 0.0
        y = attend(q, k, v, context, dropout_p, self.sink).transpose(1, 2).flatten(-2)  # (B, n, C)
        return self.resid_dropout(self.c_proj(y))


class MLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.c_fc = Linear(config.n_embd, 4 * config.n_embd, bias=config.bias)
        self.c_proj = Linear(4 * config.n_embd, config.n_embd, bias=config.bias)
        self.gelu = nn.GELU("tanh" if config.gelu_tanh else "none")
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x):
        x = self.c_fc(x)
        x = self.gelu(x)
        x = self.c_proj(x)
        return self.dropout(x)


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.n_embd, bias=config.bias)
        self.attn = CausalSelfAttention(config)
        self.ln_2 = nn.LayerNorm(config.n_embd, bias=config.bias)
        self.mlp = MLP(config)

    def forward(self, x, context, cache=None):
        """x (B, T, C) -> (B, n, C): the tokens that `context` has queries for. n is T, except in `GPT.hidden`."""
        first = x.size(1) - len(context.q_pos)  # mostly 0: unlike x[:, -n:], the slice then copies no gradient
        x = x[:, first:] + self.attn(self.ln_1(x), context, cache)
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    """GPT-2's decoder. Models with the same seed have bit-identical shared weights, whatever the position scheme. With
    seed=None the weights are undefined until they are loaded."""

    def __init__(self, config, seed=1337):
        super().__init__()
        self.transformer = nn.ModuleDict(
            dict(
                wte=Embedding(config.vocab_size, config.n_embd),
                drop=nn.Dropout(config.dropout),
                h=nn.ModuleList([Block(kind) for kind in config.kinds]),  # kinds: the GPTConfig of each layer
                ln_f=nn.LayerNorm(config.n_embd, bias=config.bias),
            )
        )
        self.lm_head = Linear(config.n_embd, config.vocab_size, bias=False)
        self.lm_head.weight = self.transformer.wte.weight
        self.make_schemes(config, [None] * (config.n_layer + 1))  # nothing is trained yet
        if seed is not None:
            self.init_weights(torch.Generator().manual_seed(seed))
            for n, scheme in enumerate((self.pos, *self.pos_kinds), 1):
                # a different seed: with the same one, wpe would start as a copy of wte
                scheme.init_weights(torch.Generator().manual_seed(seed + n))

    def make_schemes(self, config, trained):
        """Sets self.schemes[n], the scheme of layer n: layers with equal settings share one, if they shared a trained
        one. self.pos (the model's) and self.pos_kinds (the others) register each once. trained: the schemes, of the
        model and of each layer, whose weights they take; None: new ones. ValueError if the weights do not fit."""
        schemes = {}
        used = []  # by the model and by each layer
        for c, old in zip((config, *config.kinds), trained, strict=True):
            key = old, c.scheme_settings  # layers with equal keys share one scheme
            if key not in schemes:
                schemes[key] = c.scheme_class(c)
                try:
                    if old:
                        schemes[key].load_state_dict(old.state_dict(), assign=True)
                except RuntimeError:
                    raise ValueError(
                        f"layers={config.layers!r}: the weights of {old.config.pos_scheme} do not fit {c.pos_scheme}"
                    ) from None
            used.append(schemes[key])
        self.config = config
        self.pos, *others = schemes.values()
        self.pos_kinds = nn.ModuleList(others)
        self.schemes = used[1:]

    def init_weights(self, generator):
        """Draws the shared weights as GPT-2 does: the more layers, the smaller the residual projections."""
        for name, p in self.transformer.named_parameters():
            std = INIT_STD
            if name.endswith("c_proj.weight"):
                std /= math.sqrt(2 * self.config.n_layer)
            if p.dim() == 2:
                nn.init.normal_(p, std=std, generator=generator)
            elif name.endswith(("bias", "sink")):
                nn.init.zeros_(p)

    @classmethod
    def from_weights(cls, config, weights):
        """The model with these weights (a state dict), without copying them. RuntimeError if they do not fit."""
        model = cls(config, seed=None)
        model.load_state_dict(dict(weights), assign=True)  # a copy of the dict: assign=True would leave a mark in it
        model.lm_head.weight = model.transformer.wte.weight
        return model

    def override(self, config):
        """Changes windows, temperatures or the schemes' settings in place. Each layer keeps its weights, also if layers
        become alike. Returns the model. ValueError if the weights do not fit."""
        self.make_schemes(config, (self.pos, *self.schemes))
        return self.to(self.lm_head.weight.device)

    def enter(self, idx, start=0, positions=None):
        """Embeds the tokens idx (B, T). They stand at `start`, start + 1, … or at `positions` (T,), which must ascend.
        Returns x (B, T, C) and a list with the LayerContext of each block. ValueError as from `check_positions`."""
        c = self.config
        T = idx.size(1)
        c.check_positions(start + T, with_gaps=positions is not None)

        # where the tokens and all visible keys stand
        if positions is None:
            first = max(0, start + 1 - max(kind.n_keys for kind in c.kinds))  # the first key that any layer sees
            positions = torch.arange(first, start + T, device=idx.device)
        k_pos = positions.to(idx.device)
        q_pos = k_pos[-T:]

        # what each layer needs of them
        prepared = {scheme: scheme.prepare(q_pos, k_pos) for scheme in (self.pos, *self.pos_kinds)}
        contexts = [
            LayerContext(n, c.kinds[n], scheme, prepared[scheme], q_pos, k_pos) for n, scheme in enumerate(self.schemes)
        ]

        # the residual stream
        x = self.pos.embed(self.transformer.wte(idx), q_pos)
        return self.transformer.drop(x), contexts

    def hidden(self, idx, cache=None, last=None, positions=None):
        """The final hidden states (B, last, C) of the `last` tokens (None: all) of idx (B, T), which follow those in
        the cache. Without a cache, positions (T,) may have gaps but must ascend. ValueError if they do not suit."""
        x, contexts = self.enter(idx, cache.pos if cache else 0, positions)
        if last:  # the last block computes only these, which saves a quarter of an evaluation
            contexts[-1] = contexts[-1].part(slice(-last, None), slice(None))
        for n, block in enumerate(self.transformer.h):
            x = block(x, contexts[n], cache)
        if cache:
            cache.pos += idx.size(1)
        return self.transformer.ln_f(x)

    def forward(self, idx, targets=None, cache=None, positions=None):
        """With targets (B, n) of the last n positions: logits (B, n, V), or None if they are more than MAX_LOGITS, and
        the mean loss in nats per token. Without targets: the logits of the last position (B, 1, V), and None."""
        if targets is None:
            return self.lm_head(self.hidden(idx, cache, 1, positions)), None
        hidden = self.hidden(idx, cache, targets.size(1), positions)
        targets = targets.flatten()
        if len(targets) * self.config.vocab_size > MAX_LOGITS:
            return None, LargeLoss.apply(hidden.flatten(0, 1), self.lm_head.weight, targets)
        logits = self.lm_head(hidden)
        return logits, F.cross_entropy(logits.flatten(0, 1).float(), targets)

    @torch.no_grad()
    def generate(self, idx, max_new_tokens, n_vocab=None, **drawing):
        """Yields the next tokens (B,) of idx (B, T), max_new_tokens times. Only ids below n_vocab are drawn; the others
        pad the vocabulary. Past max_positions, a token sees the last max_positions tokens, as in nanoGPT."""
        limit = self.config.max_positions or math.inf
        cache = KVCache()
        new = idx
        for _ in range(max_new_tokens):
            if cache.pos + new.size(1) > limit:
                cache = KVCache()
                new = idx[:, -limit:]
            logits, _ = self(new, cache=cache)
            new = draw(logits[:, -1, :n_vocab].float(), **drawing)
            yield new[:, 0]
            idx = torch.cat((idx, new), dim=1)


class Linear(nn.Linear):
    def reset_parameters(self):
        """Leaves the weights undefined: `GPT` draws or loads them."""


class Embedding(nn.Embedding):
    def reset_parameters(self):
        """Leaves the weights undefined: `GPT` and Learnable draw or load them."""


# ----------------------------------------------------------------------------------------------------------
# Attention, the loss and sampling


@dataclass(frozen=True)
class LayerContext:
    """All that a layer's attention depends on in a forward pass, except x: its settings, and where its tokens stand."""

    layer: int
    config: "GPTConfig"  # the layer's
    scheme: "PositionScheme"
    prepared: object  # what scheme.prepare returned
    q_pos: torch.Tensor  # (queries,) int64
    k_pos: torch.Tensor  # (keys,) int64, ascending; the queries' are the last of them

    def part(self, queries, keys):
        """The same for a slice of the queries and a slice of the keys; `prepared` is not sliced."""
        return replace(self, q_pos=self.q_pos[queries], k_pos=self.k_pos[keys])

    def tempered(self, x):
        """x (…, queries, ·), with each query's row times its temperature, which is 1 within the training length."""
        if not self.config.temperature:
            return x
        growth = (1 + self.q_pos // self.config.first_length).log()[:, None]
        return x * (1 + self.config.temperature * growth).to(x.dtype)

    def mask(self, q, k):
        """What attention adds to the scores: (1 or B, 1 or H, queries, keys). A query sees itself and the `window` − 1
        keys before it; that counts keys, so positions may have gaps."""
        keys = torch.arange(len(self.k_pos), device=self.k_pos.device)
        queries = keys[-len(self.q_pos) :, None]
        visible = (keys <= queries) & (keys > queries - self.config.n_keys)
        mask = torch.where(visible, 0.0, -torch.inf)[None, None]  # the fast kernels need four dimensions
        if self.scheme.biases:
            mask = mask + self.bias(q, k)
        return mask.to(q.dtype)

    def bias(self, q, k):
        """What the scheme adds to the scores: (1 or B, 1 or H, queries, keys)."""
        return self.tempered(self.scheme.bias(q, k, self.q_pos, self.k_pos, self.prepared, self.layer))


def attend(q, k, v, context, dropout_p, sink=None):
    """Causal attention of q (B, H, T, W) over k (B, H, S, W) and v (B, H, S, D), under the window, the temperature and
    the bias of `context`, with the heads' sinks (H,) if there are any. Returns (B, H, T, D). W is D, or more if the
    scheme added channels to q and k.

    If no mask or bias is needed, this is one flash call. Otherwise blocks of queries attend one after another, each to
    the keys it can see, with the mask and bias of that block only. So no (T, S) tensor exists, and the cost of a window
    is T·window.
    """
    T = q.size(2)
    S = k.size(2)
    if not context.scheme.biases and T in (1, S) and S <= context.config.n_keys:  # a single query sees every key
        return average(context.tempered(q), k, v, None, dropout_p, sink)

    outputs = []
    offset = S - T  # keys before the first query
    size = min(QUERY_BLOCK, (T + 1) // 2)  # at least two blocks: half of the queries cannot see half of the keys
    for start in reversed(range(0, T, size)):  # the last block first: the others fit into its buffers
        end = start + size
        block = slice(start, end)
        first = max(0, offset + start - context.config.n_keys + 1)
        seen = slice(first, offset + end)  # the keys that this block can see
        queries = q[:, :, block]
        keys = k[:, :, seen]
        part = context.part(block, seen)
        mask = part.mask(queries, keys)
        outputs.append(average(part.tempered(queries), keys, v[:, :, seen], mask, dropout_p, sink))
    return torch.cat(outputs[::-1], dim=2)


def average(q, k, v, mask, dropout_p, sink):
    """The average of the values v (B, H, K, D) for each query, the softmax of its scores as weights: (B, H, Q, D).
    Without a mask (1 or B, 1 or H, Q, K), attention is causal, but a single query sees every key.

    A sink is a key before all others, whose value is 0. One more channel makes its score: the sink's score in q, 1 in
    the sink's key, 0 in the others. So every kernel can have one."""
    Q = q.size(2)
    D = v.size(3)
    scale = 1 / math.sqrt(D)
    if sink is not None:
        channel = q.size(3)
        front = (0, 0, 1, 0)
        q = widen(q, sink[:, None, None] / scale)
        k = F.pad(k, (0, q.size(3) - channel, 1, 0))
        k[:, :, 0, channel] = 1
        v = F.pad(v, front)
        if mask is None:
            q = F.pad(q, front)  # the sink's own query, so that the others see it
        else:
            mask = F.pad(mask, (1, 0))

    if mask is not None and mask.requires_grad and not mask.is_cuda:  # only CUDA's kernels have its gradient
        scores = (q * scale @ k.mT).add_(mask)
        weights = F.dropout(scores.softmax(dim=-1), dropout_p)
        return weights @ v
    if q.size(3) > D:
        v = F.pad(v, (0, q.size(3) - D))  # flash kernels need equal widths
    is_causal = mask is None and Q > 1
    y = F.scaled_dot_product_attention(q, k, v, mask, dropout_p, is_causal, scale=scale)
    return y[:, :, y.size(2) - Q :, :D]


class LargeLoss(torch.autograd.Function):
    """Mean cross-entropy, in nats, of the logits hidden (N, C) @ weight.T (V, C) for the targets (N,). The forward pass
    computes the gradient as well, so that no logits wait for the backward pass. (F.linear_cross_entropy ignores
    autocast, and cannot be compiled.)"""

    @staticmethod
    def forward(ctx, hidden, weight, targets):
        rows = CPU_ROWS if hidden.is_cpu else len(hidden)
        ids = torch.arange(len(weight), device=targets.device)
        loss = 0.0
        grad_hidden = []
        grad_weight = 0.0
        for x, y in zip(hidden.split(rows), targets.split(rows), strict=True):
            logits = F.linear(x, weight)
            log_probs = logits.float().log_softmax(dim=-1)
            loss += F.nll_loss(log_probs, y, reduction="sum")
            if ctx.needs_input_grad[0]:
                grad = (log_probs.exp_() - (ids == y[:, None]).float()).to(logits.dtype)
                grad_hidden.append(grad @ weight)
                grad_weight += (grad.T @ x).float()
        if grad_hidden:
            ctx.save_for_backward(torch.cat(grad_hidden), grad_weight)
        return loss / len(hidden)

    @staticmethod
    def backward(ctx, scale):
        grad_hidden, grad_weight = ctx.saved_tensors
        scale = scale / len(grad_hidden)
        return scale * grad_hidden, scale * grad_weight, None


class KVCache:
    """The rotated keys and the values of all layers, and `pos`, the number of tokens seen. Pass the same cache to
    successive forward passes: chunks of any size give the same logits as a single pass."""

    def __init__(self):
        self.pos = 0
        self.buffers = {}  # (layer, "k" or "v") -> (buffer (B, H, capacity, ·), end of its used part)
        self.past = defaultdict(dict)  # layer -> what its scheme keeps

    def append(self, context, name, new):
        """Adds a layer's new keys or values (B, H, T, ·). Returns them and, of the older ones, those that the first
        new token sees through its window: (B, H, S, ·)."""
        T = new.size(2)
        key = context.layer, name
        buffer, end = self.buffers.get(key, (new[:, :, :0], 0))
        n_older = min(end, context.config.n_keys - 1)
        if end + T > buffer.size(2):  # room for twice as many, so that appending costs O(1) a token
            buffer = F.pad(buffer[:, :, end - n_older : end], (0, 0, 0, n_older + 2 * T))
            end = n_older
        buffer[:, :, end : end + T] = new
        self.buffers[key] = buffer, end + T
        return buffer[:, :, end - n_older : end + T]


def draw(logits, temperature=1.0, top_k=0, top_p=1.0, generator=None):
    """Draws one id (B, 1) per row of logits (B, V). temperature 0 takes the likeliest. top_k > 0 draws from the k
    likeliest. top_p < 1 draws from the fewest likeliest ids whose probabilities add up to top_p (Holtzman et al. 2020,
    arXiv 1904.09751)."""
    if temperature < 1e-30:  # the division could overflow
        return logits.argmax(dim=-1, keepdim=True)
    logits = logits / temperature
    logits, ids = logits.sort(dim=-1, descending=True)
    if top_k:
        logits[:, top_k:] = -torch.inf
    probs = logits.softmax(dim=-1)
    before = probs.cumsum(dim=-1) - probs  # the probability of all likelier ids
    probs = probs.masked_fill(before >= top_p, 0)
    drawn = torch.multinomial(probs, 1, generator=generator)
    return ids.gather(1, drawn)


# ----------------------------------------------------------------------------------------------------------
# Position schemes

SCHEMES = {}  # name -> class; a subclass registers itself: class RoPE(PositionScheme, name="rope")


def scheme_names():
    """The names of all schemes: those of this file, then the files of schemes/, without importing them."""
    files = Path(__file__).with_name("schemes").glob("[!_]*.py")
    return [*CORE, *sorted(path.stem for path in files)]


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
    """The hooks through which a scheme acts on the model. Here, each hook does nothing. A fixed table that `__init__`
    makes is a buffer with persistent=False, or an nn.Parameter with requires_grad=False."""

    reads = ()  # the fields of GPTConfig that the scheme reads and other schemes may not
    options = {}  # a further scheme's settings and their defaults, set as pos_options="name=value,…"
    no_decay = ()  # names of its parameters that get no weight decay
    limited = False  # is it undefined past block_size?
    gaps = True  # may there be gaps between positions?
    shifted = False  # are its scores right up to a constant per query? A softmax ignores it, but not with a sink

    def __init_subclass__(cls, name):
        SCHEMES[name] = cls
        cls.embeds = cls.embed is not PositionScheme.embed
        cls.biases = cls.bias is not PositionScheme.bias

    def __init__(self, config):
        super().__init__()
        self.config = config

    @staticmethod
    def check(config):
        """Called by every new GPTConfig: ValueError if the scheme cannot run with it."""

    def init_weights(self, generator):
        """Draws the scheme's parameters. It has its own generator, so that all schemes share the same backbone. A table
        that needs no gradient stays as it was made."""
        for p in self.parameters():
            if p.requires_grad:
                nn.init.normal_(p, std=self.config.pos_init, generator=generator)

    def start_from(self, config):
        """Called after the scheme's parameters were copied from a run with this config."""

    def prepare(self, q_pos, k_pos):
        """Once per forward pass, with q_pos (T,) and k_pos (S,) int64: what `rotate` and `bias` of all layers need."""

    def embed(self, x, pos):
        """Once, on the token embeddings x (B, T, C) at positions pos (T,)."""
        return x

    def rotate(self, q, k, x, prepared, layer, past):
        """Per layer, on q and k (B, H, T, D) of the new tokens, before the cache. May add channels to both.
        x (B, T, C): the layer's input. past: a dict that the scheme may fill for the next chunk (when decoding)."""
        return q, k

    def bias(self, q, k, q_pos, k_pos, prepared, layer):
        """Per layer and block of queries: (1 or B, 1 or H, queries, keys), added to the scores after 1/sqrt(D)."""


class NoPE(PositionScheme, name="none"):
    """No position encoding: only the causal mask tells the model about order. Haviv et al. 2022 (arXiv 2203.16634),
    Kazemnejad et al. 2023 (arXiv 2305.19466)."""


def frequencies(dim, device, theta=10000.0):
    """θ_i = theta^(-2i/dim) for i < dim/2, in float64 if the device supports it. Low i turn fast, high i slowly."""
    dtype = torch.float32 if device.type == "mps" else torch.float64
    i = torch.arange(dim // 2, device=device, dtype=dtype)
    return theta ** (-2 * i / dim)


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
        freqs = frequencies(x.size(-1), pos.device)
        angles = pos[:, None] * freqs  # (T, C/2)
        table = torch.stack((angles.sin(), angles.cos()), dim=-1)
        table = table.flatten(-2).to(x.dtype)  # (T, C), interleaved
        return x + self.config.sinusoidal_size * math.sqrt(2) * table


class Learnable(PositionScheme, name="learnable"):
    """Radford et al. 2019 (GPT-2): a learned vector per position, added to the token embedding. There are no vectors
    past block_size, so the scheme is undefined there."""

    limited = True

    def __init__(self, config):
        super().__init__(config)
        self.wpe = Embedding(config.block_size, config.n_embd)

    def embed(self, x, pos):
        return x + self.wpe(pos)


def rope_frequencies(config, device):
    """RoPE's frequencies (D/2,) under config.rope_scaling, and the factor on q and on k, which is 1 without scaling:
    see schemes/_rope_scaling.py.

    Only the fastest pairs turn, a share rope_fraction; the others have frequency 0. Barbero et al. 2024
    (arXiv 2410.06205).
    """
    D = config.rotated
    n_turning = int(config.rope_fraction * D / 2 + 1e-6)  # pairs
    freqs = frequencies(D, device, config.rope_theta)[:n_turning]
    freqs, size = config.rope_law(config, freqs)
    return F.pad(freqs, (0, config.head_size // 2 - n_turning)), size


def precompute_freqs_cis(pos, freqs, size=1.0):
    """size·e^(i·p·θ_j) for p in pos (T,) and θ in freqs (D/2,), as real and imaginary parts: (T, D/2, 2) float32."""
    angles = pos[:, None] * freqs
    return (size * torch.stack((angles.cos(), angles.sin()), dim=-1)).float()


def apply_rotary_emb(x, freqs_cis):
    """Reads the channel pairs (2j, 2j+1) of x (B, H, T, D) as complex numbers and multiplies them by those of
    freqs_cis (T, D/2, 2)."""
    if torch.compiler.is_compiling():
        return multiply_in_real_numbers(x, freqs_cis)
    wide = x.to(torch.promote_types(x.dtype, torch.float32))  # there are no complex bfloat16 numbers
    pairs = torch.view_as_complex(wide.unflatten(-1, (-1, 2)))  # (B, H, T, D/2)
    pairs = pairs * torch.view_as_complex(freqs_cis)
    return torch.view_as_real(pairs).flatten(-2).to(x.dtype)


def multiply_in_real_numbers(x, freqs_cis):
    """The same product for the compiler, which cannot fuse complex numbers."""
    real, imag = x.unflatten(-1, (-1, 2)).unbind(-1)  # each (B, H, T, D/2)
    cos, sin = freqs_cis.unbind(-1)
    pairs = torch.stack((real * cos - imag * sin, real * sin + imag * cos), dim=-1)
    return pairs.flatten(-2).to(x.dtype)


class RoPE(PositionScheme, name="rope"):
    """Su et al. 2021 (arXiv 2104.09864), in LLaMA's complex form: rotates q and k by angles proportional to their
    positions, so that q_i·k_j depends on positions only through i−j."""

    reads = (
        "rope_theta",
        "rope_partial",
        "rope_fraction",
        "rope_scaling",
        "rope_factor",
        "rope_block_size",
        "rope_truncate",
        "rope_size",
    )

    @staticmethod
    def check(config):
        D = config.rotated
        if config.head_size % 2 or not 2 <= D <= config.head_size:
            raise ValueError(
                f"rope turns pairs of channels, not {D} channels: rope_partial={config.rope_partial} of the head size "
                f"n_embd/n_head = {config.n_embd}/{config.n_head} = {config.head_size}"
            )
        if config.rope_scaling == "none" and config.rope_factor != 1:
            raise ValueError(f"rope_factor={config.rope_factor} does nothing without rope_scaling, such as yarn")
        if not 2 / D <= config.rope_fraction <= 1:
            raise ValueError(f"rope_fraction={config.rope_fraction} must be at most 1, and turn one of {D // 2} pairs")
        at_least(1, config, "rope_factor")
        at_least(1.001, config, "rope_theta")

    def prepare(self, q_pos, k_pos):
        freqs, size = rope_frequencies(self.config, q_pos.device)
        return precompute_freqs_cis(q_pos, freqs, size)

    def rotate(self, q, k, x, prepared, layer, past):
        q = apply_rotary_emb(q, prepared)
        k = apply_rotary_emb(k, prepared)
        return q, k


def alibi_slopes(n_head):
    """2^(-8h/H) for h = 1 … H if H is a power of two. Otherwise the slopes of the largest power of two below H, then
    every other slope of twice that many heads, as in the authors' code."""
    power = 1 << (n_head.bit_length() - 1)
    slopes = [2 ** (-8 * h / power) for h in range(1, power + 1)]
    others = [2 ** (-4 * h / power) for h in range(1, 2 * (n_head - power), 2)]
    return slopes + others


def widen(x, channels):
    """Adds channels (1 or B, 1 or H, 1 or T, n) to x (B, H, T, D)."""
    channels = channels.to(x.dtype).expand(*x.shape[:3], -1)
    x = torch.cat((x, channels), dim=-1)
    if x.is_cuda:  # its kernels need a multiple of 8 channels
        x = F.pad(x, (0, -x.size(-1) % 8))
    return x


class ALiBi(PositionScheme, name="alibi"):
    """Press et al. 2022 (arXiv 2108.12409): scores − m_h·(i−j) for query i and key j, before the softmax and
    after 1/sqrt(D), with a fixed slope m_h per head.

    Computed without a mask, so that the flash kernel can be used: −m·i is constant within a row, so it cancels in the
    softmax, and m·j is the product of a query channel m·sqrt(D) and a key channel j. bfloat16 has 8 significant bits,
    so j is split into three digits (exact below 2^24) and the slope into two parts (16 bits): six channels. In float32
    the rounding error is that of the score itself, 8e-4 at j = 65,536 for the steepest slope.

    Deviation: the options multiply all slopes by `factor`, and take them away from heads flat_from … flat_to − 1,
    counted from 0; by default, they do nothing.
    """

    options = {"factor": 1.0, "flat_from": 0, "flat_to": 0}
    shifted = True

    @staticmethod
    def check(config):
        at_least(0, config.options, "factor", "flat_from", "flat_to")

    def __init__(self, config):
        super().__init__(config)
        options = config.options
        slopes = torch.tensor(alibi_slopes(config.n_head))[:, None, None] * math.sqrt(config.head_size) * options.factor
        slopes[int(options.flat_from) : int(options.flat_to)] = 0
        high = slopes.to(torch.bfloat16).float()  # rounded here, because compiled code skips such casts
        self.slopes = slopes.tolist()  # (H, 1, 1)
        self.parts = torch.cat([high] * 3 + [slopes - high] * 3, dim=-1).tolist()  # (H, 1, 6)

    def prepare(self, q_pos, k_pos):
        """The channels of q (H, 1, n) and of k (T, n), for float32 and for 16-bit floats."""
        slopes = torch.tensor(self.slopes, device=q_pos.device)
        parts = torch.tensor(self.parts, device=q_pos.device)
        digits = [q_pos // 65536 * 65536, q_pos // 256 % 256 * 256, q_pos % 256]
        return (slopes, q_pos[:, None]), (parts, torch.stack(digits * 2, dim=-1))

    def rotate(self, q, k, x, prepared, layer, past):
        full, half = prepared
        q_channels, k_channels = half if q.dtype.itemsize < 4 else full
        return widen(q, q_channels), widen(k, k_channels)


CORE = tuple(SCHEMES)  # the schemes of this file

# ----------------------------------------------------------------------------------------------------------
# The settings, kinds of layers, and checks


RopeScaling = Literal["none", "linear", "ntk", "yarn", "llama3"]


@dataclass(frozen=True, kw_only=True)
class LayerConfig:
    # positions, which may differ from layer to layer (see layers)
    pos_scheme: str = "learnable"  # how position enters the model; an unknown name lists all schemes
    pos_options: str = ""  # options of a scheme in schemes/, such as size=32 (t5)
    window: int | float = 0  # a query sees only the last `window` keys; below 1: a share of block_size; 0: all
    sink: bool = False  # each head learns the score of a sink, which takes attention but has no value (gpt-oss)
    temperature: float = 0.0  # scores grow by this, times ln(1 + position // block_size), as in Llama 4
    rope_theta: float = 10000.0  # rope's base
    rope_partial: float = 1.0  # the share of a head's channels that rope has (rotary_pct); the others never turn
    rope_fraction: float = 1.0  # the share of rope's channel pairs that turn, the fastest of them (p-RoPE)
    rope_scaling: RopeScaling = "none"  # how rope extends past rope_block_size
    rope_factor: float = 1.0  # the context to reach, as a multiple of rope_block_size
    rope_block_size: int = 0  # the length that rope was trained at without scaling; 0: block_size
    rope_truncate: bool = True  # yarn: the ramp starts and ends at whole pairs, as in the authors' code
    rope_size: float = 0.0  # yarn: the factor on q and on k; 0: 0.1·ln(rope_factor) + 1


@dataclass(frozen=True)
class GPTConfig(LayerConfig):
    # the model
    block_size: Count = 1024  # tokens of context in training
    vocab_size: Count = 50304  # token ids
    n_layer: Count = 12  # blocks of attention and MLP
    n_head: Count = 12  # attention heads in a layer
    n_embd: Count = 768  # channels
    dropout: Share = 0.0  # share of activations that training sets to zero
    bias: bool = True  # biases in Linear and LayerNorm, as in GPT-2
    gelu_tanh: bool = False  # the tanh approximation of GELU, as in OpenAI's GPT-2; nanoGPT uses the exact GELU
    qk_norm: bool = False  # normalise each head's queries and keys to length sqrt(D), as in DroPE's paper
    layers: str = ""  # kinds of layers, repeated over the depth: "window=64 *3 | pos_scheme=none"; empty: all alike
    first_block_size: int = 0  # what shares of block_size and temperatures refer to; 0: block_size; see --init_from
    pos_init: float = INIT_STD  # initial standard deviation of the scheme's parameters
    sinusoidal_size: float = INIT_STD  # RMS of the sinusoidal table; token embeddings start at 0.02 and grow

    def __post_init__(self):
        derived = vars(self)  # attributes, no fields: they follow from the settings
        derived["scheme_class"] = find_scheme(self.pos_scheme)
        derived["options"] = read_options(self.scheme_class.options, self.pos_options)
        read = [getattr(self, name) for name in self.scheme_class.reads]
        derived["scheme_settings"] = self.pos_scheme, self.pos_options, *read  # equal in layers that share a scheme
        derived["first_length"] = self.first_block_size or self.block_size
        check_config(self)
        derived["n_keys"] = self.count_tokens("window", self.window) if self.window else math.inf  # that a query sees
        derived["rope_law"] = getattr(importlib.import_module("schemes._rope_scaling"), self.rope_scaling)
        derived["kinds"] = layer_kinds(self)  # the config of each layer
        for kind in self.kinds:  # a scheme that is made from the config of one layer also needs those of the others
            vars(kind)["kinds"] = self.kinds

    @property
    def head_size(self):
        return self.n_embd // self.n_head

    @property
    def rotated(self):
        """How many channels of a head rope has: whole pairs."""
        return 2 * int(self.rope_partial * self.head_size / 2 + 1e-6)

    def count_tokens(self, name, amount):
        """The setting's amount as a number of tokens. Below 1, it is a share of the training length."""
        if amount > 1 and amount % 1:
            raise ValueError(f"{name}={amount} must be a whole number of tokens, or a share of block_size below 1")
        return int(amount) if amount >= 1 else max(1, int(amount * self.first_length + 1e-6))

    def kind(self, settings):
        """The config of a model whose layers all have these settings. A new scheme starts with its defaults."""
        name = settings.get("pos_scheme", self.pos_scheme)
        if name != self.pos_scheme:
            scheme = find_scheme(name)
            if scheme.embeds or (self.scheme_class.embeds and scheme is NoPE):
                raise ValueError(
                    f"all layers get the embedding of pos_scheme={self.pos_scheme}: some cannot have {name}"
                )
            names = {"pos_options", *self.scheme_class.reads} - {*scheme.reads}
            settings = {name: getattr(GPTConfig, name) for name in names} | settings
        return replace(self, layers="", **settings)

    @property
    def max_positions(self):
        """How many positions the schemes are defined for; None: any number."""
        limited = any(kind.scheme_class.limited for kind in (self, *self.kinds))
        return self.block_size if limited else None

    def check_positions(self, limit, with_gaps=False):
        """ValueError unless the scheme can take the positions below `limit`; with gaps, only some of them."""
        for kind in (self, *self.kinds):
            if with_gaps and not kind.scheme_class.gaps:
                raise ValueError(f"{kind.pos_scheme} cannot take positions with gaps below {limit}")
        if limit > (self.max_positions or limit):
            raise ValueError(f"{self.pos_scheme} positions are defined for {self.block_size} tokens, not for {limit}")


def layer_kinds(config):
    """The config of each layer: `layers`, repeated over the depth. ValueError if a kind of layer is invalid."""
    if not config.layers:
        return [config] * config.n_layer
    kinds = []
    try:
        for settings, count in read_layers(LayerConfig, config.layers):
            kinds += [config.kind(settings)] * count
        if set(kinds) != set(kinds[: config.n_layer]):
            raise ValueError(f"n_layer={config.n_layer} leaves out a kind: they take {len(kinds)} layers")
    except ValueError as error:
        raise ValueError(f"layers={config.layers!r}: {error}; an example: window=64 *3 | pos_scheme=none") from None
    return (kinds * config.n_layer)[: config.n_layer]


def check_config(c):
    """ValueError for settings that are invalid or do not fit together."""
    check_values(c)
    if c.n_embd % c.n_head:
        raise ValueError(f"n_embd={c.n_embd} must be a multiple of n_head={c.n_head}")

    # the scheme and its own settings
    scheme = c.scheme_class
    reserved = {name for cls in SCHEMES.values() for name in cls.reads} - {*scheme.reads}
    for name in sorted(reserved):
        if getattr(c, name) != getattr(GPTConfig, name):
            raise ValueError(f"{name} does nothing with pos_scheme={c.pos_scheme}")
    scheme.check(c)
    if c.sink and scheme.shifted:
        raise ValueError(f"{c.pos_scheme} cannot have a sink: it computes the scores of a query up to a constant")
