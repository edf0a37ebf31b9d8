"""How an incident ended, in words: the same for `explain`, `status`, the tab, XCom and log lines. Pure."""

from __future__ import annotations

from typing import Final

from rallypoint.backends.story import span
from rallypoint.wire.incident import FREE, Cause, Incident, Rung

__all__ = ["REPLACED", "RESTARTED", "TRAINED", "recovered", "recovered_text"]

#: A step was reported, or counted by the optimizer hook, after the fault.
TRAINED: Final = "trained again"
#: All workers of the world run again; no step of theirs is known.
RESTARTED: Final = "workers restarted"
#: Another coordinator took over.
REPLACED: Final = "replaced"
#: What was only reported went away by itself.
_OVER: Final = "over"


def recovered(incident: Incident) -> str:
    """Return how an incident ended, one of the constants above; "" while it has not, or where that is not known."""
    if incident.trained_at is not None or (incident.healed_at is not None and incident.resumed_step is not None):
        return TRAINED
    if incident.healed_at is None:
        return ""
    if incident.cause is Cause.COORDINATOR:
        return REPLACED
    return _OVER if incident.rung is Rung.NOTIFY else RESTARTED


def recovered_text(incident: Incident) -> str:
    """Return `trained again after 4.4 s`, `workers restarted after 0.59 s` or `not healed`; "" where nothing had to recover."""
    ended_at = incident.recovered_at
    if ended_at is not None:
        return f"{recovered(incident)} after {span(max(0.0, ended_at - incident.detected_at))}"
    return "" if incident.cause in FREE or incident.cause is Cause.JOB else "not healed"
