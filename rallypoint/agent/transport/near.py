"""Asking a coordinator that lives in our own process: no connection, no port, and nothing to import for it."""

from __future__ import annotations

import asyncio

from rallypoint.agent.errors import UnreachableError
from rallypoint.agent.transport.service import CoordinatorService
from rallypoint.wire.endpoint import Endpoint
from rallypoint.wire.messages import AgentReport, Reply

__all__ = ["NearExchange"]


class NearExchange:
    """One agent's exchange with a `CoordinatorService` of the same event loop."""

    def __init__(self, service: CoordinatorService) -> None:
        self._service = service
        self._under_way: set[asyncio.Task[Reply]] = set()

    async def exchange(self, endpoint: Endpoint, report: AgentReport, *, timeout: float) -> Reply:
        """See `Exchange.exchange`; `endpoint` is not looked at."""
        asked = asyncio.create_task(self._service.report(report))
        self._under_way.add(asked)
        asked.add_done_callback(self._under_way.discard)
        try:
            done, _ = await asyncio.wait({asked}, timeout=timeout)
        except asyncio.CancelledError:
            asked.cancel()
            raise
        if not done:
            asked.cancel()
            raise UnreachableError(f"{endpoint.host}: no answer within {timeout:.0f} s")
        if asked.cancelled():
            raise UnreachableError(f"{endpoint.host}: closed")
        return asked.result()

    async def close(self) -> None:
        """See `Exchange.close`."""
        for asked in tuple(self._under_way):
            asked.cancel()
