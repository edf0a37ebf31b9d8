"""The documents that `--json` prints; their keys are stable."""

from __future__ import annotations

from dataclasses import dataclass

from rallypoint.supervision.record import JobRecord
from rallypoint.wire.codec import dumps
from rallypoint.wire.plan import Plan
from rallypoint.wire.status import JobStatus

__all__ = ["DOCUMENT_VERSION", "JobDocument", "JobsDocument", "RoleDocument", "SupervisorSeen", "json_line", "json_text"]

DOCUMENT_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class SupervisorSeen:
    """State of the supervisor that the record names (`record.holder`).

    Attributes:
        alive: whether it runs; None if the backend cannot determine that at once.
        lost_at: its last heartbeat in seconds since the epoch, if it no longer runs; else None.
        note: why it makes no progress; "" if it does.
    """

    alive: bool | None
    lost_at: float | None = None
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class RoleDocument:
    """One elastic role of a job: it is a job of its own."""

    name: str
    record: JobRecord
    plan: Plan
    status: JobStatus | None = None


@dataclass(frozen=True, kw_only=True)
class JobDocument:
    """One job. `rallypoint.wire.codec.loads` reads it back.

    `status` is None before the coordinator's first word; `status_age` is how many seconds ago it was written or given, by the
    clock of one machine, None where that is not known. `supervisor` is None while nobody has supervised the job yet. `roles`
    are the elastic roles of a job with several.
    """

    version: int = DOCUMENT_VERSION
    record: JobRecord
    plan: Plan
    status: JobStatus | None = None
    supervisor: SupervisorSeen | None = None
    status_age: float | None = None
    roles: tuple[RoleDocument, ...] = ()


@dataclass(frozen=True, kw_only=True)
class JobsDocument:
    """All jobs, by name."""

    version: int = DOCUMENT_VERSION
    jobs: tuple[JobDocument, ...] = ()


def json_text(document: object) -> str:
    """Return a document as JSON that a person can read."""
    return dumps(document, indent=2)


def json_line(document: object) -> str:
    """Return a document as one line, for streams of them."""
    return dumps(document)
