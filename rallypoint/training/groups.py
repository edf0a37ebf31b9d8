"""The process group of one round: joined at the start, left at the end, the same under Rallypoint, torchrun and python."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta

import torch
from torch import distributed as dist
from torch.distributed import HashStore, TCPStore  # type: ignore[attr-defined]  # public, but torch lists them by dir()
from torch.distributed.distributed_c10d import PrefixStore, Store

from rallypoint.training.context import environment_int
from rallypoint.training.rounds import current_rounds, lives_through_rounds
from rallypoint.wire import env
from rallypoint.wire.codec import WireError

__all__ = ["World", "init_process_group", "process_group"]

_log = logging.getLogger(__name__)

#: Tensors on the GPU over NCCL; what is on the CPU (checkpoint plans, pickled objects) over gloo.
_CUDA_BACKEND = "cpu:gloo,cuda:nccl"


@dataclass(frozen=True, kw_only=True)
class World:
    """The place of this process in the group, and the device it should use."""

    rank: int
    local_rank: int
    world_size: int
    device: torch.device


@contextlib.contextmanager
def process_group(backend: str | None = None, *, timeout: float | None = None) -> Iterator[World]:
    """Join the default process group for the length of a `with` block; see :func:`init_process_group`.

    The group is destroyed at the end. An exception of the block is never replaced by one from tearing the group down.
    """
    world = init_process_group(backend, timeout=timeout)
    try:
        yield world
    except BaseException:
        _leave_broken()
        raise
    if dist.is_initialized():
        dist.destroy_process_group()


def init_process_group(backend: str | None = None, *, timeout: float | None = None) -> World:
    """Join the default process group and return this process's place in it.

    With RANK in the environment (Rallypoint, torchrun) the group is formed over MASTER_ADDR and MASTER_PORT; without it
    this process is a world of its own. In a worker of Rallypoint's agent the group lives through rounds, for
    :func:`elastic`: torch calls its backend `rallypoint`, and what is inside is as asked for.

    Args:
        backend: of torch; None takes NCCL where CUDA is available, with gloo for what is on the CPU, or else gloo. With
            CUDA the current device becomes that of the local rank.
        timeout: seconds that a collective may take; None takes torch's default.

    Raises:
        WireError: when an environment variable is missing or wrong, or there is no GPU for this local rank.

    """
    chosen = backend or (_CUDA_BACKEND if torch.cuda.is_available() else "gloo")
    local_rank = environment_int(os.environ, "LOCAL_RANK", default=0)
    device = _device(chosen, local_rank)
    limit = None if timeout is None else timedelta(seconds=timeout)
    if lives_through_rounds(chosen, limit):
        return World(rank=dist.get_rank(), local_rank=local_rank, world_size=dist.get_world_size(), device=device)
    gpu = device if device.type == "cuda" else None
    store = _store(os.environ, limit)
    if store is None:
        dist.init_process_group(chosen, timeout=limit, device_id=gpu)
    else:
        rank = environment_int(os.environ, "RANK", default=0)
        size = environment_int(os.environ, "WORLD_SIZE", default=1)
        dist.init_process_group(chosen, store=store, rank=rank, world_size=size, timeout=limit, device_id=gpu)
    return World(rank=dist.get_rank(), local_rank=local_rank, world_size=dist.get_world_size(), device=device)


def _device(backend: str, local_rank: int) -> torch.device:
    if "nccl" not in backend:
        return torch.device("cpu")
    count = torch.cuda.device_count()
    if local_rank >= count:
        raise WireError("environment variable LOCAL_RANK", local_rank, f"0 to {count - 1}, because {count} GPUs are visible")
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def _store(environ: Mapping[str, str], limit: timedelta | None) -> Store | None:
    """Return the store to meet on, or None where torch's own `env://` is right."""
    if "RANK" not in environ:
        return HashStore()
    restarts = environment_int(environ, "TORCHELASTIC_RESTART_COUNT", default=0)
    if not _shares_torchrun_store(environ) or restarts == 0:
        return None
    # torchrun keeps one store for all its restarts, and a restarted rank that reads a dead one's address there hangs.
    # Nodes count their restarts apart, so the number can part the rounds only where there is one node.
    master = TCPStore(
        environ["MASTER_ADDR"],
        environment_int(environ, "MASTER_PORT"),
        is_master=False,
        timeout=limit or timedelta(minutes=5),
    )
    return PrefixStore(f"restart-{restarts}", master)


def _shares_torchrun_store(environ: Mapping[str, str]) -> bool:
    # A round of ours has a fresh store.
    return (
        env.JOB_NAME not in environ
        and environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        and environ.get("GROUP_WORLD_SIZE") == "1"
    )


def _leave_broken() -> None:
    """Tear down a group whose peers may be gone or stuck in a collective."""
    if not dist.is_initialized():
        return
    rounds = current_rounds()
    if rounds is not None:
        rounds.leave()
    try:
        # Destroying waits for NCCL kernels that will never end once a peer is gone; aborting them first does not.
        abort = getattr(dist.group.WORLD, "abort", None)
        if "nccl" in dist.get_backend_config() and abort is not None:
            abort()
        dist.destroy_process_group()
    except Exception:  # noqa: BLE001 - whatever it is, the block's own exception is the one to tell
        _log.warning("this worker cannot destroy its torch.distributed process group; the traceback follows", exc_info=True)
