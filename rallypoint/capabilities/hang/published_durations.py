"""The durations of a job's phases that the coordinator publishes for a new coordinator and the next attempt. Pure.

They are part of the status. The coordinator updates them every 30 s and at the end of a round, because each change of the
status is written to storage.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rallypoint.capabilities.hang.phase_durations import Bound, bound, later, merged
from rallypoint.capabilities.hang.state import HangStep
from rallypoint.capabilities.hang.wire import ReportSection
from rallypoint.wire.messages import AgentState
from rallypoint.wire.pulse import Learned, Phase
from rallypoint.wire.status import JobState

__all__ = ["carried_over", "renewed", "silence_limit"]

#: Seconds between two updates of the published durations.
_RENEWED = 30.0


def silence_limit(state: HangStep) -> Bound:
    """Return the longest silence of the world that the known durations allow now."""
    if not state.settings.hang_learning:
        return Bound(seconds=float("inf"))
    running = (report for _, report in state.view.members() if report.round == state.view.fence.round)
    workers = (w for report in running if report.state is AgentState.RUNNING for w in report.workers)
    # No duration is known for the work of a rank after training.
    phases = (w.phase for w in workers if not w.ended and not w.finished)
    return bound(phases, _by_phase(state.own.before), _seen(state), _world_size(state))


def _seen(state: HangStep) -> dict[Phase, Learned]:
    ours = (report for _, report in state.view.members() if report.round == state.view.fence.round)
    return merged(one for report in ours for one in ReportSection.of(report).learned)


def _world_size(state: HangStep) -> int:
    return sum(member.local_world_size for member in state.view.world)


def _by_phase(learned: Iterable[Learned]) -> Mapping[Phase, Learned]:
    return {one.phase: one for one in learned}


def renewed(state: HangStep, now: float) -> HangStep:
    """Return the state with updated published durations if the last update is old enough."""
    return _renewed(state, now) if now >= state.own.learned_at + _RENEWED else state


def _renewed(state: HangStep, now: float) -> HangStep:
    known = later(_by_phase(state.own.before), _seen(state), _world_size(state))
    return state.having(learned=tuple(known[phase] for phase in Phase if phase in known), learned_at=now)


def carried_over(state: HangStep) -> HangStep:
    """Return the state in which the durations of a finished round are the initial ones of the next; once for each round."""
    if state.view.state is JobState.RUNNING or state.own.learned_in == state.view.fence.round:
        return state
    state = _renewed(state, state.own.learned_at)
    return state.having(before=state.own.learned, learned_in=state.view.fence.round)
