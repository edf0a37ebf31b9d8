"""Run the services of optional capabilities beside a coordinator."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from rallypoint.agent.clock import Clock
from rallypoint.agent.coordinator.shell import Coordinator
from rallypoint.capabilities.base import ServiceContext, services
from rallypoint.wire.plan import Plan

__all__ = ["running_services"]


@contextlib.asynccontextmanager
async def running_services(
    shell: Coordinator,
    plan: Plan,
    host: str,
    clock: Clock,
    *,
    pod: bool = False,
    requested: Callable[[str], Awaitable[Any]] | None = None,
) -> AsyncIterator[None]:
    """Run all services meanwhile; see `ServiceContext` for the arguments."""
    context = ServiceContext(
        plan=plan,
        host=host,
        pod=pod,
        clock=clock,
        status=shell.status,
        note=shell.note,
        send=shell.send,
        state_of=shell.state_of,
        requested=requested,
    )
    async with contextlib.AsyncExitStack() as running:
        for service in services(context):
            await running.enter_async_context(service)
        yield
