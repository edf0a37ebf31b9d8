"""The coordinator of a run by hand: where it is, how it is asked, and what whoever hosts it has to do."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

from rallypoint.agent.clock import monotone_clock
from rallypoint.agent.coordinator.shell import Coordinator
from rallypoint.agent.options import RunOptions
from rallypoint.agent.tls import Tls
from rallypoint.agent.transport.service import Exchange
from rallypoint.wire.endpoint import Endpoint

__all__ = ["ATTEMPT", "TERM", "Agreement", "Met", "address_towards", "asked_before", "endpoint_at"]

#: A job by hand has one attempt and one coordinator.
ATTEMPT = TERM = 1


class Agreement(Protocol):
    """Settles among the agents of a run whose address is the coordinator's."""

    host: str
    port: int

    async def settle(self, ours: str) -> str:
        """Return the `host:port` that all use, which is `ours` when we are to host; raises `ConfigError`."""
        ...

    async def close(self) -> None:
        """Take back what was settled, if we are who hosts."""
        ...


@dataclass(frozen=True, kw_only=True)
class Met:
    """Where the coordinator is, how it is asked, its task where it lives here, and the secret and certificates of the run."""

    endpoint: Endpoint
    exchange: Exchange
    hosted: asyncio.Task[None] | None = None
    secret: str = ""
    tls: Tls | None = None


@contextlib.asynccontextmanager
async def asked_before(shell: Coordinator, options: RunOptions) -> AsyncIterator[None]:
    """Have the operators of --pre-check-ops asked while the context lasts; whoever hosts the coordinator does."""
    if not options.plan.pre_check_ops:
        yield
        return
    # Few runs have any.
    from rallypoint.agent.coordinator.prechecking import ask_operators  # noqa: PLC0415

    asking = asyncio.create_task(ask_operators(shell.change, options.plan, monotone_clock(), os.environ))
    try:
        yield
    finally:
        asking.cancel()
        await asyncio.wait({asking})


def endpoint_at(host: str, port: int) -> Endpoint:
    """Return the address of a run's coordinator."""
    return Endpoint(attempt=ATTEMPT, term=TERM, host=host, port=port)


def address_towards(endpoint: Endpoint) -> str:
    """Return our own address on the way to the coordinator: the others, who come the same way, reach us there."""
    try:
        info = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(info[0], socket.SOCK_DGRAM) as probe:
            probe.connect(info[4])  # a datagram socket sends nothing by that
            address: str = probe.getsockname()[0]
    except OSError:
        return socket.getfqdn()
    return address
