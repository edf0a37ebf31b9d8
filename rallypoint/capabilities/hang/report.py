"""Metrics and status lines of hang detection."""

from __future__ import annotations

from collections.abc import Iterator

from rallypoint.capabilities.base import Gauge
from rallypoint.capabilities.hang.wire import StatusSection
from rallypoint.wire.hang import HangState
from rallypoint.wire.status import JobStatus

__all__ = ["facts", "gauges"]


def gauges(status: JobStatus) -> Iterator[Gauge]:
    """Yield whether a hang is suspected or confirmed, and the duration of the silence."""
    hang = StatusSection.of(status).hang
    states = {("state", state.value): float(hang is not None and hang.state is state) for state in HangState}
    yield Gauge(name="rallypoint_hang", help="1 while a hang is suspected or confirmed.", value=states)
    yield Gauge(
        name="rallypoint_hang_seconds",
        help="Seconds without progress of any rank while a hang is suspected.",
        value=0.0 if hang is None else status.updated_at - hang.quiet_since,
    )


def facts(status: JobStatus) -> Iterator[tuple[str, str]]:
    """Yield a line with the suspected or confirmed hang."""
    hang = StatusSection.of(status).hang
    if hang is not None:
        yield "hang", f"{hang.state.value}: {hang.reason}"
