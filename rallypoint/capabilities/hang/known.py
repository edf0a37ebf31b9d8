"""What the coordinator has learned of how long the phases of its job take, and hands on to whoever comes after it. Pure.

It stands in the status, so a new coordinator and the next attempt have it. There it is renewed now and then, and when a round
is over, because a status that is another one each second would have to be written each second.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rallypoint.capabilities.hang.learned import Bound, bound, later, merged
from rallypoint.capabilities.hang.scene import Scene
from rallypoint.capabilities.hang.wire import ReportSection
from rallypoint.wire.messages import AgentState
from rallypoint.wire.pulse import Learned, Phase
from rallypoint.wire.status import JobState

__all__ = ["bound_of", "handed_on", "renewed"]

#: Seconds between two renewals of what is told.
_RENEWED = 30.0


def bound_of(state: Scene) -> Bound:
    """Return how long the world may be silent now, by what was learned."""
    if not state.settings.hang_learning:
        return Bound(seconds=float("inf"))
    running = (report for _, report in state.view.members() if report.round == state.view.fence.round)
    workers = (w for report in running if report.state is AgentState.RUNNING for w in report.workers)
    # Nothing is known of how long a rank may take for what it does after training.
    phases = (w.phase for w in workers if not w.ended and not w.finished)
    return bound(phases, _by_phase(state.own.before), _seen(state), _world_size(state))


def _seen(state: Scene) -> dict[Phase, Learned]:
    ours = (report for _, report in state.view.members() if report.round == state.view.fence.round)
    return merged(one for report in ours for one in ReportSection.of(report).learned)


def _world_size(state: Scene) -> int:
    return sum(member.local_world_size for member in state.view.world)


def _by_phase(learned: Iterable[Learned]) -> Mapping[Phase, Learned]:
    return {one.phase: one for one in learned}


def renewed(state: Scene, now: float) -> Scene:
    """Return the state with what is told renewed, where that is due."""
    return _renewed(state, now) if now >= state.own.learned_at + _RENEWED else state


def _renewed(state: Scene, now: float) -> Scene:
    known = later(_by_phase(state.own.before), _seen(state), _world_size(state))
    return state.having(learned=tuple(known[phase] for phase in Phase if phase in known), learned_at=now)


def handed_on(state: Scene) -> Scene:
    """Return the state where its round is over: what was learned in it is what the next one begins with, once."""
    if state.view.state is JobState.RUNNING or state.own.learned_in == state.view.fence.round:
        return state
    state = _renewed(state, state.own.learned_at)
    return state.having(before=state.own.learned, learned_in=state.view.fence.round)
