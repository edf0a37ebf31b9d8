"""Status lines of pre-check operators."""

from __future__ import annotations

from collections.abc import Iterator

from rallypoint.capabilities.base import Gauge
from rallypoint.capabilities.user_hooks.wire import StatusSection
from rallypoint.wire.pre_check import PreCheckState
from rallypoint.wire.status import JobStatus

__all__ = ["facts", "gauges"]


def gauges(_status: JobStatus) -> Iterator[Gauge]:
    """Yield nothing: operators have no metrics."""
    yield from ()


def facts(status: JobStatus) -> Iterator[tuple[str, str]]:
    """Yield a line with the operator that training waits for, or with the results of all operators."""
    checks = StatusSection.of(status).pre_checks
    now = next((one for one in checks if one.state not in (PreCheckState.PASSED, PreCheckState.BYPASSED)), None)
    if now is not None:
        tries = "has not run yet" if not now.tries else f"{now.state.value}, {now.tries} tries"
        yield "pre-check", f"{now.operator} {tries}{f': {now.message}' if now.message else ''}"
    elif checks:
        yield "pre-check", ", ".join(f"{one.operator} {one.state.value}" for one in checks)
