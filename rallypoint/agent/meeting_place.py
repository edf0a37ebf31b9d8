"""The coordinator of a run by hand: where it is, how it is asked, and what whoever hosts it has to do."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from dataclasses import dataclass
from typing import Protocol

from rallypoint.agent.clock import monotone_clock
from rallypoint.agent.coordinator.shell import Coordinator, running_services
from rallypoint.agent.options import RunOptions
from rallypoint.agent.tls import Tls
from rallypoint.agent.transport.service import Exchange
from rallypoint.wire.endpoint import Endpoint

__all__ = ["ATTEMPT", "TERM", "Agreement", "Met", "address_towards", "endpoint_at", "with_services"]

#: A job by hand has one attempt and one coordinator.
ATTEMPT = TERM = 1

_LOOPBACK = "127.0.0.1"


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


def with_services(shell: Coordinator, options: RunOptions) -> contextlib.AbstractAsyncContextManager[None]:
    """Return a context in which the services of optional capabilities run; the agent that hosts the coordinator enters it."""
    return running_services(shell, options.plan, _LOOPBACK, monotone_clock())


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
