"""The supervisor that a submission starts, while the command runs."""

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

#: Seconds to wait for the start of a supervisor; afterwards the command continues, and the supervisor may still start.
_PATIENCE = 30.0


class Way(str, enum.Enum):
    """Where the supervisor of a submitted job runs."""

    PROCESS = "process"  #: a background process of this machine
    POD = "pod"  #: a pod beside the job
    HERE = "here"  #: the command itself, to the job's end
    NONE = "none"  #: no supervisor


#: Values that each backend allows, the default first.
_WAYS = {
    LOCAL: (Way.PROCESS, Way.HERE, Way.NONE),
    KUBERNETES: (Way.POD, Way.PROCESS, Way.HERE, Way.NONE),
    RAY: (Way.PROCESS, Way.HERE, Way.NONE),
}


class SupervisorLostError(RallypointError):
    """The supervisor exited before its job ended, or did not start."""

    def __init__(self, name: str, story: str, where: Where) -> None:
        super().__init__(f"{story}; to supervise job {name}: {spell_command(where, 'supervise', name)}")


@dataclass(frozen=True, kw_only=True)
class Left:
    """The supervisor of a job. At most one of `pid` and `pod` is set.

    Attributes:
        pid: a process of this machine; 0 for none.
        pod: a pod, by its name; "" for none.
        lost: returns a message when the supervisor has exited or cannot start; None without a supervisor.
    """

    pid: int = 0
    pod: str = ""
    lost: Callable[[], Awaitable[str]] | None = None

    @property
    def words(self) -> str:
        """Description of the supervisor."""
        return f"supervisor {self.pid}" if self.pid else f"supervisor pod {self.pod}" if self.pod else ""


def way_options(parser: UsageParser) -> None:
    """Add the options of the supervisor."""
    parser.group(ADVANCED_OPTIONS).add_argument(
        "--supervise",
        choices=[way.value for way in Way],
        default=None,
        help="where the supervisor runs: process (in the background), pod, here (in this command) or none (no supervisor); "
        "default: pod on Kubernetes, otherwise process",
    )
    group = parser.group(KUBERNETES_OPTIONS)
    group.add_argument(
        "--supervisor-image",
        metavar="IMAGE",
        default="",
        help="container image of the supervisor pod, in which airflow-provider-rallypoint[client,kubernetes] is installed",
    )
    group.add_argument(
        "--supervisor-account",
        metavar="NAME",
        default="",
        help="service account of the supervisor pod (default: rallypoint-supervisor)",
    )


@dataclass(frozen=True, kw_only=True)
class Leaving:
    """How a command starts the supervisor of its job. `pods` is set if the supervisor is a pod."""

    way: Way
    where: Where
    services: Services
    pods: SupervisorPods | None = None

    async def check(self, blueprint: Blueprint) -> None:
        """Raise an error if the supervisor cannot be started, before anything is created."""
        if self.pods is not None:
            await self.pods.check(blueprint)

    async def leave(self, name: str) -> Left:
        """Start the supervisor, if the command needs one."""
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
    """Read the options of the supervisor; ends the command on wrong usage."""
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
    """Return a job's record once its new supervisor has started; raises `SupervisorLostError` if it exits first."""
    if left.lost is None:
        return record
    beginning, end = asyncio.create_task(_begun(backend, record)), asyncio.ensure_future(left.lost())
    try:
        await asyncio.wait({beginning, end}, timeout=_PATIENCE, return_when=asyncio.FIRST_COMPLETED)
        if end.done() and not beginning.done():
            # The job may have ended already, which is no error.
            record = await _reload(backend, record)
            if record.phase is Phase.EMPTY:
                raise SupervisorLostError(record.name, end.result(), where)
        return beginning.result() if beginning.done() else record
    finally:
        # Awaited, because their connections can be closed only in this event loop.
        for task in (beginning, end):
            task.cancel()
        await asyncio.gather(beginning, end, return_exceptions=True)


async def _begun(backend: Backend, record: JobRecord) -> JobRecord:
    async with backend.changes(record.name) as changes:
        while (record := await _reload(backend, record)).phase is Phase.EMPTY:
            await changes.wait(1.0)
    return record


async def _reload(backend: Backend, record: JobRecord) -> JobRecord:
    """Return the current record, or the given one if the job was deleted in the meantime."""
    stored = await backend.load(record.name)
    return record if stored is None else stored.record


async def ended(pid: int) -> None:
    """Return when a process of this machine has exited or does not exist."""
    with contextlib.suppress(ProcessLookupError):
        handle = os.pidfd_open(pid)
        loop, gone = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(handle, gone.set)
        try:
            await gone.wait()
        finally:
            loop.remove_reader(handle)
            os.close(handle)
