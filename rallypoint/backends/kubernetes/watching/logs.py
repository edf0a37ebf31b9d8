"""The logs of ranks, read from those of the pods that they run in.

Lines of all ranks of a node are mixed in its pod's log, each with the time at which the container runtime took it. A cursor
names, for each rank, how far it was read by these times: attempt, round, and for each stream the time of the last line and how
many lines of just that time were read. So it holds through rotation, restarts of the kubelet, and a cut in the middle.
"""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass

from rallypoint.backends.contract import BackendError, LogLine
from rallypoint.backends.cursors import MAX_RANKS, Cursors, read_places
from rallypoint.backends.kubernetes.watching.cluster import Cluster
from rallypoint.backends.kubernetes.watching.views import PodView
from rallypoint.wire.podlog import PodLine, parse_line

__all__ = ["Listener", "Place", "Places", "Said", "parse_cursor", "read_pod", "read_tail", "second_of", "tail_bytes"]

#: Maximum size of the last lines of one pod, which are stored in the record, and of all pods of a job, in bytes.
_TAIL_BYTES, _ALL_TAIL_BYTES = 64 << 10, 64 << 20

#: Seconds that they may take: the end of a pod is not held up for its last words.
_TAIL_TIMEOUT = 5.0

#: Bytes of lines that are parsed together, and seconds without a byte after which a log is given up.
_PART_BYTES, _SILENCE = 256 << 10, 60.0

_STREAMS = ("out", "err")

_PLACE = re.compile(r"(\d{1,9})\.(\d{1,9})((?:,[0-9TZ:.+-]{0,40}x\d{1,9}){2})", re.ASCII)

#: The time stamp of a line, with the time zone of the machine.
_TIME = r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.\d{1,9})?(Z|[+-]\d\d:\d\d)"
_AT, _STAMP = re.compile(_TIME, re.ASCII), re.compile(f"{_TIME} ".encode())

_NEVER = ("", 0)


@dataclass(frozen=True, kw_only=True)
class Said:
    """One line of one rank, as a pod's log has it; `at` is the runtime's time, `index` tells lines of one time apart."""

    attempt: int
    round: int
    rank: int
    stream: str
    at: str
    index: int
    text: str

    @property
    def when(self) -> tuple[int, int]:
        """Attempt and round."""
        return self.attempt, self.round

    @property
    def order(self) -> tuple[int, int, int, int, str, int]:
        """How lines of several ranks come after one another."""
        return self.attempt, self.round, self.rank, _STREAMS.index(self.stream), self.at, self.index


@dataclass(frozen=True, kw_only=True)
class Place:
    """How far a rank was read: in which attempt and round, and of `out` and `err` up to which time and line of that time."""

    attempt: int
    round: int
    out: tuple[str, int] = _NEVER
    err: tuple[str, int] = _NEVER

    @property
    def when(self) -> tuple[int, int]:
        """Attempt and round."""
        return self.attempt, self.round

    def of(self, stream: str) -> tuple[str, int]:
        """Return how far a stream was read."""
        return self.out if stream == "out" else self.err

    def __str__(self) -> str:
        streams = "".join(f",{at}x{index}" for at, index in (self.out, self.err))
        return f"{self.attempt}.{self.round}{streams}"


class Places:
    """How far each rank was read; what was read once is not told again."""

    def __init__(self, cursor: str = "", ranks: int = MAX_RANKS) -> None:
        self._places = parse_cursor(cursor, ranks)
        self._before: dict[int, Place] = {}
        self._cursors = Cursors(self._places)

    def is_new(self, line: Said) -> bool:
        """Return whether a line comes after what was read; also one of the round before, which another pod may send later."""
        place = self._places.get(line.rank)
        if place is None or line.when > place.when:
            return True
        if line.when < place.when:
            place = self._before.get(line.rank)
            if place is None or line.when != place.when:
                return False
        return (line.at, line.index) > place.of(line.stream)

    def take(self, line: Said) -> LogLine:
        """Note that a line was read; return it with the cursor that goes on after it."""
        place = self._places.get(line.rank)
        if place is None or place.when < line.when:
            last = place or Place(attempt=line.attempt, round=line.round - 1)
            self._before[line.rank] = last
            place = Place(attempt=line.attempt, round=line.round)
        if line.when < place.when:
            self._before[line.rank] = _moved(self._before.get(line.rank, place), line)
        else:
            place = _moved(place, line)
        self._places[line.rank] = place
        return LogLine(rank=line.rank, stream=line.stream, text=line.text, cursor=self._cursors.move(line.rank, place))

    def cursor(self) -> str:
        """Return where all ranks are read up to."""
        return str(self._cursors.now())


def _moved(place: Place, line: Said) -> Place:
    read = (line.at, line.index)
    return dataclasses.replace(place, out=read) if line.stream == "out" else dataclasses.replace(place, err=read)


def parse_cursor(cursor: str, ranks: int = MAX_RANKS) -> dict[int, Place]:
    """Read a cursor; raises `BackendError` for what is none."""
    try:
        return read_places(cursor, ranks, _place)
    except ValueError as error:
        raise BackendError(str(error)) from None


def _place(text: str) -> Place | None:
    match = _PLACE.fullmatch(text)
    if match is None:
        return None
    out, err = (_read(place) for place in match[3][1:].split(","))
    return Place(attempt=int(match[1]), round=int(match[2]), out=out, err=err)


def _read(text: str) -> tuple[str, int]:
    at, _, index = text.rpartition("x")
    return at, int(index)


class Listener:
    """Hears what ranks say in one pod's log with time stamps, from its beginning or from the beginning of a second on.

    Args:
        alone: the rank of all lines of a log in which another program than our agent runs, so that no line names a rank.
        round: the round of such a log, of which no line is read as one of our agent's.
        ranks: more than the highest rank of the job. A script can forge lines of any rank, which would make cursors large.
    """

    def __init__(
        self,
        attempt: int,
        *,
        alone: int | None = None,
        round: int | None = None,  # noqa: A002  its name
        ranks: int = MAX_RANKS,
    ) -> None:
        self._attempt, self._alone, self._round, self._ranks = attempt, alone, round, ranks
        self._last: dict[tuple[int, str], tuple[str, int]] = {}

    def hear(self, line: str) -> Said | None:
        """Return what a rank said; None for what the agent said itself, and for a line without an end or a time."""
        at, _, rest = line.partition(" ")
        if _AT.fullmatch(at) is None:
            return None  # a cursor stores the time
        found = parse_line(rest) if line.endswith("\n") and self._round is None else None
        if found is not None and found.rank >= self._ranks:
            found = None
        if found is None and self._alone is not None and line.endswith("\n"):
            found = PodLine(round=self._round or 0, rank=self._alone, stream="out", text=rest)
        if found is None:
            return None
        at = _padded(at)
        before, index = self._last.get((found.rank, found.stream), _NEVER)
        index = index + 1 if before == at else 1
        self._last[found.rank, found.stream] = at, index
        return Said(
            attempt=self._attempt,
            round=found.round,
            rank=found.rank,
            stream=found.stream,
            at=at,
            index=index,
            text=found.text.rstrip("\r\n"),
        )


def _padded(at: str) -> str:
    """Return a time that sorts as text: runtimes leave out zeros at the end of the fraction."""
    head, dot, fraction = at.removesuffix("Z").partition(".")
    return f"{head}.{fraction:0<9}Z" if dot else f"{head}.000000000Z"


def second_of(block: bytes) -> str:
    """Return the second of the last line of a block, as the API server takes it; "" where that has none."""
    found = _STAMP.match(block[block.rfind(b"\n", 0, -1) + 1 :][:64])
    return f"{found[1].decode()}{found[2].decode()}" if found else ""


async def read_pod(cluster: Cluster, pod: PodView, query: Mapping[str, str]) -> AsyncGenerator[list[bytes], None]:
    """Yield a pod's log so far in parts: blocks of lines, with time stamps and ends. Raises `BackendError`.

    A server may ignore `tailLines` of the query; the log then ends after the block that has the last of so many lines.
    """
    path = cluster.path("pods", pod.name, "log")
    asked = {"container": pod.main, "timestamps": "true", **query}
    part, size, left = list[bytes](), 0, int(query.get("tailLines", sys.maxsize))
    async with cluster.api.stream(path, query=asked, silence=_SILENCE) as blocks:
        async for block in blocks:
            part.append(block)
            size += len(block)
            left -= block.count(b"\n")
            if left <= 0:
                break
            if size >= _PART_BYTES:
                yield part
                part, size = [], 0
    if part:
        yield part


def tail_bytes(pods: int) -> int:
    """Return how many bytes are read of the tail of each of `pods` pods."""
    return min(_TAIL_BYTES, _ALL_TAIL_BYTES // max(1, pods))


async def read_tail(cluster: Cluster, pod: PodView, lines: int, size: int) -> tuple[str, ...]:
    """Return the last lines of a pod's log, at most `size` bytes, of ranks as they wrote them. Raises `BackendError`."""
    if lines <= 0:
        return ()
    path = cluster.path("pods", pod.name, "log")
    asked = {"container": pod.main, "tailLines": str(lines), "limitBytes": str(size)}
    data = await cluster.api.request("GET", path, query=asked, timeout=_TAIL_TIMEOUT)
    return tuple(_bare(line) for line in data.decode(errors="replace").splitlines()[-lines:])


def _bare(line: str) -> str:
    found = parse_line(line)
    return line if found is None else found.text
