"""What metrics and `rallypoint status` show of stragglers."""

from __future__ import annotations

from collections.abc import Iterator

from rallypoint.capabilities.base import Gauge
from rallypoint.capabilities.stragglers.wire import StatusSection
from rallypoint.wire.status import JobStatus

__all__ = ["facts", "gauges"]

#: Slow ranks with a score of their own in the metrics, and with a name in the status.
_SCORED, _NAMED = 8, 4


def gauges(status: JobStatus) -> Iterator[Gauge]:
    """Yield how many ranks are slow, and how slow the slowest are."""
    slow = StatusSection.of(status).stragglers
    yield Gauge(name="rallypoint_straggler_ranks", help="Number of ranks that are slower than the others.", value=len(slow))
    yield Gauge(
        name="rallypoint_straggler_score",
        help="Time of a slow rank per step, without waiting for other ranks, as a multiple of the median.",
        value={("rank", str(one.rank)): one.score for one in slow[:_SCORED]},
    )


def facts(status: JobStatus) -> Iterator[tuple[str, str]]:
    """Yield a line that names the slowest ranks."""
    slow = StatusSection.of(status).stragglers
    if slow:
        named = (f"rank {one.rank} on node {one.node} ({one.host}) {one.score:g} times" for one in slow[:_NAMED])
        more = f"; and {len(slow) - _NAMED} more" if len(slow) > _NAMED else ""
        yield "stragglers", f"{'; '.join(named)}{more} slower than the other ranks"
