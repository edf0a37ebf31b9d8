"""The first step of a standby, before anybody needs it: what torch sets up at its first use costs 50 ms and more.

A group, DDP around a module, steps, saving and loading: the first of each costs a process some milliseconds of its own, and
where all workers of a node start at once its cores do that for each of them. The random numbers of the script are those of a
fresh process: their state is put back.
"""

from __future__ import annotations

import gc
import io
import os
import sys

__all__ = ["warm_cpu", "warm_device", "warm_group"]

#: Where one of these is set torch tells of each group on stderr, and the group of a standby is nobody's business.
_TOLD_OF = ("TORCH_DISTRIBUTED_DEBUG", "TORCH_CPP_LOG_LEVEL", "GLOO_LOG_LEVEL")


def warm_cpu() -> None:
    """Take one step of autograd and of an optimizer on the CPU."""
    import torch  # noqa: PLC0415  the zygote has it

    state = torch.get_rng_state()
    try:
        _step("cpu")
    finally:
        torch.set_rng_state(state)


def warm_group() -> None:
    """Be a world of one rank for two steps of DDP, save and load, and be in no world again.

    Does nothing where torch has no gloo. Threads and sockets of the group are gone afterwards; gloo's flight recorder keeps the
    few collectives of it.
    """
    from torch import distributed as dist  # noqa: PLC0415

    if not dist.is_available() or not dist.is_gloo_available() or any(os.environ.get(name) for name in _TOLD_OF):
        return
    import torch  # noqa: PLC0415

    hook, state = sys.excepthook, torch.get_rng_state()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    try:
        _train_in_group()
    finally:
        dist.destroy_process_group()
        torch.set_rng_state(state)
        sys.excepthook = hook  # the group's puts the rank before each line of a traceback
        gc.collect()  # what is left of it in circles holds threads


def _train_in_group() -> None:
    import torch  # noqa: PLC0415
    from torch.nn.parallel import DistributedDataParallel  # noqa: PLC0415

    module = DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in range(2):  # after the first DDP lays its buckets out anew
        optimizer.zero_grad()
        module(torch.ones(2, 8)).square().mean().backward()
        optimizer.step()
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    torch.load(file, weights_only=True)


def warm_device(index: int) -> bool:
    """Make the context of a CUDA device, take a step there, and load NCCL; return whether there is such a device.

    It holds some hundred MB of the device's memory from now on.
    """
    import torch  # noqa: PLC0415

    if not torch.cuda.is_available() or torch.cuda.device_count() == 0:
        return False
    number = index % torch.cuda.device_count()
    # Left as it was found: a script that chooses no device has the first one.
    with torch.cuda.device(number):
        state = torch.cuda.get_rng_state()
        _step(f"cuda:{number}")
        torch.cuda.synchronize()
        torch.cuda.nccl.version()
        torch.cuda.set_rng_state(state)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    return True


def _step(device: str) -> None:
    import torch  # noqa: PLC0415

    layer = torch.nn.Linear(8, 8, device=device)
    for kind in (torch.optim.SGD, torch.optim.AdamW):
        optimizer = kind(layer.parameters(), lr=0.1)
        layer(torch.ones(2, 8, device=device)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
