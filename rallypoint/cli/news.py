"""What changed between two looks at a job, as lines of a log. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Iterator

from rallypoint.cli.document import JobDocument
from rallypoint.report.format import clock_time, metrics_text
from rallypoint.wire.status import Event

__all__ = ["STEP_PERIOD", "news"]

#: A line about steps at most this often, in seconds, since steps alone would fill a log.
STEP_PERIOD = 10.0

#: Longest time between the coordinator's word and the supervisor's of the same thing, in seconds.
_TELLING = 30.0


def news(
    before: JobDocument | None, after: JobDocument, *, step_told_at: float, now: float, zone: datetime.tzinfo | None = None
) -> tuple[tuple[str, ...], float]:
    """Return the lines that are new in `after`, oldest first, and when a step was told last.

    Args:
        before: what was told already; None at the first look.
        after: what is true now.
        step_told_at: what the call before returned; 0 at first.
        now: seconds since the epoch; lines carry the time of day at which each thing happened, in `zone`.
    """
    lines = [_line(event.at, event.kind, event.detail, now, zone) for event in _fresh(before, after)]
    status = after.status
    moved = status is not None and status.progress.step is not None and status.progress.step != _step(before)
    if status is not None and moved and now - step_told_at >= STEP_PERIOD:
        text = f"{status.progress.step} {metrics_text(status.progress)}".rstrip()
        lines.append(_line(status.progress.at or now, "step", text, now, zone))
        step_told_at = now
    return tuple(lines), step_told_at


def _fresh(before: JobDocument | None, after: JobDocument) -> list[Event]:
    told = [] if before is None else list(_events(before))
    known = set(told)
    fresh = []
    for event in sorted((event for event in _events(after) if event not in known), key=lambda event: event.at):
        if not any(_same(event, other) for other in told):
            fresh.append(event)
            told.append(event)
    return fresh


def _same(one: Event, other: Event) -> bool:
    """Return whether coordinator and supervisor tell of one thing, each at its own moment."""
    return (one.kind, one.detail) == (other.kind, other.detail) and abs(one.at - other.at) < _TELLING


def _events(document: JobDocument) -> Iterator[Event]:
    yield from document.record.history
    if document.status is not None and document.status.uid == document.record.uid:
        yield from document.status.events


def _step(document: JobDocument | None) -> int | None:
    return None if document is None or document.status is None else document.status.progress.step


def _line(at: float, kind: str, text: str, now: float, zone: datetime.tzinfo | None) -> str:
    return f"{clock_time(at, now, zone)}  {kind}: {text}" if text else f"{clock_time(at, now, zone)}  {kind}"
