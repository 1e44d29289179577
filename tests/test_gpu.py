"""What only a GPU can show; run with  python -m pytest -m gpu -n 0. Without one these tests skip."""

import pytest
import torch
from conftest import build, tokens

import train
from model import KVCache, scheme_names
from run.checkpoint import load_checkpoint
from run.device import autocast

ALL = scheme_names()
SIZES = dict(block_size=64, vocab_size=50, n_layer=2, n_head=4, n_embd=128)
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]


@pytest.mark.parametrize("window", [0, 8])
@pytest.mark.parametrize("scheme, sink", [*((scheme, False) for scheme in ALL), ("rope", True), ("t5", True)])
def test_a_gpu_computes_what_a_cpu_does(scheme, window, sink):
    """Logits, gradients and cached decoding, against float64 on the CPU."""
    settings = dict(window=window, sink=sink, spread=0.2)
    exact = build(scheme, **SIZES, **settings)
    model = build(scheme, **SIZES, **settings).float().cuda()
    idx = tokens(exact, 3, 64)
    expected, loss = exact(idx, idx)
    loss.backward()
    torch.backends.cuda.matmul.allow_tf32 = False
    for dtype, at_most in ((torch.float32, 1e-4), (torch.bfloat16, 0.06)):
        model.zero_grad()
        with autocast(torch.device("cuda"), dtype):
            logits, loss = model(idx.cuda(), idx.cuda())
        loss.backward()
        torch.testing.assert_close(logits.cpu().double(), expected, rtol=0, atol=at_most)
        for right, p in zip(exact.parameters(), model.parameters(), strict=True):
            error = (right.grad - p.grad.cpu()).norm()
            assert error < 30 * at_most * right.grad.norm().clamp(min=1e-3)
    cache = KVCache()
    with torch.no_grad():
        states = [model.hidden(chunk, cache) for chunk in idx.cuda().split((1, 40, 7, 16), dim=1)]
        logits = model.lm_head(torch.cat(states, dim=1))
    torch.testing.assert_close(logits.cpu().double(), expected.detach(), rtol=0, atol=1e-3)


@pytest.mark.parametrize("scheme, window", [*((scheme, 0) for scheme in ALL), ("rope", 8)])
def test_a_compiled_model_is_one_graph_compiled_once(scheme, window):
    torch._dynamo.reset()  # in one process, only eight models of a class are compiled
    model = build(scheme, **SIZES, window=window, spread=0.2).float().cuda()
    compiled = torch.compile(model, fullgraph=True)
    for step in range(4):
        idx = tokens(model, 4, 64, seed=step).cuda()
        with torch._dynamo.config.patch(error_on_recompile=step > 0):
            loss = compiled(idx, idx)[1]
            loss.backward()
        torch.testing.assert_close(loss, model(idx, idx)[1], rtol=0, atol=1e-4)


@pytest.fixture
def deterministic(monkeypatch):
    """Asks torch for deterministic kernels."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("scheme", ["rope", "alibi", "t5"])
def test_a_resumed_run_is_bit_identical_with_deterministic_kernels(scheme, deterministic, dataset, tmp_path):
    flags = "--device=cuda --n_layer=2 --n_embd=64 --block_size=512 --batch_size=4 --dropout=0.1".split()
    flags += [f"--pos_scheme={scheme}", f"--dataset={dataset}", "--max_iters=10", "--wandb_mode=disabled"]
    train.main([*flags, f"--out_dir={tmp_path}/whole"])
    train.main([*flags, f"--out_dir={tmp_path}/parts", "--max_iters=5"])  # all steps warm up: the same rates
    train.main(["--resume", f"--out_dir={tmp_path}/parts", "--max_iters=10", "--device=cuda"])
    whole = load_checkpoint(tmp_path / "whole", "latest")
    parts = load_checkpoint(tmp_path / "parts", "latest")
    assert whole.hash == parts.hash
    assert whole.step == parts.step == 10
