"""What the coordinator has learned of how long the phases of its job take, and hands on to whoever comes after it. Pure.

It stands in the status, so a new coordinator and the next attempt have it. There it is renewed now and then, and when a round
is over, because a status that is another one each second would have to be written each second.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from rallypoint.agent.rendezvous.health.learned import Bound, bound, later, merged
from rallypoint.agent.rendezvous.lookup import world_size
from rallypoint.agent.rendezvous.peers import State, members
from rallypoint.wire.messages import AgentState
from rallypoint.wire.pulse import Learned, Phase
from rallypoint.wire.status import JobState, JobStatus

__all__ = ["bound_of", "handed_on", "inherited", "renewed"]

#: Seconds between two renewals of what is told.
_RENEWED = 30.0


def inherited(state: State, previous: JobStatus | None) -> State:
    """Return the state of a coordinator that begins with what the one before it had learned, in this attempt or another one."""
    if previous is None or previous.uid != state.uid:
        return state
    return dataclasses.replace(state, before=previous.learned, learned=previous.learned, learned_at=state.since)


def bound_of(state: State) -> Bound:
    """Return how long the world may be silent now, by what was learned."""
    if not state.settings.hang_learning:
        return Bound(seconds=float("inf"))
    running = (p.report for p in members(state) if p.report.round == state.fence.round)
    workers = (w for report in running if report.state is AgentState.RUNNING for w in report.workers)
    # Nothing is known of how long a rank may take for what it does after training.
    phases = (w.phase for w in workers if not w.ended and not w.finished)
    return bound(phases, _by_phase(state.before), _seen(state), world_size(state.world))


def _seen(state: State) -> dict[Phase, Learned]:
    return merged(one for p in members(state) if p.report.round == state.fence.round for one in p.report.learned)


def _by_phase(learned: Iterable[Learned]) -> Mapping[Phase, Learned]:
    return {one.phase: one for one in learned}


def renewed(state: State, now: float) -> State:
    """Return the state with what is told renewed, where that is due."""
    return _renewed(state, now) if now >= state.learned_at + _RENEWED else state


def _renewed(state: State, now: float) -> State:
    known = later(_by_phase(state.before), _seen(state), world_size(state.world))
    return dataclasses.replace(state, learned=tuple(known[phase] for phase in Phase if phase in known), learned_at=now)


def handed_on(state: State) -> State:
    """Return the state where its round is over: what was learned in it is what the next one begins with, once."""
    if state.state is JobState.RUNNING or state.learned_in == state.fence.round:
        return state
    state = _renewed(state, state.learned_at)
    return dataclasses.replace(state, before=state.learned, learned_in=state.fence.round)
