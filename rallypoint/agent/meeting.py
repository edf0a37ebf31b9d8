"""How the agents of a run by hand find their coordinator, which lives in the process of one of them.

A node by itself has it in its own process, and asks it there. Of several that are given one address, whoever can open the port
hosts it and the others join it there. Where the address is not known before, an `Agreement` settles whose it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
from collections.abc import AsyncIterator
from pathlib import Path

from rallypoint.agent.clock import Clock
from rallypoint.agent.coordinator.shell import Coordinator
from rallypoint.agent.errors import ConfigError
from rallypoint.agent.meeting_place import ATTEMPT, TERM, Agreement, Met, endpoint_at, with_services
from rallypoint.agent.options import MasterAddress, RunOptions
from rallypoint.agent.rendezvous import core as rendezvous
from rallypoint.agent.run_secret import run_secret
from rallypoint.agent.tls import watched_tls
from rallypoint.agent.transport.near import NearExchange
from rallypoint.agent.transport.shared_port import SharedPort
from rallypoint.capabilities.base import coordinator_capabilities

__all__ = ["meet"]

_LOOPBACK = "127.0.0.1"


@contextlib.asynccontextmanager
async def meet(options: RunOptions, clock: Clock, agreement: Agreement | None = None) -> AsyncIterator[Met]:
    """Have a coordinator, here or elsewhere, while the context lasts; raises `ConfigError`."""
    shell = Coordinator(_new_state(options, clock), sink=None, clock=clock)
    place = options.meeting if agreement is None else agreement
    if place is not None:
        token = run_secret(options, place.host, os.environ)
        tls = None if options.tls is None else watched_tls(Path(options.tls), options.plan.name)
        # A node by itself needs no HTTP, which takes longer to import than all the rest.
        from rallypoint.agent.hosting import host_or_join  # noqa: PLC0415

        async with host_or_join(shell, options, token=token, agreement=agreement, tls=tls) as met:
            yield met
        return
    serving = asyncio.create_task(shell.serve())
    try:
        async with with_services(shell, options), _store_port(shell, options.master):
            yield Met(endpoint=endpoint_at(_LOOPBACK, 0), exchange=NearExchange(shell), hosted=serving)
    finally:
        shell.stop()
        await serving


@contextlib.asynccontextmanager
async def _store_port(shell: Coordinator, master: MasterAddress | None) -> AsyncIterator[None]:
    """Serve each round's store at the address of the command line while the context lasts; raises `ConfigError`."""
    if master is None:
        yield
        return
    shared = SharedPort(lambda: shell.store)
    try:
        await shared.start(master.host, master.port)
    except OSError as error:
        raise ConfigError(
            f"{master.flag} {master.port}: cannot open the port of the TCPStore on {master.host}: {error.strerror}; "
            "choose another port, or omit the flag to use a free port"
        ) from error
    try:
        yield
    finally:
        await shared.close()


def _new_state(options: RunOptions, clock: Clock) -> rendezvous.State:
    return rendezvous.new(
        rendezvous.Settings.from_plan(options.plan),
        job=options.plan.name,
        uid=secrets.token_hex(8),
        attempt=ATTEMPT,
        term=TERM,
        now=clock(),
        registered=coordinator_capabilities(options.plan),
    )
