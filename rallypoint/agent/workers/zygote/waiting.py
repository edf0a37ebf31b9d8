"""The life of a fork until it has a command: adopted by the agent, warmed, waiting on its own line.

The first step of a fork is made before anybody needs it: what torch sets up at its first use costs 50 ms and more. A group, DDP
around a module, steps, saving and loading: the first of each costs a process some milliseconds of its own, and where all
workers of a node start at once its cores do that for each of them. The random numbers of the script are those of a fresh
process: their state is put back.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import io
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from rallypoint.agent.workers.zygote.becoming import anticipate, prepare
from rallypoint.agent.workers.zygote.messages import Memory, Order, frame, receive

__all__ = ["wait"]

_PR_SET_PDEATHSIG = 1
_ROLLUP = Path("/proc/self/smaps_rollup")

#: If one of these is set, torch logs each process group on stderr; the group of a standby would only confuse the reader.
_TOLD_OF = ("TORCH_DISTRIBUTED_DEBUG", "TORCH_CPP_LOG_LEVEL", "GLOO_LOG_LEVEL")


def wait(line: socket.socket, agent: int) -> Order:
    """Return the order, once there is one. Never returns when the agent is gone, or had no use for this process.

    The agent says "go" when it watches this process as its child; a session of its own before that would make it look like
    something that a worker left behind.
    """
    started, _ = receive(line)
    if started is None:
        os._exit(0)
    os.setsid()
    _die_with(agent)
    trouble = _warm(started)
    anticipated = _anticipated(started["startup"])
    memory = _memory()
    line.sendall(frame({"ready": {"own": memory.own, "share": memory.share}, "trouble": trouble}))
    while True:
        message, fds = receive(line)
        if message is None:
            os._exit(0)
        order = Order.from_json(message)
        try:
            if not anticipated:
                anticipate(order.startup)
            prepare(order, fds, line)
        except OSError as error:
            # The line may have been moved away under the numbers that the order wants; it is told on the same object.
            told = [error.errno or errno.EIO, error.strerror or str(error), error.filename]
            line.sendall(frame({"failed": told}))
            os._exit(127)
        except Exception as error:  # noqa: BLE001  whatever it is, another process can be what this one cannot
            line.sendall(frame({"unable": f"{type(error).__name__}: {error}"}))
            os._exit(127)
        with contextlib.suppress(OSError):
            line.sendall(frame({"taken": True}))
        line.close()
        return order


def _warm(started: dict[str, Any]) -> str:
    try:
        if started.get("warm"):
            _warm_cpu()
            _warm_group()
        if started.get("device") is not None:
            _warm_device(int(started["device"]))
    except Exception as error:  # noqa: BLE001  one that is not warm can work all the same
        return f"{type(error).__name__}: {error}"
    return ""


def _anticipated(startup: str) -> bool:
    """Do what needs no order yet; what goes wrong in it is tried again, and told, when there is one."""
    try:
        anticipate(startup)
    except Exception:  # noqa: BLE001  see above
        return False
    return True


def _die_with(agent: int) -> None:
    """Be killed when the agent ends, as workers that it started itself are."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != agent:
            os._exit(128 + signal.SIGKILL)


def _memory() -> Memory:
    try:
        lines = _ROLLUP.read_text(encoding="ascii").splitlines()[1:]
    except (OSError, ValueError):
        return Memory()
    sizes = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.endswith("kB")}
    own = sizes.get("Private_Dirty", 0) + sizes.get("Private_Clean", 0)
    return Memory(own=own, share=sizes.get("Pss", 0))


def _warm_cpu() -> None:
    """Take one step of autograd and of an optimizer on the CPU."""
    import torch  # noqa: PLC0415  the zygote has it

    state = torch.get_rng_state()
    try:
        _step("cpu")
    finally:
        torch.set_rng_state(state)


def _warm_group() -> None:
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


def _warm_device(index: int) -> bool:
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
