"""A `BoundaryStore` in a file, for the ranks of one node: it needs no torch and no process group.

Each line is one operation. A process writes a line while it holds the file's lock, which the kernel releases when the
process dies; an incomplete last line is ignored.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

__all__ = ["BoundaryFile"]

_LINE = re.compile(r"(mark|join|decide) (-?\d+)(?: (-?\d+))?")


class BoundaryFile:
    """What `size` ranks of a node share about one request; `finished` returns those that reach no boundary any more."""

    def __init__(self, path: Path, size: int, finished: Callable[[], Collection[int]] = frozenset) -> None:
        self._path, self._size, self._finished = path, size, finished

    def mark(self, rank: int, boundary: int) -> None:
        """Publish the highest boundary that a rank may have passed."""
        with self._opened() as file:
            file.append("mark", rank, boundary)

    def join(self, rank: int) -> int:
        """Add a rank; return how many are missing."""
        with self._opened() as file:
            file.append("join", rank)
        return self.missing()

    def missing(self) -> int:
        """Return how many ranks have neither joined nor finished."""
        with self._opened() as file:
            joined = {numbers[0] for name, numbers in file.lines if name == "join"}
        return self._size - len(joined | set(self._finished()))

    def read_mark(self, rank: int) -> int | None:
        """Return the last mark of a rank."""
        with self._opened() as file:
            marks = [numbers[1] for name, numbers in file.lines if name == "mark" and numbers[0] == rank]
        return marks[-1] if marks else None

    def decision(self) -> int | None:
        """Return the agreed boundary."""
        with self._opened() as file:
            return file.decision()

    def decide(self, boundary: int) -> int:
        """Set the agreed boundary unless it is set."""
        with self._opened() as file:
            if (decided := file.decision()) is not None:
                return decided
            file.append("decide", boundary)
        return boundary

    @contextlib.contextmanager
    def _opened(self) -> Iterator[_Locked]:
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield _Locked(fd)
        finally:
            os.close(fd)


class _Locked:
    """The file while this process holds its lock; `lines` are the name and the numbers of each operation."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        whole, newline, self._torn = os.pread(fd, os.fstat(fd).st_size, 0).decode().rpartition("\n")
        found = map(_LINE.fullmatch, (whole + newline).splitlines())
        self.lines = [(line[1], [int(number) for number in line.groups()[1:] if number]) for line in found if line]

    def append(self, name: str, *numbers: int) -> None:
        """Write a line. An incomplete last one, of a process that was killed, is made one that no reader takes."""
        line = " ".join((name, *map(str, numbers))) + "\n"
        os.write(self._fd, (f"!\n{line}" if self._torn else line).encode())

    def decision(self) -> int | None:
        """Return the number of the first decision."""
        return next((numbers[0] for name, numbers in self.lines if name == "decide"), None)
