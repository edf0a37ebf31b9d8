"""Find ranks that are slower than the other ranks while they train. Pure; `now` is an argument.

In a synchronous job the steps of all ranks take the same time, because all ranks wait for the slowest. The part of a step in
which a rank does *not* wait for other ranks (`Pace.own`) is longer on a slow rank. The score of a rank is this part divided by
its median over the other ranks.

A rank is slow in a measurement if its score is at least `SLOW` and its excess is at least the fraction `SHARE` of a step; a
smaller excess delays no other rank noticeably. A rank is reported as a straggler after `TIMES` slow measurements in a row,
until its score was below `CALM` in as many measurements. A score between `CALM` and `SLOW` changes nothing. Each measurement
covers all ranks.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rallypoint.capabilities.base import CoordinatorCapability, Effect, RecordEvent, RoundView
from rallypoint.capabilities.stragglers.wire import StatusSection, Straggler
from rallypoint.wire.messages import AgentReport, AgentState
from rallypoint.wire.plan import Plan
from rallypoint.wire.pulse import Pace
from rallypoint.wire.status import JobState, JobStatus, Member

__all__ = ["CALM", "SHARE", "SLOW", "TIMES", "Lane", "State", "Stragglers", "Track", "create", "measured", "score"]

SLOW, CALM, SHARE, TIMES = 1.5, 1.2, 0.1, 3

#: Seconds of a step below which differences between ranks are noise of clocks and threads.
_LEAST = 1e-4


@dataclass(frozen=True, kw_only=True)
class Lane:
    """The measurements of one rank over time.

    Attributes:
        window: number of its last measurement.
        row: number of slow measurements in a row; negative: number of calm measurements in a row.
        slow_since: time of the first of these slow measurements; `told`: the rank is reported as a straggler.
        score, own, usual, step: values of the last measurement.
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


# --- In the rendezvous -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class State:
    """The track of the running round; `news`: a rank was measured since the last look at all of them."""

    track: Track = Track()
    news: bool = False


_NOTHING = State()


class Stragglers(CoordinatorCapability[State]):
    """The coordinator's half of the capability: it needs nothing of the nodes but the paces that they report anyway."""

    name = "stragglers"

    def restore(self, published: JobStatus | None, *, continues: bool, now: float) -> State:
        """Begin to measure anew."""
        return _NOTHING

    def on_report(self, state: State, report: AgentReport, before: AgentReport | None, view: RoundView, now: float) -> State:
        """Note whether a rank was measured since the report before."""
        if state.news or before is None or report.state is not AgentState.RUNNING:
            return state
        same = [worker.pace for worker in before.workers] == [worker.pace for worker in report.workers]
        return state if same else dataclasses.replace(state, news=True)

    def on_tick(self, state: State, view: RoundView, now: float) -> tuple[State, Sequence[Effect]]:
        """Look at all ranks after a measurement, and record who became a straggler and who is none any more."""
        if not state.news:
            return state, ()
        known = state.track if state.track.round == view.fence.round else Track(round=view.fence.round)
        paces = _paces(view)
        track = known if paces is None else measured(known, paces, now)
        return State(track=track), tuple(_events(known, track, view))

    def to_status(self, state: State, view: RoundView) -> StatusSection:
        """Return the stragglers of the running round, the slowest first."""
        return StatusSection(stragglers=_stragglers(state.track, view))


def create(_plan: Plan) -> Stragglers:
    """Return the coordinator's half; every job has it."""
    return Stragglers()


def _paces(view: RoundView) -> dict[int, Pace] | None:
    """Return how fast each rank is; None where one of them was never measured."""
    paces = {}
    for member, report in view.members():
        if report.round != view.fence.round:
            return None
        for worker in report.workers:
            if worker.ended:
                continue
            if worker.pace is None:
                return None
            paces[member.first_rank + worker.local_rank] = worker.pace
    return paces


def _events(before: Track, after: Track, view: RoundView) -> Iterator[RecordEvent]:
    found = {one.rank: one for one in _stragglers(after, view)}
    for rank, one in found.items():
        if rank not in before.told:
            detail = (
                f"rank {rank} on node {one.node} ({one.host}) is {one.score:g} times slower than the other ranks: "
                f"own work per step {one.own * 1000:.0f} ms, other ranks {one.usual * 1000:.0f} ms "
                f"(step: {one.step * 1000:.0f} ms)"
            )
            yield RecordEvent(kind="straggler", detail=detail)
    for rank in before.told:
        if rank not in found:
            yield RecordEvent(kind="straggler-over", detail=f"rank {rank} is as fast as the other ranks again")


def _stragglers(track: Track, view: RoundView) -> tuple[Straggler, ...]:
    if track.round != view.fence.round or view.state is not JobState.RUNNING:
        return ()
    found = []
    for rank in track.told:
        member, lane = _member(view, rank), track.lanes[rank]
        if member is not None:
            found.append(
                Straggler(
                    rank=rank,
                    node=member.node,
                    host=member.host,
                    score=lane.score,
                    own=lane.own,
                    usual=lane.usual,
                    step=lane.step,
                    since=lane.slow_since,
                )
            )
    return tuple(sorted(found, key=lambda one: (-one.score, one.rank)))


def _member(view: RoundView, rank: int) -> Member | None:
    return next((m for m in view.world if m.first_rank <= rank < m.first_rank + m.local_world_size), None)
