"""Each scheme against a slow float64 reference written from its paper's equation, and against published facts.

A test with the parameter `scheme` runs for every scheme in model.py and schemes/. The slow references loop over queries
and keys, and use nothing from model.py except a model's weights.
"""

import itertools
import math
import shutil
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

import model as M
import schemes
from model import GPT, GPTConfig, KVCache, alibi_slopes, find_scheme, scheme_names

ALL = scheme_names()
EMBEDDED = [s for s in ALL if find_scheme(s).embed is not M.PositionScheme.embed]  # absolute: act on the embedding
RELATIVE = [s for s in ALL if s not in EMBEDDED]
PATTERNS = st.sampled_from(["", "10", "01"])
OPTIONS = {"t5": "size=16", "cope": "p_max=5", "scale_invariant": "tau=4"}  # other values than the defaults


def build(scheme, seed=0, spread=1.0, **sizes):
    """A small float64 model with random parameters, large enough that no score is near 0 and no attention uniform."""
    sizes = dict(block_size=24, vocab_size=11, n_layer=2, n_head=2, n_embd=16) | sizes
    model = GPT(GPTConfig(**sizes, pos_scheme=scheme)).double().eval()
    generator = torch.Generator().manual_seed(seed)
    for name, p in model.named_parameters():
        is_scale = "ln" in name and name.endswith("weight")
        torch.nn.init.normal_(p, float(is_scale), 0.3 * spread if p.dim() > 1 else 0.1, generator)
    return model


def tokens(model, B, T, seed=0):
    return torch.randint(model.config.vocab_size, (B, T), generator=torch.Generator().manual_seed(seed))


# ----------------------------------------------------------------------------------------------------------
# Slow references: scores and embeddings written from the papers, one query and one key at a time


def reference_embedding(scheme, C, p, model):
    """What is added to the token embedding at position p."""
    if scheme == "sinusoidal":  # Vaswani 2017, section 3.5, at its own size
        row = [(math.sin if c % 2 == 0 else math.cos)(p / 10000 ** ((c - c % 2) / C)) for c in range(C)]
        return model.config.sinusoidal_size * math.sqrt(2) * torch.tensor(row, dtype=torch.float64)
    if scheme == "learnable":
        return model.pos.wpe.weight.data[p]
    return torch.zeros(C, dtype=torch.float64)


def reference_slopes(H):
    """For a power of two, a geometric sequence with start and ratio 2^(-8/H). Otherwise the slopes of the power of two
    below, then every other slope of the power of two above."""
    if math.log2(H).is_integer():
        return [(2 ** (-8 / H)) ** (n + 1) for n in range(H)]
    low = 2 ** math.floor(math.log2(H))
    return reference_slopes(low) + reference_slopes(2 * low)[0::2][: H - low]


def reference_bucket(n):
    """T5's causal bucket of distance n: one for each of the first 16 distances, then logarithmic up to 128."""
    return n if n < 16 else min(31, 16 + math.floor(math.log(n / 16) / math.log(128 / 16) * 16))


def reference_turn(x, p):
    """Su 2021, equation 34: rotates each pair of the channels x (D,) by its own multiple of the position p."""
    turned = torch.empty_like(x)
    for c in range(0, len(x), 2):
        angle = p * 10000 ** (-c / len(x))
        turned[c] = x[c] * math.cos(angle) - x[c + 1] * math.sin(angle)
        turned[c + 1] = x[c] * math.sin(angle) + x[c + 1] * math.cos(angle)
    return turned


def reference_score(scheme, q, k, x, i, j, h, p, model, layer):
    """Score of query i and key j in head h. q and k (T, H, D) of all tokens are made from x (T, C); p (T,) are their
    positions."""
    H, D = q.shape[1:]
    n, pos = p[i] - p[j], model.pos
    q_i, k_j = q[i, h], k[j, h]
    if scheme in ("rope", "ssmax"):
        q_i, k_j = reference_turn(q_i, p[i]), reference_turn(k_j, p[j])
    score = (q_i @ k_j) / math.sqrt(D)
    if scheme == "alibi":  # Press 2022, section 3
        score = score - reference_slopes(H)[h] * n
    if scheme == "t5":  # Raffel 2020, section 2.1
        bucket = min(reference_bucket(n), reference_bucket(model.config.block_size - 1))  # that training reaches
        score = score + option(model, 64) * pos.table.data[bucket, h]
    if scheme == "kerple":  # Chi 2022, the logarithmic variant
        score = score + reference_kerple(pos.r.data, n, h)
    if scheme == "transformer_xl":  # Dai 2019, section 3.3: terms (a) to (d)
        C = H * D
        angle = [n / 10000 ** (2 * c / C) for c in range(C // 2)]
        R = torch.tensor([math.sin(a) for a in angle] + [math.cos(a) for a in angle], dtype=torch.float64)
        r = (pos.w_r[layer].data @ R)[h * D : (h + 1) * D]
        u, v = pos.u.data[h], pos.v.data[h]
        score = (q_i @ k_j + q_i @ r + u @ k_j + v @ r) / math.sqrt(D)
    if scheme == "fox":  # Lin 2025, equation 3: the product of the gates between the two tokens
        gates = (x[j + 1 : i + 1] @ pos.w.data[layer, h] + pos.b.data[layer, h]).sigmoid()
        score = score + gates.log().sum()
    if scheme == "ssmax":  # Nakanishi 2025, section 2
        window = reference_window(model.config, layer)
        score = score * pos.s.data[layer, h, 0, 0] * math.log(min(i + 1, window or i + 1))
    if scheme == "pope":  # Gopalakrishnan 2025, section 4
        score = 0.0
        for c in range(D):
            sizes = math.log1p(math.exp(q_i[c])) * math.log1p(math.exp(k_j[c]))
            score += sizes * math.cos(n * 10000 ** (-c / D) - pos.delta.data[layer, h, 0, c]) / math.sqrt(D)
        score = torch.tensor(score, dtype=torch.float64)
    if scheme == "scale_invariant":  # Anson 2025, on p-RoPE
        fast = [c for c in range(D) if model.config.block_size * 10000 ** (-(c - c % 2) / D) >= 2 * math.pi]
        q_i, k_j = (torch.cat((reference_turn(t, at)[fast], t[len(fast) :])) for t, at in ((q_i, p[i]), (k_j, p[j])))
        L = math.log(1 + n / option(model, 10))
        score = math.sqrt(1 + 2 * L) * (q_i @ k_j) / math.sqrt(D) - 2 * L
    if scheme == "fire":  # Li 2023, equation 3
        c, threshold = abs(pos.c.data[layer]), abs(512 * pos.w.data[layer])
        share = math.log(1 + c * n) / math.log(1 + c * max(threshold, p[i]))
        hidden = (pos.w_1.data[layer] * share + pos.b_1.data[layer]).relu()
        score = score + pos.w_2.data[layer, h] @ hidden
    if scheme == "path":  # Yang 2025, section 2: the product of the matrices between the two tokens
        for t in range(i, j, -1):
            w, beta = reference_householder(x, t, h, D, pos, layer)
            q_i = q_i - beta * (q_i @ w) * w
        score = (q_i @ k_j) / math.sqrt(D)
    if scheme == "cope":  # Golovneva 2024, equations 3 to 5
        count = min(option(model, 64), sum(torch.sigmoid(q_i @ k[t, h] / math.sqrt(D)).item() for t in range(j, i + 1)))
        low, e = math.floor(count), pos.e.data[layer]
        vector = (1 - (count - low)) * e[:, low] + (count - low) * e[:, math.ceil(count)]
        score = score + q_i @ vector / math.sqrt(D)
    if scheme == "dape":  # Zheng 2024, equation 2
        scores = [q[i, g] @ k[j, g] / math.sqrt(D) for g in range(H)]
        biases = [reference_kerple(pos.r.data, n, g) for g in range(H)]
        both = torch.tensor([*scores, *biases], dtype=torch.float64)
        hidden = F.leaky_relu(pos.w_1.data[layer] @ both + pos.b_1.data[layer])
        score = score + biases[h] + pos.w_2.data[layer, h] @ hidden
    known = "none sinusoidal learnable rope alibi t5 kerple transformer_xl fox ssmax pope scale_invariant fire path cope dape"
    assert scheme in known.split(), f"tests/test_model.py: add {scheme} to reference_score, and to its `known`"
    return score


def option(model, default):
    """The value of a scheme's only option."""
    return float(model.config.pos_options.partition("=")[2] or default)


def reference_kerple(r, n, h):
    """Chi 2022, the logarithmic variant: the bias at distance n in head h."""
    r1, r2 = (math.log1p(math.exp(r)) for r in r[:, h, 0, 0])
    return -r1 * math.log(1 + r2 * n)


def reference_householder(x, t, h, D, pos, layer):
    """Yang 2025, section 3: w (D,) and β of token t."""
    w = torch.zeros(x.size(1), dtype=torch.float64)
    for back in range(min(t, 2) + 1):
        w += pos.conv.data[layer, :, 0, 2 - back] * (x[t - back] @ pos.down.data[layer] @ pos.up.data[layer])
    w = F.silu(w)
    w = w[h * D : (h + 1) * D]
    beta = 2 * torch.sigmoid(pos.v.data[layer, :, h] @ x[t] + pos.b.data[layer, h])
    return w / w.norm(), beta


def reference_window(c, layer):
    """The window of a layer, 0: none."""
    return c.window if not c.window_pattern or (c.window_pattern * c.n_layer)[layer] == "1" else 0


def reference_logits(model, idx, p=None):
    """The whole decoder in float64 with attention by loops: (T, V) for idx (T,) at positions p (None: 0 … T−1)."""
    c, sd, T = model.config, model.state_dict(), len(idx)
    p = p or range(T)

    def norm(x, name):
        return F.layer_norm(x, (c.n_embd,), sd[f"{name}.weight"], sd[f"{name}.bias"], eps=1e-5)

    def linear(x, name):
        return x @ sd[f"{name}.weight"].T + sd[f"{name}.bias"]

    embedded = [reference_embedding(c.pos_scheme, c.n_embd, at, model) for at in p]
    x = sd["transformer.wte.weight"][idx] + torch.stack(embedded)
    for layer in range(c.n_layer):
        name = f"transformer.h.{layer}"
        scheme = c.pos_scheme if not c.pos_pattern or (c.pos_pattern * c.n_layer)[layer] == "1" else "none"
        window = reference_window(c, layer) or T
        normed = norm(x, f"{name}.ln_1")
        q, k, v = linear(normed, f"{name}.attn.c_attn").view(T, 3, c.n_head, -1).unbind(1)
        if c.qk_norm:
            q, k = (t / (t**2).mean(-1, keepdim=True).sqrt() for t in (q, k))
        out = torch.zeros_like(v)  # (T, H, D)
        for h in range(c.n_head):
            for i in range(T):
                seen = range(max(0, i - window + 1), i + 1)
                scores = [reference_score(scheme, q, k, normed, i, j, h, p, model, layer) for j in seen]
                out[i, h] = torch.stack(scores).softmax(0) @ v[seen, h]
        x = x + linear(out.flatten(1), f"{name}.attn.c_proj")
        inner = linear(norm(x, f"{name}.ln_2"), f"{name}.mlp.c_fc")
        x = x + linear(inner * 0.5 * (1 + torch.erf(inner / math.sqrt(2))), f"{name}.mlp.c_proj")
    return norm(x, "transformer.ln_f") @ sd["transformer.wte.weight"].T


@pytest.mark.parametrize("scheme", ALL)
@given(
    st.integers(1, 4), st.integers(1, 4), st.integers(1, 30), st.sampled_from([0, 0, 1, 3, 8]), PATTERNS, PATTERNS,
    st.booleans(), st.integers(0, 99),
)  # fmt: skip
def test_model_equals_slow_reference(scheme, n_head, half, T, window, pos_pattern, window_pattern, qk_norm, seed):
    other = dict(pos_pattern="" if scheme in EMBEDDED else pos_pattern, window_pattern=window_pattern, qk_norm=qk_norm)
    if seed % 2:
        other["pos_options"] = OPTIONS.get(scheme, "")
    model = build(scheme, seed, n_head=n_head, n_embd=2 * n_head * half, block_size=20, window=window, **other)
    model.pos.step = 8  # PaTH computes in blocks of keys: now there are several
    idx = tokens(model, 1, min(T, model.config.max_positions or T), seed)  # up to 1.5 times block_size
    expected = reference_logits(model, idx[0])
    for learning in (True, False):  # a learned bias is added in another way if gradients are needed
        with torch.set_grad_enabled(learning):
            logits = model(idx, idx)[0][0]
        torch.testing.assert_close(logits, expected, rtol=0, atol=2e-6)  # complex64 angles
    torch.testing.assert_close(model(idx)[0], expected[None, -1:], rtol=0, atol=2e-6)


@pytest.mark.parametrize("scheme", ALL)
@given(st.sets(st.integers(0, 199), min_size=1, max_size=20).map(sorted), st.sampled_from([0, 3]))
def test_positions_with_gaps_equal_the_slow_reference(scheme, positions, window):
    """A window counts keys, not distances."""
    model = build(scheme, block_size=200, window=window)
    idx, pos = tokens(model, 1, len(positions)), torch.tensor(positions)
    if find_scheme(scheme).gaps:
        expected = reference_logits(model, idx[0], positions)
        torch.testing.assert_close(model(idx, idx, positions=pos)[0][0], expected, rtol=0, atol=2e-6)
    else:
        with pytest.raises(ValueError, match=f"{scheme} cannot take positions with gaps"):
            model(idx, positions=pos)


@pytest.mark.parametrize("scheme", [s for s in RELATIVE if find_scheme(s).pairwise])
@given(st.integers(1, 9), st.integers(1, 12), st.integers(2, 60))
def test_sinks_stand_just_before_the_window(scheme, sinks, window, T):
    """In a single layer, a query with sinks attends as at the end of the text that its sinks and its window make up,
    as in StreamingLLM's cache (Xiao et al. 2023)."""
    model = build(scheme, n_layer=1, block_size=64, window=window, sinks=sinks)
    idx = tokens(model, 1, T)
    got = model(idx, idx)[0][0]
    plain = build(scheme, n_layer=1, block_size=64)
    for i in {0, T // 2, T - 1}:
        seen = [j for j in range(i + 1) if j < sinks or i - j < window]
        torch.testing.assert_close(got[i], plain(idx[:, seen])[0][0, -1], rtol=0, atol=2e-6)
    with pytest.raises(ValueError, match="a model with sinks has no cache"):
        model(idx, cache=M.KVCache())


# ----------------------------------------------------------------------------------------------------------
# Facts of every scheme


@pytest.mark.parametrize("scheme", ALL)
def test_shared_weights_start_bit_identical(scheme):
    ours, plain = (GPT(GPTConfig(64, 50, 2, 2, 16, pos_scheme=s), seed=5).state_dict() for s in (scheme, "none"))
    assert {k for k in ours if not k.startswith("pos.")} == plain.keys()
    assert all(torch.equal(ours[k], plain[k]) for k in plain)
    other = GPT(GPTConfig(64, 50, 2, 2, 16, pos_scheme=scheme), seed=6).state_dict()
    assert not torch.equal(ours["lm_head.weight"], other["lm_head.weight"])
    for name in ours.keys() - plain.keys():  # the scheme's own weights are no copy of these draws
        n = min(ours[name].numel(), 64)
        assert not torch.equal(ours[name].flatten()[:n], ours["lm_head.weight"].flatten()[:n]), name


@pytest.mark.parametrize("scheme", ALL)
def test_gradients_reach_every_parameter(scheme):
    model = build(scheme, block_size=128)
    idx = tokens(model, 2, 128)
    model(idx, idx)[1].backward()
    for name, p in model.named_parameters():
        assert p.grad is not None and p.grad.abs().sum() > 0, name


@pytest.mark.parametrize("scheme", ALL)
@given(
    st.lists(st.integers(1, 150), min_size=1, max_size=3), st.integers(1, 150),
    st.sampled_from([0, 1, 5, 100, 128, 400]), st.sampled_from(["", "10"]), st.integers(0, 99),
)  # fmt: skip
def test_cache_in_chunks_of_any_size_equals_no_cache(scheme, chunks, last, window, window_pattern, seed):
    """Nor does it matter if the last layer computes only the last tokens."""
    chunks, T = [*chunks, last], sum(chunks) + last
    model = build(scheme, seed, block_size=T, window=window, window_pattern=window_pattern)
    idx, cache = tokens(model, 2, T, seed), KVCache()
    whole = model.hidden(idx)
    *pieces, final = idx.split(chunks, dim=1)
    states = [model.hidden(piece, cache) for piece in pieces]
    needed = (last + 1) // 2
    torch.testing.assert_close(torch.cat(states, dim=1), whole[:, :-last], rtol=0, atol=1e-5)
    torch.testing.assert_close(model.hidden(final, cache, last=needed), whole[:, -needed:], rtol=0, atol=1e-5)
    torch.testing.assert_close(model.hidden(idx, last=needed), whole[:, -needed:])
    if window and not window_pattern:  # keeps no more than the window needs
        assert all(last - first <= window - 1 for _, first, last in cache.stores.values())


@pytest.mark.parametrize("scheme", ALL)
@torch._dynamo.config.patch(error_on_recompile=True)
def test_training_compiles_into_one_graph_once(scheme):
    torch._dynamo.reset()
    model = build(scheme).float()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for n in range(3):
        idx = tokens(model, 2, 24, seed=n)
        loss = compiled(idx, idx)[1]
        torch.testing.assert_close(loss, model(idx, idx)[1])
        loss.backward()


def test_the_loss_in_chunks_equals_the_loss(monkeypatch):
    model = build("rope")
    idx, targets = tokens(model, 2, 24), tokens(model, 2, 24, seed=1)
    results = []
    for limit in (2**26, 11 * 48 - 1, 11 * 7, 11, 1):  # all 48 rows at once; at most 47, 7, 1 and 1 rows
        monkeypatch.setattr(M, "LOGITS", limit)
        model.zero_grad()
        logits, loss = model(idx, targets)
        (3 * loss).backward()
        assert (logits is None) == (limit < 11 * 48)
        results.append([loss.detach(), *(p.grad.clone() for p in model.parameters())])
        with torch.no_grad():
            torch.testing.assert_close(model(idx, targets)[1], loss)
        torch.testing.assert_close(results[-1], results[0])


def test_learnable_starts_with_gpt2s_standard_deviation_and_is_undefined_past_block_size():
    assert GPT(GPTConfig(256, 50, 1, 2, 64)).pos.wpe.weight.std().item() == pytest.approx(0.02, rel=0.05)
    model = build("learnable")
    with pytest.raises(ValueError, match="learnable positions are defined for 24 tokens, not for 60"):
        model.hidden(tokens(model, 1, 60))


@pytest.mark.parametrize("scheme", ALL)
def test_without_positions_one_layer_sees_a_set_of_tokens(scheme):
    """Is 'cat mouse catches' different from 'mouse cat catches'? The first layer of every scheme but none tells the last
    token so. With none, only deeper layers can tell the order, through the causal mask."""
    cat, catches, mouse = 1, 2, 3
    for n_layer in (1, 2):
        one, two = build(scheme, n_layer=n_layer).hidden(torch.tensor([[cat, mouse, catches], [mouse, cat, catches]]))
        difference = (one[-1] - two[-1]).abs().max()
        assert difference < 1e-12 if n_layer == 1 and scheme == "none" else difference > 1e-6


def attended(scheme, q, k, v, pos):
    """Attention at pos (T,) of q and k (not yet rotated) and v, all (B, H, T, D), made from some x (B, T, C)."""
    positions = M.Positions(scheme, pos, pos, scheme.prepare(pos, pos))
    q, k = scheme.rotate(q, k, q.transpose(1, 2).flatten(-2), positions.prepared, 0, {})
    return M.attend(q, k, v, positions, 0, 0, 0.0)


@pytest.mark.parametrize("scheme", ALL)
def test_positions_stay_distinct_under_bfloat16_autocast(scheme):
    """bfloat16 cannot tell positions past 256 apart, so schemes compute them in float32 or better."""
    model = build(scheme, block_size=1500, spread=0.3)
    idx = tokens(model, 1, 1500)
    exact = model.hidden(idx)
    with torch.autocast("cpu", torch.bfloat16):
        error = (model.float().hidden(idx).double() - exact).abs().mean(-1)[0]
    assert error[1000:].mean() < 0.02 and error[1000:].mean() < 2 * error[:250].mean()


# ----------------------------------------------------------------------------------------------------------
# Published facts of single schemes


def test_alibi_slopes_as_published():
    assert alibi_slopes(8) == [2.0**-n for n in range(1, 9)]
    assert alibi_slopes(6) == [1 / 4, 1 / 16, 1 / 64, 1 / 256, 1 / 2, 1 / 8]
    assert alibi_slopes(12) == pytest.approx([2.0**-n for n in range(1, 9)] + [2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5])
    for H in range(1, 40):
        assert alibi_slopes(H) == pytest.approx(reference_slopes(H))


def test_alibi_equals_its_plain_form_far_out():
    """scores − m·(i−j), for the last queries of 16,384 tokens, where rounding hurts most."""
    q, k, v = torch.randn(3, 1, 4, 16384, 32, generator=torch.Generator().manual_seed(0))
    pos = torch.arange(16384)
    fast = attended(build("alibi", n_head=4, n_embd=128).pos, q, k, v, pos)[:, :, -64:]
    distance = pos[-64:, None] - pos
    slopes = torch.tensor(alibi_slopes(4)).double()[:, None, None]
    scores = q[:, :, -64:].double() @ k.double().mT / math.sqrt(32) - slopes * distance
    plain = scores.masked_fill(distance < 0, -torch.inf).softmax(-1) @ v.double()
    torch.testing.assert_close(fast.double(), plain, rtol=0, atol=2e-3)


@pytest.mark.skipif(not shutil.which("g++"), reason="torch.compile needs a C++ compiler")
@pytest.mark.parametrize("scheme", ["alibi", "fox"])
def test_bfloat16_channels_stay_exact_when_compiled(scheme):
    """Compiled code skips a cast to bfloat16 and back, so no channel may rely on its rounding."""
    pos_scheme = build(scheme, n_head=3, n_embd=24, n_layer=1).pos.float().requires_grad_(False)
    pos = torch.arange(2000)
    q, k = torch.randn(2, 1, 3, 2000, 8, generator=torch.Generator().manual_seed(0)).bfloat16()

    def scores():
        """What the added channels add to the scores of the last query."""
        wide = pos_scheme.rotate(q, k, q.transpose(1, 2).flatten(-2).float(), pos_scheme.prepare(pos, pos), 0, {})
        q_, k_ = (t[..., 8:].double() for t in wide)
        return (q_[:, :, -1:] * k_).sum(-1)

    torch.testing.assert_close(torch.compile(scores)(), scores(), rtol=0, atol=1e-2)


@given(
    st.integers(2, 64).map(lambda n: 2 * n), st.sampled_from([500.0, 10000.0, 500000.0]), st.floats(1, 64),
    st.sampled_from([128, 2048]),
)  # fmt: skip
def test_rope_scaling_tables(D, theta, s, L):
    def scaled(scaling, factor):
        """The frequencies and the factor on q and k."""
        rope = dict(pos_scheme="rope", rope_theta=theta, rope_scaling=scaling, rope_factor=factor)
        freqs, size = M.rope_frequencies(GPTConfig(L, n_embd=2 * D, n_head=2, **rope), torch.device("cpu"))
        return freqs.numpy(), size

    plain = [theta ** (-2 * i / D) for i in range(D // 2)]
    assert scaled("none", 1.0) == (pytest.approx(plain), 1.0)
    assert scaled("linear", s) == (pytest.approx([f / s for f in plain]), 1.0)
    ntk, _ = scaled("ntk", s)
    assert ntk == pytest.approx([(theta * s ** (D / (D - 2))) ** (-2 * i / D) for i in range(D // 2)])
    assert (ntk[0], ntk[-1]) == pytest.approx((1, plain[-1] / s))  # the fastest pair stays; the slowest slows by s
    yarn, size = scaled("yarn", s)
    low, high = (D * math.log(L / (2 * math.pi * turns)) / (2 * math.log(theta)) for turns in (32, 1))
    low, high = max(math.floor(low), 0), min(math.ceil(high), D - 1)
    for i in range(D // 2):
        ramp = min(1.0, max(0.0, (i - low) / max(high - low, 0.001)))
        assert yarn[i] == pytest.approx((1 - ramp) * plain[i] + ramp * plain[i] / s)
    assert size == pytest.approx(0.1 * math.log(s) + 1)


def test_with_a_rope_fraction_the_slow_pairs_stand_still():
    """The others turn as before, also scaled. (GPT-NeoX's rotary_pct spaces them anew.)"""
    whole = GPTConfig(pos_scheme="rope", n_embd=32, n_head=2)
    for more in ({}, dict(rope_scaling="yarn", rope_factor=4.0), dict(rope_scaling="linear", rope_factor=4.0)):
        tables = [M.rope_frequencies(replace(whole, rope_fraction=f, **more), torch.device("cpu")) for f in (1.0, 0.75)]
        (plain, size), (some, same_size) = tables
        assert torch.equal(some[:6], plain[:6]) and some[6:].tolist() == [0, 0] and size == same_size


@pytest.mark.parametrize("scheme", [s for s in RELATIVE if find_scheme(s).shift_invariant])
def test_relative_schemes_ignore_a_shift_of_all_positions_also_in_bfloat16(scheme):
    """Rounding q, k and v to bfloat16 costs no more at position 65,536 than at the start, because positions are not
    rounded. Measured for 64 queries and the 256 keys before them."""
    qkv = torch.randn(3, 1, 4, 256, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    exact, error = {}, {}
    for last in (256, 65536):
        pos, pos_scheme = torch.arange(last - 256, last), build(scheme, n_head=4, n_embd=128).pos
        exact[last] = attended(pos_scheme, *qkv, pos)
        rounded = attended(pos_scheme.bfloat16(), *qkv.bfloat16(), pos).double()
        error[last] = (rounded - exact[last])[:, :, -64:].abs().mean()
    torch.testing.assert_close(exact[65536], exact[256], rtol=0, atol=1e-6)
    assert error[65536] < min(0.02, 1.5 * error[256])


def test_t5_buckets_as_published():
    model = build("t5", block_size=128).float()
    model.pos.table.data = torch.arange(32.0)[:, None].expand(32, 2) / 64
    by_distance = model.pos.prepare(None, torch.arange(300))[:, 0].long().tolist()
    assert by_distance == [reference_bucket(n) for n in range(300)]
    assert by_distance[:17] == [*range(16), 16] and by_distance.index(31) == 113 and set(by_distance[113:]) == {31}


@pytest.mark.parametrize("scheme", ALL)
def test_override_equals_a_new_model_with_that_config(scheme):
    model, built = build(scheme, block_size=64), build(scheme, block_size=64, window=9)
    idx = tokens(model, 1, 64)
    plain = model.hidden(idx)
    assert torch.equal(model.override(replace(model.config, window=9)).hidden(idx), built.hidden(idx))
    assert torch.equal(model.override(replace(model.config, window=0)).hidden(idx), plain)


def test_sinusoidal_table():
    """Vectors of length sqrt(C/2), all different, whose inner product depends on the distance only and rises again at
    distance 12 for C = 128. Exact also at far positions."""
    C, far = 128, 65_536
    model = build("sinusoidal", n_embd=C, sinusoidal_size=0.5**0.5)
    table = model.pos.embed(torch.zeros(1, 2049, C, dtype=torch.float64), torch.tensor([*range(2048), far]))[0]
    torch.testing.assert_close(table[-1], reference_embedding("sinusoidal", C, far, model), rtol=0, atol=1e-9)
    table = table[:-1]
    products = table @ table.T
    assert torch.allclose(products.diagonal(), torch.tensor(C / 2, dtype=torch.float64))
    assert (products.fill_diagonal_(-torch.inf).amax(dim=1) < C / 2 - 0.1).all()
    by_distance = products[0, 1:]
    assert torch.allclose(products[1000, 1001:], by_distance[:1047])
    assert (by_distance.diff() > 0).nonzero()[0].item() + 2 == 12


def test_kerples_r1_starts_uniform_in_0_to_2_and_r2_in_0_to_1():
    scheme = find_scheme("kerple")(GPTConfig(8, 8, 1, 4000, 4000, pos_scheme="kerple"))
    scheme.init_weights(torch.Generator().manual_seed(0))
    for r, high in zip(F.softplus(scheme.r.detach()).flatten(1), (2, 1), strict=True):
        assert 0 < r.min() and r.max() < high
        quarters = (r / high).quantile(torch.tensor([0.25, 0.5, 0.75])).tolist()
        assert quarters == pytest.approx([0.25, 0.5, 0.75], abs=0.05)


def test_ssmax_keeps_its_attention_on_the_largest_score():
    """The largest score beats n − 1 equal ones by d: its weight is 1 / (1 + (n − 1)·n^(−s·d)), which rises with n if
    s·d > 1 and vanishes otherwise."""
    for s, n in itertools.product((0.5, 2.0), (4, 64, 1024)):
        model = build("ssmax", n_layer=1, n_head=1, n_embd=2)
        model.pos.s.data[:] = s
        q, k = torch.zeros(2, 1, 1, n, 2, dtype=torch.float64)
        q[..., -1, 0] = k[..., -1, 0] = 2**0.25  # the last query scores 1 with its own key, 0 with the others
        v = F.pad(torch.ones(1, 1, 1, 2, dtype=torch.float64), (0, 0, n - 1, 0))
        weight = attended(model.pos, q, k, v, torch.arange(n))[0, 0, -1, 0].item()
        assert weight == pytest.approx(1 / (1 + (n - 1) * n**-s))


def test_scale_invariant_attention_meets_the_papers_two_conditions():
    """For normally distributed scores s, the mean of exp(a·s + m) falls as 1 / (1 + n/τ), and the mean of a·s + m under
    that weight is the same at every distance n: a²/2 + m = 1/2 − log(1 + n/τ) and a² + m = 1."""
    scheme, n = build("scale_invariant", pos_options="tau=4").pos, torch.arange(999, -1, -1, dtype=torch.float64)
    k = torch.tensor([0.0, 8**0.5], dtype=torch.float64)[:, None, None, None].expand(2, 1, 1000, 8) / 8
    q = torch.ones(2, 1, 1, 8, dtype=torch.float64)  # of scores 0 and 1
    m, sum_ = scheme.bias(q, k, torch.tensor([999]), torch.arange(1000), None, 0)[:, 0, 0]
    a = 1 + sum_ - m
    torch.testing.assert_close(a**2 / 2 + m, 0.5 - torch.log(1 + n / 4), rtol=0, atol=1e-5)
    torch.testing.assert_close(a**2 + m, torch.ones(1000).double(), rtol=0, atol=1e-5)


# ----------------------------------------------------------------------------------------------------------
# Finding schemes, and models from weights

NEW_SCHEME = "import model\nclass New(model.PositionScheme, name={!r}): pass\n"


def test_a_scheme_in_a_file_is_found_by_its_name_only(tmp_path, monkeypatch):
    folder, core = tmp_path / "schemes", ["none", "sinusoidal", "learnable", "rope", "alibi"]
    monkeypatch.setattr(M, "__file__", f"{tmp_path}/model.py")
    monkeypatch.setattr(M, "SCHEMES", {name: M.SCHEMES[name] for name in core})
    monkeypatch.setattr(schemes, "__path__", [str(folder)])
    folder.mkdir()
    for name in ("b", "a", "_hidden"):
        (folder / f"{name}.py").write_text(NEW_SCHEME.format(name))
    assert scheme_names() == [*core, "a", "b"] and list(M.SCHEMES) == core  # listing imports nothing
    assert GPT(GPTConfig(8, 8, 1, 1, 2, pos_scheme="b")).pos.__class__.__name__ == "New"
    assert list(M.SCHEMES) == [*core, "b"]
    for name in ("c", "_hidden", "b.py", "schemes.b", "", "os"):
        with pytest.raises(ValueError, match=f"pos_scheme={name!r} is not one of: none, .*, alibi, a, b, in model.py"):
            GPTConfig(pos_scheme=name)
    (folder / "misnamed.py").write_text(NEW_SCHEME.format("other"))
    with pytest.raises(ValueError, match=r"^schemes/misnamed.py must define a class .*name='misnamed'\)$"):
        GPTConfig(pos_scheme="misnamed")


@pytest.mark.parametrize("scheme", ALL)
def test_a_state_dict_has_no_buffers_and_a_model_from_it_shares_it_and_draws_nothing(scheme):
    model, before = build(scheme).float(), torch.get_rng_state()
    weights, idx = model.state_dict(), tokens(model, 2, 24)
    assert weights.keys() == dict(model.named_parameters()).keys() | {"lm_head.weight"}  # tied to wte
    loaded = GPT.from_weights(model.config, weights)
    assert torch.equal(torch.get_rng_state(), before) and torch.equal(loaded(idx)[0], model(idx)[0])
    assert all(w.data_ptr() == weights[name].data_ptr() for name, w in loaded.state_dict().items())
    for wrong in ({"more": idx}, {"lm_head.weight": idx}):
        with pytest.raises(RuntimeError):
            GPT.from_weights(model.config, weights | wrong)


def test_a_bias_of_the_wrong_shape_is_named(monkeypatch):
    monkeypatch.setattr(M, "SCHEMES", dict(M.SCHEMES))
    hooks = {"bias": lambda self, q, k, *rest: torch.zeros(4, 4, 2)}
    M.PositionScheme.__class__("Toy", (M.PositionScheme,), hooks, name="toy")
    message = r"Toy.bias returned \(4, 4, 2\), expected \(3, 2, 2, 4\) or \(1, 2, 2, 4\)"
    with pytest.raises(ValueError, match=message):
        build("toy")(torch.zeros(3, 4, dtype=torch.long))
