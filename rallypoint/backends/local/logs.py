"""Per-rank logs over attempts and rounds, from where a reader stopped. Everything here may block.

A rank's log of one round is two files that only grow. A cursor holds, for each rank that was read, the attempt, the round
and how many bytes of `out` and of `err`: `0=1.2.480.0;1=1.2.460.16`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rallypoint.backends.contract import BackendError, LogLine
from rallypoint.backends.local.layout import JobFolder
from rallypoint.wire.plan import Plan

__all__ = ["LogReader"]

#: Lines that one call of `read` returns at the most, so that a long log need not fit into memory.
_BATCH = 1000

_STREAMS = ("out", "err")
_RANK = re.compile(r"round-(\d+)/rank-(\d+)\.(?:out|err)", re.ASCII)
_PLACE = re.compile(r"(\d+)=(\d+)\.(\d+)\.(\d+)\.(\d+)", re.ASCII)


@dataclass(frozen=True, order=True, kw_only=True)
class _Segment:
    """The log of one rank in one round; `base` is its path without the stream."""

    attempt: int
    round: int
    rank: int
    base: Path

    @property
    def when(self) -> tuple[int, int]:
        return self.attempt, self.round


@dataclass(frozen=True, kw_only=True)
class _Place:
    """How far one rank was read: everything before `when`, and of `when` so many bytes of each stream."""

    when: tuple[int, int]
    read: tuple[int, int] = (0, 0)

    def with_read(self, stream: int, offset: int) -> _Place:
        read = (offset, self.read[1]) if stream == 0 else (self.read[0], offset)
        return dataclasses.replace(self, read=read)

    def __str__(self) -> str:
        return ".".join(map(str, (*self.when, *self.read)))


class LogReader:
    """Reads a job's logs on from a cursor, batch by batch."""

    def __init__(self, folder: JobFolder, plan: Plan, *, rank: int | None, cursor: str) -> None:
        self._folder, self._plan, self._rank = folder, plan, rank
        self._places = _parse(cursor)

    def read(self, *, final: bool) -> list[LogLine]:
        """Return the next lines, none when there are no more for now; with `final` also those that nobody will finish."""
        segments = sorted(self._segments())
        newest = {segment.rank: segment.when for segment in segments}
        lines: list[LogLine] = []
        for segment in segments:
            place = self._places.get(segment.rank)
            if place is not None and segment.when < place.when:
                continue
            if place is None or segment.when > place.when:
                self._places[segment.rank] = _Place(when=segment.when)
            complete = final or segment.when < newest[segment.rank]
            for line in self._new_lines(segment, complete=complete):
                lines.append(line)
                if len(lines) == _BATCH:
                    return lines
        return lines

    def _new_lines(self, segment: _Segment, *, complete: bool) -> Iterator[LogLine]:
        for index, stream in enumerate(_STREAMS):
            path = segment.base.with_name(f"{segment.base.name}.{stream}")
            try:
                file = path.open("rb")
            except FileNotFoundError:  # not captured, or deleted with the job
                continue
            with file:
                file.seek(self._places[segment.rank].read[index])
                while (text := file.readline()) and (complete or text.endswith(b"\n")):
                    self._places[segment.rank] = self._places[segment.rank].with_read(index, file.tell())
                    yield LogLine(
                        rank=segment.rank,
                        stream=stream,
                        text=text.decode(errors="replace").rstrip("\r\n"),
                        cursor=";".join(f"{rank}={place}" for rank, place in sorted(self._places.items())),
                    )

    def _segments(self) -> set[_Segment]:
        found = set()
        for attempt, node in self._folder.nodes():
            own = node.path / "logs"
            named = Path(self._plan.log_dir, self._plan.name, f"attempt-{attempt}", f"node-{node.number}.{node.incarnation}")
            root = named if self._plan.log_dir else own
            for path in root.glob("round-*/rank-*"):
                match = _RANK.fullmatch(f"{path.parent.name}/{path.name}")
                if match and self._rank in (None, int(match[2])):
                    base = path.with_suffix("")
                    found.add(_Segment(attempt=attempt, round=int(match[1]), rank=int(match[2]), base=base))
        return found


def _parse(cursor: str) -> dict[int, _Place]:
    places = {}
    for part in cursor.split(";") if cursor else ():
        match = _PLACE.fullmatch(part)
        if match is None:
            raise BackendError(f"cursor: {cursor!r} is not one that a line of these logs came with")
        rank, attempt, number, out, err = map(int, match.groups())
        places[rank] = _Place(when=(attempt, number), read=(out, err))
    return places
