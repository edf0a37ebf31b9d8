"""The supervisor that a submission leaves behind, as long as the command is there to see it."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import enum
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rallypoint.backends.site import KUBERNETES, LOCAL, RAY
from rallypoint.cli.options import Where, spell_command
from rallypoint.cli.services import Services
from rallypoint.supervision.record import JobRecord, Phase
from rallypoint.usage import ADVANCED_OPTIONS, KUBERNETES_OPTIONS, UsageParser
from rallypoint.wire.errors import RallypointError

if TYPE_CHECKING:
    from rallypoint.backends.contract import Backend, Blueprint
    from rallypoint.backends.kubernetes.leaving import SupervisorPods

__all__ = ["Leaving", "Left", "SupervisorLostError", "Way", "ended", "leaving", "taken_on", "way_options"]

#: How long a supervisor may take to begin, in seconds; it is not waited for any longer, but it is not given up either.
_PATIENCE = 30.0


class Way(str, enum.Enum):
    """Who supervises a job that a command submits."""

    PROCESS = "process"  #: a process of this machine that outlives the command
    POD = "pod"  #: a pod beside the job
    HERE = "here"  #: the command itself, to the job's end
    NONE = "none"  #: nobody yet


#: What each backend allows, the usual one first.
_WAYS = {
    LOCAL: (Way.PROCESS, Way.HERE, Way.NONE),
    KUBERNETES: (Way.POD, Way.PROCESS, Way.HERE, Way.NONE),
    RAY: (Way.PROCESS, Way.HERE, Way.NONE),
}


class SupervisorLostError(RallypointError):
    """The supervisor that was left behind ended before its job, or never began."""

    def __init__(self, name: str, story: str, where: Where) -> None:
        super().__init__(f"{story}; to supervise job {name}: {spell_command(where, 'supervise', name)}")


@dataclass(frozen=True, kw_only=True)
class Left:
    """Who supervises a job now. At most one of the two is given.

    Attributes:
        pid: a process of this machine; 0 for none.
        pod: a pod, by its name; "" for none.
        lost: returns, with a story, when that one has ended or cannot begin; None where there is nobody to lose.
    """

    pid: int = 0
    pod: str = ""
    lost: Callable[[], Awaitable[str]] | None = None

    @property
    def words(self) -> str:
        """Who it is, for people."""
        return f"supervisor {self.pid}" if self.pid else f"supervisor pod {self.pod}" if self.pod else ""


def way_options(parser: UsageParser) -> None:
    """Add the options that say who supervises."""
    parser.group(ADVANCED_OPTIONS).add_argument(
        "--supervise",
        choices=[way.value for way in Way],
        default=None,
        help="where the supervisor runs: process, pod, here (this command) or none",
    )
    group = parser.group(KUBERNETES_OPTIONS)
    group.add_argument(
        "--supervisor-image",
        metavar="IMAGE",
        default="",
        help="image of the supervisor pod, with rallypoint[client,kubernetes]",
    )
    group.add_argument(
        "--supervisor-account",
        metavar="NAME",
        default="",
        help="service account of the supervisor pod (default: rallypoint-supervisor)",
    )


@dataclass(frozen=True, kw_only=True)
class Leaving:
    """How a command leaves the job that it submits. `pods` is there where a pod is to supervise it."""

    way: Way
    where: Where
    services: Services
    pods: SupervisorPods | None = None

    async def check(self, blueprint: Blueprint) -> None:
        """Raise what stands against it, before anything is created."""
        if self.pods is not None:
            await self.pods.check(blueprint)

    async def leave(self, name: str) -> Left:
        """Leave a supervisor behind, if one is to be."""
        if self.pods is not None:
            return self._left_to_pod(name, await self.pods.leave(name), self.pods)
        if self.way is Way.PROCESS:
            return self._left_to_process(name, self.services.spawn_supervisor(name, self.where.site))
        return Left()

    def _left_to_pod(self, name: str, pod: str, pods: SupervisorPods) -> Left:
        async def lost() -> str:
            return f"the supervisor of job {name} (pod {pod}) {await pods.lost(pod)}"

        return Left(pod=pod, lost=lost)

    def _left_to_process(self, name: str, pid: int) -> Left:
        log = self.services.supervisor_log(name, self.where.site)

        async def lost() -> str:
            await ended(pid)
            return f"the supervisor of job {name} (process {pid}) exited before the job ended; see its log {log}"

        return Left(pid=pid, lost=lost)


def leaving(args: argparse.Namespace) -> Leaving:
    """Return what the command line says of it; tells wrong usage."""
    where: Where = args.where
    ways = _WAYS[where.site.kind]
    way = ways[0] if args.supervise is None else Way(args.supervise)
    if way not in ways:
        allowed = ", ".join(word.value for word in ways)
        args.usage_error(f"--supervise {way.value} is not allowed with backend {where.site.kind}; expected one of {allowed}")
    for option, value in (("image", args.supervisor_image), ("account", args.supervisor_account)):
        if value and way is not Way.POD:
            args.usage_error(f"--supervisor-{option} {value} requires --supervise pod; this job uses --supervise {way.value}")
    services: Services = args.services
    pods = services.supervisor_pods(where.site, args.supervisor_image, args.supervisor_account) if way is Way.POD else None
    return Leaving(way=way, where=where, services=services, pods=pods)


async def taken_on(backend: Backend, record: JobRecord, left: Left, where: Where) -> JobRecord:
    """Return a job's record once its new supervisor has begun; raises `SupervisorLostError` when that one is lost first."""
    if left.lost is None:
        return record
    beginning, end = asyncio.create_task(_begun(backend, record)), asyncio.ensure_future(left.lost())
    try:
        await asyncio.wait({beginning, end}, timeout=_PATIENCE, return_when=asyncio.FIRST_COMPLETED)
        if end.done() and not beginning.done():
            # It may have done its work in between: a job that is over at once is no error.
            record = await _reload(backend, record)
            if record.phase is Phase.EMPTY:
                raise SupervisorLostError(record.name, end.result(), where)
        return beginning.result() if beginning.done() else record
    finally:
        # Waited for: what they have opened is closed in this event loop, or never.
        for task in (beginning, end):
            task.cancel()
        await asyncio.gather(beginning, end, return_exceptions=True)


async def _begun(backend: Backend, record: JobRecord) -> JobRecord:
    async with backend.changes(record.name) as changes:
        while (record := await _reload(backend, record)).phase is Phase.EMPTY:
            await changes.wait(1.0)
    return record


async def _reload(backend: Backend, record: JobRecord) -> JobRecord:
    """Return the record as it is now; what was deleted meanwhile is as it was."""
    stored = await backend.load(record.name)
    return record if stored is None else stored.record


async def ended(pid: int) -> None:
    """Return when a process of this machine has ended, or when there is none of this number."""
    with contextlib.suppress(ProcessLookupError):
        handle = os.pidfd_open(pid)
        loop, gone = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(handle, gone.set)
        try:
            await gone.wait()
        finally:
            loop.remove_reader(handle)
            os.close(handle)
