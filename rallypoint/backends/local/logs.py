"""Per-rank logs over attempts and rounds: from where a reader stopped, or their ends. Everything here may block.

A rank's log of one round is two files that only grow. A cursor holds, for each rank that was read, the attempt, the round
and how many bytes of `out` and of `err`: `0=1.2.480.0;1=1.2.460.16`.

What a script writes is bounded by nothing, so no line is read whole that is longer than `LINE_BYTES`, and ends are read from
behind. No symbolic link below a job's folder is followed.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from rallypoint.backends.contract import BackendError, LogLine, Tail
from rallypoint.backends.cursors import MAX_RANKS, Cursors, rank_limit, read_places
from rallypoint.backends.local.files import open_below
from rallypoint.backends.local.layout import JobFolder, listed
from rallypoint.wire.bounds import read_count
from rallypoint.wire.plan import Plan
from rallypoint.wire.tail import LINE_BYTES, Bounds, TailLine, last_lines, read_line
from rallypoint.wire.unit_files import UNITS, read_life, unit_logs

__all__ = ["LogReader", "UnitLogReader"]

#: Lines and bytes that one call of `read` returns, so that a long log need not fit into memory.
_BATCH, _BATCH_BYTES = 1000, 4 << 20

#: Bytes that one call of `tail` reads of one stream of a rank, and of all of them.
_TAIL_BYTES, _ALL_TAIL_BYTES = 2 << 20, 64 << 20

_STREAMS = ("out", "err")

#: Logs of one rank in one round, and folders of rounds of one node, that are looked at.
_SEGMENTS = 1 << 14

#: Files of a round beside the output of its ranks: error files and stacks of hangs.
_OTHER_FILES = 1000

#: More lives than an instance has between two resets of its role.
_LIVES = 1_000_000
_RANK = re.compile(r"round-(\d+)/rank-(\d+)\.(?:out|err)", re.ASCII)
_PLACE = re.compile(r"(\d{1,9})\.(\d{1,9})\.(\d{1,18})\.(\d{1,18})", re.ASCII)


@dataclass(frozen=True, order=True, kw_only=True)
class _Segment:
    """The log of one rank in one round; `base` is its path without the stream, `root` a folder above it.

    No link below `root` is followed.
    """

    attempt: int
    round: int
    rank: int
    base: Path
    root: Path

    def open(self, stream: str) -> BinaryIO | None:
        """Open the file of a stream; None where it was not captured, or was deleted with the job."""
        try:
            return open_below(self.root, self.base.with_name(f"{self.base.name}.{stream}"))
        except FileNotFoundError:
            return None

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
    """Reads a job's logs on from a cursor, batch by batch, or their ends.

    Args:
        own_folder: read logs in the job's own folder alone, not in the `log_dir` that the job has chosen.
    """

    def __init__(self, folder: JobFolder, plan: Plan, *, rank: int | None, cursor: str = "", own_folder: bool = False) -> None:
        self._folder, self._plan, self._rank, self._own = folder, plan, rank, own_folder
        self._places = _parse(cursor, max(rank_limit(plan), MAX_RANKS))
        self._cursors = Cursors(self._places)

    def read(self, *, final: bool) -> list[LogLine]:
        """Return the next lines, none when there are no more for now; with `final` also those that nobody will finish.

        A line of more than `LINE_BYTES` comes in pieces. Raises `BackendError`.
        """
        segments = sorted(self._segments())
        newest = {segment.rank: segment.when for segment in segments}
        lines, size = list[LogLine](), 0
        for segment in segments:
            place = self._places.get(segment.rank)
            if place is not None and segment.when < place.when:
                continue
            if place is None or segment.when > place.when:
                self._places[segment.rank] = _Place(when=segment.when)
            complete = final or segment.when < newest[segment.rank]
            for line in self._new_lines(segment, complete=complete):
                lines.append(line)
                size += len(line.text)
                if len(lines) == _BATCH or size >= _BATCH_BYTES:
                    return lines
        return lines

    def tail(self, count: int, *, final: bool) -> Tail:
        """Return the last `count` lines of each stream of each rank, and the cursor behind them. Raises `BackendError`."""
        ranks: dict[int, list[_Segment]] = {}
        for segment in sorted(self._segments()):
            ranks.setdefault(segment.rank, []).append(segment)
        size = min(_TAIL_BYTES, _ALL_TAIL_BYTES // max(1, len(ranks) * len(_STREAMS)))
        found: list[tuple[tuple[int, int, int, int], list[TailLine], _Segment, str]] = []
        for rank, segments in ranks.items():
            self._places[rank] = _Place(when=segments[-1].when)
            for index, stream in enumerate(_STREAMS):
                left, budget = count, size
                for segment in reversed(segments):
                    last = segment is segments[-1]
                    lines, end = _end_of(segment, stream, Bounds(lines=left, size=budget), whole_only=last and not final)
                    if last:
                        self._places[rank] = self._places[rank].with_read(index, end)
                    found.append(((*segment.when, rank, index), lines, segment, stream))
                    left, budget = left - len(lines), budget - sum(len(line.text) for line in lines)
                    if left <= 0 or budget <= 0:
                        break
        told = (
            LogLine(rank=segment.rank, stream=stream, text=str(line), cursor="")
            for _, lines, segment, stream in sorted(found, key=lambda part: part[0])
            for line in lines
        )
        return Tail(lines=tuple(told), cursor=str(Cursors(self._places).now()))

    def _new_lines(self, segment: _Segment, *, complete: bool) -> Iterator[LogLine]:
        for index, stream in enumerate(_STREAMS):
            file = segment.open(stream)
            if file is None:
                continue
            with file:
                file.seek(self._places[segment.rank].read[index])
                while (text := read_line(file)) and (complete or text.endswith(b"\n") or len(text) > LINE_BYTES - 4):
                    place = self._places[segment.rank] = self._places[segment.rank].with_read(index, file.tell())
                    yield LogLine(
                        rank=segment.rank,
                        stream=stream,
                        text=text.decode(errors="replace").rstrip("\r\n"),
                        cursor=self._cursors.move(segment.rank, place),
                    )

    def _segments(self) -> set[_Segment]:
        found, limit = set(), rank_limit(self._plan)
        ranks = range(limit) if self._rank is None else range(self._rank, self._rank + 1)
        for attempt, node in self._folder.nodes():
            root, logs = self._folder.path.parent, node.path / "logs"
            if self._plan.logs.log_dir and not self._own:
                root = Path(self._plan.logs.log_dir)
                logs = root / self._plan.name / f"attempt-{attempt}" / f"node-{node.number}.{node.incarnation}"
            for path in _log_files(logs, limit):
                match = _RANK.fullmatch(f"{path.parent.name}/{path.name}")
                number, rank = (None, None) if match is None else map(read_count, match.groups())
                if number is not None and rank is not None and rank in ranks:
                    base = path.with_suffix("")
                    found.add(_Segment(attempt=attempt, round=number, rank=rank, base=base, root=root))
                    if len(found) == _SEGMENTS:
                        return found
        return found


class UnitLogReader(LogReader):
    """Reads what the instances of one simple role have written; the ranks are their indices."""

    def __init__(
        self, folder: JobFolder, plan: Plan, role: str, *, rank: int | None, cursor: str = "", own_folder: bool = False
    ) -> None:
        super().__init__(folder, plan, rank=rank, cursor=cursor, own_folder=own_folder)
        self._role = role

    def _segments(self) -> set[_Segment]:
        found, root = set(), self._folder.path.parent
        folders = [host.path / UNITS for _, host in self._folder.hosts()]
        if self._plan.logs.log_dir and not self._own:
            root = Path(self._plan.logs.log_dir)
            folders = [unit_logs(self._plan.logs.log_dir, self._folder.path.name)]
        for folder in folders:
            for path in listed(folder, f"{self._role}-{'*' if self._rank is None else self._rank}/*/rank-*.*"):
                index, life = read_count(path.parents[1].name.removeprefix(f"{self._role}-")), read_life(path.parent.name)
                if index is None or life is None or path.name.rpartition(".")[2] not in _STREAMS:
                    continue
                attempt, reset, incarnation = life
                number, base = reset * _LIVES + incarnation, path.with_suffix("")
                found.add(_Segment(attempt=attempt, round=number, rank=index, base=base, root=root))
        return found


def _log_files(logs: Path, ranks: int) -> Iterator[Path]:
    """Yield the files of the folders of rounds: of a script, which can create any number, at most so many as a job needs."""
    for folder in _entries(logs, _SEGMENTS):
        if folder.name.startswith("round-"):
            yield from _entries(folder, len(_STREAMS) * ranks + _OTHER_FILES)


def _entries(folder: Path, most: int) -> list[Path]:
    try:
        with os.scandir(folder) as found:
            return [Path(entry.path) for entry in itertools.islice(found, most)]
    except OSError:  # deleted meanwhile, or no folder
        return []


def _end_of(segment: _Segment, stream: str, bounds: Bounds, *, whole_only: bool) -> tuple[list[TailLine], int]:
    """Return the last lines of a stream, and the offset of what comes after the last line of it."""
    file = segment.open(stream)
    if file is None:
        return [], 0
    with file:
        # Where none is asked for, the end of the last one is.
        lines = last_lines(file, dataclasses.replace(bounds, lines=max(1, bounds.lines)), whole_only=whole_only)
        begun = file.seek(0, os.SEEK_END)
    end = lines[-1].end if lines else (begun if begun > bounds.size else 0)
    return lines if bounds.lines else [], end


def _parse(cursor: str, ranks: int) -> dict[int, _Place]:
    try:
        return read_places(cursor, ranks, _place)
    except ValueError as error:
        raise BackendError(str(error)) from None


def _place(text: str) -> _Place | None:
    match = _PLACE.fullmatch(text)
    if match is None:
        return None
    attempt, number, out, err = map(int, match.groups())
    return _Place(when=(attempt, number), read=(out, err))
