"""`rallypoint-agent run`: torchrun's job done by hand, without a supervisor.

A node by itself hosts its coordinator in its own process. Several nodes are given one `--rdzv-endpoint`: the agent that can
open the port hosts the coordinator, the others join it there, and the host stays until every other was told how it ended.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
import hashlib
import logging
import os
import secrets
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

from rallypoint.agent.clock import Clock, monotone_clock
from rallypoint.agent.commands import require_room
from rallypoint.agent.coordinator.shell import Coordinator
from rallypoint.agent.coordinator.sink import MemorySink
from rallypoint.agent.errors import ConfigError
from rallypoint.agent.node.agent import Ending, NodeAgent
from rallypoint.agent.node.node_config import NodeConfig
from rallypoint.agent.options import Meeting, RunOptions, read_options
from rallypoint.agent.rendezvous import core as rendezvous
from rallypoint.agent.report import describe_verdict
from rallypoint.agent.transport.client import CoordinatorClient, FixedEndpoint
from rallypoint.agent.transport.http_client import HttpExchange, speaks_rallypoint
from rallypoint.agent.transport.http_server import HttpServer
from rallypoint.agent.waiting import set_within
from rallypoint.wire import env
from rallypoint.wire.endpoint import Endpoint
from rallypoint.wire.exits import Exit

__all__ = ["run"]

log = logging.getLogger("rallypoint.run")

#: A job by hand has one attempt and one coordinator.
_ATTEMPT = _TERM = 1

#: Seconds for the owner of a port in use to say who it is.
_WHO_IS_THERE = 5.0


def run(args: argparse.Namespace) -> int:
    """Run one agent to its end, print how a failed job ended, and return the exit code."""
    options = read_options(args, os.environ)
    logs, temporary = _log_folder(options)
    shared = Path(tempfile.mkdtemp(prefix="rallypoint-"))
    try:
        ending = asyncio.run(_run(options, logs, shared))
    finally:
        shutil.rmtree(shared, ignore_errors=True)
        if temporary:
            shutil.rmtree(logs, ignore_errors=True)
    if ending.node.verdict is not None and ending.code != Exit.OK:
        print(describe_verdict(ending.node.verdict), file=sys.stderr)  # noqa: T201 what a person at the terminal reads
    elif ending.code != Exit.OK:
        log.warning("%s", ending.node.reason)
    return ending.code


def _log_folder(options: RunOptions) -> tuple[Path, bool]:
    """Return the folder of this run's logs, and whether nobody will want to read them afterwards."""
    name = "".join(c if c.isalnum() or c in "-_." else "_" for c in options.plan.name)
    base = options.log_dir or None
    if base is not None:
        require_room(Path(base))
    folder = Path(tempfile.mkdtemp(prefix=f"{name}_", dir=base))
    filed = any(options.streams.filed(local_rank) for local_rank in range(options.plan.nproc_per_node))
    if filed:
        log.info("logs of the workers: %s", folder)
    return folder, base is None and not filed


async def _run(options: RunOptions, logs: Path, shared: Path) -> Ending:
    clock = monotone_clock()
    async with _meet(options, clock) as (endpoint, token, hosted):
        config = NodeConfig(
            plan=options.plan,
            attempt=_ATTEMPT,
            node=options.node,
            # Of two agents with one --node-rank the later one is right, also when nobody has seen the other end.
            incarnation=0 if options.node < 0 else int(time.time()),
            host=options.local_addr or _address_towards(endpoint),
            machine=os.environ.get(env.MACHINE, ""),
            folder=shared,
            log_folder=logs,
            streams=options.streams,
            prefix=options.prefix,
        )
        client = CoordinatorClient(
            source=FixedEndpoint(endpoint.host, endpoint.port),
            exchange=HttpExchange(token),
            fence_timeout=options.plan.fence_timeout,
            attempt=_ATTEMPT,
        )
        ending = await NodeAgent(config, client=client, clock=clock).run()
        if hosted is not None and ending.node.verdict is not None:
            await hosted  # until every other node was told
    return ending


# --- Meeting the others ----------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def _meet(options: RunOptions, clock: Clock) -> AsyncIterator[tuple[Endpoint, str, asyncio.Task[None] | None]]:
    """Yield the coordinator's address, the token, and its task where it lives in this process."""
    meeting, token = options.meeting, _token(options)
    shell = Coordinator(_new_state(options, clock), sink=MemorySink(), clock=clock)
    server = HttpServer(shell, token=token)
    port = await _host(server, meeting or Meeting(host="127.0.0.1", port=0))
    endpoint = Endpoint(attempt=_ATTEMPT, term=_TERM, host="127.0.0.1" if meeting is None else meeting.host, port=port or 0)
    if port is None and meeting is not None:
        yield Endpoint(attempt=_ATTEMPT, term=_TERM, host=meeting.host, port=meeting.port), token, None
        return
    serving = asyncio.create_task(shell.serve())
    try:
        yield endpoint, token, serving
    finally:
        shell.stop()
        await serving
        await server.close()


def _token(options: RunOptions) -> str:
    """Return the secret of the run. Without RALLYPOINT_SECRET whoever knows the run's id may join it, as with torchrun."""
    given = os.environ.get(env.SECRET)
    if given:
        return given
    if options.meeting is None:
        return secrets.token_hex(32)
    return hashlib.sha256(f"rallypoint run {options.plan.name}".encode()).hexdigest()


def _new_state(options: RunOptions, clock: Clock) -> rendezvous.State:
    return rendezvous.new(
        rendezvous.Settings.from_plan(options.plan),
        job=options.plan.name,
        uid=secrets.token_hex(8),
        attempt=_ATTEMPT,
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
    endpoint = Endpoint(attempt=_ATTEMPT, term=_TERM, host=meeting.host, port=meeting.port)
    deadline = asyncio.get_running_loop().time() + _WHO_IS_THERE
    known = await speaks_rallypoint(endpoint)
    while known is None and asyncio.get_running_loop().time() < deadline:
        await set_within(asyncio.Event(), 0.1)
        known = await speaks_rallypoint(endpoint)
    if not known:
        where = f"{endpoint.address}: port {meeting.port} is in use by something that is not a Rallypoint coordinator"
        raise ConfigError(f"{where}; give another --rdzv-endpoint")


def _address_towards(endpoint: Endpoint) -> str:
    """Return our own address on the way to the coordinator: the others, who come the same way, reach us there."""
    try:
        info = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(info[0], socket.SOCK_DGRAM) as probe:
            probe.connect(info[4])  # a datagram socket sends nothing by that
            address: str = probe.getsockname()[0]
    except OSError:
        return socket.getfqdn()
    return address
