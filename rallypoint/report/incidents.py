"""The incidents of a job: one list and one count for all outputs, and sentences about each incident. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from rallypoint.report.format import counted, describe_who, span, time_of_day
from rallypoint.report.hang import hang_lines
from rallypoint.supervision.record import JobRecord
from rallypoint.wire import sanitize
from rallypoint.wire.incident import FREE, Cause, Culprit, FaultKind, Folded, Incident, IncidentId, Rung, merge_incidents
from rallypoint.wire.status import JobStatus

__all__ = [
    "REPLACED",
    "RERUN",
    "RESTARTED",
    "TRAINED",
    "XCOM_LIMIT",
    "ListedIncident",
    "action_name",
    "current_status",
    "done",
    "id_text",
    "incident_lines",
    "incidents_of",
    "is_fault",
    "judgement",
    "list_incidents",
    "recovered",
    "recovered_text",
    "to_xcom",
]

#: A step was reported, or counted by the optimizer hook, after the fault.
TRAINED: Final = "training resumed"
#: All workers of the round run again; they report no steps.
RESTARTED: Final = "workers restarted"
#: All instances of a job with several roles run again.
RERUN: Final = "all instances run"
#: Another coordinator took over.
REPLACED: Final = "replaced"
#: An incident that was only reported has ended by itself.
_OVER: Final = "over"


def recovered(incident: Incident) -> str:
    """Return how an incident ended, one of the constants above; "" if it has not ended or that is unknown."""
    if incident.trained_at is not None or (incident.healed_at is not None and incident.resumed_step is not None):
        return TRAINED
    if incident.healed_at is None:
        return ""
    if incident.cause is Cause.COORDINATOR:
        return REPLACED
    if incident.rung is Rung.NOTIFY:
        return _OVER
    return RERUN if incident.rule in _OF_INSTANCES else RESTARTED


def recovered_text(incident: Incident) -> str:
    """Return `training resumed after 4.4 s`, `workers restarted after 0.59 s` or `training did not resume`.

    Return "" for an incident that interrupted no training.
    """
    ended_at = incident.recovered_at
    if ended_at is not None:
        return f"{recovered(incident)} after {span(max(0.0, ended_at - incident.detected_at))}"
    return "" if incident.cause in FREE or incident.cause is Cause.JOB else "training did not resume"


#: Number of the newest incidents in XCom; older ones are counted by cause.
XCOM_LIMIT = 100

#: Characters of the reason of one of them.
_REASON = 500


@dataclass(frozen=True, kw_only=True)
class ListedIncident:
    """One incident, or several of one cause that the record keeps as a count.

    Attributes:
        id: `attempt.round.node.local_rank.sequence`; "" for a count.
        at: when it was detected, seconds since the epoch; the first of a count.
        cause: what happened (`Cause`), `reason` the same in a sentence.
        fault: whether it is a fault. Scaling, preemption, evacuation, a lost coordinator and a reset of the job are not
            faults.
        rank, node, host: of the culprit; -1 and "" without a culprit, or for a whole node or job.
        action: the action (`action_name`); "" for a count.
        recovered: how it ended: `training resumed` (a step is known), `workers restarted`, `all instances run`, `replaced`,
            `over`; else "".
        seconds_lost: from detection until then; None while it has not, and for a count.
        steps_lost: reported steps that were repeated; None while unknown, and for a count.
        count: number of incidents in this entry.
    """

    id: str
    at: float
    cause: Cause
    reason: str
    fault: bool
    rank: int = -1
    node: int = -1
    host: str = ""
    action: str = ""
    recovered: str = ""
    seconds_lost: float | None = None
    steps_lost: int | None = None
    count: int = 1


def current_status(record: JobRecord, status: JobStatus | None) -> JobStatus | None:
    """Return the status if it is of the job's current attempt."""
    if status is None or (status.uid, status.fence.attempt) != (record.uid, record.attempt):
        return None
    return status


def incidents_of(record: JobRecord, status: JobStatus | None) -> tuple[Incident, ...]:
    """Return all known incidents, oldest first; the number of an incident is its position, from 1.

    Includes those of the coordinator's last status, if it is of the current attempt.
    """
    current = current_status(record, status)
    told = () if current is None else current.incidents
    return tuple(sorted(merge_incidents(record.incidents, told), key=lambda incident: (incident.detected_at, incident.id)))


def is_fault(incident: Incident | Folded) -> bool:
    """Return whether an incident is a fault, not a requested change or a reaction to a fault."""
    return incident.cause not in FREE and incident.cause is not Cause.JOB


def list_incidents(record: JobRecord, status: JobStatus | None) -> tuple[ListedIncident, ...]:
    """Return all incidents of a job: first the counts of those that the record has folded, then each one, the oldest first."""
    return (*map(_count, record.folded), *map(_one, incidents_of(record, status)))


def to_xcom(listed: Iterable[ListedIncident], *, limit: int = XCOM_LIMIT) -> list[dict[str, Any]]:
    """Return incidents as plain JSON; of more than `limit`, the oldest are counted by cause."""
    rows = tuple(listed)
    return [_plain(row) for row in (*_by_cause(rows[:-limit]), *rows[-limit:])]


def _one(incident: Incident) -> ListedIncident:
    culprit, ended_at = incident.culprit, incident.recovered_at
    return ListedIncident(
        id=id_text(incident.id),
        at=incident.detected_at,
        cause=incident.cause,
        reason=incident.reason,
        fault=is_fault(incident),
        rank=-1 if culprit is None else culprit.rank,
        node=incident.id.node if culprit is None else culprit.node,
        host="" if culprit is None else culprit.host,
        action=action_name(incident),
        recovered=recovered(incident),
        seconds_lost=None if ended_at is None else round(max(0.0, ended_at - incident.detected_at), 3),
        steps_lost=incident.steps_lost,
    )


def _count(folded: Folded) -> ListedIncident:
    reason = f"{folded.count} incidents of cause {folded.cause.value} (details not kept)"
    fault = is_fault(folded)
    return ListedIncident(
        id="", at=folded.first_at, cause=folded.cause, reason=reason, fault=fault, node=folded.node, count=folded.count
    )


def _by_cause(rows: Iterable[ListedIncident]) -> Iterator[ListedIncident]:
    groups: dict[Cause, list[ListedIncident]] = {}
    for row in rows:
        groups.setdefault(row.cause, []).append(row)
    for cause, several in groups.items():
        count = sum(row.count for row in several)
        reason = f"{count} earlier incidents of cause {cause.value}"
        first = min(row.at for row in several)
        yield ListedIncident(id="", at=first, cause=cause, reason=reason, fault=several[0].fault, count=count)


def _plain(row: ListedIncident) -> dict[str, Any]:
    return {
        "id": row.id,
        "time": _moment(row.at),
        "cause": row.cause.value,
        "reason": sanitize.clean_text(row.reason, _REASON),
        "fault": row.fault,
        "rank": row.rank,
        "node": row.node,
        "host": sanitize.clean_text(row.host, _REASON),
        "action": row.action,
        "recovered": row.recovered,
        "seconds_lost": row.seconds_lost,
        "steps_lost": row.steps_lost,
        "count": row.count,
    }


def _moment(at: float) -> str:
    try:
        moment = datetime.datetime.fromtimestamp(at, tz=datetime.timezone.utc)
    except (ValueError, OverflowError, OSError):  # out of range, in a damaged record
        return str(sanitize.clean_float(at))
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def id_text(name: IncidentId) -> str:
    """Return the id of an incident as text."""
    return f"{name.attempt}.{name.round}.{name.node}.{name.local_rank}.{name.sequence}"


def judgement(incident: Incident) -> str:
    """Return the kind of an incident, the answer, the rule and the budget as text."""
    if incident.rule in _OF_INSTANCES:
        what = "was lost" if incident.cause is Cause.NODE else "failed"
        return f"an instance {what} -> {action_name(incident)}; {_PAID_BY_INSTANCES[incident.rule]}"
    what = (
        incident.kind.value
        if incident.kind is not None
        else _CAUSES.get(incident.cause, f"fault of the {incident.cause.value}")
    )
    answer = f" -> {incident.answer.value}" if incident.answer is not None else ""
    rule = f" ({incident.rule})" if incident.rule else ""
    free = incident.cause in FREE or incident.rung is Rung.NOTIFY
    paid_by = "reset" if (incident.cause, incident.rung) == (Cause.NODE, Rung.RESET) else _BUDGETS.get(incident.cause, "")
    budget = "; not charged to a budget" if free else f"; charged to the {paid_by} budget"
    if incident.refilled:
        budget = "; the budget was refilled since"
    return f"{what}{answer}{rule}{budget}"


_BUDGETS = {
    Cause.PROCESS: "process",
    Cause.NODE: "node",
    Cause.HANG: "hang",
    Cause.RENDEZVOUS: "process",
    Cause.JOB: "reset",
}


#: Actions after the failure of an instance in a job with several roles, by the rule of the incident.
_OF_INSTANCES = {
    "instance": ("restart-instance", "the instance was started again"),
    "role": ("restart-role", "all instances of the role were started again"),
    "job": ("reset", "the job was reset: all roles were started again"),
    "none": ("exit", "the job ended"),
}

_PAID_BY_INSTANCES = {
    "instance": "charged to the restarts of the instance",
    "role": "charged to the restarts of the role",
    "job": "charged to the reset budget",
    "none": "not charged to a budget",
}

#: Incidents that are no faults.
_CAUSES = {Cause.SCALE: "change of the number of nodes"}

_RUNGS = {
    Rung.NOTIFY: "reported only; no action taken",
    Rung.RETRY: "the step was repeated",
    Rung.RECOVER_IN_PLACE: "the worker was replaced on its node",
    Rung.RESTART_WORKERS: "the workers of all nodes were restarted",
    Rung.RECOVER: "the node is replaced",
    Rung.ELASTIC_TRAINING: "the job continued without the node",
    Rung.RESET: "the job was reset: all nodes deleted and created again",
    Rung.DUMP: "a last checkpoint was saved",
    Rung.EXIT: "the job ended",
}


def action_name(incident: Incident) -> str:
    """Return the name of the action for an incident: a recovery strategy, or `restart-instance` or `restart-role`."""
    name, _ = _OF_INSTANCES.get(incident.rule, (incident.rung.value, ""))
    return name


def _action(incident: Incident) -> str:
    if incident.rule in _OF_INSTANCES:
        return _OF_INSTANCES[incident.rule][1]
    if (incident.cause, incident.rung) == (Cause.SCALE, Rung.ELASTIC_TRAINING):
        return "the job continued with a new number of nodes"
    return _RUNGS[incident.rung]


def done(incident: Incident) -> str:
    """Return the action for an incident, the recovery time and the repeated steps as text."""
    parts = [f"{action_name(incident)} ({_action(incident)})"]
    if recovered_text(incident):
        parts.append(recovered_text(incident))
    if incident.steps_lost is not None:
        parts.append(f"{counted(incident.steps_lost, 'step')} repeated (from {incident.resumed_step} to {incident.last_step})")
    return ", ".join(parts)


def incident_lines(
    incident: Incident, number: int, *, zone: datetime.tzinfo | None = None, plain: bool = False
) -> Iterator[str]:
    """Yield all data about one incident as lines; `plain` uses only ASCII."""
    yield f"Incident {number}: {incident.reason}"
    yield f"  when     {time_of_day(incident.detected_at, zone)}, attempt {incident.id.attempt}, round {incident.id.round}"
    if incident.culprit is not None:
        yield from _culprit_lines(incident.culprit)
    yield f"  verdict  {judgement(incident)}"
    yield f"  action   {done(incident)}"
    yield from hang_lines(incident, plain=plain)
    if incident.culprit is not None and incident.culprit.log_tail:
        yield "  last log lines"
        yield from (f"    {line.rstrip()}" for line in incident.culprit.log_tail)


def _culprit_lines(culprit: Culprit) -> Iterator[str]:
    incarnation = f", incarnation {culprit.incarnation}" if culprit.incarnation else ""
    yield f"  culprit  {describe_who(culprit)}{incarnation}" + (f", pid {culprit.pid}" if culprit.pid else "")
    ended = f"signal {culprit.signal}" if culprit.signal is not None else f"exit code {culprit.exit_code}"
    if culprit.kind is FaultKind.HANG:
        ended = "no exit; alive but making no progress"
    elif culprit.signal is culprit.exit_code is None:
        ended = "unknown"
    yield f"  ended    {ended}"
    if culprit.error:
        yield f"  detail   {culprit.error}"
    if culprit.log_path:
        yield f"  log      {culprit.log_path}"
