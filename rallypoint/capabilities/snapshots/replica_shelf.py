"""Where an agent keeps snapshots of other nodes: areas beside those of its own workers, within a limit of bytes.

An area has two buffers as that of a writer has (checkpoint/memory.py), so that the last one stays whole while the next arrives.
Whoever loads finds them there without being told. Areas of ranks that the sender of a newer round has no more are given up.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from rallypoint.capabilities.snapshots.replica_frames import Head, ReplicaError
from rallypoint.checkpoint.free_memory import free_memory
from rallypoint.checkpoint.memory import HEADER, Part, held, read_part, replica_area, replica_areas
from rallypoint.wire.codec import WireError

__all__ = ["ReplicaShelf"]

_PAGE = 4096


class ReplicaShelf:
    """What one agent keeps for others.

    Args:
        folder: of its snapshots, in shared memory.
        limit: bytes that all of it may take.
        attempt: of the job; what another one sends is refused.

    """

    def __init__(self, folder: Path, *, limit: int, attempt: int) -> None:
        self._folder, self._limit, self._attempt = folder, limit, attempt

    @contextlib.contextmanager
    def place(self, head: Head) -> Iterator[tuple[memoryview, Callable[[], None]]]:
        """Yield memory for what `head` announces, and what to call when that is filled and proven: it is complete then.

        Raises:
            ReplicaError: when it is refused: another attempt's, not newer than what is kept, or beyond the limit.

        """
        part = self._accepted(head)
        area = replica_area(self._folder, part.rank)
        area.mkdir(mode=0o700, exist_ok=True)
        kept = held(area)
        path = area / ("1.bin" if kept and kept[0].path.name == "0.bin" else "0.bin")
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            with _locked(fd, path):
                path.with_suffix(HEADER).unlink(missing_ok=True)
                self._make_room(fd, area, part, head)
                mapped = mmap.mmap(fd, max(_PAGE, part.size))
                try:
                    with memoryview(mapped) as whole, whole[: part.size] as view:
                        yield view, lambda: self._publish(path, head, part)
                finally:
                    mapped.close()
        finally:
            os.close(fd)

    @property
    def size(self) -> int:
        """Bytes that it takes now."""
        return sum(path.stat().st_size for area in replica_areas(self._folder) for path in area.glob("*.bin"))

    def _accepted(self, head: Head) -> Part:
        try:
            part = read_part(head.part.encode())
        except WireError as error:
            raise ReplicaError(f"part: {error}") from error
        if (head.attempt, part.granted.attempt) != (self._attempt, self._attempt):
            raise ReplicaError(
                f"snapshot of attempt {head.attempt} is not allowed; "
                f"expected a snapshot of attempt {self._attempt}, the current attempt"
            )
        if part.rank not in head.ranks:
            raise ReplicaError(f"snapshot of rank {part.rank} is not allowed; the sending node has ranks {head.ranks}")
        if part.size <= 0:
            raise ReplicaError(f"snapshot of rank {part.rank}: a size of {part.size} bytes is not allowed; expected 1 or more")
        newest = next(iter(held(replica_area(self._folder, part.rank))), None)
        if newest is not None and newest.part.age >= part.age:
            have = newest.part
            raise ReplicaError(
                f"the snapshot of step {part.step} (fencing token {part.granted}) is not newer than the stored snapshot of "
                f"step {have.step} (fencing token {have.granted})"
            )
        return part

    def _make_room(self, fd: int, area: Path, part: Part, head: Head) -> None:
        before = os.fstat(fd).st_size
        more = max(0, part.size - before)
        if self.size + more > self._limit:
            self._give_up(part, head)
        # Both buffers count from the beginning: a limit that the second snapshot breaks would be found out too late.
        second = part.size if len(list(area.glob("*.bin"))) < 2 else 0
        needed = self.size + more + second
        if needed > self._limit:
            raise ReplicaError(
                f"snapshot of rank {part.rank} rejected: a node stores the last two snapshots of a rank; with two snapshots "
                f"of {part.size:,} bytes, this node would store {needed:,} bytes for other nodes, more than "
                f"recovery.replica_limit ({self._limit:,} bytes)"
            )
        free = free_memory(self._folder)
        if free < more:
            raise ReplicaError(f"snapshot of rank {part.rank}: not enough memory: {more:,} bytes needed, {free:,} free")
        try:
            os.posix_fallocate(fd, 0, max(_PAGE, part.size))
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.ENOMEM, errno.EFBIG):
                raise ReplicaError(
                    f"snapshot of rank {part.rank}: not enough memory for {part.size:,} bytes: {error.strerror}"
                ) from error
            raise

    def _publish(self, path: Path, head: Head, part: Part) -> None:
        header = path.with_suffix(HEADER)
        temporary = header.with_suffix(".new")
        temporary.write_text(head.part, encoding="utf-8")
        temporary.rename(header)
        self._give_up(part, head)

    def _give_up(self, part: Part, head: Head) -> None:
        """Drop what is of an older round and of ranks that the sender has not: the ring is another one by now."""
        for area in replica_areas(self._folder):
            kept = held(area)
            theirs = any(area == replica_area(self._folder, rank) for rank in head.ranks)
            if kept and not theirs and all(one.part.granted < part.granted for one in kept):
                shutil.rmtree(area, ignore_errors=True)


@contextlib.contextmanager
def _locked(fd: int, path: Path) -> Iterator[None]:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ReplicaError(
            f"the snapshot in {path.parent.name}/{path.name} cannot be replaced, because another process reads it"
        ) from error
    try:
        yield
    finally:
        fcntl.flock(fd, fcntl.LOCK_UN)
