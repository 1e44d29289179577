"""Each scheme against a slow float64 reference written from its paper's equation, and against published facts.

A test with the parameter `scheme` runs for every scheme in model.py and schemes/. The slow references loop over queries
and keys, and use nothing from model.py except a model's weights.
"""

import contextlib
import math
import shutil
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction

import pytest
import torch
import torch.nn.functional as F
from conftest import RELATIVE, ROOT, build, tokens
from hypothesis import given, settings
from hypothesis import strategies as st

import model as M
import schemes
from config import convert
from model import GPT, GPTConfig, KVCache, find_scheme, scheme_names

ALL = scheme_names()
LAYERS = st.sampled_from(
    [
        "",
        "window=1",
        "window=3 | window=8",
        "window=1/4 |",
        "pos_scheme=none |",
        "| pos_scheme=none window=8",
        "| pos_scheme=t5",
        "sink",
        "sink window=3 | temperature=.5",
        "pos_scheme=fox temperature=1 | sink pos_scheme=cope",
    ]
)
OPTIONS = {  # other values than the defaults
    "t5": "size=16",
    "cope": "p_max=5",
    "scale_invariant": "tau=4",
    "inkling": "extent=7",
}


def fitting(layers, scheme):
    """The layers, without what the scheme of the model cannot have: sinks, or layers without positions."""
    if find_scheme(scheme).shifted:
        layers = layers.replace("sink", "")
    return layers.replace("pos_scheme=none", "") if find_scheme(scheme).embeds else layers


def close(actual, expected, at_most):
    torch.testing.assert_close(actual, expected, rtol=0, atol=at_most)


# ----------------------------------------------------------------------------------------------------------
# Slow references: scores and embeddings written from the papers, one query and one key at a time


def reference_embedding(scheme, C, p, model):
    """What is added to the token embedding at position p."""
    if scheme == "learnable":
        return model.pos.wpe.weight[p]
    row = torch.zeros(C).double()
    if scheme == "sinusoidal":  # Vaswani 2017, section 3.5, at its own size
        for c in range(0, C, 2):
            angle = p / 10000 ** (c / C)
            row[c] = math.sin(angle)
            row[c + 1] = math.cos(angle)
        row *= model.config.sinusoidal_size * math.sqrt(2)
    return row


def reference_slopes(H):
    """For a power of two, a geometric sequence with start and ratio 2^(-8/H). Otherwise the slopes of the power of two
    below, then every other slope of the power of two above."""
    if math.log2(H).is_integer():
        return [(2 ** (-8 / H)) ** (n + 1) for n in range(H)]
    low = 2 ** math.floor(math.log2(H))
    return reference_slopes(low) + reference_slopes(2 * low)[0::2][: H - low]


def reference_bucket(n):
    """T5's causal bucket of distance n: one for each of the first 16 distances, then logarithmic up to 128."""
    if n < 16:
        return n
    share = math.log(n / 16) / math.log(128 / 16)
    return min(31, 16 + math.floor(share * 16))


def reference_turn(x, p, D=None):
    """Su 2021, equation 34: rotates each pair of the channels x by its own multiple of the position p. Of D channels,
    if x has only the first of them."""
    turned = torch.empty_like(x)
    for c in range(0, len(x), 2):
        angle = p * 10000 ** (-c / (D or len(x)))
        cos = math.cos(angle)
        sin = math.sin(angle)
        turned[c] = x[c] * cos - x[c + 1] * sin
        turned[c + 1] = x[c] * sin + x[c + 1] * cos
    return turned


def reference_softplus(x):
    return math.log(1 + math.exp(x))


def reference_kerple(r, n, h):
    """Chi 2022, the logarithmic variant: the bias at distance n in head h."""
    r1 = reference_softplus(r[0, h])
    r2 = reference_softplus(r[1, h])
    return -r1 * math.log(1 + r2 * n)


def reference_householder(x, t, h, D, pos, layer):
    """Yang 2025, section 3: w (D,) and β of token t."""
    w = torch.zeros(x.size(1)).double()
    for back in range(min(t, 2) + 1):
        projected = x[t - back] @ pos.down[layer] @ pos.up[layer]
        w += pos.conv[layer, :, 0, 2 - back] * projected
    w = F.silu(w)[h * D : (h + 1) * D]
    beta = pos.v[layer, :, h] @ x[t] + pos.b[layer, h]
    return w / w.norm(), 2 * beta.sigmoid()


def option(pos, default):
    """The value of a scheme's only option."""
    _, _, value = pos.config.pos_options.partition("=")
    return float(value or default)


def reference_score(scheme, q, k, x, i, j, h, p, model, layer):
    """Score of query i and key j in head h, times sqrt(D). q and k (T, H, D) of all tokens are made from x (T, C);
    p (T,) are their positions."""
    H, D = q.shape[1:]
    n = p[i] - p[j]
    q_i = q[i, h]
    k_j = k[j, h]
    pos = model.schemes[layer]
    if scheme in ("rope", "ssmax"):
        q_i = reference_turn(q_i, p[i])
        k_j = reference_turn(k_j, p[j])
    if scheme == "ssmax":  # Nakanishi 2025, section 2
        visible = min(i + 1, reference_window(model.config, layer) or i + 1)
        q_i = q_i * pos.s[layer, h, 0, 0] * math.log(visible)
    if scheme == "key_offset":  # record 49 of modded-nanogpt, in the frequencies of D/2 channels
        fixed = 2 * math.ceil(D / 4)  # the first channel that does not turn
        turned = reference_turn(q_i[:fixed], p[i], D / 2) @ reference_turn(k_j[:fixed], p[j], D / 2)
        return turned + q_i[fixed:] @ k[max(0, j - 1), h, fixed:]
    if scheme == "alibi_offset":
        fixed = math.ceil(D / 2)
        return q_i[:fixed] @ k_j[:fixed] + q_i[fixed:] @ k[max(0, j - 1), h, fixed:]
    if scheme == "path":  # Yang 2025, section 2: the product of the matrices between the two tokens
        for t in range(i, j, -1):
            w, beta = reference_householder(x, t, h, D, pos, layer)
            q_i = q_i - beta * (q_i @ w) * w
    if scheme == "scale_invariant":  # Anson 2025, on p-RoPE
        fast = 0  # channels
        while fast < D and model.config.block_size * 10000 ** (-fast / D) >= 2 * math.pi:
            fast += 2
        q_i = torch.cat((reference_turn(q_i, p[i])[:fast], q_i[fast:]))
        k_j = torch.cat((reference_turn(k_j, p[j])[:fast], k_j[fast:]))
        L = math.log(1 + n / option(pos, 10))
        return math.sqrt(1 + 2 * L) * (q_i @ k_j) - 2 * L * math.sqrt(D)
    if scheme == "pope":  # Gopalakrishnan 2025, section 4
        score = torch.zeros(()).double()
        for c in range(D):
            sizes = reference_softplus(q_i[c]) * reference_softplus(k_j[c])
            angle = n * 10000 ** (-c / D)
            score += sizes * math.cos(angle - pos.delta[layer, h, 0, c])
        return score
    if scheme == "transformer_xl":  # Dai 2019, section 3.3: terms (a) to (d)
        C = H * D
        angles = [n / 10000 ** (2 * c / C) for c in range(C // 2)]
        R = [math.sin(a) for a in angles] + [math.cos(a) for a in angles]
        W = pos.w_r[layer][h * D : (h + 1) * D]
        r = W @ torch.tensor(R).double()
        return q_i @ k_j + q_i @ r + pos.u[h] @ k_j + pos.v[h] @ r
    return q_i @ k_j


def reference_bias(scheme, q, k, x, i, j, h, p, model, layer):
    """What is added to that score divided by sqrt(D)."""
    H, D = q.shape[1:]
    n = p[i] - p[j]
    pos = model.schemes[layer]
    match scheme:
        case "alibi" | "alibi_offset":  # Press 2022, section 3
            return -reference_slopes(H)[h] * n
        case "t5":  # Raffel 2020, section 2.1
            last = reference_bucket(model.config.block_size - 1)  # that training reaches
            bucket = min(reference_bucket(n), last)
            return option(pos, 64) * pos.table[bucket, h]
        case "kerple":
            return reference_kerple(pos.r, n, h)
        case "fox":  # Lin 2025, equation 3: the product of the gates between the two tokens
            gates = x[j + 1 : i + 1] @ pos.w[layer, h] + pos.b[layer, h]
            return gates.sigmoid().log().sum()
        case "fire":  # Li 2023, equation 3
            c = abs(pos.c[layer])
            longest = max(abs(512 * pos.w[layer]), p[i])
            share = math.log(1 + c * n) / math.log(1 + c * longest)
            hidden = (pos.w_1[layer] * share + pos.b_1[layer]).relu()
            return pos.w_2[layer, h] @ hidden
        case "cope":  # Golovneva 2024, equations 3 to 5
            q_i = q[i, h] / math.sqrt(D)
            gates = (k[j : i + 1, h] @ q_i).sigmoid()
            count = min(option(pos, 64), gates.sum().item())
            low = math.floor(count)
            below = pos.e[layer, :, low]
            above = pos.e[layer, :, math.ceil(count)]
            return q_i @ (below + (count - low) * (above - below))
        case "inkling":  # transformers' InklingRelativeLogits
            extent = option(pos, model.config.block_size // 2 or 1)
            r = pos.w[layer, 16 * h : 16 * (h + 1)] @ x[i]
            return r @ pos.p[n, layer] if n < extent else 0.0
        case "dape":  # Zheng 2024, equation 2
            scores = [q[i, g] @ k[j, g] / math.sqrt(D) for g in range(H)]
            biases = [reference_kerple(pos.r, n, g) for g in range(H)]
            both = torch.tensor([*scores, *biases]).double()
            hidden = F.leaky_relu(pos.w_1[layer] @ both + pos.b_1[layer])
            return biases[h] + pos.w_2[layer, h] @ hidden
    others = "none sinusoidal learnable rope ssmax path scale_invariant pope transformer_xl key_offset"
    assert scheme in others.split(), f"tests/test_model.py: add the equation of {scheme} to reference_score or _bias"
    return 0.0


def reference_window(c, layer):
    """The window of a layer, 0: none."""
    window = c.kinds[layer].window
    return int(window * c.block_size) if 0 < window < 1 else window


@torch.no_grad()
def reference_logits(model, idx, p=None):
    """The whole decoder in float64 with attention by loops: (T, V) for idx (T,) at positions p (None: 0 … T−1)."""
    c = model.config
    sd = model.state_dict()
    T = len(idx)
    p = p or range(T)

    def norm(x, name):
        return F.layer_norm(x, (c.n_embd,), sd[f"{name}.weight"], sd[f"{name}.bias"], eps=1e-5)

    def linear(x, name):
        return x @ sd[f"{name}.weight"].T + sd[f"{name}.bias"]

    embedded = [reference_embedding(c.pos_scheme, c.n_embd, at, model) for at in p]
    x = sd["transformer.wte.weight"][idx] + torch.stack(embedded)
    for layer, kind in enumerate(c.kinds):
        name = f"transformer.h.{layer}"
        sink = sd.get(f"{name}.attn.sink", torch.full((c.n_head,), -torch.inf).double())
        window = reference_window(c, layer) or T
        normed = norm(x, f"{name}.ln_1")
        qkv = linear(normed, f"{name}.attn.c_attn")
        q, k, v = qkv.view(T, 3, c.n_head, -1).unbind(1)  # each (T, H, D)
        if c.qk_norm:
            q = q / (q**2).mean(-1, keepdim=True).sqrt()
            k = k / (k**2).mean(-1, keepdim=True).sqrt()
        out = torch.zeros_like(v)  # (T, H, D)
        for h in range(c.n_head):
            for i in range(T):
                seen = range(max(0, i - window + 1), i + 1)
                temperature = 1 + kind.temperature * math.log(1 + p[i] // c.block_size)
                scores = [sink[h]]
                for j in seen:
                    inputs = kind.pos_scheme, q, k, normed, i, j, h, p, model, layer
                    score = reference_score(*inputs) / math.sqrt(q.size(-1))
                    scores.append(temperature * (score + reference_bias(*inputs)))
                out[i, h] = torch.stack(scores).softmax(0)[1:] @ v[seen, h]
        x = x + linear(out.flatten(1), f"{name}.attn.c_proj")
        inner = linear(norm(x, f"{name}.ln_2"), f"{name}.mlp.c_fc")
        inner = inner * 0.5 * (1 + torch.erf(inner / math.sqrt(2)))
        x = x + linear(inner, f"{name}.mlp.c_proj")
    return norm(x, "transformer.ln_f") @ sd["transformer.wte.weight"].T


@pytest.mark.parametrize("scheme", ALL)
@settings(max_examples=20)
@given(
    n_head=st.integers(1, 4),
    half=st.integers(1, 4),
    T=st.integers(1, 30),
    layers=LAYERS,
    qk_norm=st.booleans(),
    seed=st.integers(0, 99),
)
def test_model_equals_slow_reference(scheme, n_head, half, T, layers, qk_norm, seed):
    """Up to 1.5 times block_size, and at positions with gaps: a window counts keys, not distances."""
    sizes = dict(n_head=n_head, n_embd=2 * n_head * half, block_size=20, qk_norm=qk_norm)
    options = OPTIONS.get(scheme, "") if seed % 2 else ""
    model = build(scheme, seed, layers=fitting(layers, scheme), pos_options=options, **sizes)
    model.pos.step = 8  # PaTH computes in blocks of keys: now there are several
    limit = model.config.max_positions or 200
    idx = tokens(model, 1, min(T, limit), seed)
    positions = None
    if seed % 3 == 0 and find_scheme(scheme).gaps:
        generator = torch.Generator().manual_seed(seed)
        positions = torch.randperm(limit, generator=generator)[: idx.size(1)].sort().values
    expected = reference_logits(model, idx[0], None if positions is None else positions.tolist())
    for learning in (True, False):  # a learned bias is added in another way if gradients are needed
        with torch.set_grad_enabled(learning):
            logits, _ = model(idx, idx, positions=positions)
        close(logits[0], expected, 2e-6)  # complex64 angles
    close(model(idx, positions=positions)[0], expected[None, -1:], 2e-6)


# ----------------------------------------------------------------------------------------------------------
# Facts of every scheme


@pytest.mark.parametrize("scheme", ALL)
def test_shared_weights_start_bit_identical(scheme):
    def start(scheme, seed):
        return GPT(GPTConfig(64, 50, 2, 2, 16, pos_scheme=scheme), seed).state_dict()

    weights = start(scheme, 5)
    plain = start("none", 5)
    wte = plain["lm_head.weight"]
    assert all(torch.equal(weights[name], plain[name]) for name in plain)
    assert not torch.equal(wte, start(scheme, 6)["lm_head.weight"])
    for name in weights.keys() - plain.keys():  # the scheme's own weights are no copy of these draws
        first = weights[name].flatten()[:64]
        assert not torch.equal(first, wte.flatten()[: len(first)]), name


@pytest.mark.parametrize("scheme", ALL)
def test_gradients_reach_every_parameter(scheme):
    model = build(scheme, block_size=128)
    idx = tokens(model, 2, 128)
    model(idx, idx)[1].backward()
    for name, p in model.named_parameters():
        assert p.grad.abs().sum() > 0, name


@pytest.mark.parametrize("scheme", ALL)
@given(
    chunks=st.lists(st.integers(1, 150), min_size=2, max_size=4),
    window=st.sampled_from([0, 1, 5, 100, 128, 400]),
    layers=st.sampled_from(["", "| window=0", "sink", "temperature=.5 | pos_scheme=none window=9"]),
    seed=st.integers(0, 99),
)
def test_cache_in_chunks_of_any_size_equals_no_cache(scheme, chunks, window, layers, seed):
    """It makes no difference either if the last layer computes only the last tokens."""
    T = sum(chunks)
    model = build(scheme, seed, block_size=T, window=window, layers=fitting(layers, scheme))
    idx = tokens(model, 2, T, seed)
    whole = model.hidden(idx)
    cache = KVCache()
    *pieces, final = idx.split(chunks, dim=1)
    states = [model.hidden(piece, cache) for piece in pieces]
    close(torch.cat(states, dim=1), whole[:, : -chunks[-1]], 1e-5)
    last = (chunks[-1] + 1) // 2
    close(model.hidden(final, cache, last), whole[:, -last:], 1e-5)
    torch.testing.assert_close(model.hidden(idx, last=last), whole[:, -last:])
    if window and not layers:  # memory grows with the window and the chunks, not with the text
        for buffer, _ in cache.buffers.values():
            assert buffer.size(2) <= 2 * (window + max(chunks))


needs_compiler = pytest.mark.skipif(not shutil.which("g++"), reason="torch.compile needs a C++ compiler")


# every scheme is traced, which takes a second; only three go through the whole compiler, unless  pytest -m slow
COMPILED = [(scheme, "aot_eager") for scheme in ALL]
for name in ALL:
    slow = [] if name in ("rope", "alibi", "fox") else [pytest.mark.slow]
    COMPILED.append(pytest.param(name, "inductor", marks=[needs_compiler, *slow]))


@pytest.mark.parametrize("scheme, backend", COMPILED)
@torch._dynamo.config.patch(error_on_recompile=True)
def test_training_compiles_into_one_graph_once_and_computes_the_same(scheme, backend):
    torch._dynamo.reset()
    model = build(scheme, n_layer=2 if backend == "aot_eager" else 1).float()
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    for n in range(3):
        idx = tokens(model, 2, 24, seed=n)
        results = []
        for step_model in (model, compiled):
            model.zero_grad()
            loss = step_model(idx, idx)[1]
            loss.backward()
            results.append([loss.detach(), *(p.grad for p in model.parameters())])
        torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-5)


def test_compiled_rotations_equal_the_complex_products_bit_for_bit():
    x = randn(2, 3, 40, 16)
    freqs_cis = M.precompute_freqs_cis(torch.arange(40), M.frequencies(16, x.device))
    compiled = torch.compile(M.apply_rotary_emb, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x, freqs_cis), M.apply_rotary_emb(x, freqs_cis))


def test_a_sink_is_the_same_with_padded_channels(monkeypatch):
    """A GPU's kernels need a multiple of 8 channels."""
    model = build("t5", sink=True)
    idx = tokens(model, 2, 24)
    expected = model(idx, idx)[0]
    widen = M.widen
    monkeypatch.setattr(M, "widen", lambda x, channels: F.pad(widen(x, channels), (0, 7)))
    close(model(idx, idx)[0], expected, 1e-12)


def test_the_loss_of_many_logits_is_the_same_loss(monkeypatch):
    model = build("rope")
    idx = tokens(model, 2, 24)
    targets = tokens(model, 2, 24, seed=1)
    results = []
    for limit in (11 * 48, 11 * 48 - 1):
        monkeypatch.setattr(M, "MAX_LOGITS", limit)
        model.zero_grad()
        logits, loss = model(idx, targets)
        (3 * loss).backward()
        assert (logits is None) == (limit < 11 * 48)
        results.append([loss.detach().float(), *(p.grad for p in model.parameters())])
        with torch.no_grad():
            torch.testing.assert_close(model(idx, targets)[1], loss)
    torch.testing.assert_close(results[1], results[0])


@pytest.mark.parametrize("scheme", ALL)
def test_positions_stay_distinct_under_bfloat16_autocast(scheme):
    """bfloat16 cannot tell positions past 256 apart, so schemes compute them in float32 or better."""
    model = build(scheme, block_size=1500, spread=0.3, sink=not find_scheme(scheme).shifted)
    idx = tokens(model, 1, 1500)
    exact = model.hidden(idx)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        rounded = model.float().hidden(idx).double()
    error = (rounded - exact)[0].abs().mean(-1)
    assert error[1000:].mean() < min(0.02, 2 * error[:250].mean())


@pytest.mark.parametrize("b, at_most", [(0, 0.1), (5, 0.015)])
def test_foxs_gates_learn_under_bfloat16_autocast(b, at_most):
    """Their gradient is a sum over far fewer pairs of tokens than that of the channel through which they act."""
    model = GPT(GPTConfig(512, 65, 2, 4, 128, pos_scheme="fox", pos_options=f"b={b}"))
    idx = tokens(model, 4, 513)
    gradients = []
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            loss = model(idx[:, :-1], idx[:, 1:])[1]
        gradients.append(torch.autograd.grad(loss, [model.pos.b, model.pos.w]))
    for exact, rounded in zip(*gradients, strict=True):
        assert (rounded - exact).norm() < at_most * exact.norm()


def randn(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def attended(scheme, q, k, v, pos):
    """Attention at pos (T,) of q and k (not yet rotated) and v, all (B, H, T, D), made from some x (B, T, C)."""
    context = M.LayerContext(0, GPTConfig(), scheme, scheme.prepare(pos, pos), pos, pos)
    x = q.transpose(1, 2).flatten(-2)
    q, k = scheme.rotate(q, k, x, context.prepared, 0, {})
    return M.attend(q, k, v, context, 0.0)


@pytest.mark.parametrize("scheme", [s for s in RELATIVE if s != "fire"])  # fire depends on i itself
def test_relative_schemes_ignore_a_shift_of_all_positions_also_in_bfloat16(scheme):
    """Rounding q, k and v to bfloat16 costs no more at position 65,536 than at the start, because positions are not
    rounded. Measured for 64 queries and the 256 keys before them."""
    qkv = randn(3, 1, 4, 256, 32).double()
    exact = {}
    error = {}
    for last in (256, 65536):
        pos = torch.arange(last - 256, last)
        pos_scheme = build(scheme, n_head=4, n_embd=128).pos
        exact[last] = attended(pos_scheme, *qkv, pos)
        close(attended(pos_scheme.float(), *qkv.float(), pos).double(), exact[last], 2e-3)
        rounded = attended(pos_scheme.bfloat16(), *qkv.bfloat16(), pos)
        errors = rounded.double() - exact[last]
        error[last] = errors[:, :, -64:].abs().mean()
    close(exact[65536], exact[256], 1e-6)
    assert error[65536] < min(0.02, 1.5 * error[256])


@pytest.mark.parametrize("scheme", ALL)
def test_override_equals_a_new_model_with_that_config(scheme):
    model = build(scheme, block_size=64)
    idx = tokens(model, 1, 64)
    plain = model.hidden(idx)
    narrow = build(scheme, block_size=64, window=9)
    assert torch.equal(model.override(narrow.config).hidden(idx), narrow.hidden(idx))
    wide = replace(narrow.config, window=0)
    assert torch.equal(model.override(wide).hidden(idx), plain)


def test_layers_that_an_override_makes_alike_keep_their_weights():
    layers = "window=1/2 *3 | pos_options={}"
    model = build("t5", n_layer=4, layers=layers.format("size=32"))
    idx = tokens(model, 1, 40)
    like = replace(model.config, layers=layers.format("size=64"))  # the same as the default, but said
    expected = GPT.from_weights(like, model.state_dict()).hidden(idx)
    alike = replace(model.config, layers="window=1/2 *3 | window=0")
    for config in (alike, model.config, alike):  # there, back and there again
        model.override(config)
    assert torch.equal(model.hidden(idx), expected)


def test_weights_that_no_longer_fit_are_named():
    model = build("t5", layers="window=3 | pos_scheme=cope pos_options=p_max=5")
    for layers, name in (("pos_scheme=none", "none"), ("", "t5"), ("pos_scheme=cope pos_options=p_max=9", "cope")):
        with pytest.raises(ValueError, match=f"of cope do not fit {name}"):
            model.override(replace(model.config, layers=f"window=3 | {layers}"))


# ----------------------------------------------------------------------------------------------------------
# Kinds of layers


def test_a_share_of_the_training_length_is_rounded_down_exactly():
    for block_size in (100, 129, 1000):
        for b in range(2, 130):
            for a in {1, b // 3 or 1, b - 1}:
                config = GPTConfig(block_size, window=convert("window", f"{a}/{b}", (int, float)))
                assert config.n_keys == max(1, Fraction(a, b) * block_size // 1)


@pytest.mark.parametrize("scheme", ALL)
def test_no_layer_is_without_positions_under_a_scheme_that_acts_on_the_embedding(scheme):
    acts_on_embedding = scheme not in RELATIVE
    error = pytest.raises(ValueError, match=f"layers=.*pos_scheme={scheme}")
    with error if acts_on_embedding else contextlib.nullcontext():
        GPTConfig(pos_scheme=scheme, layers="window=16 *3 | pos_scheme=none")


def test_a_kinds_config_is_made_once(monkeypatch):
    made = []
    check = GPTConfig.__post_init__
    monkeypatch.setattr(GPTConfig, "__post_init__", lambda config: made.append(check(config)))
    GPT(GPTConfig(32, 9, 12, 2, 16, pos_scheme="rope", layers="window=1/32 *5 | rope_theta=1e6"))
    assert len(made) == 3  # the model's and those of two kinds


# ----------------------------------------------------------------------------------------------------------
# Published facts of single schemes


def test_learnable_starts_as_gpt2_does_and_positions_that_a_scheme_cannot_have_are_errors():
    wpe = GPT(GPTConfig(256, 50, 1, 2, 64)).pos.wpe.weight
    assert wpe.std().item() == pytest.approx(0.02, rel=0.05)
    model = build("learnable")
    with pytest.raises(ValueError, match="learnable .* 24 .* 60"):
        model.hidden(tokens(model, 1, 60))
    with pytest.raises(ValueError, match="transformer_xl .* gaps"):
        build("transformer_xl").hidden(tokens(model, 1, 2), positions=torch.tensor([1, 3]))


def test_sinusoidal_table():
    model = build("sinusoidal", n_embd=128, sinusoidal_size=0.5**0.5)
    positions = torch.tensor([*range(64), 65_536])
    table = model.pos.embed(torch.zeros(1, 65, 128).double(), positions)[0]
    close(table[-1], reference_embedding("sinusoidal", 128, 65_536, model), 1e-9)
    products = table[:-1] @ table[:-1].T
    close(products[30, 30:], products[0, :34], 1e-9)
    assert products[0, 0] == pytest.approx(64) and products[0, 1:].max() < 63.9  # all vectors differ


def rope_table(scaling="none", factor=1.0, **settings):
    """RoPE's frequencies, and the factor on q and k."""
    config = GPTConfig(n_head=2, pos_scheme="rope", rope_scaling=scaling, rope_factor=factor, **settings)
    return M.rope_frequencies(config, torch.device("cpu"))


@given(
    pairs=st.integers(2, 64),
    theta=st.sampled_from([500.0, 500000.0]),
    s=st.floats(1, 64),
)
def test_ntk_enlarges_the_base(pairs, theta, s):
    """So that the slowest pair is slowed by the factor. For the other scalings, see test_models.py."""
    D = 2 * pairs
    freqs, _ = rope_table("ntk", s, n_embd=2 * D, rope_theta=theta)
    new_theta = theta * s ** (D / (D - 2))
    torch.testing.assert_close(freqs, new_theta ** (-2 * torch.arange(pairs).double() / D))


@pytest.mark.parametrize("scaling", ["linear", "ntk", "yarn"])
def test_rope_scaling_of_a_single_pair(scaling):
    """linear slows it. The others leave the fastest pair as it is, and yarn enlarges it."""
    freqs, _ = rope_table(scaling, 4.0, n_embd=4)
    assert freqs.tolist() == [0.25 if scaling == "linear" else 1.0]


@pytest.mark.parametrize("scaling", [("none", 1.0), ("linear", 4.0), ("yarn", 4.0)])
def test_with_a_rope_fraction_the_slow_pairs_stand_still(scaling):
    """The fast pairs keep their frequencies, with or without scaling. With GPT-NeoX's rotary_pct, they would change."""
    plain, size = rope_table(*scaling, n_embd=32)
    some, same_size = rope_table(*scaling, n_embd=32, rope_fraction=0.75)
    assert some.tolist() == [*plain[:6], 0, 0]
    assert size == same_size


@needs_compiler
@pytest.mark.parametrize("scheme", ["alibi", "fox"])
def test_bfloat16_channels_stay_exact_when_compiled(scheme):
    """Compiled code skips a cast to bfloat16 and back, so no channel may rely on its rounding."""
    pos_scheme = build(scheme, n_head=3, n_embd=24, n_layer=1).pos.float().requires_grad_(False)
    pos = torch.arange(2000)
    q, k = randn(2, 1, 3, 2000, 8).bfloat16()
    x = q.transpose(1, 2).flatten(-2).float()

    def scores():
        """What the added channels add to the scores of the last query."""
        wide_q, wide_k = pos_scheme.rotate(q, k, x, pos_scheme.prepare(pos, pos), 0, {})
        q_channels = wide_q[:, :, -1:, 8:].double()
        k_channels = wide_k[..., 8:].double()
        return (q_channels * k_channels).sum(-1)

    close(torch.compile(scores)(), scores(), 1e-2)


def test_t5_buckets_as_published():
    buckets = build("t5").pos.bucket(torch.arange(300)).tolist()
    assert buckets == [reference_bucket(n) for n in range(300)]
    assert buckets.index(31) == 113


def test_key_offset_can_have_the_frequencies_of_modded_nanogpt():
    n = 8  # D/4
    scheme = build("key_offset", n_head=1, n_embd=4 * n, rope_theta=1024 ** (n / (n - 1))).pos
    angles = torch.view_as_complex(scheme.prepare(torch.tensor([1]), None)[0]).angle()
    torch.testing.assert_close(angles, (1 / 1024) ** torch.linspace(0, 1, n))


# ----------------------------------------------------------------------------------------------------------
# Finding schemes, and models from weights

NEW_SCHEME = "import model\nclass New(model.PositionScheme, name={!r}): pass\n"


def test_a_scheme_in_a_file_is_found_by_its_name_only(tmp_path, monkeypatch):
    core = ["none", "sinusoidal", "learnable", "rope", "alibi"]
    monkeypatch.setattr(M, "__file__", f"{tmp_path}/model.py")
    monkeypatch.setattr(M, "SCHEMES", {name: M.SCHEMES[name] for name in core})
    monkeypatch.setattr(schemes, "__path__", [f"{tmp_path}/schemes"])
    for file, name in (("b", "b"), ("a", "a"), ("_hidden", "_hidden"), ("misnamed", "other")):
        (tmp_path / "schemes").mkdir(exist_ok=True)
        (tmp_path / f"schemes/{file}.py").write_text(NEW_SCHEME.format(name))
    assert scheme_names() == [*core, "a", "b", "misnamed"]
    assert list(M.SCHEMES) == core  # listing imports nothing
    assert find_scheme("b").__name__ == "New"
    assert list(M.SCHEMES) == [*core, "b"]
    for name in ("c", "_hidden", "b.py", "schemes.b", "", "os"):
        with pytest.raises(ValueError, match=f"pos_scheme={name!r} .* none, .*, alibi, a, b"):
            GPTConfig(pos_scheme=name)
    with pytest.raises(ValueError, match="schemes/misnamed.py"):
        GPTConfig(pos_scheme="misnamed")


@pytest.mark.parametrize("scheme", ALL)
def test_a_state_dict_has_no_buffers_and_a_model_from_it_shares_it_and_draws_nothing(scheme):
    model = build(scheme).float()
    before = torch.get_rng_state()
    weights = model.state_dict()
    idx = tokens(model, 2, 24)
    assert weights.keys() == dict(model.named_parameters()).keys() | {"lm_head.weight"}  # tied to wte
    loaded = GPT.from_weights(model.config, weights)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(loaded(idx)[0], model(idx)[0])
    for name, w in loaded.state_dict().items():
        assert w.data_ptr() == weights[name].data_ptr()
    with pytest.raises(RuntimeError, match="more"):
        GPT.from_weights(model.config, weights | {"more": idx})


def test_fixed_tables_stay_as_they_were_made(monkeypatch):
    monkeypatch.setattr(M, "SCHEMES", dict(M.SCHEMES))
    table = torch.arange(3).double() / 3

    class Tables(M.PositionScheme, name="tables"):
        def __init__(self, config):
            super().__init__(config)
            self.register_buffer("buffer", table, persistent=False)
            self.frozen = torch.nn.Parameter(table, requires_grad=False)

    model = GPT(GPTConfig(8, 8, 1, 2, 16, pos_scheme="tables"))
    pos = model.override(model.config).pos
    assert torch.equal(pos.buffer, table) and torch.equal(pos.frozen, table)


def test_a_model_from_weights_starts_fast():
    """Without torch._dynamo, which is slow to import; also for a scheme that is made of other modules."""
    script = """
import sys
import torch.nn as nn
from model import GPT, GPTConfig, PositionScheme, scheme_names

class Layers(PositionScheme, name="layers"):
    def __init__(self, config):
        super().__init__(config)
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.Conv1d(4, 4, 3), nn.LayerNorm(4), nn.Embedding(4, 4))

for scheme in [*scheme_names(), "layers"]:
    config = GPTConfig(8, 8, 1, 2, 16, pos_scheme=scheme)
    GPT.from_weights(config, GPT(config).state_dict()).override(config)
assert "torch._dynamo" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True)
