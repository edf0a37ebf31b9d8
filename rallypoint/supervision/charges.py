"""What faults and resets have cost, when that counts no more, and whether the attempts brought anything. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from rallypoint.supervision.budget import Budget
from rallypoint.supervision.policy import Policy
from rallypoint.supervision.record import Attempt, ConditionType, JobRecord
from rallypoint.wire.incident import Cause
from rallypoint.wire.plan import Refill
from rallypoint.wire.status import JobStatus

__all__ = ["FREE_ENDS", "after_fault", "charged", "counted", "node_budget", "refilled", "without_progress"]

#: Reasons of attempts that were ended by something outside of them: they are no evidence against the job.
FREE_ENDS = frozenset({"Suspended", "AutopilotNoExecute"})

#: Seconds between two looks at a job that goes well: each is written into the record.
_LOOK = 10.0


def node_budget(policy: Policy, node: int | None = None) -> Budget:
    """Return the budget that pays for the replacement of one slot's node."""
    return Budget(cause=Cause.NODE, limit=policy.node_replacements, node=node, refill=policy.node_refill)


def counted(record: JobRecord, policy: Policy) -> tuple[float, ...]:
    """Return the job's clock at each reset that the retry limit still counts."""
    window = policy.reset_refill.window
    return tuple(at for at in record.charges if at > record.clock - window) if window else record.charges


def charged(record: JobRecord, policy: Policy) -> JobRecord:
    """Return the record with one more reset that counts; those outside of the window are forgotten."""
    charges = (*counted(record, policy), record.clock)
    return dataclasses.replace(record, retries=record.retries + 1, charges=charges)


def after_fault(record: JobRecord) -> JobRecord:
    """Return the record after a fault: healthy progress begins again."""
    course = record.course.after_fault()
    return record if course == record.course else dataclasses.replace(record, course=course)


def refilled(record: JobRecord, policy: Policy, status: JobStatus | None) -> JobRecord:
    """Return the record with its budgets filled again, where the job has earned it since the last fault."""
    refills = (policy.reset_refill, policy.node_refill)
    if not any(refill.healthy_for or refill.on_checkpoint for refill in refills):
        return record
    record = _watched(record, status)
    incidents = node_budget(policy).refilled(record.incidents, record.course, clock=record.clock)
    folded = node_budget(policy).refilled_counts(record.folded, record.course)
    if incidents is not record.incidents or folded is not record.folded:
        record = dataclasses.replace(record, incidents=incidents, folded=folded)
        record = record.with_history("budget-refilled", f"of lost nodes: {_earned(record, policy.node_refill)}")
    if record.charges and record.course.earns(policy.reset_refill):
        record = dataclasses.replace(record, charges=())
        record = record.with_history("budget-refilled", f"of resets: {_earned(record, policy.reset_refill)}")
    return record


def _watched(record: JobRecord, status: JobStatus | None) -> JobRecord:
    healthy = record.condition(ConditionType.PODS_READY) and not record.condition(ConditionType.UNHEALTHY)
    if status is None or not healthy:
        course = record.course.paused()
    else:
        last, newer = record.course.last, status.progress.checkpoint not in ("", record.course.checkpoint)
        if last is not None and record.clock < last + _LOOK and not newer:
            return record
        course = record.course.reported(status.progress, record.clock)
    return record if course == record.course else dataclasses.replace(record, course=course)


def _earned(record: JobRecord, refill: Refill) -> str:
    if refill.healthy_for and record.course.healthy >= refill.healthy_for:
        return f"{record.course.healthy:.0f} s of healthy progress, up to step {record.course.step}"
    return f"a newer checkpoint, {record.course.checkpoint} (step {record.course.step})"


def without_progress(attempts: Sequence[Attempt]) -> int:
    """Return how many attempts in a row, the last included, brought no newer step; 0 where no step was ever told.

    Attempts that were ended from outside (suspension, evacuation) are passed over.
    """
    if all(attempt.progress.step is None for attempt in attempts):
        return 0
    best, barren = -1, 0
    for attempt in attempts:
        step = attempt.progress.step
        if step is not None and step > best:
            best, barren = step, 0
        elif attempt.reason not in FREE_ENDS:
            barren += 1
    return barren
