"""The processes that train together, one or torchrun's, and what each of them computes with."""

import contextlib
import os
import re
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from run.device import matmul_peak, pick_device, pick_dtype

PATIENCE = timedelta(minutes=10)  # how long a process waits for the others before it ends


@dataclass(frozen=True)
class World:
    """This process: its device, its dtype, and its rank among the processes of a run."""

    device: torch.device
    dtype: torch.dtype
    rank: int = 0
    size: int = 1

    @classmethod
    def join(cls, device_name, dtype_name):
        """The world that torchrun describes in the environment, or this process alone."""
        rank, size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        if not 0 <= rank < size:
            raise ValueError(f"the environment has RANK={rank}, WORLD_SIZE={size}: start with torchrun, or unset both")
        if device_name in ("auto", "cuda") and torch.cuda.is_available():
            device_name = f"cuda:{os.environ.get('LOCAL_RANK', 0)}"  # set_device needs a number
        device = pick_device(device_name)
        if device.type == "cuda":
            torch.cuda.set_device(device)
        if size > 1:
            dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=PATIENCE)
        return cls(device, pick_dtype(dtype_name, device), rank, size)

    @property
    def is_first(self):
        return self.rank == 0

    def barrier(self):
        """Waits for all processes."""
        if self.size > 1:
            dist.barrier()

    def first_goes_first(self, action):
        """action() in all processes. The first one goes first: it may write what the others then read."""
        result = action() if self.is_first else None
        self.barrier()
        return result if self.is_first else action()

    def sum(self, value):
        """The sum of a number over all processes."""
        if self.size == 1:
            return value
        total = torch.tensor(float(value), device=self.device)
        dist.all_reduce(total)
        return total.item()

    def share_rows(self, batch_size, micro_steps):
        """The number of rows in a step, and this process's rows as one range per micro-step. ValueError if they cannot
        be divided equally."""
        rows, mine = batch_size * micro_steps, -(-micro_steps // self.size)
        each, odd = divmod(rows, self.size * mine)
        if odd:
            parts = f"{self.size} processes × {mine} micro-steps"
            raise ValueError(f"batch_size·gradient_accumulation_steps={rows} must be a multiple of {parts}")
        first = self.rank * mine * each
        return rows, [range(first + n * each, first + (n + 1) * each) for n in range(mine)]

    def peak(self):
        """FLOP/s of large matrix products in all processes together."""
        return self.size * matmul_peak(self.device, self.dtype)

    def exchange(self, model, last):
        """A context for a micro-step: only the last one of a step exchanges gradients."""
        return contextlib.nullcontext() if self.size == 1 or last else model.no_sync()

    def wrap(self, model):
        """Makes the model average its gradients over the processes."""
        return DistributedDataParallel(model) if self.size > 1 else model

    def place(self, tensors):
        """Copies the tensors to this process's device."""
        if self.device.type == "cuda":  # the GPU computes while pinned memory is copied
            return [t.pin_memory().to(self.device, non_blocking=True) for t in tensors]
        return [t.to(self.device) for t in tensors]


@contextlib.contextmanager
def connection():
    """Closes the connection between the processes when the block ends: by then, the threads of DDP must have ended.
    ConnectionError if another process did not answer."""
    try:
        yield
    except RuntimeError as error:  # gloo and nccl have no exception type for it
        if not dist.is_initialized() or not re.search("timed out|timeout|connection|peer", str(error), re.I):
            raise
        raise ConnectionError(f"another process of this run has ended or hangs ({str(error)[:80]}…)") from None
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
