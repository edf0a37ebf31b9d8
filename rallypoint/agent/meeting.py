"""How the agents of a run by hand find their coordinator, which lives in the process of one of them.

A node by itself hosts it. Of several that are given one address, whoever can open the port hosts it and the others join it
there. Where the address is not known before, an `Agreement` settles whose it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import logging
import os
import secrets
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

from rallypoint.agent.clock import Clock
from rallypoint.agent.coordinator.shell import Coordinator
from rallypoint.agent.coordinator.sink import MemorySink
from rallypoint.agent.errors import ConfigError
from rallypoint.agent.options import Meeting, RunOptions
from rallypoint.agent.rendezvous import core as rendezvous
from rallypoint.agent.transport.http_client import speaks_rallypoint
from rallypoint.agent.transport.http_server import HttpServer
from rallypoint.agent.waiting import set_within
from rallypoint.agent.workers.worker_env import split_address
from rallypoint.wire import env
from rallypoint.wire.endpoint import Endpoint

__all__ = ["ATTEMPT", "Agreement", "Met", "address_towards", "meet"]

log = logging.getLogger("rallypoint.run")

#: A job by hand has one attempt and one coordinator.
ATTEMPT = _TERM = 1

#: Seconds for the owner of a port in use to say who it is.
_WHO_IS_THERE = 5.0


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
    """Where the coordinator is, the secret of the run, and the coordinator's task where it lives in this process."""

    endpoint: Endpoint
    token: str
    hosted: asyncio.Task[None] | None = None


@contextlib.asynccontextmanager
async def meet(options: RunOptions, clock: Clock, agreement: Agreement | None = None) -> AsyncIterator[Met]:
    """Have a coordinator, here or elsewhere, while the context lasts; raises `ConfigError`."""
    token = _token(options, alone=options.meeting is None and agreement is None)
    shell = Coordinator(_new_state(options, clock), sink=MemorySink(), clock=clock)
    server = HttpServer(shell, token=token)
    endpoint, hosting = await (_at(server, options.meeting) if agreement is None else _agree(server, agreement, options))
    if not hosting:
        yield Met(endpoint=endpoint, token=token)
        return
    serving = asyncio.create_task(shell.serve())
    try:
        yield Met(endpoint=endpoint, token=token, hosted=serving)
    finally:
        shell.stop()
        await serving
        await server.close()
        if agreement is not None:
            await agreement.close()


async def _at(server: HttpServer, meeting: Meeting | None) -> tuple[Endpoint, bool]:
    """Return the coordinator's address, and whether we host it."""
    place = meeting or Meeting(host="127.0.0.1", port=0)
    port = await _host(server, place)
    return _endpoint(place.host, place.port if port is None else port), port is not None


async def _agree(server: HttpServer, agreement: Agreement, options: RunOptions) -> tuple[Endpoint, bool]:
    """As `_at`, where the address is settled among the agents; ours is open before it is offered."""
    host = options.local_addr or address_towards(_endpoint(agreement.host, agreement.port))
    ours = _endpoint(host, await server.start(host, 0))
    try:
        settled = await agreement.settle(ours.address)
    except BaseException:
        await server.close()
        raise
    if settled == ours.address:
        log.info("coordinator at %s", settled)
        return ours, True
    await server.close()
    return _endpoint(*split_address(settled)), False


def _endpoint(host: str, port: int) -> Endpoint:
    return Endpoint(attempt=ATTEMPT, term=_TERM, host=host, port=port)


def _token(options: RunOptions, *, alone: bool) -> str:
    """Return the secret of the run. Without RALLYPOINT_SECRET whoever knows the run's id may join it, as with torchrun."""
    given = os.environ.get(env.SECRET)
    if given:
        return given
    if alone:
        return secrets.token_hex(32)
    return hashlib.sha256(f"rallypoint run {options.plan.name}".encode()).hexdigest()


def _new_state(options: RunOptions, clock: Clock) -> rendezvous.State:
    return rendezvous.new(
        rendezvous.Settings.from_plan(options.plan),
        job=options.plan.name,
        uid=secrets.token_hex(8),
        attempt=ATTEMPT,
        term=_TERM,
        now=clock(),
    )


async def _host(server: HttpServer, meeting: Meeting) -> int | None:
    """Open the coordinator's port and return it, or None when a coordinator is (or will be) elsewhere."""
    if not meeting.may_host:
        return None
    try:
        port = await server.start(meeting.host, meeting.port)
    except ConfigError as error:
        if isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EADDRINUSE:
            await _require_coordinator(meeting)
        elif not _is_elsewhere(error.__cause__):
            raise
        return None
    log.info("coordinator at %s:%d", meeting.host, port)
    return port


def _is_elsewhere(cause: BaseException | None) -> bool:
    return isinstance(cause, socket.gaierror) or (isinstance(cause, OSError) and cause.errno == errno.EADDRNOTAVAIL)


async def _require_coordinator(meeting: Meeting) -> None:
    """Raise `ConfigError` unless the port that is in use belongs to a coordinator."""
    endpoint = _endpoint(meeting.host, meeting.port)
    deadline = asyncio.get_running_loop().time() + _WHO_IS_THERE
    known = await speaks_rallypoint(endpoint)
    while known is None and asyncio.get_running_loop().time() < deadline:
        await set_within(asyncio.Event(), 0.1)
        known = await speaks_rallypoint(endpoint)
    if not known:
        where = f"{endpoint.address}: port {meeting.port} is in use by something that is not a Rallypoint coordinator"
        raise ConfigError(f"{where}; give another --rdzv-endpoint")


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
