"""The incidents of a job as one list, and how many of them are faults: the same for the tab, the CLI and XCom. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from rallypoint.backends.recovered import recovered
from rallypoint.supervision.record import JobRecord
from rallypoint.wire import sanitize
from rallypoint.wire.incident import FREE, Cause, Folded, Incident, IncidentId, merge_incidents
from rallypoint.wire.status import JobStatus

__all__ = ["XCOM_LIMIT", "ListedIncident", "count_faults", "id_text", "incidents_of", "is_fault", "list_incidents", "to_xcom"]

#: Incidents that XCom gets one by one, the newest; older ones are counted by cause.
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
        fault: something broke. Scaling, preemption, evacuation and a lost coordinator are no faults, and neither is a reset of
            the job, which answers one.
        rank, node, host: of the culprit; -1 and "" where there is none, or where a whole node or job is meant.
        action: what was done about it (`Rung`); "" for a count.
        recovered: how it ended: `trained again` (a step is known), `workers restarted`, `replaced`, `over`; else "".
        seconds_lost: from detection until then; None while it has not, and for a count.
        steps_lost: reported steps that were trained again; None while that is not known, and for a count.
        count: how many incidents it stands for.
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


def incidents_of(record: JobRecord, status: JobStatus | None) -> tuple[Incident, ...]:
    """Return every known incident, the oldest first; the number of an incident is its place in it, from 1.

    The coordinator's last status counts where it is of the current attempt.
    """
    mine = status is not None and (status.uid, status.fence.attempt) == (record.uid, record.attempt)
    told = status.incidents if mine and status is not None else ()
    return tuple(sorted(merge_incidents(record.incidents, told), key=lambda incident: (incident.detected_at, incident.id)))


def is_fault(incident: Incident | Folded) -> bool:
    """Return whether something broke, as opposed to what happens on purpose or answers a fault."""
    return incident.cause not in FREE and incident.cause is not Cause.JOB


def list_incidents(record: JobRecord, status: JobStatus | None) -> tuple[ListedIncident, ...]:
    """Return all incidents of a job: first the counts of those that the record has folded, then each one, the oldest first."""
    return (*map(_count, record.folded), *map(_one, incidents_of(record, status)))


def count_faults(record: JobRecord, status: JobStatus | None) -> int:
    """Return how many faults a job had over all attempts."""
    return sum(listed.count for listed in list_incidents(record, status) if listed.fault)


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
        action=incident.rung.value,
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
    except (ValueError, OverflowError, OSError):  # no clock shows it; a record may be damaged
        return str(sanitize.clean_float(at))
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def id_text(name: IncidentId) -> str:
    """Return the id of an incident as text."""
    return f"{name.attempt}.{name.round}.{name.node}.{name.local_rank}.{name.sequence}"
