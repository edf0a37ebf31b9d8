"""Which rank is slower than the others while they train. Pure; `now` is an argument.

In a synchronous job every rank's steps take equally long, because all wait for the slowest. What differs is the part of a step
in which a rank does *not* wait for others (`Pace.own`), and of that the slow one has more. Its score is how many times the
median of the others that is.

A rank is slow in a measurement when its score is `SLOW` or more and its excess makes up `SHARE` of a step: one that takes twice
as long for a thousandth of a step holds nobody up. It is told when that was so `TIMES` times in a row, and until its score
was below `CALM` as often: what goes to and fro between the two stays as it is. All ranks are measured anew each time.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rallypoint.wire.pulse import Pace

__all__ = ["CALM", "SHARE", "SLOW", "TIMES", "Lane", "Track", "measured", "score"]

SLOW, CALM, SHARE, TIMES = 1.5, 1.2, 0.1, 3

#: Seconds of a step that are nobody's own: below that clocks and threads decide who is slow.
_LEAST = 1e-4


@dataclass(frozen=True, kw_only=True)
class Lane:
    """A rank over time.

    Attributes:
        window: its measurement that was taken last.
        row: so many measurements in a row it was slow, or (negative) calm.
        slow_since: when it was first found slow of those; `told`: it is told as a straggler.
        score, own, usual, step: as they were measured last.
    """

    window: int = 0
    row: int = 0
    slow_since: float = 0.0
    told: bool = False
    score: float = 0.0
    own: float = 0.0
    usual: float = 0.0
    step: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Track:
    """The ranks of one round."""

    round: int = 0
    lanes: Mapping[int, Lane] = field(default_factory=dict, hash=False)

    @property
    def told(self) -> tuple[int, ...]:
        """The ranks that are stragglers."""
        return tuple(sorted(rank for rank, lane in self.lanes.items() if lane.told))


def score(own: float, everybody: Sequence[float]) -> tuple[float, float]:
    """Return how many times the median of the others a rank's own time is, and that median, in seconds.

    `everybody` is sorted, its own among them: thousands of ranks are scored against one list.
    """
    place, count = bisect_left(everybody, own), len(everybody) - 1
    low, high = ((count - 1) // 2, count // 2)
    middle = (everybody[low + (low >= place)] + everybody[high + (high >= place)]) / 2
    usual = max(middle, _LEAST)
    return max(own, _LEAST) / usual, usual


def measured(track: Track, paces: Mapping[int, Pace], now: float) -> Track:
    """Return the track after a look at how fast all ranks are; the very same one where not all were measured since the last.

    Args:
        track: of the running round.
        paces: the last measurement of each rank that lives.
        now: our own clock.
    """
    if len(paces) < 2 or any(pace.window <= track.lanes.get(rank, Lane()).window for rank, pace in paces.items()):
        return track
    everybody = sorted(pace.own for pace in paces.values())
    lanes = {}
    for rank, pace in paces.items():
        ratio, usual = score(pace.own, everybody)
        lane = dataclasses.replace(
            track.lanes.get(rank, Lane()),
            window=pace.window,
            score=round(ratio, 2),
            own=pace.own,
            usual=round(usual, 6),
            step=pace.step,
        )
        lanes[rank] = _after(lane, now, heavy=pace.own - usual >= SHARE * pace.step)
    return dataclasses.replace(track, lanes=lanes)


def _after(lane: Lane, now: float, *, heavy: bool) -> Lane:
    slow, calm = lane.score >= SLOW and heavy, lane.score < CALM or not heavy
    if slow:
        row = max(lane.row, 0) + 1
        since = now if row == 1 and not lane.told else lane.slow_since
        return dataclasses.replace(lane, row=row, slow_since=since, told=lane.told or row >= TIMES)
    row = min(lane.row, 0) - 1 if calm else 0
    return dataclasses.replace(lane, row=row, told=lane.told and row > -TIMES)
