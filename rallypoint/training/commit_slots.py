"""The memory of one commit: a header, the data, the description. Complete once its number is written, which is the last act."""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import struct
from dataclasses import dataclass
from pathlib import Path

import torch

from rallypoint.checkpoint.free_memory import free_memory
from rallypoint.training.snapshots.buffers import fault_in
from rallypoint.training.snapshots.device_copies import Registration
from rallypoint.wire.private import private_folder

__all__ = ["Form", "Held", "Slot"]

_log = logging.getLogger(__name__)

#: magic, number (-1 while it is written), attempt, rank, world size, bytes of data and of the description, step (-1: unknown)
_HEADER = struct.Struct("<8sqqqqqqq")
_MAGIC = b"RPCOMMI2"
_DATA_AT = 64
_NUMBER = struct.Struct("<q")
_NUMBER_AT = 8

#: By tensor: key, dtype, shape, and where it begins in the data.
Form = tuple[tuple[str, torch.dtype, tuple[int, ...], int], ...]


@dataclass(frozen=True, kw_only=True)
class Held:
    """One complete commit, and whose it is; `step` is how many were finished, -1 where the state does not count them."""

    number: int
    rank: int
    world_size: int
    data_bytes: int
    text_bytes: int
    step: int = -1


class Slot:
    """The memory of one commit: in the file `path`, which outlives this process, or for None in this process."""

    def __init__(self, path: Path | None, attempt: int) -> None:
        self._path, self._attempt = path, attempt
        self._map: mmap.mmap | None = None
        self._registered = Registration()
        self._views: tuple[object, dict[str, torch.Tensor]] = (None, {})
        if path is not None and path.exists() and path.stat().st_size >= _DATA_AT:
            self._open(path.stat().st_size)

    def held(self) -> Held | None:
        """Return what it holds, None where that is not complete, or of another attempt."""
        if self._map is None:
            return None
        magic, number, attempt, rank, world_size, data_bytes, text_bytes, step = _HEADER.unpack_from(self._map, 0)
        if magic != _MAGIC or number < 0 or attempt != self._attempt or _DATA_AT + data_bytes + text_bytes > len(self._map):
            return None
        return Held(number=number, rank=rank, world_size=world_size, data_bytes=data_bytes, text_bytes=text_bytes, step=step)

    def reserve(self, size: int) -> None:
        """Have `size` bytes for data and description faulted in, so that the next commit costs its copy and no more.

        What it holds stays. Where there is no room nothing is done: whether it is needed, a commit will tell.
        """
        needed = _DATA_AT + size
        known = 0 if self._map is None else len(self._map)
        try:
            if known < needed and (self._path is not None or self.held() is None):
                folder = Path("/") if self._path is None else self._path.parent
                private_folder(folder)
                if free_memory(folder) < needed - known:
                    return
                self._open(needed)
            if self._map is not None:
                whole = _tensor(self._map, torch.uint8, len(self._map), 0)
                fault_in(whole)
                self._registered.hold(whole)
        except OSError as error:
            _log.debug("this worker cannot allocate the buffers for commits in advance: %s", error)

    def begin(self, data_bytes: int, text_bytes: int) -> None:
        """Be writing, with room for so much."""
        needed = _DATA_AT + data_bytes + text_bytes
        if self._map is None or len(self._map) < needed:
            self._open(needed + max(4096, text_bytes))  # the description grows by some bytes from time to time
        assert self._map is not None
        _HEADER.pack_into(self._map, 0, _MAGIC, -1, self._attempt, 0, 0, data_bytes, text_bytes, -1)

    def finish(self, text: bytes, number: int, rank: int, world_size: int, step: int = -1) -> None:
        """Be complete; the number is written last."""
        assert self._map is not None
        data_bytes = _HEADER.unpack_from(self._map, 0)[5]
        at = _DATA_AT + data_bytes
        self._map[at : at + len(text)] = text
        _HEADER.pack_into(self._map, 0, _MAGIC, -1, self._attempt, rank, world_size, data_bytes, len(text), step)
        _NUMBER.pack_into(self._map, _NUMBER_AT, number)

    def renumber(self, number: int) -> None:
        """Give what it holds another number."""
        assert self._map is not None
        _NUMBER.pack_into(self._map, _NUMBER_AT, number)

    def close(self) -> None:
        """Let CUDA forget the memory; what it holds stays."""
        self._registered.release()

    def clear(self) -> None:
        """Hold nothing."""
        if self._map is not None:
            _NUMBER.pack_into(self._map, _NUMBER_AT, -1)

    def text(self) -> bytes:
        """Return the description."""
        assert self._map is not None
        *_, data_bytes, text_bytes, _ = _HEADER.unpack_from(self._map, 0)
        at = _DATA_AT + data_bytes
        return self._map[at : at + text_bytes]

    def data(self, size: int) -> torch.Tensor:
        """Return the bytes of the data; they are this memory, not a copy."""
        assert self._map is not None
        return _tensor(self._map, torch.uint8, size, _DATA_AT)

    def views(self, form: Form) -> dict[str, torch.Tensor]:
        """Return each tensor as it lies in the memory."""
        if self._views[0] is not form:
            assert self._map is not None
            views = {}
            for key, dtype, shape, at in form:
                views[key] = _tensor(self._map, dtype, torch.Size(shape).numel(), _DATA_AT + at).view(shape)
            self._views = (form, views)
        return self._views[1]

    def _open(self, size: int) -> None:
        self._registered.release()
        self._views, self._map = (None, {}), None
        if self._path is not None:
            try:
                self._map = _mapped(self._path, size)
            except OSError as error:  # a container's shared memory is 64 MiB unless it asks for more
                _log.warning(
                    "this worker cannot keep its commits in the shared-memory file %s (%s); if the worker dies, its commits "
                    "are lost",
                    self._path,
                    error.strerror,
                )
                with contextlib.suppress(OSError):
                    self._path.unlink()
                self._path = None
        if self._map is None:
            self._map = mmap.mmap(-1, size)


def _mapped(path: Path, size: int) -> mmap.mmap:
    private_folder(path.parent)
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
