"""Judging whether a job goes on, by what its coordinator says of it. Pure."""

from __future__ import annotations

from rallypoint.provider.sensing.conditions import HangCondition
from rallypoint.provider.sensing.finding import Finding, Found
from rallypoint.provider.sensing.seen import Memory, Seen, job_values, not_yet
from rallypoint.supervision.record import JobRecord
from rallypoint.wire import codec
from rallypoint.wire.hang import Hang, HangState
from rallypoint.wire.incident import Cause, Incident, Rung, merge_incidents
from rallypoint.wire.status import JobStatus

__all__ = ["judge"]


def judge(
    asked: HangCondition,
    record: JobRecord,
    status: JobStatus | None,
    seen: Seen,  # noqa: ARG001  all judges are called alike
    memory: Memory,
) -> tuple[Finding, Memory]:
    """Look at what the coordinator says now, and at the incidents that it or the record has kept."""
    hang = status.hang if status is not None else None
    incidents = _hangs(record, status)
    values = {**job_values(record, status), "hang": _level(hang, incidents), "culprits": _culprits(hang, incidents)}
    if asked.evidence:
        values["evidence"] = {
            "hang": None if hang is None else codec.to_json(hang),
            "incidents": [codec.to_json(incident) for incident in incidents],
        }
    if not _is_met(asked, hang, incidents):
        return not_yet(f"a {asked.level} of a hang", record, values), memory
    return Finding(found=Found.MET, text=_text(record, hang, incidents), values=values), memory


def _is_met(asked: HangCondition, hang: Hang | None, incidents: tuple[Incident, ...]) -> bool:
    level = _level(hang, incidents)
    return level == HangState.VERDICT.value or (level == HangState.DOUBT.value and asked.level == level)


def _hangs(record: JobRecord, status: JobStatus | None) -> tuple[Incident, ...]:
    told = merge_incidents(record.incidents, () if status is None else status.incidents)
    run = {attempt.number for attempt in record.attempts if attempt.owner == record.owner} | {record.attempt}
    return tuple(incident for incident in told if incident.cause is Cause.HANG and incident.id.attempt in run)


def _level(hang: Hang | None, incidents: tuple[Incident, ...]) -> str:
    if (hang is not None and hang.state is HangState.VERDICT) or any(not _is_doubt(incident) for incident in incidents):
        return HangState.VERDICT.value
    return HangState.DOUBT.value if hang is not None or incidents else ""


def _is_doubt(incident: Incident) -> bool:
    """Return whether an incident is the notification of a silence without positive evidence: nothing answers it."""
    return incident.rung is Rung.NOTIFY and incident.answer is None


def _culprits(hang: Hang | None, incidents: tuple[Incident, ...]) -> list[int]:
    if hang is not None and hang.culprits:
        return list(hang.culprits)
    culprit = incidents[-1].culprit if incidents else None
    return [culprit.rank] if culprit is not None and culprit.rank >= 0 else []


def _text(record: JobRecord, hang: Hang | None, incidents: tuple[Incident, ...]) -> str:
    what = incidents[-1].reason if incidents else ""
    if hang is not None and hang.reason:
        what = hang.reason
    level = _level(hang, incidents)
    return f"job {record.name}: {'a doubt' if level == HangState.DOUBT.value else 'a hang'}: {what}"
