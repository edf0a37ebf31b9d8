"""For how long a job that is over is kept. Pure."""

from __future__ import annotations

from rallypoint.supervision.policy import Policy
from rallypoint.supervision.record import JobRecord, Phase

__all__ = ["kept_for"]


def kept_for(record: JobRecord, policy: Policy) -> float | None:
    """Return for how many seconds after its end a job is kept; None for one that has not ended, and for ever.

    One that has failed is kept until somebody deletes it, as AppWrapper keeps it: its record says why.
    """
    ended = record.phase is Phase.SUCCEEDED and record.released and not record.deletion
    return policy.success_ttl if ended else None
