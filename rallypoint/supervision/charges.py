"""What the resets of a job have cost, when that counts no more, and whether they brought anything. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from rallypoint.supervision import clocks
from rallypoint.supervision.policy import Policy
from rallypoint.supervision.record import Attempt, ConditionType, JobRecord
from rallypoint.wire.status import JobStatus

__all__ = ["FREE_ENDS", "charged", "counted", "refilled", "without_progress"]

#: Reasons of attempts that were ended by something outside of them: they are no evidence against the job.
FREE_ENDS = frozenset({"Suspended", "AutopilotNoExecute"})


def counted(record: JobRecord, policy: Policy) -> tuple[float, ...]:
    """Return the job's clock at each reset that the retry limit still counts."""
    window = policy.reset_refill.window
    return tuple(at for at in record.charges if at > record.clock - window) if window else record.charges


def charged(record: JobRecord, policy: Policy) -> JobRecord:
    """Return the record with one more reset that counts; those outside of the window are forgotten."""
    return dataclasses.replace(
        record,
        retries=record.retries + 1,
        charges=(*counted(record, policy), record.clock),
        charged_checkpoint=record.progress.checkpoint,
    )


def refilled(record: JobRecord, policy: Policy, status: JobStatus | None) -> JobRecord:
    """Return the record with the budget of resets filled again, where the job has earned it since the last charge."""
    refill = policy.reset_refill
    if refill.healthy_for:
        record = _after_health(record, refill.healthy_for, status)
    newer = status.progress.checkpoint if status is not None else ""
    if refill.on_checkpoint and record.charges and newer not in ("", record.charged_checkpoint):
        return dataclasses.replace(record, charges=()).with_history("budget-refilled", f"a newer checkpoint: {newer}")
    return record


def _after_health(record: JobRecord, seconds: float, status: JobStatus | None) -> JobRecord:
    step = None if status is None else status.progress.step
    healthy = record.condition(ConditionType.PODS_READY) and not record.condition(ConditionType.UNHEALTHY)
    if not healthy:
        return clocks.stop(record, "healthy-progress")
    record = clocks.run(record, "healthy-progress", mark=step)
    timer = clocks.find(record, "healthy-progress")
    mark = None if timer is None else timer.mark
    advanced = step is not None and (mark is None or step > mark)
    if clocks.spent(record, "healthy-progress") < seconds or not advanced:
        return record
    record = clocks.run(clocks.stop(record, "healthy-progress"), "healthy-progress", mark=step)
    if not record.charges:
        return record
    detail = f"{seconds:g} s of healthy progress, up to step {step}"
    return dataclasses.replace(record, charges=()).with_history("budget-refilled", detail)


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
