"""Asking a coordinator that lives in our own process: no connection, no port, and nothing to import for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from rallypoint.agent.errors import UnreachableError
from rallypoint.agent.transport.service import CoordinatorService
from rallypoint.wire.endpoint import Endpoint
from rallypoint.wire.messages import AgentReport, Reply

__all__ = ["NearExchange"]


class NearExchange:
    """One agent's exchange with a `CoordinatorService` of the same event loop."""

    def __init__(self, service: CoordinatorService) -> None:
        self._service = service
        self._under_way: set[Callable[[str], None]] = set()

    async def exchange(self, endpoint: Endpoint, report: AgentReport, *, timeout: float) -> Reply:
        """See `Exchange.exchange`; `endpoint` is not looked at."""
        task, ended = asyncio.current_task(), []

        def end(why: str) -> None:
            ended.append(why)
            if task is not None:
                task.cancel()

        # The service is asked in the task that asks us: it answers once a second for as long as the job lasts.
        late = asyncio.get_running_loop().call_later(timeout, end, f"no answer within {timeout:.0f} s")
        self._under_way.add(end)
        try:
            return await self._service.report(report)
        except asyncio.CancelledError:
            if not ended:
                raise
            raise UnreachableError(f"{endpoint.host}: {ended[0]}") from None
        finally:
            late.cancel()
            self._under_way.discard(end)

    async def close(self) -> None:
        """See `Exchange.close`."""
        for end in tuple(self._under_way):
            end("closed")
