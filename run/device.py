"""What a command computes with: its device, its precision, and the processes that train together."""

import contextlib
import ctypes
import math
import os
from typing import Literal

import torch
import torch.distributed as dist

DType = Literal["auto", "float32", "bfloat16"]


def pick_device(name):
    """The torch.device of a name; 'auto' is a GPU if there is one, else the CPU. ValueError if it is not available. On
    a CPU, floats below 1e-38 count as 0 from here on: ALiBi and FoX give far keys such weights, and products with them
    are many times slower. On Linux, freed memory is kept for the next step: getting it from the system again, page
    by page, is slow."""
    torch.set_flush_denormal(True)
    with contextlib.suppress(AttributeError, TypeError):  # only glibc has it
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(-3, 2**25)  # M_MMAP_THRESHOLD: blocks below 32 MB, the most that glibc allows, come from the heap
        mallopt(-1, 2**30)  # M_TRIM_THRESHOLD: the heap keeps up to 1 GB that is free
    if name == "auto":
        name = torch.accelerator.current_accelerator(check_available=True) or "cpu"
    try:
        return torch.empty(1, device=name).device
    except (RuntimeError, AssertionError):
        raise ValueError(f"device={name!r} is not available: choose cpu, or auto") from None


def pick_dtype(name, device):
    """The torch.dtype of a DType; 'auto' is bfloat16 on a GPU that has it, else float32."""
    if name == "auto":
        name = "bfloat16" if device.type == "cuda" and torch.cuda.is_bf16_supported() else "float32"
    return getattr(torch, name)


def autocast(device, dtype):
    """Computes matrix products in dtype; losses, norms and positions stay in float32."""
    return torch.autocast(device.type, dtype, enabled=dtype != torch.float32)


class World:
    """This process: its device, its dtype, and its rank among the `size` processes of a run. torchrun describes them in
    the environment; without it, this process is alone."""

    def __init__(self, device_name, dtype_name):
        self.rank = int(os.environ.get("RANK", 0))
        self.size = int(os.environ.get("WORLD_SIZE", 1))
        if device_name in ("auto", "cuda") and torch.cuda.is_available():
            device_name = f"cuda:{os.environ.get('LOCAL_RANK', 0)}"  # set_device needs a number
        self.device = pick_device(device_name)
        self.dtype = pick_dtype(dtype_name, self.device)
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
            torch.backends.cuda.matmul.allow_tf32 = True
        if self.size > 1:
            dist.init_process_group("nccl" if self.device.type == "cuda" else "gloo")

    def sum(self, value):
        """The sum of a number over all processes, which wait for each other."""
        if self.size == 1:
            return value
        total = torch.tensor(float(value), device=self.device)
        dist.all_reduce(total)
        return total.item()

    def share_rows(self, batch_size, micro_steps):
        """The number of rows in a step, and this process's rows as one range per micro-step. ValueError if they cannot
        be divided equally."""
        rows = batch_size * micro_steps
        micro_steps = math.ceil(micro_steps / self.size)  # of each process
        size, rest = divmod(rows, self.size * micro_steps)
        if rest:
            raise ValueError(
                f"batch_size·gradient_accumulation_steps={rows} must be a multiple of "
                f"{self.size} processes × {micro_steps} micro-steps"
            )
        parts = [range(start, start + size) for start in range(0, rows, size)]
        return rows, parts[self.rank * micro_steps :][:micro_steps]
