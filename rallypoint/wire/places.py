"""How far the ranks of a world had come, in a size that does not grow with the world. Pure.

A world that hangs stands at a few places: a thousand ranks are a few runs of neighbours that came equally far. Where there are
more runs than have room, those that are equal are told together wherever their ranks are, and then those that differ least: a
run has the number of its ranks, and tells its least and its most. Nothing is cut off.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from rallypoint.wire.bounds import WHOLE

__all__ = ["RankSpan", "fold", "spans"]


@dataclass(frozen=True, kw_only=True)
class RankSpan:
    """Ranks that came equally far, or that were joined.

    Attributes:
        first, last: their lowest and their highest rank; `count` of those between them belong to it.
        least, most: how far they came: reported steps where all ranks of the world report them, else signs of life.
        culprit: the others wait for them.
        waits: they stand in a collective, or elsewhere where they wait for other ranks.
    """

    limits: ClassVar = {"least": WHOLE, "most": WHOLE}

    first: int
    last: int
    count: int
    least: int
    most: int
    culprit: bool = False
    waits: bool = False

    @property
    def whole(self) -> bool:
        """Whether it has every rank from its first to its last."""
        return self.count == self.last - self.first + 1


def spans(ranks: Iterable[tuple[int, int, bool, bool]]) -> tuple[RankSpan, ...]:
    """Return `(rank, how far, culprit, waits)` of all ranks, in order of rank, as runs of equal neighbours."""
    runs: list[RankSpan] = []
    for rank, far, culprit, waits in ranks:
        last = runs[-1] if runs else None
        if last is not None and (last.last + 1, last.least, last.culprit, last.waits) == (rank, far, culprit, waits):
            runs[-1] = dataclasses.replace(last, last=rank, count=last.count + 1)
        else:
            runs.append(RankSpan(first=rank, last=rank, count=1, least=far, most=far, culprit=culprit, waits=waits))
    return tuple(runs)


def fold(runs: Sequence[RankSpan], most: int) -> tuple[RankSpan, ...]:
    """Return at most `most` runs (1 or more), by their first rank; a culprit is joined with another rank last of all."""
    if len(runs) <= most:
        return tuple(runs)
    folded: list[RankSpan] = []
    for run in sorted(runs, key=lambda r: (r.culprit, r.waits, r.least, r.most)):
        if folded and _loss(folded[-1], run) == (False, False, 0):
            folded[-1] = _joined(folded[-1], run)
        else:
            folded.append(run)
    return tuple(sorted(_fewer(folded, max(1, most)), key=lambda r: (r.first, r.last)))


def _fewer(runs: Sequence[RankSpan], most: int) -> Iterable[RankSpan]:
    """Return at most `most` runs: of all neighbours, those that differ least are joined first, the leftmost of equals.

    A script can write as many runs as its status may hold, so the time must not grow with the square of their number.
    """
    left = dict(enumerate(runs))
    after = {at: at + 1 for at in left}
    before = {at: at - 1 for at in left}
    order = itertools.count()

    def pair(at: int, other: int) -> tuple[tuple[bool, bool, int], int, int, RankSpan, RankSpan]:
        return _loss(left[at], left[other]), at, next(order), left[at], left[other]

    heap = [pair(at, at + 1) for at in range(len(runs) - 1)]
    heapq.heapify(heap)
    while len(left) > most:
        _, at, _, one, other = heapq.heappop(heap)
        if left.get(at) is not one or left.get(after[at]) is not other:
            continue  # one of them was joined with its other neighbour
        gone = after[at]
        left[at], after[at] = _joined(one, left.pop(gone)), after[gone]
        if after[at] in left:
            before[after[at]] = at
            heapq.heappush(heap, pair(at, after[at]))
        if before[at] in left:
            heapq.heappush(heap, pair(before[at], at))
    return left.values()


def _loss(one: RankSpan, other: RankSpan) -> tuple[bool, bool, int]:
    wider = max(one.most, other.most) - min(one.least, other.least)
    return one.culprit is not other.culprit, one.waits is not other.waits, wider


def _joined(one: RankSpan, other: RankSpan) -> RankSpan:
    return RankSpan(
        first=min(one.first, other.first),
        last=max(one.last, other.last),
        count=one.count + other.count,
        least=min(one.least, other.least),
        most=max(one.most, other.most),
        culprit=one.culprit or other.culprit,
        waits=one.waits and other.waits,
    )
