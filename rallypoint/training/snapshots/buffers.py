"""The buffers of one writer: shared memory that was allocated and faulted in before anything is copied into it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
from pathlib import Path

import torch

from rallypoint.checkpoint.errors import CheckpointError, NoRoomError
from rallypoint.checkpoint.free_memory import require_memory
from rallypoint.checkpoint.memory import BUFFER, HEADER, read_part
from rallypoint.training.snapshots.device_copies import Registration
from rallypoint.training.snapshots.linux import HUGEPAGE, POPULATE_WRITE, advise
from rallypoint.wire.codec import WireError
from rallypoint.wire.fence import Fence
from rallypoint.wire.private import private_folder

__all__ = ["Buffer", "Buffers", "fault_in"]

#: Bytes that are faulted in by one call: the process cannot map or unmap anything meanwhile.
_AT_ONCE = 32 << 20
_PAGE = 4096


Age = tuple[Fence, int]


class Buffer:
    """One file of shared memory, mapped. Not for two threads at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.size = 0
        self.data = torch.empty(0, dtype=torch.uint8)
        self._published: tuple[bytes, Age] = b"", (Fence(), 0)
        self._registered = Registration()

    @property
    def header(self) -> Path:
        """Where its header is when it is complete."""
        return self.path.with_suffix(HEADER)

    @property
    def allocated(self) -> int:
        """Bytes of memory that it has already."""
        return os.fstat(self.fd).st_blocks * 512

    def reserve(self, size: int) -> None:
        """Have at least `size` bytes, all of them in memory and mapped. Does nothing when it has them.

        Raises:
            NoRoomError: when the kernel has no room after all.

        """
        if size <= self.size:
            return
        size = -(-size // _PAGE) * _PAGE
        try:
            os.posix_fallocate(self.fd, 0, size)
            mapped = mmap.mmap(self.fd, size)
            self._registered.release()
            self.data = torch.frombuffer(mapped, dtype=torch.uint8)
            fault_in(self.data)
            self._registered.hold(self.data)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.ENOMEM, errno.EFBIG):
                raise NoRoomError(f"{self.path}: not enough space for {size:,} bytes: {error.strerror}") from error
            raise
        self.size = size

    def lock(self, *, wait: bool) -> bool:
        """Take it for writing; its header goes. Returns False when somebody reads it and `wait` is false."""
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        self.header.unlink(missing_ok=True)
        return True

    def age(self) -> Age | None:
        """Return what it holds, None where that is not complete. A header of our own is not read twice: it may be long."""
        try:
            text = self.header.read_bytes()
        except FileNotFoundError:
            return None
        if text != self._published[0]:
            with contextlib.suppress(WireError):
                self._published = text, read_part(text).age
        return self._published[1] if text == self._published[0] else None

    def publish(self, header: bytes, age: Age) -> None:
        """Say that it is complete; the renaming is the last act."""
        self._published = header, age
        temporary = self.header.with_suffix(".new")
        temporary.write_bytes(header)
        temporary.rename(self.header)

    def unlock(self) -> None:
        """Give it back, whether it was published or not."""
        fcntl.flock(self.fd, fcntl.LOCK_UN)

    def close(self) -> None:
        """Give the mapping back; what is in memory stays."""
        self._registered.release()
        self.data = torch.empty(0, dtype=torch.uint8)
        self.size = 0
        os.close(self.fd)


class Buffers:
    """All buffers of one area. With two there is always a complete one; a third keeps that so while one is persisted."""

    def __init__(self, area: Path, count: int) -> None:
        private_folder(area)
        self.area, self._buffers = area, [Buffer(area / f"{number}{BUFFER}") for number in range(count)]

    @property
    def reserved(self) -> int:
        """Bytes that each of them has."""
        return min(buffer.size for buffer in self._buffers)

    def reserve(self, size: int) -> None:
        """Have `size` bytes in each, so that the next writes cost no more than their copy; raises `NoRoomError`."""
        missing = sum(max(0, size - buffer.allocated) for buffer in self._buffers)
        if missing:
            require_memory(self.area, missing, f"{len(self._buffers)} snapshots of {size:,} bytes")
        for buffer in self._buffers:
            buffer.reserve(size)

    def take(self, fence: Fence, *, every: int = 0) -> Buffer:
        """Lock the buffer that is missed least, never the newest complete one.

        Nor, with `every`, the two newest of steps that are a multiple of it: what another node keeps goes with one of those.

        Raises:
            CheckpointError: when somebody with a higher fence has written here: this writer is left over.

        """
        ages = {buffer: age for buffer in self._buffers if (age := buffer.age()) is not None}
        newest = max(ages, key=lambda buffer: ages[buffer], default=None)
        if newest is not None and ages[newest][0] > fence:
            newer = ages[newest][0]
            raise CheckpointError(
                f"snapshots: a worker with the newer fencing token {newer} has already written to {self.area}; this worker "
                f"has the older token {fence}"
            )
        spared = sorted((b for b in ages if every and ages[b][1] % every == 0), key=lambda buffer: ages[buffer])[-2:]
        # What is not complete comes first, then the oldest.
        rest = sorted(self._buffers, key=lambda buffer: ages.get(buffer, (Fence(), -1)))
        rest = [buffer for buffer in rest if buffer is not newest and buffer not in spared]
        for buffer in rest:
            if buffer.lock(wait=False):
                return buffer
        rest[0].lock(wait=True)
        return rest[0]

    def close(self) -> None:
        """Give the mappings back; the snapshots stay."""
        for buffer in self._buffers:
            buffer.close()


def fault_in(data: torch.Tensor) -> None:
    """Have all pages of mapped memory present, without changing what is in them; raises `OSError` for want of memory."""
    address, size = data.data_ptr(), data.numel()
    advise(address, size, HUGEPAGE)
    for begin in range(0, size, _AT_ONCE):
        length = min(_AT_ONCE, size - begin)
        if not advise(address + begin, length, POPULATE_WRITE):
            # Older kernels: what is read back is written again, so that what a predecessor left there stays.
            page = data[begin : begin + length : _PAGE]
            page.copy_(page.clone())
