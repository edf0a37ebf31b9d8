"""Hang detection in the coordinator. Pure; `rounds.py` has the rules."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from rallypoint.capabilities.base import CoordinatorCapability, Effect, RestartWorkers, RoundView
from rallypoint.capabilities.hang import rounds
from rallypoint.capabilities.hang.state import HangSettings, HangStep, State
from rallypoint.capabilities.hang.watch import PACE, doubted
from rallypoint.capabilities.hang.wire import ReplySection, StatusSection
from rallypoint.wire.messages import AgentReport
from rallypoint.wire.plan import Plan
from rallypoint.wire.status import JobState, JobStatus

__all__ = ["HangDetection", "create"]


class HangDetection(CoordinatorCapability[State]):
    """The coordinator's half of the capability."""

    name = "hang"

    def __init__(self, settings: HangSettings) -> None:
        self._settings = settings

    def restore(self, published: JobStatus | None, *, continues: bool, now: float) -> State:
        """Begin with the learned durations of the job; a takeover also continues a doubt or a verdict."""
        if published is None:
            return State()
        learned = StatusSection.of(published).learned
        state = State(before=learned, learned=learned, learned_at=now)
        return rounds.restored(state, published, now) if continues else state

    def on_report(self, state: State, report: AgentReport, before: AgentReport | None, view: RoundView, now: float) -> State:
        """Return the state after a report of running workers."""
        return rounds.heard(self._step(state, view), before, report, now).own

    def on_tick(self, state: State, view: RoundView, now: float) -> tuple[State, Sequence[Effect]]:
        """Apply the effects of reports."""
        return (dataclasses.replace(state, pending=()), state.pending) if state.pending else (state, ())

    def after_losses(self, state: State, view: RoundView, now: float) -> tuple[State, Sequence[Effect]]:
        """Decide, if all evidence has arrived or its time is over."""
        step, hang = rounds.concluded(self._step(state, view), now)
        if step.own is state:
            return state, ()
        restart = () if hang is None else (RestartWorkers(incident=hang),)
        return dataclasses.replace(step.own, pending=()), (*step.own.pending, *restart)

    def after_tick(self, state: State, view: RoundView, now: float) -> State:
        """Forget a round that is over."""
        return rounds.tidied(self._step(state, view), now).own

    def reply_for(self, state: State, report: AgentReport) -> ReplySection | None:
        """Return the request for evidence for an agent that has not answered."""
        inquiry = state.inquiry
        return None if inquiry is None or report.agent in inquiry.found else ReplySection(evidence=inquiry.number)

    def reply_key(self, state: State) -> int | None:
        """Return the number of the request."""
        return None if state.inquiry is None else state.inquiry.number

    def report_period(self, state: State, view: RoundView) -> float:
        """Return a shorter period while there is a doubt."""
        return PACE if view.state is JobState.RUNNING and doubted(state.watch) else 0.0

    def next_deadline(self, state: State) -> float | None:
        """Return until when a verdict waits for the agents."""
        return None if state.inquiry is None else state.inquiry.since + rounds.EVIDENCE_WITHIN

    def to_status(self, state: State, view: RoundView) -> StatusSection:
        """Return the suspected or confirmed hang, the learned durations and the last sign of life."""
        return StatusSection(hang=state.hang, learned=state.learned, lively_at=state.lively_at)

    def _step(self, state: State, view: RoundView) -> HangStep:
        return HangStep(own=state, view=view, settings=self._settings)


def create(plan: Plan) -> HangDetection:
    """Return the coordinator's half; at `hang_downtime` 0 it only notes signs of life."""
    return HangDetection(HangSettings.from_plan(plan))
