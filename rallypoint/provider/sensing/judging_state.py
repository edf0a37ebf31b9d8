"""Judging a job's phase and conditions. Pure."""

from __future__ import annotations

from rallypoint.provider.sensing.conditions import ENDED, StateCondition
from rallypoint.provider.sensing.finding import Finding, Found
from rallypoint.provider.sensing.seen import Memory, Seen, job_values, not_yet
from rallypoint.supervision.record import ConditionType, JobRecord, Phase
from rallypoint.wire.status import JobStatus

__all__ = ["judge"]


def judge(
    asked: StateCondition, record: JobRecord, status: JobStatus | None, seen: Seen, memory: Memory
) -> tuple[Finding, Memory]:
    """Compare with the record, which is the truth about both."""
    values = job_values(record, status)
    so = _is_so(asked, record)
    memory = memory.marked("so" if so else "", seen)
    if so and (memory.spent >= asked.stable_for or record.finished):
        return Finding(found=Found.MET, text=f"job {record.name} is {_words(asked, record)}", values=values), memory
    wake = asked.stable_for - memory.spent if so else None
    return not_yet(_wanted(asked), record, values, wake=wake), memory


def _is_so(asked: StateCondition, record: JobRecord) -> bool:
    if asked.condition:
        found = record.find(ConditionType(asked.condition))
        return found is not None and found.value is asked.value
    # Who waits for a job to run is late, and not wrong, when it has succeeded meanwhile.
    passed = asked.phase == Phase.RUNNING.value and record.phase is Phase.SUCCEEDED
    return asked.phase == record.phase.value or passed or (asked.phase == ENDED and record.finished)


def _words(asked: StateCondition, record: JobRecord) -> str:
    if not asked.condition:
        return record.phase.value
    found = record.find(ConditionType(asked.condition))
    return f"{record.phase.value}, {_wanted(asked)}" + (f" ({found.reason})" if found is not None and found.reason else "")


def _wanted(asked: StateCondition) -> str:
    return asked.phase or f"{asked.condition}={asked.value}"
