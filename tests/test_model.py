"""Each scheme against a slow float64 reference written from its paper's equation, and against published facts.

A test with the parameter `scheme` runs for every scheme in model.py and schemes/. The slow references loop over queries
and keys, and use nothing from model.py except a model's weights.
"""

import contextlib
import math
import shutil
from dataclasses import replace
from fractions import Fraction

import pytest
import torch
import torch.nn.functional as F
from conftest import build, tokens
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
        "window=1/4 |",
        "pos_scheme=none |",
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


SLOPES = {  # ALiBi's, by the number of heads, as −log2
    1: [8],
    2: [4, 8],
    3: [4, 8, 2],
    4: [2, 4, 6, 8],
}


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


def reference_kerple(r, n, h):
    """Chi 2022, the logarithmic variant: the bias at distance n in head h."""
    r1 = F.softplus(r[0, h, 0, 0])
    r2 = F.softplus(r[1, h, 0, 0])
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
    """Score of query i and key j in head h. q and k (T, H, D) of all tokens are made from x (T, C); p (T,) are their
    positions."""
    H, D = q.shape[1:]
    n = p[i] - p[j]
    q_i = q[i, h]
    k_j = k[j, h]
    k_before = k[max(0, j - 1), h]  # the key of the token before
    pos = model.schemes[layer]
    scale = 1 / math.sqrt(D)
    score = scale * (q_i @ k_j)
    match scheme:
        case "none" | "sinusoidal" | "learnable":
            return score
        case "rope":
            return scale * (reference_turn(q_i, p[i]) @ reference_turn(k_j, p[j]))
        case "ssmax":  # Nakanishi 2025, section 2
            visible = min(i + 1, model.config.kinds[layer].n_keys)
            rope = reference_score("rope", q, k, x, i, j, h, p, model, layer)
            return pos.s[layer, h, 0, 0] * math.log(visible) * rope
        case "key_offset":  # record 49 of modded-nanogpt, in the frequencies of D/2 channels
            fixed = 2 * math.ceil(D / 4)  # the first channel that does not turn
            q_turned = reference_turn(q_i[:fixed], p[i], D / 2)
            k_turned = reference_turn(k_j[:fixed], p[j], D / 2)
            return scale * (q_turned @ k_turned + q_i[fixed:] @ k_before[fixed:])
        case "alibi":  # Press 2022, section 3
            return score - 2 ** -SLOPES[H][h] * n
        case "alibi_offset":
            fixed = math.ceil(D / 2)
            mixed = torch.cat((k_j[:fixed], k_before[fixed:]))
            return scale * (q_i @ mixed) - 2 ** -SLOPES[H][h] * n
        case "path":  # Yang 2025, section 2: the product of the matrices between the two tokens
            for t in range(i, j, -1):
                w, beta = reference_householder(x, t, h, D, pos, layer)
                q_i = q_i - beta * (q_i @ w) * w
            return scale * (q_i @ k_j)
        case "scale_invariant":  # Anson 2025, on p-RoPE
            fast = 0  # channels
            while fast < D and model.config.block_size * 10000 ** (-fast / D) >= 2 * math.pi:
                fast += 2
            q_turned = reference_turn(q_i, p[i])
            k_turned = reference_turn(k_j, p[j])
            product = q_turned[:fast] @ k_turned[:fast] + q_i[fast:] @ k_j[fast:]
            L = math.log(1 + n / option(pos, 10))
            return math.sqrt(1 + 2 * L) * scale * product - 2 * L
        case "pope":  # Gopalakrishnan 2025, section 4
            score = torch.zeros(()).double()
            for c in range(D):
                sizes = F.softplus(q_i[c]) * F.softplus(k_j[c])
                angle = n * 10000 ** (-c / D)
                score += sizes * math.cos(angle - pos.delta[layer, h, 0, c])
            return scale * score
        case "transformer_xl":  # Dai 2019, section 3.3: terms (a) to (d)
            C = H * D
            pair = torch.arange(C // 2).double()
            angles = n / 10000 ** (2 * pair / C)
            W = pos.w_r[layer][h * D : (h + 1) * D]
            r = W @ torch.cat((angles.sin(), angles.cos()))
            return score + scale * (q_i @ r + pos.u[h] @ k_j + pos.v[h] @ r)
        case "t5":  # Raffel 2020, section 2.1
            last = reference_bucket(model.config.block_size - 1)  # that training reaches
            bucket = min(reference_bucket(n), last)
            return score + option(pos, 64) * pos.table[bucket, h]
        case "kerple":
            return score + reference_kerple(pos.r, n, h)
        case "fox":  # Lin 2025, equation 3: the product of the gates between the two tokens
            between = x[j + 1 : i + 1]
            gates = between @ pos.w[layer, h] + pos.b[layer, h]
            return score + gates.sigmoid().log().sum()
        case "fire":  # Li 2023, equation 3
            c = abs(pos.c[layer])
            longest = max(abs(512 * pos.w[layer]), p[i])
            share = math.log(1 + c * n) / math.log(1 + c * longest)
            hidden = (pos.w_1[layer] * share + pos.b_1[layer]).relu()
            return score + pos.w_2[layer, h] @ hidden
        case "cope":  # Golovneva 2024, equations 3 to 5
            gates = (k[j : i + 1, h] @ q_i * scale).sigmoid()
            count = min(option(pos, 64), gates.sum().item())
            low = math.floor(count)
            below = pos.e[layer, :, low]
            above = pos.e[layer, :, math.ceil(count)]
            interpolated = below + (count - low) * (above - below)
            return score + scale * (q_i @ interpolated)
        case "inkling":  # transformers' InklingRelativeLogits
            extent = option(pos, model.config.block_size // 2 or 1)
            r = pos.w[layer, 16 * h : 16 * (h + 1)] @ x[i]
            return score + (r @ pos.p[n, layer] if n < extent else 0)
        case "dape":  # Zheng 2024, equation 2
            scores = [scale * (q[i, g] @ k[j, g]) for g in range(H)]
            biases = [reference_kerple(pos.r, n, g) for g in range(H)]
            both = torch.tensor([*scores, *biases]).double()
            hidden = F.leaky_relu(pos.w_1[layer] @ both + pos.b_1[layer])
            return score + biases[h] + pos.w_2[layer, h] @ hidden
    raise AssertionError(f"tests/test_model.py: add the equation of {scheme} to reference_score")


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
        normed = norm(x, f"{name}.ln_1")
        qkv = linear(normed, f"{name}.attn.c_attn")
        q, k, v = qkv.view(T, 3, c.n_head, -1).unbind(1)  # each (T, H, D)
        if c.qk_norm:
            q = q / (q**2).mean(-1, keepdim=True).sqrt()
            k = k / (k**2).mean(-1, keepdim=True).sqrt()
        out = torch.zeros_like(v)  # (T, H, D)
        for h in range(c.n_head):
            for i in range(T):
                seen = range(i + 1)[-min(T, kind.n_keys) :]
                temperature = 1 + kind.temperature * math.log(1 + p[i] // c.block_size)
                scores = [sink[h]]
                for j in seen:
                    score = reference_score(kind.pos_scheme, q, k, normed, i, j, h, p, model, layer)
                    scores.append(temperature * score)
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
    """Up to 1.5 times block_size, far from the first position, and at positions with gaps: a window counts keys, not
    distances. The window is changed after the model was made, as evaluations do."""
    sizes = dict(n_head=n_head, n_embd=2 * n_head * half, block_size=20, qk_norm=qk_norm)
    options = OPTIONS.get(scheme, "") if seed % 2 else ""
    model = build(scheme, seed, layers=fitting(layers, scheme), pos_options=options, **sizes)
    model.override(replace(model.config, window=seed % 5))
    model.pos.step = 8  # PaTH computes in blocks of keys: now there are several
    limit = model.config.max_positions or 200
    idx = tokens(model, 1, min(T, limit), seed)
    positions = None
    if seed % 3 == 0 and find_scheme(scheme).gaps:
        generator = torch.Generator().manual_seed(seed)
        positions = torch.randperm(limit, generator=generator)[: idx.size(1)].sort().values
        if limit == 200:
            positions += 65_280 * (seed % 2)
    expected = reference_logits(model, idx[0], None if positions is None else positions.tolist())
    for learning in (True, False):  # a learned bias is added in another way if gradients are needed
        with torch.set_grad_enabled(learning):
            logits, _ = model(idx, idx, positions=positions)
        close(logits[0], expected, 2e-6)  # complex64 angles
    close(model(idx, positions=positions)[0], expected[None, -1:], 2e-6)


# ----------------------------------------------------------------------------------------------------------
# Facts of every scheme


@pytest.mark.parametrize("scheme", ALL)
def test_shared_weights_start_bit_identical_and_a_state_dict_holds_only_what_is_learned(scheme):
    config = GPTConfig(64, 50, 2, 2, 16, pos_scheme="none")
    plain = GPT(config).state_dict()
    model = GPT(replace(config, pos_scheme=scheme))
    weights = model.state_dict()
    assert weights.keys() == dict(model.named_parameters()).keys() | {"lm_head.weight"}  # tied to wte
    assert all(torch.equal(weights[name], plain[name]) for name in plain)


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


@pytest.mark.parametrize("scheme", ALL)
def test_no_tensor_is_made_on_another_device(scheme, monkeypatch):
    """On a GPU that is an error, and so it is on the meta device, where tensors have no values."""
    monkeypatch.setattr(torch, "autocast", lambda *device, **settings: contextlib.nullcontext())  # meta has none
    model = build(scheme).to("meta")
    idx = tokens(model, 2, 20).to("meta")
    cache = KVCache()
    for chunk in idx.split((9, 1, 10), dim=1):
        assert model.hidden(chunk, cache).is_meta


needs_compiler = pytest.mark.skipif(not shutil.which("g++"), reason="torch.compile needs a C++ compiler")


# every scheme is traced, which takes a second; only rope goes through the whole compiler, unless  pytest -m slow
COMPILED = [(scheme, "aot_eager") for scheme in ALL]
for name in ALL:
    slow = [] if name == "rope" else [pytest.mark.slow]
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
            loss = step_model(idx, idx)[1]
            results.append([loss, *torch.autograd.grad(loss, [*model.parameters()])])
        torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)
    for grad in results[0]:
        assert grad.abs().sum() > 0


def test_a_loss_may_leave_out_the_first_positions():
    model = build("rope")
    idx = tokens(model, 2, 24)
    whole, _ = model(idx, idx)
    logits, loss = model(idx, idx[:, 10:])
    torch.testing.assert_close(logits, whole[:, 10:])
    torch.testing.assert_close(loss, F.cross_entropy(logits.float().mT, idx[:, 10:]))


def test_the_loss_of_a_large_vocabulary_keeps_no_logits_and_is_the_same(monkeypatch):
    model = build("rope")
    idx = tokens(model, 2, 24)
    targets = tokens(model, 2, 24, seed=1)
    results = []
    for limit in (11 * 48, 11 * 48 - 1):
        monkeypatch.setattr(M, "MAX_LOGITS", limit)
        monkeypatch.setattr(M, "CPU_ROWS", 20)
        logits, loss = model(idx, targets)
        grads = torch.autograd.grad(3 * loss, [*model.parameters()])
        results.append([loss.float(), *grads])
    assert logits is None
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("scheme", ALL)
def test_positions_stay_distinct_under_bfloat16_autocast(scheme):
    """bfloat16 cannot tell positions past 256 apart, so schemes compute them in float32 or better."""
    model = build(scheme, block_size=1500, spread=0.3)
    idx = tokens(model, 1, 1500)
    exact = model.hidden(idx)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        rounded = model.float().hidden(idx).double()
    error = (rounded - exact)[0].abs().mean(-1)
    assert error[1000:].mean() < min(0.02, 2 * error[:250].mean())


def test_alibis_options_make_slopes_gentler_and_take_some_away():
    model = build("alibi", n_head=4, n_embd=4, pos_options="factor=1/16,flat_from=1,flat_to=3")
    assert model.pos.slopes == [[[1 / 64]], [[0]], [[0]], [[1 / 4096]]]


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


# ----------------------------------------------------------------------------------------------------------
# Kinds of layers


def test_a_share_of_the_training_length_is_rounded_down_exactly():
    for b in range(2, 1000):
        share = Fraction(b - 1, b)
        window = convert("window", str(share), (int, float))
        assert GPTConfig(1000, window=window).n_keys == share * 1000 // 1


# ----------------------------------------------------------------------------------------------------------
# Published facts of single schemes


def test_sinusoidal_table():
    model = build("sinusoidal", n_embd=128, sinusoidal_size=0.5**0.5)
    table = model.pos.embed(torch.zeros(1, 64, 128).double(), torch.arange(64))[0]
    products = table @ table.T
    close(products[30, 30:], products[0, :34], 1e-9)
    assert products[0, 1:].max() < products[0, 0] - 0.1  # all vectors differ


def test_ntk_enlarges_the_base():
    """So that the slowest pair is slowed by the factor. For the other scalings, see test_models.py."""
    scaling = dict(rope_scaling="ntk", rope_factor=64.0, rope_theta=500.0)
    config = GPTConfig(n_head=2, n_embd=64, pos_scheme="rope", **scaling)
    freqs, _ = M.rope_frequencies(config, torch.device("cpu"))
    new_theta = 500.0 * 64 ** (32 / 30)
    pair = torch.arange(16).double()
    torch.testing.assert_close(freqs, new_theta ** (-pair / 16))


@needs_compiler
@pytest.mark.parametrize("scheme", ["alibi", "fox"])
def test_bfloat16_channels_stay_exact_when_compiled(scheme):
    """Compiled code skips a cast to bfloat16 and back, so no channel may rely on its rounding."""
    pos_scheme = build(scheme, n_head=3, n_embd=24, n_layer=1).pos.float().requires_grad_(False)
    pos = torch.arange(2000)
    torch.manual_seed(0)
    q, k = torch.randn(2, 1, 3, 2000, 8).bfloat16()
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


# ----------------------------------------------------------------------------------------------------------
# Finding schemes


def test_a_scheme_is_found_by_its_name_only(tmp_path, monkeypatch):
    for name in ("_rope_scaling", "t5.py", "os"):
        with pytest.raises(ValueError, match=f"pos_scheme={name!r} .* none, .*, alibi, .*, t5"):
            GPTConfig(pos_scheme=name)
    (tmp_path / "schemes").mkdir()
    (tmp_path / "schemes/misnamed.py").touch()
    monkeypatch.setattr(M, "__file__", f"{tmp_path}/model.py")
    monkeypatch.setattr(schemes, "__path__", [f"{tmp_path}/schemes"])
    with pytest.raises(ValueError, match="schemes/misnamed.py"):
        GPTConfig(pos_scheme="misnamed")
