"""`rallypoint-agent coordinator`: what the supervisor starts once for each term."""

from __future__ import annotations

import argparse
import asyncio
import gc
import signal
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from rallypoint.agent.clock import Clock, monotone_clock
from rallypoint.agent.coordinator import event_lines
from rallypoint.agent.coordinator.home import FileHome, Home
from rallypoint.agent.coordinator.orphan import keep_watch
from rallypoint.agent.coordinator.pod_home import PodHome
from rallypoint.agent.coordinator.record import keep_losses, keep_size
from rallypoint.agent.coordinator.shell import Coordinator, running_services
from rallypoint.agent.coordinator.sink import refuse_later
from rallypoint.agent.errors import ConfigError
from rallypoint.agent.files import read_plan, read_secret
from rallypoint.agent.rendezvous import core as rendezvous
from rallypoint.agent.tls import Tls, job_tls
from rallypoint.agent.transport.choosing import Servers
from rallypoint.capabilities.base import coordinator_capabilities
from rallypoint.wire import codec
from rallypoint.wire.endpoint import Endpoint
from rallypoint.wire.exits import Exit
from rallypoint.wire.messages import AgentReport, Assignment, Continue
from rallypoint.wire.plan import Plan

__all__ = ["coordinator"]

T = TypeVar("T")

#: How many more objects there must be than at the last look before the collector looks at the young ones again. What thousands
#: of agents say at once stays; with 700, Python's default, a part of the time of their rendezvous goes to looking at it.
_YOUNG = 50_000


class _Stopped(Exception):  # noqa: N818  it never leaves this module
    """A signal came before there was anything to stop."""


class _Signals:
    """What the process was asked to do from outside."""

    def __init__(self) -> None:
        self._asked = asyncio.Event()
        self._number = 0
        self.shell: Coordinator | None = None
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._note, number)

    def _note(self, number: int) -> None:
        self._number = number
        self._asked.set()
        if self.shell is not None:
            self.shell.stop()

    async def unless_asked(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what `work` returns; raises `_Stopped` when a signal comes first."""
        task, asked = asyncio.ensure_future(work), asyncio.ensure_future(self._asked.wait())
        try:
            await asyncio.wait({task, asked}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise _Stopped
        finally:
            asked.cancel()
            task.cancel()
            await asyncio.gather(task, asked, return_exceptions=True)

    @property
    def code(self) -> int:
        """How the process ends, when nothing is wrong."""
        return 128 + self._number if self._number else int(Exit.OK)


def coordinator(args: argparse.Namespace) -> int:
    """Run one coordinator to its end and return the exit code."""
    plan, secret = read_plan(args.plan), read_secret(args.secret_file)
    tls = job_tls(args.tls, plan)
    gc.set_threshold(_YOUNG, *gc.get_threshold()[1:])
    return asyncio.run(_coordinate(args, plan, secret, tls))


async def _coordinate(args: argparse.Namespace, plan: Plan, secret: str, tls: Tls | None) -> int:
    signals = _Signals()
    home: Home = FileHome(args) if args.status_configmap is None else PodHome(args, token=secret, tls=tls)
    try:
        await _live(args, plan, home, signals, Proof(secret=secret, tls=tls))
    except _Stopped:
        pass
    finally:
        await home.close()
    return signals.code


@dataclass(frozen=True, kw_only=True)
class Proof:
    """What the parts of the job prove themselves by."""

    secret: str
    tls: Tls | None


async def _live(args: argparse.Namespace, plan: Plan, home: Home, signals: _Signals, proof: Proof) -> None:
    clock = monotone_clock()
    previous = await signals.unless_asked(home.previous())
    state = rendezvous.new(
        rendezvous.Settings.from_plan(plan),
        job=plan.name,
        uid=args.uid,
        attempt=args.attempt,
        term=args.term,
        now=clock(),
        previous=previous,
        registered=coordinator_capabilities(plan),
    )
    refuse_later(previous, rendezvous.status(state, clock()), home.where)
    event_lines.begin()
    event_lines.structured(state, state.events[-1])
    told = event_lines.structured
    shell = Coordinator(state, sink=home.sink, clock=clock, progress_period=home.progress_period, log_event=told)
    signals.shell = shell
    server = Servers(
        shell,
        token=proof.secret,
        service_type=plan.rendezvous.service_type,
        agents=plan.max_nodes,
        door=home.door,
        tls=proof.tls,
    )
    try:
        port, grpc = await server.start(args.host, home.port(plan), grpc=home.grpc_port(plan))
        codec.prepare(AgentReport, Assignment, Continue)
        # The first status is durable before anybody can find us: an agent that does can be answered.
        await signals.unless_asked(_publish_first(shell, home))
        await home.announce(Endpoint(attempt=args.attempt, term=args.term, host=args.host, port=port, grpc=grpc))
        pod = args.status_configmap is not None
        async with running_services(shell, plan, args.host, clock, pod=pod, requested=home.requested):
            await _serve(shell, home, plan, clock)
    finally:
        await server.close()


async def _publish_first(shell: Coordinator, home: Home) -> None:
    try:
        await shell.publish_first()
    except OSError as error:
        raise ConfigError(f"cannot write the job status to {home.where}: {error.strerror or error}") from error


async def _serve(shell: Coordinator, home: Home, plan: Plan, clock: Clock) -> None:
    """Serve to the end, with an eye on the supervisor and on what is wanted, where it is known where that is read."""
    watching: list[asyncio.Task[None]] = []
    if home.heartbeat is not None:
        watching.append(asyncio.create_task(keep_watch(shell, home.heartbeat, plan, clock, look=home.look)))
    if home.size is not None:
        watching.append(asyncio.create_task(keep_size(shell, home.size)))
    if home.losses is not None:
        watching.append(asyncio.create_task(keep_losses(shell, home.losses)))
    try:
        await shell.serve()
    finally:
        for task in watching:
            task.cancel()
        if watching:
            await asyncio.wait(watching)
    for task in watching:
        if not task.cancelled():
            task.result()
