"""Several agents and one coordinator: whoever can open its port hosts it, the others join it there.

They speak HTTP unless gRPC is asked for by name: one address was agreed on, and only its port need be open between machines.
gRPC takes a free one beside it, which the coordinator's `/healthz` tells.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
from collections.abc import AsyncIterator

from rallypoint.agent.coordinator.shell import Coordinator
from rallypoint.agent.errors import ConfigError
from rallypoint.agent.meeting_place import Agreement, Met, address_towards, endpoint_at, with_services
from rallypoint.agent.options import Meeting, RunOptions
from rallypoint.agent.tls import Tls
from rallypoint.agent.transport.choosing import HTTP, Exchanges, Servers
from rallypoint.agent.transport.http_client import speaks_rallypoint
from rallypoint.agent.waiting import set_within
from rallypoint.wire.endpoint import Endpoint, split_address

__all__ = ["host_or_join"]

log = logging.getLogger("rallypoint.run")

#: Seconds for the owner of a port in use to say who it is.
_WHO_IS_THERE = 5.0


@contextlib.asynccontextmanager
async def host_or_join(
    shell: Coordinator, options: RunOptions, *, token: str, agreement: Agreement | None, tls: Tls | None = None
) -> AsyncIterator[Met]:
    """Serve `shell` to the other agents, or find who does; raises `ConfigError`."""
    service_type = options.plan.rendezvous.service_type or HTTP
    server = Servers(
        shell,
        token=token,
        service_type=service_type,
        agents=options.plan.max_nodes,
        store=lambda: shell.store,
        tls=tls,
    )
    endpoint, hosting = await (
        _at(server, options.meeting, token, tls) if agreement is None else _agree(server, agreement, options)
    )
    exchange = Exchanges(token, service_type=service_type, look=True, tls=tls)
    if not hosting:
        yield Met(endpoint=endpoint, exchange=exchange, secret=token, tls=tls)
        return
    serving = asyncio.create_task(shell.serve())
    try:
        async with with_services(shell, options):
            yield Met(endpoint=endpoint, exchange=exchange, hosted=serving, secret=token, tls=tls)
    finally:
        shell.stop()
        await serving
        await server.close()
        if agreement is not None:
            await agreement.close()


async def _at(server: Servers, meeting: Meeting | None, token: str, tls: Tls | None) -> tuple[Endpoint, bool]:
    """Return the coordinator's address, and whether we host it."""
    place = meeting or Meeting(host="127.0.0.1", port=0)
    port = await _host(server, place, token, tls)
    return endpoint_at(place.host, place.port if port is None else port), port is not None


async def _agree(server: Servers, agreement: Agreement, options: RunOptions) -> tuple[Endpoint, bool]:
    """As `_at`, where the address is settled among the agents; ours is open before it is offered."""
    host = options.local_addr or address_towards(endpoint_at(agreement.host, agreement.port))
    port, _ = await server.start(host, 0)
    ours = endpoint_at(host, port)
    try:
        settled = await agreement.settle(ours.address)
    except BaseException:
        await server.close()
        raise
    if settled == ours.address:
        log.info("this agent has started the coordinator of the run: address=%s", settled)
        return ours, True
    await server.close()
    return endpoint_at(*split_address(settled)), False


async def _host(server: Servers, meeting: Meeting, token: str, tls: Tls | None) -> int | None:
    """Open the coordinator's port and return it, or None when a coordinator is (or will be) elsewhere."""
    if not meeting.may_host:
        return None
    try:
        port, _ = await server.start(meeting.host, meeting.port)
    except ConfigError as error:
        if isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EADDRINUSE:
            await _require_coordinator(meeting, token, tls)
        elif not _is_elsewhere(error.__cause__):
            raise
        return None
    log.info("this agent has started the coordinator of the run: address=%s:%d", meeting.host, port)
    return port


def _is_elsewhere(cause: BaseException | None) -> bool:
    return isinstance(cause, socket.gaierror) or (isinstance(cause, OSError) and cause.errno == errno.EADDRNOTAVAIL)


async def _require_coordinator(meeting: Meeting, token: str, tls: Tls | None) -> None:
    """Raise `ConfigError` unless the port that is in use belongs to a coordinator of this run."""
    endpoint = endpoint_at(meeting.host, meeting.port)
    deadline = asyncio.get_running_loop().time() + _WHO_IS_THERE
    known = await speaks_rallypoint(endpoint, tls, token=token)
    while known is None and asyncio.get_running_loop().time() < deadline:
        await set_within(asyncio.Event(), 0.1)
        known = await speaks_rallypoint(endpoint, tls, token=token)
    if not known:
        raise ConfigError(
            f"--rdzv-endpoint {endpoint.address}: port {meeting.port} is in use by another program; choose another port"
        )
