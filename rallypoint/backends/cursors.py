"""Cursors of logs: how far each rank was read. Pure.

A cursor names every rank that was read, so its text grows with the job. A reader returns a cursor with each line, but a caller
needs the text of few of them. If each line carried its text, the work would grow with lines times ranks: 4,000 lines of 4,000
ranks, which a script can forge in 100 KB, would stop an event loop for minutes. So a cursor keeps where its text comes from
and forms it on request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from rallypoint.wire.plan import Plan
from rallypoint.wire.sanitize import one_line

__all__ = ["MAX_CURSOR", "MAX_RANKS", "Cursor", "Cursors", "place_of", "rank_limit", "read_places"]

_Place = TypeVar("_Place")

#: The limit of ranks for a job whose size is not known: the ranks of the largest status that is read.
MAX_RANKS = 16_384

#: Characters of the longest cursor that is read or kept: `MAX_RANKS` places of a pod's log. Others may write a text instead.
MAX_CURSOR = 2 << 20

#: Digits of the highest rank, and characters of a wrong part that its error shows.
_DIGITS, _SHOWN = 9, 80

#: Lines after which a new starting point is stored: the cursors of old lines must not keep all lines of a long log in memory.
_STEPS = 1000


class Cursor:
    """The position after one line; `str()` forms the text, in time proportional to the ranks and to at most 1,000 lines."""

    __slots__ = ("_count", "_start", "_steps")

    def __init__(self, start: Mapping[int, object], steps: list[tuple[int, object]], count: int) -> None:
        self._start, self._steps, self._count = start, steps, count

    def __str__(self) -> str:
        places = {**self._start, **dict(self._steps[: self._count])}
        return ";".join(f"{rank}={place}" for rank, place in sorted(places.items()))

    @property
    def place(self) -> str:
        """How far the rank of this line was read; empty before the first line."""
        return str(self._steps[self._count - 1][1]) if self._count else ""

    def __repr__(self) -> str:
        return f"Cursor({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return str(self) == str(other) if isinstance(other, (Cursor, str)) else NotImplemented

    def __hash__(self) -> int:
        return hash(str(self))


class Cursors:
    """The cursors of one reading.

    Args:
        places: how far each rank was read before; `str()` of a place is what a cursor holds of its rank.
    """

    def __init__(self, places: Mapping[int, object]) -> None:
        self._start: dict[int, object] = dict(places)
        self._steps: list[tuple[int, object]] = []

    def move(self, rank: int, place: object) -> Cursor:
        """Note that a rank was read up to `place`; return the cursor after it."""
        if len(self._steps) == _STEPS:
            # Not changed in place: cursors of earlier lines still use them.
            self._start, self._steps = {**self._start, **dict(self._steps)}, []
        self._steps.append((rank, place))
        return self.now()

    def now(self) -> Cursor:
        """Return the cursor after the last line."""
        return Cursor(self._start, self._steps, len(self._steps))


def read_places(cursor: str, ranks: int, read: Callable[[str], _Place | None]) -> dict[int, _Place]:
    """Return how far each rank below `ranks` was read; it takes a second for the longest cursor, so use a thread.

    Args:
        read: returns the place that a text names; None if it names none.

    Raises `ValueError` for a text that is no cursor.
    """
    if len(cursor) > MAX_CURSOR:
        raise ValueError(f"cursor: a text of {len(cursor)} characters is not allowed; expected at most {MAX_CURSOR}")
    places = {}
    for part in cursor.split(";") if cursor else ():
        rank, _, text = part.partition("=")
        place = read(text) if rank.isdecimal() and rank.isascii() and len(rank) <= _DIGITS else None
        if place is None:
            shown = one_line(part[: _SHOWN + 1], _SHOWN)
            raise ValueError(f"cursor: {shown!r} is not allowed; expected the cursor of a log line of this job")
        if int(rank) < ranks:
            places[int(rank)] = place
    return places


def place_of(cursor: Cursor | str) -> str:
    """Return how far the rank of a line was read; a backend whose cursors are texts has no places."""
    return cursor.place if isinstance(cursor, Cursor) else cursor


def rank_limit(plan: Plan) -> int:
    """Return a number above the highest rank of a job. Lines of higher ranks are forged, and would make cursors large."""
    # With `auto_config` each node has as many workers as devices, a number that only its agent knows.
    return MAX_RANKS if plan.devices.auto_config else plan.max_nodes * plan.nproc_per_node
