"""Since when nothing was heard of a job, in words: the same for `status`, `explain` and the tab. Pure."""

from __future__ import annotations

from rallypoint.backends.story import span
from rallypoint.wire.missing import Absence
from rallypoint.wire.status import JobState, JobStatus

__all__ = ["QUIET", "silence"]

#: Seconds without a report, or without a sign of life of any rank, from which on that is said.
QUIET = 5.0


def silence(status: JobStatus | None, age: float | None) -> str:
    """Return `last report 12 s ago`, `last sign of life 12 s ago`, or "" where nothing is older than `QUIET` seconds.

    Of nodes whose report is overdue it is `last report of node 1 12 s ago`.

    Args:
        status: the coordinator's last word.
        age: seconds since it was written or given, by the clock of one machine; None where that is not known.
    """
    if status is None or status.verdict is not None:
        return ""
    if age is not None and age >= QUIET:
        return f"last report {span(age)} ago"
    if status.state is not JobState.RUNNING or not status.lively_at:
        return ""
    # These times are all the coordinator's own; what has passed since its word is added.
    now = status.updated_at + (age or 0.0)
    silent = [one for one in status.missing if one.why is Absence.SILENT and now - one.since >= QUIET]
    if silent:
        first = min(silent, key=lambda one: one.since)
        more = "" if len(silent) == 1 else f" (and {len(silent) - 1} more)"
        return f"last report of node {first.node}{more} {span(now - first.since)} ago"
    quiet = now - status.lively_at
    return f"last sign of life {span(quiet)} ago" if quiet >= QUIET else ""
