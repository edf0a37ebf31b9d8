"""The inner group of a process that is not in its world yet (reconfigurable.py): every collective ends at once."""

# ruff: noqa: D102  torch names these, and tells of them
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import distributed as dist

__all__ = ["Rehearsal"]


class _Done(dist.Work):
    """Work that has ended."""

    def __init__(self, result: Any) -> None:
        super().__init__()
        self._future: torch.futures.Future[Any] = torch.futures.Future()
        self._future.set_result(result)

    def wait(self, timeout: Any = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def get_future(self) -> torch.futures.Future[Any]:
        return self._future


class Rehearsal:
    """A world of `size` ranks that all have what this one has."""

    def __init__(self, rank: int, size: int, devices: list[torch.device]) -> None:
        self._rank, self._size, self._device_types = rank, size, devices

    def allreduce(self, tensors: list[torch.Tensor], *_: Any) -> _Done:
        return _Done(tensors)

    allreduce_coalesced = allreduce

    def broadcast(self, tensors: list[torch.Tensor], *_: Any) -> _Done:
        return _Done(tensors)

    def reduce(self, tensors: list[torch.Tensor], *_: Any) -> _Done:
        return _Done(tensors)

    def barrier(self, *_: Any, **__: Any) -> _Done:
        return _Done(None)

    def allgather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], *_: Any) -> _Done:
        for places, tensor in zip(outputs, inputs, strict=True):
            for place in places:
                place.copy_(tensor)
        return _Done(outputs)

    def _allgather_base(self, output: torch.Tensor, tensor: torch.Tensor, *_: Any) -> _Done:
        output.view(self._size, -1).copy_(tensor.reshape(1, -1).expand(self._size, -1))
        return _Done(output)

    all_gather_single = _allgather_base

    def __getattr__(self, name: str) -> Callable[..., Any]:
        raise RuntimeError(
            f"{name}: not possible before training starts, because the other ranks have passed this line; move it "
            "into the function given to training.elastic"
        )
