"""NCCL process groups that are replaced while the process lives on.

NCCL collectives run on the GPU: the call returns at once, and an aborted collective *ends* its kernel without an error in
the script. Two rules follow for a process that survives the loss of a peer:

- torch's watchdog must leave the process alone. With torch's own default it raises in its thread, a minute after it has seen
  the failed collective, and so ends a process that has long recovered. The agent watches the peers; the watchdog handles
  nothing (`TORCH_NCCL_ASYNC_ERROR_HANDLING=0`).
- What was computed with an aborted collective must not be kept. Code that keeps a state first waits for the GPU, and then looks
  whether the group was aborted meanwhile (`Session.commit`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
from torch import distributed as dist
from torch.distributed.distributed_c10d import Store

__all__ = ["abort", "make"]

#: Read by torch when a group is made, under its current and under its old name.
_ERROR_HANDLING = ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "NCCL_ASYNC_ERROR_HANDLING")

_NO_HANDLING = "0"


def make(store: Store, rank: int, size: int, timeout: timedelta, *, name: str, torch_side: Any = dist) -> Any:
    """Return an NCCL backend that an error or a time-out does not end the process of; a collective.

    `name` is the group's name in torch's flight recorder. `torch_side` has torch's `ProcessGroupNCCL`.
    """
    options = torch_side.ProcessGroupNCCL.Options()
    options._timeout = timeout  # noqa: SLF001  as torch itself sets it
    options.group_name = name
    # torch remembers the ranks of the first default group of a process where none are named, and a world may be resized.
    options.global_ranks_in_group = list(range(size))
    with _no_error_handling():
        return torch_side.ProcessGroupNCCL(store, rank, size, options)


def abort(group: Any) -> None:
    """End the NCCL collectives of a group, in any thread. A backend that cannot be aborted is no obstacle for NCCL's."""
    cuda = torch.device("cuda")
    if cuda in group._device_types:  # noqa: SLF001  torch names no other way
        group._get_backend(cuda).abort()  # noqa: SLF001  as above


@contextlib.contextmanager
def _no_error_handling() -> Iterator[None]:
    before = {name: os.environ.get(name) for name in _ERROR_HANDLING}
    os.environ.update(dict.fromkeys(_ERROR_HANDLING, _NO_HANDLING))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
