"""A process group that lives through rounds: what holds it holds it for good, and what is inside is replaced.

Theory of operation
===================

`DistributedDataParallel` and FSDP2 hold the process group that they were made with. So torch is given an outer group, of the
backend "rallypoint", whose every collective is that of an inner one: a usual group of gloo, NCCL, or both. When the world
breaks, the inner group is thrown away, and the next round's takes its place.

A process that joins a world in which others live on cannot do what the script does before it trains (the wrappers check and
spread the parameters) together with all ranks: those are past it. Until it is in, its inner group is a rehearsal: it has the
right rank and size, and each collective ends at once, with what it would give if every rank had the same as this one. What that
leaves behind is made good when the state is healed.

A collective of gloo's may wait for ever although its connections have ended (torch 2.13: for a send; with eight
workers in 5 of 160 kills). So those that gloo has begun are known here until the next begins.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import distributed as dist
from torch.distributed import ProcessGroup
from torch.distributed.distributed_c10d import Backend as BackendName
from torch.distributed.distributed_c10d import BackendConfig, PrefixStore, Store

from rallypoint.training.sockets import Opened

__all__ = ["BACKEND", "ReconfigurableGroup", "Rehearsal", "abort", "form", "make", "register"]

#: Read by torch when a group is made, under its current and under its old name.
_ERROR_HANDLING = ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "NCCL_ASYNC_ERROR_HANDLING")

_NO_HANDLING = "0"


def make(store: Store, rank: int, size: int, timeout: timedelta, *, name: str, torch_side: Any = dist) -> Any:
    """Return an NCCL backend that an error or a time-out does not end the process of; a collective.

    `name` is the group's name in torch's flight recorder. `torch_side` has torch's `ProcessGroupNCCL`.
    """
    options = torch_side.ProcessGroupNCCL.Options()
    options._timeout = timeout
    options.group_name = name
    # torch remembers the ranks of the first default group of a process where none are named, and a world may be resized.
    options.global_ranks_in_group = list(range(size))
    with _no_error_handling():
        return torch_side.ProcessGroupNCCL(store, rank, size, options)


def abort(group: Any) -> None:
    """End the NCCL collectives of a group, in any thread. A backend that cannot be aborted is no obstacle for NCCL's."""
    cuda = torch.device("cuda")
    if cuda in group._device_types:
        group._get_backend(cuda).abort()


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


# ruff: noqa: D102, SLF001  torch names these, and tells of them


_log = logging.getLogger(__name__)

#: The outer group's name among torch's backends.
BACKEND = "rallypoint"

#: What the outer group passes on as it is. Which of them there are depends on torch's version.
_PASSED_ON = (
    "_allgather_base",
    "_end_coalescing",
    "_get_backend",
    "_get_sequence_number_for_group",
    "_has_hooks",
    "_reduce_scatter_base",
    "_register_on_completion_hook",
    "_set_sequence_number_for_group",
    "_start_coalescing",
    "_wait_for_pending_works",
    "all_gather_single",
    "all_gather_single_coalesced",
    "all_to_all_single",
    "allgather",
    "allgather_coalesced",
    "allgather_into_tensor_coalesced",
    "allreduce",
    "allreduce_coalesced",
    "alltoall",
    "alltoall_base",
    "barrier",
    "broadcast",
    "gather",
    "monitored_barrier",
    "recv",
    "recv_anysource",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_single_coalesced",
    "reduce_scatter_tensor_coalesced",
    "scatter",
    "send",
)

#: torch's own name of the default group, in each round.
_GROUP_NAME = "0"

#: These wait for one peer each, and nobody may ever ask what became of them.
_BETWEEN_TWO = frozenset({"recv", "recv_anysource", "send"})

#: Makes the inner group of a new outer one: its store, rank and size are given.
_Form = Callable[[Store, int, int], Any]


class ReconfigurableGroup(ProcessGroup):
    """The outer group. `inner` is None between two rounds."""

    def __init__(self, rank: int, size: int, inner: Any) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]  # torch's stubs know the other form alone
        self._rank, self._size, self.inner = rank, size, inner
        self._name = self._description = ""
        self._begun: list[Any] = []

    def replace(self, rank: int, size: int, inner: Any) -> None:
        """Take another inner group, of another world perhaps."""
        self._rank, self._size, self.inner = rank, size, inner

    def drop(self) -> None:
        """Have no inner group any more."""
        self._begun = self._unfinished()  # what has ended holds the group no longer
        self.inner = None

    def stuck(self) -> bool:
        """Return whether a collective of gloo's has not ended; in any thread."""
        return bool(self._unfinished())

    def _begin(self, work: Any) -> None:
        """Know of a collective until it has ended."""
        self._begun = [*self._unfinished(), work]

    def _unfinished(self) -> list[Any]:
        return [work for work in self._begun if not work.is_completed()]

    # What torch calls, from Python and from C++.

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size

    getRank = rank  # noqa: N815
    getSize = size  # noqa: N815

    def getBackendName(self) -> str:  # noqa: N802
        return BACKEND

    @property
    def group_name(self) -> Any:
        return self._name

    def getGroupName(self) -> str:  # noqa: N802
        return self._name

    def _set_group_name(self, name: str) -> None:
        self._name = name

    @property
    def group_desc(self) -> str:
        return self._description

    def getGroupDesc(self) -> str:  # noqa: N802
        return self._description

    def _set_group_desc(self, description: str) -> None:
        self._description = description

    @property
    def _device_types(self) -> list[torch.device]:
        return [] if self.inner is None else list(self.inner._device_types)

    def abort(self) -> None:
        """End what runs on a GPU; gloo's connections are shut down elsewhere."""
        if isinstance(self.inner, ProcessGroup):
            abort(self.inner)

    def shutdown(self) -> None:
        """Nothing: the inner group ends when nothing holds it."""


def _passed_on(name: str) -> Callable[..., Any]:
    def call(self: ReconfigurableGroup, *args: Any, **kwargs: Any) -> Any:
        if self.inner is None:
            raise RuntimeError(f"{name}: not possible, because this process has left the process group")
        result = getattr(self.inner, name)(*args, **kwargs)
        if name not in _BETWEEN_TWO and isinstance(result, dist.Work) and _is_gloo(self.inner, args):
            self._begin(result)
        return result

    call.__name__ = name
    return call


def _is_gloo(inner: Any, args: Sequence[Any]) -> bool:
    """Return whether gloo runs a collective. NCCL's must not be queried while a CUDA graph is captured."""
    first = args[0] if args else None
    while isinstance(first, (list, tuple)) and first:
        first = first[0]
    if isinstance(first, torch.Tensor):
        return first.is_cpu or _has_gloo_for(inner, first.device)
    return all(device.type == "cpu" or _has_gloo_for(inner, device) for device in inner._device_types)


def _has_gloo_for(inner: Any, device: torch.device) -> bool:
    return isinstance(inner, ProcessGroup) and isinstance(inner._get_backend(device), dist.ProcessGroupGloo)


for _name in _PASSED_ON:
    if hasattr(ProcessGroup, _name):
        setattr(ReconfigurableGroup, _name, _passed_on(_name))


def register(make: _Form) -> None:
    """Make the backend known to torch; the next group's inner one is what `make` returns."""

    def create(options: Any, _: Any) -> ReconfigurableGroup:
        rank, size = options.group_rank, options.group_size
        return ReconfigurableGroup(rank, size, make(options.store, rank, size))

    if BACKEND.upper() not in BackendName._plugins:
        dist.Backend.register_backend(BACKEND, _Latest(), extended_api=True, devices=["cpu", "cuda"])
    _Latest.create = create


class _Latest:
    """What torch calls to make a group; it may be registered once only, and is another each time."""

    create: Callable[[Any, Any], ReconfigurableGroup]

    def __call__(self, options: Any, backend_options: Any = None) -> ReconfigurableGroup:
        return type(self).create(options, backend_options)


def form(backend: str, store: Store, rank: int, size: int, timeout: timedelta, opened: Opened | None = None) -> ProcessGroup:
    """Return a usual group of torch's `backend` (`gloo`, `nccl`, `cpu:gloo,cuda:nccl`); a collective.

    `opened` watches its connections. Raises `ValueError` for another backend.
    """
    watched = opened or Opened()
    with watched.watching():
        group = ProcessGroup(store, rank, size)
        made: dict[str, Any] = {}
        types: dict[str, Any] = {"gloo": ProcessGroup.BackendType.GLOO, "nccl": ProcessGroup.BackendType.NCCL}
        for device, name in BackendConfig(BackendName(backend)).get_device_backend_map().items():
            if name not in types:
                raise ValueError(
                    f"backend of the process group: {name!r} is not allowed with recovery in place; expected gloo or nccl"
                )
            if name not in made:
                made[name] = _backend(name, PrefixStore(f"{device}/", store), rank, size, timeout)
        # What a group is asked for without a device is NCCL's where that is.
        group._set_default_backend(types["nccl" if "nccl" in made else "gloo"])
        for device, name in BackendConfig(BackendName(backend)).get_device_backend_map().items():
            if name == "gloo" or device == "cuda":
                group._register_backend(torch.device(device), types[name], made[name])
    return group


def _backend(name: str, store: Store, rank: int, size: int, timeout: timedelta) -> Any:
    made: Any
    if name == "gloo":
        made = dist.ProcessGroupGloo(store, rank, size, timeout=timeout)
    else:
        made = make(store, rank, size, timeout, name=_GROUP_NAME)
    made._set_sequence_number_for_group()
    return made


# ruff: noqa: D102  torch names these, and tells of them


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
            f"{name}: not possible before training starts, because a worker that joins later runs this line without the "
            "other ranks; move the call into the function given to training.elastic"
        )
