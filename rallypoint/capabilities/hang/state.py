"""The state of hang detection, and one step of its rules: own state, view of the job, collected effects."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rallypoint.capabilities.base import Effect, HealIncident, RecordEvent, RecordIncident, RoundView
from rallypoint.capabilities.hang.watch import Limits, Watch
from rallypoint.capabilities.hang.wire import PlanSection
from rallypoint.wire.hang import Evidence, Hang
from rallypoint.wire.incident import Incident, IncidentId
from rallypoint.wire.plan import Plan
from rallypoint.wire.pulse import Learned

__all__ = ["HangSettings", "HangStep", "Inquiry", "State"]

_UNWATCHED = Watch()


@dataclass(frozen=True, kw_only=True)
class HangSettings:
    """Settings of hang detection; durations are seconds. The meaning of each is that of the plan's field of the same name."""

    hang_downtime: float = 1800.0
    hang_detection: int = 1
    hang_learning: bool = True
    warmup_grace: float = 300.0
    report_interval: float = 1.0

    @classmethod
    def from_plan(cls, plan: Plan) -> HangSettings:
        """Return the settings of a plan."""
        own = PlanSection.of(plan)
        return cls(
            hang_downtime=own.hang_downtime,
            hang_detection=own.hang_detection,
            hang_learning=own.hang_learning,
            warmup_grace=plan.grace.warmup_grace,
            report_interval=plan.rendezvous.report_interval,
        )

    @property
    def silence(self) -> Limits:
        """How long a world may be silent."""
        return Limits.of(downtime=self.hang_downtime, warmup=self.warmup_grace, pace=self.report_interval)


@dataclass(frozen=True, kw_only=True)
class Inquiry:
    """A request for evidence: its number, its time, and the evidence of each agent so far."""

    number: int
    since: float
    found: Mapping[str, Evidence] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, kw_only=True)
class State:
    """The state of hang detection.

    Attributes:
        watch: silence of the running round; `hang` is the published result, `inquiry` the pending request for evidence.
        learned: published durations of the job's phases, renewed at `learned_at`; `before`: those at the round's beginning.
        learned_in: the last finished round whose durations are in `before`.
        lively_at: time of the last sign of life in the round `lively_in`, or of its beginning.
        told_in: round in whose events the present silence is; 0 if it is in none.
        pending: effects of reports, which the next tick applies.
    """

    watch: Watch = _UNWATCHED
    hang: Hang | None = None
    inquiry: Inquiry | None = None
    learned: tuple[Learned, ...] = ()
    learned_at: float = 0.0
    learned_in: int = 0
    before: tuple[Learned, ...] = ()
    lively_at: float = 0.0
    lively_in: int = 0
    told_in: int = 0
    pending: tuple[Effect, ...] = ()


@dataclass(frozen=True, kw_only=True)
class HangStep:
    """One step of hang detection: its own state with the effects so far, the view of the job, and the settings."""

    own: State
    view: RoundView
    settings: HangSettings

    def having(self, **changes: Any) -> HangStep:
        """Return the step with changed fields of the own state."""
        return dataclasses.replace(self, own=dataclasses.replace(self.own, **changes))

    def _effect(self, effect: Effect) -> HangStep:
        return self.having(pending=(*self.own.pending, effect))

    def event(self, kind: str, detail: str) -> HangStep:
        """Return the step with an event."""
        told_in = 0 if kind == "hang-over" else self.view.fence.round
        return self._effect(RecordEvent(kind=kind, detail=detail)).having(told_in=told_in)

    def incident(self, told: Incident) -> HangStep:
        """Return the step with an incident."""
        return self._effect(RecordIncident(incident=told))

    def healed(self, incident: IncidentId | None) -> HangStep:
        """Return the step in which an incident has ended; the same step for none."""
        return self if incident is None else self._effect(HealIncident(incident=incident))
