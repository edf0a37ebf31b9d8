"""The same bits again: one seed, one order of addition, and a digest to tell whether two trainings ended alike."""

from __future__ import annotations

import ctypes
import hashlib
import random
import sys

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

__all__ = ["average_in_rank_order", "bare_module", "seed_everything", "weights_digest"]


def average_in_rank_order(model: DistributedDataParallel) -> None:
    """Let DDP add up gradients in the order of ranks, so that a restart does not change a bit of them.

    By default it does, from three ranks on: an all-reduce adds in an order that depends on where in a bucket an element
    lies, and DDP lays its buckets out anew after the first step of each process. The price: every rank receives the
    gradients of all ranks, so memory and traffic grow with the world's size.
    """
    # A lambda: DDP compares the annotations of a hook with types, and here they are text.
    model.register_comm_hook(None, lambda _, bucket: _gather_and_add(bucket.buffer()))


def seed_everything(seed: int) -> None:
    """Seed torch (every device), `random`, and numpy's legacy generator where numpy is imported.

    Add the rank to `seed` where the ranks should draw different numbers (dropout, augmentation).
    """
    random.seed(seed)
    torch.manual_seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)


def weights_digest(model: nn.Module) -> str:
    """Return the SHA-256, in hex, of the model's parameters and persistent buffers.

    For each tensor of `state_dict()`, in the order of their names: `name`, dtype and shape as text, each ended by a zero
    byte, then the elements as they lie in memory (row-major, on the CPU). A `DistributedDataParallel` wrapper is looked
    through, so the digest does not depend on it. Under FSDP2 every rank must call it, since the shards are gathered.
    """
    digest = hashlib.sha256()
    for name, value in sorted(bare_module(model).state_dict().items()):
        if isinstance(value, torch.Tensor):
            gathered = value.full_tensor() if hasattr(value, "full_tensor") else value
            plain = gathered.detach().cpu().contiguous()
            digest.update(f"{name}\0{plain.dtype}\0{tuple(plain.shape)}\0".encode())
            digest.update(ctypes.string_at(plain.data_ptr(), plain.nbytes))
    return digest.hexdigest()


def _gather_and_add(mine: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
    shares = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    work = dist.all_gather(shares, mine, async_op=True)

    def average(_: object) -> torch.Tensor:
        for share in shares[1:]:
            shares[0].add_(share)
        return shares[0].div_(len(shares))

    future: torch.futures.Future[torch.Tensor] = work.get_future().then(average)
    return future


def bare_module(module: nn.Module) -> nn.Module:
    """Return the module inside a `DistributedDataParallel`, or `module` itself."""
    return module.module if isinstance(module, DistributedDataParallel) else module
