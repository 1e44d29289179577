"""The device and precision that a command computes with, and their peak speed."""

import contextlib
import math
import time
from typing import Literal

import torch

DType = Literal["auto", "float32", "bfloat16"]


def pick_device(name):
    """'auto' is cuda, then mps, then cpu. ValueError if the named device is not available."""
    present = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    available = [kind for kind, is_there in present.items() if is_there]
    try:
        device = torch.device(available[0] if name == "auto" else name)
        torch.empty(1, device=device)
        present[device.type]
    except (RuntimeError, AssertionError, KeyError):
        raise ValueError(f"device={name!r} is not available; choose one of: auto, {', '.join(available)}") from None
    return device


def pick_dtype(name, device):
    """The torch.dtype of a DType; 'auto' is bfloat16 on a GPU that has it, else float32."""
    if name == "auto":
        name = "bfloat16" if device.type == "cuda" and torch.cuda.is_bf16_supported() else "float32"
    return getattr(torch, name)


def autocast(device, dtype):
    """Computes matrix products in dtype; losses, norms and positions stay in float32."""
    return torch.autocast(device.type, dtype) if dtype != torch.float32 else contextlib.nullcontext()


def matmul_peak(device, dtype):
    """FLOP/s of a large matrix product, which MFU is relative to: a practical limit that exists on any machine."""
    n = 8192 if device.type == "cuda" else 1024
    a = torch.randn(n, n, device=device, dtype=dtype)
    best = math.inf
    for _ in range(10):
        begin = time.perf_counter()
        (a @ a)[0, 0].item()  # waits for the device
        best = min(best, time.perf_counter() - begin)
    return 2 * n**3 / best
