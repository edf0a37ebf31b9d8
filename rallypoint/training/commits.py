"""The last two committed states of this rank, in memory: what a step that failed goes back to.

Theory of operation
===================

Ranks commit at the same boundaries, but not at the same moment: when a step fails, one rank may have committed it and another
not. They differ by one at the most, so with the last two of each there is always one that all have.

A commit is one flat piece of memory (every tensor of the state, or this rank's shard of it) and a description of it. Where the
agent offers a folder of shared memory the pieces are files there, and outlive this process: whoever takes its place on this
node finds them, its shards and its random states with them. A number that is written last says that a piece is complete.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import pickle
import struct
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from rallypoint.training import values
from rallypoint.training.randomness import random_state, restore_random_state

__all__ = ["Commits", "Held"]

_log = logging.getLogger(__name__)

#: magic, number (-1 while it is written), attempt, rank, world size, bytes of data, bytes of the description
_HEADER = struct.Struct("<8sqqqqqq")
_MAGIC = b"RPCOMMIT"
_DATA_AT = 64
_ALIGNED = 64
_NUMBER = struct.Struct("<q")
_NUMBER_AT = 8


@dataclass(frozen=True, kw_only=True)
class Held:
    """One complete commit, and whose it is."""

    number: int
    rank: int
    world_size: int
    data_bytes: int
    text_bytes: int


@dataclass(frozen=True, kw_only=True)
class _Description:
    """What lies in the memory: the state with marks for tensors, and each tensor's place."""

    skeletons: dict[str, Any]
    form: tuple[tuple[str, torch.dtype, tuple[int, ...], int], ...]
    random: dict[str, Any]


class Commits:
    """Takes, keeps and gives back the commits of one rank.

    Args:
        folder: where they outlive this process; None keeps them in it.
        name: of this rank's place on its node.
        attempt: those of another are passed over.

    """

    def __init__(self, folder: Path | None, name: str, attempt: int) -> None:
        paths = [None, None] if folder is None else [folder / f"{name}.{i}" for i in range(2)]
        self._slots = [_Slot(path, attempt) for path in paths]
        self._form: list[tuple[str, torch.dtype, tuple[int, ...]]] = []
        self._places: tuple[tuple[str, torch.dtype, tuple[int, ...], int], ...] = ()
        self._data_bytes = 0

    def held(self) -> tuple[Held, ...]:
        """Return the complete commits, the newest first."""
        found = [held for slot in self._slots if (held := slot.held()) is not None]
        return tuple(sorted(found, key=lambda held: -held.number))

    def take(self, state: Mapping[str, Any], number: int, rank: int, world_size: int) -> None:
        """Copy the state; the older commit goes for it. On a GPU this waits for what runs there.

        Where the folder has no room for it, it stays in this process, and the log says so.
        """
        tensors: dict[str, torch.Tensor] = {}
        skeletons = {name: values.split(values.state_of(value), _key(name), tensors) for name, value in state.items()}
        self._lay_out(tensors)
        description = _Description(skeletons=skeletons, form=self._places, random=random_state())
        text = pickle.dumps(description, protocol=5)
        slot = self._older()
        slot.begin(self._data_bytes, len(text))
        views = slot.views(self._places)
        for key, tensor in tensors.items():
            views[key].copy_(_local(tensor), non_blocking=True)
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        slot.finish(text, number, rank, world_size)

    def restore(self, number: int, state: MutableMapping[str, Any], rank: int, *, random: bool = True) -> None:
        """Put the commit `number` back into the state; its random states too where they were this rank's."""
        slot, held = self._slot(number)
        description: _Description = pickle.loads(slot.text())  # noqa: S301  we wrote it
        views = slot.views(description.form)
        for name in state:
            _put(state, name, description.skeletons[name], views)
        if random and held.rank == rank:
            restore_random_state(description.random)

    def forget_above(self, number: int) -> None:
        """Forget what was committed after `number`: the world has gone back."""
        for slot in self._slots:
            held = slot.held()
            if held is not None and held.number > number:
                slot.clear()

    def flat(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a commit's memory and its description, to be sent."""
        slot, held = self._slot(number)
        text = torch.frombuffer(bytearray(slot.text()), dtype=torch.uint8)
        return slot.data(held.data_bytes), text

    def receive(self, data_bytes: int, text_bytes: int, *, spare: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return memory for another rank's commit, in the place of one of ours that is not `spare`; then `received`."""
        self._into = next(slot for slot in self._slots if (held := slot.held()) is None or held.number != spare)
        self._into.begin(data_bytes, text_bytes)
        return self._into.data(data_bytes), torch.empty(text_bytes, dtype=torch.uint8)

    def received(self, text: torch.Tensor, number: int, source: int, world_size: int) -> None:
        """Note that what `receive` gave is filled; it was the commit `number` of rank `source`."""
        self._into.finish(bytes(text.numpy()), number, source, world_size)

    def dropped(self) -> None:
        """Note that what `receive` gave is not needed."""
        self._into.clear()

    def _older(self) -> _Slot:
        return min(self._slots, key=lambda slot: -1 if (held := slot.held()) is None else held.number)

    def _slot(self, number: int) -> tuple[_Slot, Held]:
        for slot in self._slots:
            held = slot.held()
            if held is not None and held.number == number:
                return slot, held
        raise LookupError(f"commit {number}: is not held")

    def _lay_out(self, tensors: Mapping[str, torch.Tensor]) -> None:
        form = [(key, tensor.dtype, tuple(_local(tensor).shape)) for key, tensor in tensors.items()]
        if form == self._form:
            return
        places, at = [], 0
        for key, dtype, shape in form:
            places.append((key, dtype, shape, at))
            size = _local(tensors[key]).numel() * dtype.itemsize
            at += -(-size // _ALIGNED) * _ALIGNED
        self._form, self._places, self._data_bytes = form, tuple(places), at


class _Slot:
    """The memory of one commit: a header, the data, the description."""

    def __init__(self, path: Path | None, attempt: int) -> None:
        self._path, self._attempt = path, attempt
        self._map: mmap.mmap | None = None
        self._views: tuple[object, dict[str, torch.Tensor]] = (None, {})
        if path is not None and path.exists() and path.stat().st_size >= _DATA_AT:
            self._open(path.stat().st_size)

    def held(self) -> Held | None:
        if self._map is None:
            return None
        magic, number, attempt, rank, world_size, data_bytes, text_bytes = _HEADER.unpack_from(self._map, 0)
        if magic != _MAGIC or number < 0 or attempt != self._attempt or _DATA_AT + data_bytes + text_bytes > len(self._map):
            return None
        return Held(number=number, rank=rank, world_size=world_size, data_bytes=data_bytes, text_bytes=text_bytes)

    def begin(self, data_bytes: int, text_bytes: int) -> None:
        """Be writing, with room for so much."""
        needed = _DATA_AT + data_bytes + text_bytes
        if self._map is None or len(self._map) < needed:
            self._open(needed + max(4096, text_bytes))  # the description grows by some bytes from time to time
        assert self._map is not None
        _HEADER.pack_into(self._map, 0, _MAGIC, -1, self._attempt, 0, 0, data_bytes, text_bytes)

    def finish(self, text: bytes, number: int, rank: int, world_size: int) -> None:
        """Be complete; the number is written last."""
        assert self._map is not None
        data_bytes = _HEADER.unpack_from(self._map, 0)[5]
        at = _DATA_AT + data_bytes
        self._map[at : at + len(text)] = text
        _HEADER.pack_into(self._map, 0, _MAGIC, -1, self._attempt, rank, world_size, data_bytes, len(text))
        _NUMBER.pack_into(self._map, _NUMBER_AT, number)

    def clear(self) -> None:
        if self._map is not None:
            _NUMBER.pack_into(self._map, _NUMBER_AT, -1)

    def text(self) -> bytes:
        assert self._map is not None
        *_, data_bytes, text_bytes = _HEADER.unpack_from(self._map, 0)
        at = _DATA_AT + data_bytes
        return self._map[at : at + text_bytes]

    def data(self, size: int) -> torch.Tensor:
        assert self._map is not None
        return _tensor(self._map, torch.uint8, size, _DATA_AT)

    def views(self, form: tuple[tuple[str, torch.dtype, tuple[int, ...], int], ...]) -> dict[str, torch.Tensor]:
        """Return each tensor as it lies in the memory."""
        if self._views[0] is not form:
            assert self._map is not None
            views = {}
            for key, dtype, shape, at in form:
                views[key] = _tensor(self._map, dtype, torch.Size(shape).numel(), _DATA_AT + at).view(shape)
            self._views = (form, views)
        return self._views[1]

    def _open(self, size: int) -> None:
        self._views, self._map = (None, {}), None
        if self._path is not None:
            try:
                self._map = _mapped(self._path, size)
            except OSError as error:  # a container's shared memory is 64 MiB unless it asks for more
                _log.warning("commits of this worker will not outlive it: %s: %s", self._path, error.strerror)
                with contextlib.suppress(OSError):
                    self._path.unlink()
                self._path = None
        if self._map is None:
            self._map = mmap.mmap(-1, size)


def _mapped(path: Path, size: int) -> mmap.mmap:
    path.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(fd, 0, size)
        return mmap.mmap(fd, size)
    finally:
        os.close(fd)


def _tensor(mapped: mmap.mmap, dtype: torch.dtype, count: int, at: int) -> torch.Tensor:
    if count == 0:
        return torch.empty(0, dtype=dtype)
    return torch.frombuffer(mapped, dtype=dtype, count=count, offset=at)


def _key(name: str) -> str:
    return f"state/{name}"


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _put(state: MutableMapping[str, Any], name: str, skeleton: Any, views: Mapping[str, torch.Tensor]) -> None:
    """Put one entry back: into its tensors where they are, into new ones where an optimizer has none yet."""
    present: dict[str, torch.Tensor] = {}
    values.split(values.state_of(state[name]), _key(name), present)
    marked = values.marks(skeleton)
    if any(not _fits(present.get(mark.key), views[mark.key]) for mark in marked):
        present = values.targets(skeleton, state[name], _key(name))
    with torch.no_grad():
        for mark in marked:
            _local(present[mark.key]).copy_(views[mark.key])
    values.restore(state, name, values.join(skeleton, present))


def _fits(tensor: torch.Tensor | None, view: torch.Tensor) -> bool:
    return tensor is not None and _local(tensor).shape == view.shape and tensor.dtype == view.dtype
