"""The values that one turn of the supervisor is made of, and the small steps that its phases share. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from rallypoint.supervision import clocks
from rallypoint.supervision.actions import Action
from rallypoint.supervision.census import Census
from rallypoint.supervision.clocks import Deadline
from rallypoint.supervision.observation import Observation
from rallypoint.supervision.policy import Policy
from rallypoint.supervision.record import ConditionType, JobRecord, Phase
from rallypoint.wire.status import JobStatus

__all__ = ["TRANSITIONS", "Step", "Turn", "enter", "over", "since"]

#: Which phase may follow which. Terminal phases are written out. `JobRecord.restarted` leads from a finished phase to Empty.
TRANSITIONS: Mapping[Phase, frozenset[Phase]] = {
    Phase.EMPTY: frozenset({Phase.SUSPENDED, Phase.RESUMING, Phase.TERMINATING}),
    Phase.SUSPENDED: frozenset({Phase.RESUMING, Phase.TERMINATING}),
    Phase.RESUMING: frozenset({Phase.SUSPENDING, Phase.RUNNING, Phase.RESETTING, Phase.FAILED, Phase.TERMINATING}),
    Phase.RUNNING: frozenset({Phase.SUSPENDING, Phase.SUCCEEDED, Phase.RESETTING, Phase.FAILED, Phase.TERMINATING}),
    Phase.RESETTING: frozenset({Phase.SUSPENDING, Phase.RESUMING, Phase.TERMINATING}),
    Phase.SUSPENDING: frozenset({Phase.SUSPENDED, Phase.TERMINATING}),
    Phase.SUCCEEDED: frozenset({Phase.TERMINATING}),
    Phase.FAILED: frozenset({Phase.TERMINATING}),
    Phase.TERMINATING: frozenset(),
}


@dataclass(frozen=True, kw_only=True)
class Turn:
    """The arguments of one turn, what was counted of them, and the status if it speaks of the current attempt."""

    record: JobRecord
    seen: Observation
    policy: Policy
    census: Census
    status: JobStatus | None = None

    def with_record(self, record: JobRecord) -> Turn:
        """Return the same turn with another record."""
        # Most checks leave the record as it is, and there are ten of them in every turn.
        return self if record is self.record else dataclasses.replace(self, record=record)

    @property
    def suspend(self) -> bool:
        """A person or a queue wants the job suspended."""
        return self.record.suspend or self.seen.suspend

    @property
    def present(self) -> bool:
        """Something of the job still holds resources."""
        components = self.seen.components
        return self.seen.present or (self.policy.wrapped and components.deployed + components.deleting > 0)


@dataclass(frozen=True, kw_only=True)
class Step:
    """What one phase or check says: the record that it leaves, its actions, and its clocks that run.

    `settled`: the checks after this one are not made in this turn.
    """

    record: JobRecord
    actions: tuple[Action, ...] = ()
    deadlines: tuple[Deadline, ...] = ()
    done: bool = False
    settled: bool = False


def enter(record: JobRecord, phase: Phase, why: str) -> JobRecord:
    """Return the record in the next phase, with a line of history."""
    if phase not in TRANSITIONS[record.phase]:
        msg = f"job {record.name}: {record.phase.value or 'Empty'} must not become {phase.value}"
        raise AssertionError(msg)
    return dataclasses.replace(record, phase=phase).with_history(phase.value.lower(), why)


def since(record: JobRecord, kind: ConditionType, *, value: bool) -> float:
    """Return since when a condition holds; a condition that was never set counts from this turn."""
    at = record.since(kind, value=value)
    return record.clock if at is None else at


def over(record: JobRecord, clock: str, limit: float, then: str) -> Deadline | None:
    """Return when a clock of the record reaches `limit` seconds, or None when it is over or stands still."""
    timer = clocks.find(record, clock)
    if timer is None or timer.since is None:
        return None
    at = timer.since + limit - timer.spent
    return Deadline(at=at, clock=clock, then=then) if record.clock < at else None
