"""What the coordinator tells of ranks that are slower than the others: in the status, and a line of the job's story. Pure."""

from __future__ import annotations

import dataclasses

from rallypoint.agent.rendezvous import telling
from rallypoint.agent.rendezvous.health.stragglers import Track, measured
from rallypoint.agent.rendezvous.lookup import places
from rallypoint.agent.rendezvous.peers import State, members
from rallypoint.wire.messages import AgentReport, AgentState
from rallypoint.wire.pulse import Pace
from rallypoint.wire.status import JobState, Member
from rallypoint.wire.straggler import Straggler

__all__ = ["heard", "told"]


def heard(state: State, before: AgentReport | None, report: AgentReport, now: float) -> State:
    """Return the state with what a report tells of how fast its ranks are; `before` is that agent's last one."""
    if before is None or report.state is not AgentState.RUNNING or report.agent not in places(state.world):
        return state
    # Everybody is looked at only when somebody was measured anew.
    if [w.pace for w in before.workers] == [w.pace for w in report.workers]:
        return state
    track = state.track if state.track.round == state.fence.round else Track(round=state.fence.round)
    paces = _paces(state)
    after = track if paces is None else measured(track, paces, now)
    if after is state.track:
        return state
    known = state.track.told if state.track.round == after.round else ()
    return _news(dataclasses.replace(state, track=after), known, now)


def _paces(state: State) -> dict[int, Pace] | None:
    """Return how fast each rank is; None where one of them was never measured."""
    paces = {}
    for peer in members(state):
        if peer.report.round != state.fence.round:
            return None
        first = places(state.world)[peer.report.agent].first_rank
        for worker in peer.report.workers:
            if worker.ended:
                continue
            if worker.pace is None:
                return None
            paces[first + worker.local_rank] = worker.pace
    return paces


def _news(state: State, known: tuple[int, ...], now: float) -> State:
    """Tell who has become a straggler, and who is none any more."""
    told_now = {one.rank: one for one in told(state)}
    for rank, one in told_now.items():
        if rank not in known:
            detail = (
                f"rank {rank} on node {one.node} ({one.host}) is {one.score:g} times slower than the others: of each "
                f"step of {one.step * 1000:.0f} ms it spends {one.own * 1000:.0f} ms in its own work, the others "
                f"{one.usual * 1000:.0f} ms"
            )
            state = telling.event(state, "straggler", detail, now)
    for rank in known:
        if rank not in told_now:
            state = telling.event(state, "straggler-over", f"rank {rank} is as fast as the others again", now)
    return state


def told(state: State) -> tuple[Straggler, ...]:
    """Return the stragglers of the running round, the slowest first."""
    if state.track.round != state.fence.round or state.state is not JobState.RUNNING:
        return ()
    found = []
    for rank in state.track.told:
        member, lane = _member(state, rank), state.track.lanes[rank]
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


def _member(state: State, rank: int) -> Member | None:
    return next((m for m in state.world if m.first_rank <= rank < m.first_rank + m.local_world_size), None)
