"""Budgets as counts over incidents: nothing that restarts can refill one or charge it twice."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rallypoint.wire.incident import Cause, Incident

__all__ = ["Budget"]


@dataclass(frozen=True, kw_only=True)
class Budget:
    """At most `limit` faults of `cause` within one attempt, of the whole job or of one `node` slot.

    `limit` faults are answered; the one after them is not.
    """

    cause: Cause
    limit: int
    node: int | None = None

    def spent(self, incidents: Iterable[Incident], attempt: int) -> int:
        """Return how many incidents of `attempt` this budget has paid for, the newest included."""
        return len(
            {
                incident.id
                for incident in incidents
                if incident.cause is self.cause
                and incident.id.attempt == attempt
                and (self.node is None or incident.id.node == self.node)
            }
        )

    def exceeded(self, incidents: Iterable[Incident], attempt: int) -> bool:
        """Return whether there are more faults than the limit answers."""
        return self.spent(incidents, attempt) > self.limit
