"""The coordinator of a running attempt: whether it is there, which one follows it, and how many were lost. Pure."""

from __future__ import annotations

import dataclasses

from rallypoint.supervision.actions import Action, RemoveCoordinator
from rallypoint.supervision.budget import Budget
from rallypoint.supervision.observation import NodeSeen, Observation, how_it_ended
from rallypoint.supervision.record import JobRecord
from rallypoint.wire.incident import Cause, Incident, IncidentId, Rung, merge_incidents
from rallypoint.wire.status import JobStatus

__all__ = ["COORDINATOR_LIMIT", "SILENT_TERMS", "exists", "lost", "replace", "strays"]

#: Coordinators that end before they speak, in a row, until the attempt is given up: the next one would end alike.
SILENT_TERMS = 3

#: Coordinators that may be lost within one attempt. They cost no budget, but something that kills each of them will not stop.
COORDINATOR_LIMIT = 100


def lost(record: JobRecord) -> int:
    """Return how many coordinators of the current attempt have ended."""
    return Budget(cause=Cause.COORDINATOR, limit=COORDINATOR_LIMIT).spent(
        record.incidents, record.attempt, folded=record.folded
    )


def exists(record: JobRecord, seen: Observation) -> bool:
    """Return whether the coordinator of the current term was created."""
    return _coordinator(record, seen) is not None


def _coordinator(record: JobRecord, seen: Observation) -> NodeSeen | None:
    return next((c for c in seen.coordinators if (c.attempt, c.incarnation) == (record.attempt, record.term)), None)


def replace(record: JobRecord, seen: Observation, status: JobStatus | None) -> tuple[JobRecord, str | None]:
    """Grant the next term when the coordinator of this one has ended; return how it ended, or None while it lives."""
    ended = _coordinator(record, seen)
    if ended is None or not ended.ended:
        return record, None
    spoke = status is not None and status.fence.term >= record.term
    reason = how_it_ended(ended)
    incident = Incident(
        id=IncidentId(attempt=record.attempt, round=0, sequence=record.term),
        cause=Cause.COORDINATOR,
        rung=Rung.RECOVER,
        reason=f"the coordinator of term {record.term} {reason}",
        detected_at=record.last_now,
    )
    record = dataclasses.replace(
        record,
        incidents=merge_incidents(record.incidents, (incident,)),
        term=record.term + 1,
        silent_terms=0 if spoke else record.silent_terms + 1,
    )
    return record.with_history("coordinator-lost", f"{incident.reason}; coordinator term {record.term} takes over"), reason


def strays(record: JobRecord, seen: Observation) -> tuple[Action, ...]:
    """Return the removal of coordinators of other terms and of what an ended one left running."""
    return tuple(
        RemoveCoordinator(attempt=c.attempt, term=c.incarnation, force=True)
        for c in seen.coordinators
        if c.present and (c.ended or (c.attempt, c.incarnation) != (record.attempt, record.term))
    )
