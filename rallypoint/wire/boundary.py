"""Agreement of ranks on one step boundary, ahead of all of them, at which each carries out a request (pause, save, stop).

Ranks learn of a request at different times. If each acted at its next boundary, one rank would stop after step s while
another waits for it in a collective of step s + 1, and ranks without collectives would act after different steps. The
protocol:

1. A rank that learns of the request *joins* at its next boundary: it publishes that boundary as its mark, and trains on. It
   must not stop there, because another rank may already be in a collective of the next step.
2. At the boundary after that it *holds* until every rank has joined. A rank that shares a collective with it in each step
   is at most one boundary behind, so it reaches its own next boundary, and joins, without any further step of the rank that
   holds.
3. When all ranks have joined, the boundary is the highest mark plus one. The first rank that writes it decides; all read
   that one. Every rank acts at its first boundary that is not below it.

No rank can have passed the agreed boundary: before a rank passes a boundary it publishes it as its mark and then finds that a
rank is missing. The decision reads the marks after the last rank has joined, so it is above all of them.

Holding is needed only so that a fast rank stays close to a slow one, so it has a limit (`BoundaryAgreement.patience`). A
rank whose patience is over raises its mark to the present boundary and trains on. So a rank that never reaches a boundary,
and ranks that run several steps apart (pipelines), delay training but cannot block it.
"""

from __future__ import annotations

import contextlib
import enum
import fcntl
import functools
import os
import re
from collections.abc import Callable, Collection, Generator, Iterator
from pathlib import Path
from typing import Any, Protocol

__all__ = ["BoundaryAgreement", "BoundaryFile", "BoundaryStore", "Operation", "Visit", "perform"]

#: Seconds of each hold of one request; after the last one a rank holds no more.
_PATIENCE = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)

_LINE = re.compile(r"(mark|join|decide) (-?\d+)(?: (-?\d+))?")


class Visit(enum.Enum):
    """What a rank does at a boundary while a request is open."""

    PASS = "pass"  #: train on
    HOLD = "hold"  #: wait a moment, then visit the same boundary again
    ACT = "act"  #: carry out the request here


class BoundaryStore(Protocol):
    """What the ranks share about one request. Each call is atomic, and all ranks see the calls in one order."""

    def mark(self, rank: int, boundary: int) -> None:
        """Publish the highest boundary that a rank may have passed."""
        ...

    def join(self, rank: int) -> int:
        """Add a rank, once and after its first mark; return how many ranks are missing now."""
        ...

    def missing(self) -> int:
        """Return how many ranks have not joined; a rank that has finished its work is not missing."""
        ...

    def read_mark(self, rank: int) -> int | None:
        """Return the mark of a rank, None for one that never joined."""
        ...

    def decision(self) -> int | None:
        """Return the agreed boundary, None before the decision."""
        ...

    def decide(self, boundary: int) -> int:
        """Set the agreed boundary unless it is set; return the one that holds."""
        ...


#: One atomic access to the store.
Operation = Callable[[BoundaryStore], Any]


class BoundaryAgreement:
    """The part of one rank in the agreement about one request, among `size` ranks numbered from 0."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.mark: int | None = None
        self.agreed: int | None = None
        self._raised = 0
        self._completed = False

    @property
    def patience(self) -> float:
        """Seconds for which this rank holds at its present boundary before it visits it without patience."""
        return _PATIENCE[self._raised] if self._raised < len(_PATIENCE) else 0.0

    def visit(self, boundary: int, *, patient: bool = True) -> Generator[Operation, Any, Visit]:
        """Yield the store operations of a visit to a boundary, higher than those before, and return what the rank does there.

        A generator, so that a test can interleave the operations of several ranks; see `perform`.
        """
        if self.size == 1:
            return Visit.ACT
        if self.agreed is None:
            missing = yield from self._count_missing(boundary, patient=patient)
            if missing:
                return Visit.PASS if self.mark == boundary else Visit.HOLD
            self.agreed = yield lambda store: store.decision()
        if self.agreed is None:
            if patient and not self._completed:
                return Visit.HOLD  # the rank that joined last decides; the others need not read all marks as well
            self.agreed = yield from self._decide()
        return Visit.ACT if boundary >= self.agreed else Visit.PASS

    def _count_missing(self, boundary: int, *, patient: bool) -> Generator[Operation, Any, int]:
        first = self.mark is None
        if first or not patient:
            yield lambda store: store.mark(self.rank, boundary)
            self.mark = boundary
            self._raised += not first
        count: Operation = (lambda store: store.join(self.rank)) if first else (lambda store: store.missing())
        missing: int = yield count
        self._completed |= first and not missing
        return missing

    def _decide(self) -> Generator[Operation, Any, int]:
        marks = []
        for rank in range(self.size):
            mark = yield functools.partial(_read_mark, rank)
            marks += [] if mark is None else [mark]
        decided: int = yield lambda store: store.decide(max(marks) + 1)
        return decided


def _read_mark(rank: int, store: BoundaryStore) -> int | None:
    return store.read_mark(rank)


def perform(visit: Generator[Operation, Any, Visit], store: BoundaryStore) -> Visit:
    """Run a visit on a store and return its result."""
    try:
        operation = next(visit)
        while True:
            operation = visit.send(operation(store))
    except StopIteration as end:
        result: Visit = end.value
        return result


class BoundaryFile:
    """A `BoundaryStore` in a file, for the ranks of one node: it needs no torch and no process group.

    Each line is one operation. A process writes a line while it holds the file's lock, which the kernel releases when the
    process dies; an incomplete last line is ignored. `size` is the number of ranks; `finished` returns those that reach no
    boundary any more.
    """

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
