"""The service of the metrics; it imports the HTTP server only if the plan has a port for it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from rallypoint.capabilities.base import ServiceContext
from rallypoint.wire.ports import metrics_port

__all__ = ["running"]


@contextlib.asynccontextmanager
async def running(context: ServiceContext) -> AsyncIterator[int]:
    """Serve the metrics of a coordinator meanwhile; yields the port, 0 if there is none."""
    port = metrics_port(context.plan, pod=context.pod)
    if not port:
        yield 0
        return
    from rallypoint.capabilities.metrics.server import served  # noqa: PLC0415  aiohttp takes long to import

    async with served(context, port) as bound:
        yield bound
