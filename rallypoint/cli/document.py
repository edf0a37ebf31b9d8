"""What `--json` prints: the words of the wire, under names that do not change."""

from __future__ import annotations

from dataclasses import dataclass

from rallypoint.supervision.record import JobRecord
from rallypoint.wire.codec import dumps
from rallypoint.wire.plan import Plan
from rallypoint.wire.status import JobStatus

__all__ = ["DOCUMENT_VERSION", "JobDocument", "JobsDocument", "json_line", "json_text"]

DOCUMENT_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class JobDocument:
    """One job; `status` is None before the coordinator's first word. `rallypoint.wire.codec.loads` reads it back."""

    version: int = DOCUMENT_VERSION
    record: JobRecord
    plan: Plan
    status: JobStatus | None = None


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
