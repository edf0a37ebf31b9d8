"""`rallypoint-agent coordinator` and `rallypoint-agent node`: what the supervisor starts in pods and slots."""

from __future__ import annotations

import argparse
import asyncio
import errno
import os
import signal
from pathlib import Path

from rallypoint.agent import rendezvous
from rallypoint.agent.client import CoordinatorClient, FileEndpoint
from rallypoint.agent.clock import Clock, monotone_clock
from rallypoint.agent.coordinator import Coordinator
from rallypoint.agent.errors import ConfigError, StaleError
from rallypoint.agent.files import read_json, read_secret, replace_durably
from rallypoint.agent.http_client import HttpExchange
from rallypoint.agent.http_server import HttpServer
from rallypoint.agent.logs import Streams
from rallypoint.agent.node import NodeAgent
from rallypoint.agent.orphan import FileHeartbeat, keep_watch
from rallypoint.agent.round import NodeConfig
from rallypoint.agent.sink import FileSink, read_status, refuse_later
from rallypoint.wire import codec
from rallypoint.wire.endpoint import Endpoint
from rallypoint.wire.exits import Exit
from rallypoint.wire.plan import OrphanPolicy, Plan
from rallypoint.wire.status import JobStatus

__all__ = ["coordinator", "node", "require_room"]

#: Bytes that must fit into a folder of logs for a start to make sense.
_ROOM = 4096


def coordinator(args: argparse.Namespace) -> int:
    """Run one coordinator to its end and return the exit code."""
    plan = _read_plan(args.plan)
    secret = read_secret(args.secret_file)
    refuse_later_endpoint(read_json(Endpoint, args.endpoint_file), args)
    previous = read_status(args.status_file)
    return asyncio.run(_coordinate(args, plan, secret, previous))


async def _coordinate(args: argparse.Namespace, plan: Plan, secret: str, previous: JobStatus | None) -> int:
    clock = monotone_clock()
    state = rendezvous.new(
        rendezvous.Settings.from_plan(plan),
        job=plan.name,
        uid=args.uid,
        attempt=args.attempt,
        term=args.term,
        now=clock(),
        previous=previous,
    )
    refuse_later(previous, rendezvous.status(state, clock()), args.status_file)
    shell = Coordinator(state, sink=FileSink(args.status_file), clock=clock)
    server = HttpServer(shell, token=secret)
    signalled: list[int] = []
    loop = asyncio.get_running_loop()

    def stop(number: int) -> None:
        signalled.append(number)
        shell.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    try:
        port = await server.start(args.host, plan.coordinator_port)
        await _announce(shell, args, port)
        await _serve(shell, args.record_file, plan, clock)
    finally:
        await server.close()
    return 128 + signalled[0] if signalled else Exit.OK


async def _serve(shell: Coordinator, record: Path | None, plan: Plan, clock: Clock) -> None:
    """Serve to the end, with an eye on the supervisor where it is known where its heartbeat is read."""
    if record is None:
        await shell.serve()
        return
    watching = asyncio.create_task(keep_watch(shell, FileHeartbeat(record), plan, clock))
    try:
        await shell.serve()
    finally:
        watching.cancel()
        await asyncio.wait([watching])
    if not watching.cancelled():
        watching.result()


async def _announce(shell: Coordinator, args: argparse.Namespace, port: int) -> None:
    """Make the first status durable, then tell where we are: an agent that finds us can be answered."""
    endpoint = Endpoint(attempt=args.attempt, term=args.term, host=args.host, port=port)
    path = args.status_file
    try:
        await shell.publish_first()
        path = args.endpoint_file
        await asyncio.to_thread(replace_durably, path, codec.dumps(endpoint) + "\n")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from error


def refuse_later_endpoint(known: Endpoint | None, args: argparse.Namespace) -> None:
    """Raise `StaleError` when a later coordinator has announced itself."""
    if known is not None and (known.attempt, known.term) > (args.attempt, args.term):
        later = f"attempt {known.attempt}, term {known.term}"
        raise StaleError(f"{args.endpoint_file}: {later} listens there; this is attempt {args.attempt}, term {args.term}")


def node(args: argparse.Namespace) -> int:
    """Run one node agent to its end and return the exit code."""
    plan = _read_plan(args.plan)
    secret = read_secret(args.secret_file)
    config = NodeConfig(
        plan=plan,
        attempt=args.attempt,
        node=args.node,
        incarnation=args.incarnation,
        host=args.host,
        folder=args.dir,
        log_folder=_log_folder(plan, args),
        streams=Streams.from_plan(plan),
    )
    require_room(config.folder)
    require_room(config.log_folder)
    return asyncio.run(_take_part(config, FileEndpoint(args.endpoint_file), secret))


def _log_folder(plan: Plan, args: argparse.Namespace) -> Path:
    if not plan.log_dir:
        return Path(args.dir) / "logs"
    return Path(plan.log_dir) / plan.name / f"attempt-{args.attempt}" / f"node-{args.node}.{args.incarnation}"


async def _take_part(config: NodeConfig, source: FileEndpoint, secret: str) -> int:
    plan = config.plan
    client = CoordinatorClient(
        source=source,
        exchange=HttpExchange(secret),
        fence_timeout=plan.fence_timeout,
        attempt=config.attempt,
        lease=plan.lease if plan.orphan_policy is OrphanPolicy.STOP else None,
    )
    ending = await NodeAgent(config, client=client, clock=monotone_clock()).run()
    return ending.code


def _read_plan(path: Path) -> Plan:
    plan = read_json(Plan, path)
    if plan is None:
        raise ConfigError(f"--plan {path}: there is no such file")
    return plan


def require_room(folder: Path) -> None:
    """Raise `ConfigError` when nothing can be written in `folder`, which is made if need be."""
    probe = folder / f".room-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with probe.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, _ROOM)
    except OSError as error:
        full = "the disk is full" if error.errno == errno.ENOSPC else error.strerror
        raise ConfigError(f"folder {folder}: cannot be written: {full}") from error
    finally:
        if probe.exists():
            probe.unlink()
