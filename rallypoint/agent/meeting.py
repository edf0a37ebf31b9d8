"""How the agents of a run by hand find their coordinator, which lives in the process of one of them.

A node by itself has it in its own process, and asks it there. Of several that are given one address, whoever can open the port
hosts it and the others join it there. Where the address is not known before, an `Agreement` settles whose it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import secrets
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

from rallypoint.agent.clock import Clock, monotone_clock
from rallypoint.agent.coordinator.shell import Coordinator
from rallypoint.agent.options import RunOptions
from rallypoint.agent.rendezvous import core as rendezvous
from rallypoint.agent.transport.near import NearExchange
from rallypoint.agent.transport.service import Exchange
from rallypoint.wire import env
from rallypoint.wire.endpoint import Endpoint

__all__ = ["ATTEMPT", "Agreement", "Met", "address_towards", "asked_before", "endpoint_at", "meet"]

#: A job by hand has one attempt and one coordinator.
ATTEMPT = _TERM = 1

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
    """Where the coordinator is, how it is asked, its task where it lives in this process, and the secret of all who do."""

    endpoint: Endpoint
    exchange: Exchange
    hosted: asyncio.Task[None] | None = None
    secret: str = ""


@contextlib.asynccontextmanager
async def meet(options: RunOptions, clock: Clock, agreement: Agreement | None = None) -> AsyncIterator[Met]:
    """Have a coordinator, here or elsewhere, while the context lasts; raises `ConfigError`."""
    shell = Coordinator(_new_state(options, clock), sink=None, clock=clock)
    if options.meeting is not None or agreement is not None:
        # A node by itself needs no HTTP, which takes longer to import than all the rest.
        from rallypoint.agent.hosting import host_or_join  # noqa: PLC0415

        async with host_or_join(shell, options, token=_token(options), agreement=agreement) as met:
            yield met
        return
    serving = asyncio.create_task(shell.serve())
    try:
        async with asked_before(shell, options):
            yield Met(endpoint=endpoint_at(_LOOPBACK, 0), exchange=NearExchange(shell), hosted=serving)
    finally:
        shell.stop()
        await serving


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
    return Endpoint(attempt=ATTEMPT, term=_TERM, host=host, port=port)


def _token(options: RunOptions) -> str:
    """Return the secret of the run. Without RALLYPOINT_SECRET whoever knows the run's id may join it, as with torchrun."""
    given = os.environ.get(env.SECRET)
    return given or hashlib.sha256(f"rallypoint run {options.plan.name}".encode()).hexdigest()


def _new_state(options: RunOptions, clock: Clock) -> rendezvous.State:
    return rendezvous.new(
        rendezvous.Settings.from_plan(options.plan),
        job=options.plan.name,
        uid=secrets.token_hex(8),
        attempt=ATTEMPT,
        term=_TERM,
        now=clock(),
    )


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
