"""The local backend: everything that blocks runs in threads, everything that decides is elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from rallypoint.backends.certificates import renewing
from rallypoint.backends.contract import (
    ActionError,
    Backend,
    Blueprint,
    Changes,
    JobExistsError,
    JobNotFoundError,
    LogLine,
    Pulse,
    Stored,
    Tail,
    UnitBackend,
)
from rallypoint.backends.local import checks, proc
from rallypoint.backends.local.certificates import renew
from rallypoint.backends.local.changes import LocalChanges
from rallypoint.backends.local.command_lines import HOST, coordinator_command, mark, node_command
from rallypoint.backends.local.files import UnreadableError, telling
from rallypoint.backends.local.heartbeat import beating, read_pulse
from rallypoint.backends.local.layout import FOREIGN, JobFolder
from rallypoint.backends.local.logs import LogReader
from rallypoint.backends.local.node import SHIM, NodeFolder
from rallypoint.backends.local.store import Hold, LockedError, Store, sweep
from rallypoint.backends.local.units import LocalUnits, node_devices, not_own
from rallypoint.backends.sweeping import EVERY, sweeping
from rallypoint.backends.uninterrupted import in_thread
from rallypoint.supervision.actions import Action, CreateCoordinator, CreateNode, Purge, RemoveCoordinator, RemoveNode
from rallypoint.supervision.observation import NodeSeen, Observation
from rallypoint.supervision.record import Holder, JobRecord
from rallypoint.wire.env import FUNCTION_FILE, HOME
from rallypoint.wire.plan import OrphanPolicy, Plan
from rallypoint.wire.python import run_module
from rallypoint.wire.role_plans import role_plans
from rallypoint.wire.status import JobStatus

if TYPE_CHECKING:
    from rallypoint.job import ElasticJob

__all__ = ["LocalBackend"]

log = logging.getLogger(__name__)

T = TypeVar("T")

P = ParamSpec("P")

#: Seconds to wait for the lock of a record, which is usually held for milliseconds, and between two tries: first, and last.
_LOCKED, _TRY, _TRY_LAST = 30.0, 0.01, 0.5

#: How often a log is looked at that is followed, in seconds.
_FOLLOW = 0.2


class LocalBackend(Backend):
    """Jobs as processes of this machine.

    Args:
        home: the folder that holds everything; it must be on a disk of this machine, since processes are.
        agent_command: what runs coordinators and nodes; None is this Python's `rallypoint.agent`.
        clock: gives the time of submission, in seconds since the epoch.
        sweeps: seconds between two looks at jobs that are over, while this process supervises any.
        own_folders: read no log outside of the job's folder (`log_dir`), for a process that may read what the job may not.
        told_home: the folder that the jobs are told of; None is `home`.
        devices: gives variables of a node by the job's name and the node's number.
        job_of_roles: the job whose elastic roles are the jobs here; None for jobs of their own.
    """

    name = "local"

    def __init__(
        self,
        home: Path,
        *,
        agent_command: Sequence[str] | None = None,
        clock: Callable[[], float] = time.time,
        sweeps: float = EVERY,
        own_folders: bool = False,
        told_home: Path | None = None,
        devices: Callable[[str, int], Mapping[str, str]] | None = None,
        job_of_roles: JobFolder | None = None,
    ) -> None:
        self.home = home
        self._told_home, self._devices = told_home or home, devices
        self._own_folders = own_folders
        self._store = Store(home=home, job_of_roles=job_of_roles)
        self._own_agent = agent_command is None
        self._agent = tuple(agent_command or run_module("rallypoint.agent"))
        self._clock, self._sweeps = clock, sweeps
        #: Nodes that ended are what they are for ever; by uid and path.
        self._ended: dict[tuple[str, Path], NodeSeen] = {}
        #: Users of jobs by their uid: a sweep needs them after the folder is gone.
        self._users: dict[str, int] = {}
        #: What was said of a job's status.json that cannot be read, by name.
        self._unreadable: dict[str, str] = {}

    def plan(self, job: ElasticJob, *, orphan_policy: OrphanPolicy = OrphanPolicy.CONTINUE) -> Blueprint:
        """Return the folder, the files and the exact command of every process."""
        # The models of jobs need pydantic, which is slow to import; what only reads jobs does without.
        from rallypoint.backends.local.blueprint import draw  # noqa: PLC0415
        from rallypoint.job.platform import refuse_elsewhere  # noqa: PLC0415

        refuse_elsewhere(job.platform, job.namespace, backend=self.name)
        if not Path(job.roles[0].workdir).is_absolute():
            job = job.with_base(Path.cwd())
        return draw(job, self._store.job(job.name), self._agent, orphan_policy=orphan_policy)

    async def submit(self, blueprint: Blueprint, *, owner: str) -> Stored:
        """Create the job's folder; see `Backend.submit`."""
        return await in_thread(self._submit, blueprint, owner)

    def _submit(self, blueprint: Blueprint, owner: str) -> Stored:
        existing = self._store.load(blueprint.plan.name)
        if existing is None:
            self._check(blueprint)
            try:
                return self._store.create(blueprint, owner=owner, now=self._clock())
            except JobExistsError:
                existing = self._store.load(blueprint.plan.name)
                if existing is None:
                    raise
        if existing.is_of(blueprint, owner=owner):
            return existing
        raise JobExistsError.of(existing, blueprint, owner=owner)

    def _check(self, blueprint: Blueprint) -> None:
        if self._own_agent:
            checks.check_agent()
        for role in role_plans(blueprint.plan):
            with checks.at_role(role.name):
                checks.check_plan(role.read(), home=self.home, host=HOST)
        if not blueprint.plan.roles:
            checks.check_plan(blueprint.plan, home=self.home, host=HOST)

    async def load(self, name: str) -> Stored | None:
        """Read record.json and plan.json."""
        return await in_thread(self._load, name)

    def _load(self, name: str) -> Stored | None:
        stored = self._store.load(name)
        if stored is not None:
            with contextlib.suppress(FileNotFoundError):
                self._users.setdefault(stored.record.uid, self._store.job(name).owner())
        return stored

    async def save(self, record: JobRecord, *, version: str, blueprint: Blueprint | None = None) -> Stored:
        """Replace record.json; see `Backend.save`."""
        if blueprint is not None:
            await in_thread(self._check, blueprint)
        return await _unlocked(self._store.save, record, version=version, blueprint=blueprint)

    async def observe(self, record: JobRecord) -> Observation:
        """Look at every node's folder and process, then read status.json."""
        return await in_thread(self._observe, record)

    def _observe(self, record: JobRecord) -> Observation:
        if not self._store.is_own():
            raise UnreadableError(f"{self._store.jobs}: {FOREIGN}")
        folder = self._store.job(record.name)
        with telling(folder.path):
            nodes = self._look(record.uid, (node for _, node in folder.nodes()))
            coordinators = self._look(record.uid, folder.coordinators())
        return Observation(nodes=nodes, coordinators=coordinators, status=self._status(record.name))

    def _look(self, uid: str, nodes: Iterable[NodeFolder]) -> tuple[NodeSeen, ...]:
        found = []
        for node in nodes:
            seen = self._ended.get((uid, node.path)) or node.look()
            if seen is None:
                continue
            found.append(seen)
            if not seen.present:
                self._ended[uid, node.path] = seen
        return tuple(found)

    def _status(self, name: str) -> JobStatus | None:
        """Read status.json; what cannot be understood counts as not said, or nothing could ever end the job."""
        try:
            status = self._store.status(name)
        except UnreadableError as error:
            if self._unreadable.get(name) != str(error):
                self._unreadable[name] = str(error)
                log.warning(
                    "job=%s: the supervisor cannot read the job status (%s); it continues without the status", name, error
                )
            return None
        self._unreadable.pop(name, None)
        return status

    async def act(self, record: JobRecord, plan: Plan, action: Action) -> None:
        """Start, end or remove; see `Backend.act`."""
        await _unlocked(self._act, record, action)

    def _act(self, record: JobRecord, action: Action) -> None:
        folder = self._store.job(record.name)
        if isinstance(action, Purge):
            self._store.purge(record)
            return
        current = self._store.load(record.name)
        if current is None or current.record.uid != record.uid:
            if isinstance(action, (CreateNode, CreateCoordinator)):
                raise ActionError(f"job {record.name} was deleted")
            return
        tls = bool(current.plan.tls)
        if isinstance(action, CreateCoordinator):
            command = coordinator_command(
                self._agent, folder, uid=record.uid, attempt=action.attempt, term=action.term, tls=tls
            )
            self._start(record, folder.coordinator(action.term), action.attempt, command)
        elif isinstance(action, CreateNode):
            node = folder.node(action.node, action.attempt, action.incarnation)
            command = node_command(
                self._agent, folder, attempt=action.attempt, node=action.node, incarnation=action.incarnation, tls=tls
            )
            self._start(record, node, action.attempt, command, environment=self._devices)
        elif isinstance(action, RemoveCoordinator):
            self._end(record, folder.coordinator(action.term), force=action.force)
        elif isinstance(action, RemoveNode):
            self._end(record, folder.node(action.node, action.attempt, action.incarnation), force=action.force)

    def _start(
        self,
        record: JobRecord,
        node: NodeFolder,
        attempt: int,
        command: Sequence[str],
        *,
        name: str = "",
        environment: Callable[[str, int], Mapping[str, str]] | None = None,
    ) -> None:
        number = "coordinator" if node.number < 0 else node.number
        with telling(node.path, ActionError):
            others = self._store.owners(record.name) - {os.geteuid()}
        # A script can write the record of its job, and would run as root where root only deletes the job.
        if others:
            raise ActionError(not_own(record.name, min(others)), fatal=True)
        node.start(
            command,
            record=self._store.job(record.name).record,
            attempt=attempt,
            mark=name or mark(record.uid, attempt, number, node.incarnation),
            environment={
                **os.environ,
                HOME: str(self._told_home),
                FUNCTION_FILE: str(self._store.job(record.name).function),
                **(environment(record.name, node.number) if environment is not None else {}),
            },
        )

    def units(self, name: str) -> UnitBackend:
        """Return the units of a job with roles; the jobs of its elastic roles lie in its own folder."""
        folder = self._store.job(name)
        jobs = LocalBackend(
            folder.path,
            agent_command=None if self._own_agent else self._agent,
            clock=self._clock,
            sweeps=self._sweeps,
            own_folders=self._own_folders,
            told_home=self._told_home,
            devices=functools.partial(node_devices, folder),
            job_of_roles=folder,
        )

        def start_host(record: JobRecord, host: NodeFolder, command: Sequence[str], name: str) -> None:
            self._start(record, host, record.attempt, command, name=name)

        return LocalUnits(jobs, folder, self._agent, start_host, own_folders=self._own_folders)

    def _end(self, record: JobRecord, node: NodeFolder, *, force: bool) -> None:
        with telling(node.path, ActionError):
            node.end(force=force, user=self._users.get(record.uid))

    @contextlib.asynccontextmanager
    async def changes(self, name: str) -> AsyncIterator[Changes]:
        """Follow the job's processes and files."""
        following = LocalChanges(self._store.job(name))
        try:
            await in_thread(following.open)
            yield following
        finally:
            following.close()

    @contextlib.asynccontextmanager
    async def hold(self, name: str, *, holder: str) -> AsyncIterator[None]:
        """Lock supervisor.lock; the kernel gives it back when this process ends."""
        await in_thread(self._store.require_own_home)
        held = Hold(self._store.job(name), holder)
        try:
            await in_thread(held.acquire)
            async with renewing(name, lambda: in_thread(renew, self._store.job(name), name, self._clock())):
                yield
        finally:
            held.release()

    @contextlib.asynccontextmanager
    async def heartbeat(self, holder: str) -> AsyncIterator[Holder]:
        """Beat in a file under `supervisors`; a process that does looks after the jobs that are over, too."""
        store, clock = self._store, self._clock
        await in_thread(store.require_own_home)
        async with (
            beating(self.home, holder) as me,
            sweeping(self.home, lambda: in_thread(sweep, store, clock()), every=self._sweeps),
        ):
            yield me

    async def pulse(self, holder: Holder) -> Pulse | None:
        """Read that file, and look for its process."""
        return await in_thread(read_pulse, holder, self.home)

    async def sweep(self, record: JobRecord) -> bool:
        """Kill whatever carries the job's mark; see `Backend.sweep`."""
        return await in_thread(self._sweep, record)

    def _sweep(self, record: JobRecord) -> bool:
        current = self._store.load(record.name)
        if current is not None and current.record.uid == record.uid:
            return True
        # The shims see for themselves that their folder is gone; they end last, so that nobody escapes who has no mark.
        # A script can write the uid of any job into its record.
        return not proc.kill_job(record.uid, spare=SHIM, user=self._users.get(record.uid, os.geteuid()))

    async def status(self, name: str) -> JobStatus | None:
        """Read status.json."""
        return await in_thread(self._status, name)

    async def status_age(self, name: str, status: JobStatus) -> float | None:
        """Compare with this machine's clock: the coordinator runs here, too."""
        return max(0.0, time.time() - status.updated_at)

    async def names(self) -> tuple[str, ...]:
        """List the folders that hold a record."""
        return await in_thread(self._store.names)

    async def logs(
        self, name: str, *, rank: int | None = None, cursor: str = "", follow: bool = False
    ) -> AsyncIterator[LogLine]:
        """Read the per-rank files; see `Backend.logs`."""
        reader = await self._reader(name, rank=rank, cursor=cursor)
        over = False
        while True:
            lines = await in_thread(reader.read, final=over)
            for line in lines:
                yield line
            if lines:
                continue
            if over:
                return
            over = await self._is_over(name)
            if not over and not follow:
                return
            await asyncio.sleep(0 if over else _FOLLOW)

    async def tail(self, name: str, *, lines: int, rank: int | None = None) -> Tail:
        """Read the ends of the per-rank files; see `Backend.tail`."""
        reader = await self._reader(name, rank=rank)
        return await in_thread(reader.tail, lines, final=await self._is_over(name))

    async def _reader(self, name: str, *, rank: int | None, cursor: str = "") -> LogReader:
        stored = await self.load(name)
        if stored is None:
            raise JobNotFoundError(f"job {name!r} not found")
        folder, own = self._store.job(name), self._own_folders
        return await in_thread(LogReader, folder, stored.plan, rank=rank, cursor=cursor, own_folder=own)

    async def _is_over(self, name: str) -> bool:
        stored = await self.load(name)
        return stored is None or stored.record.released

    async def close(self) -> None:
        """Nothing is held: every file is opened for the moment in which it is needed."""


async def _unlocked(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a function as `in_thread` does; again while a record is locked. The script of a job can lock its record for ever.

    Raises `LockedError` after `_LOCKED` seconds.
    """
    loop, pause = asyncio.get_running_loop(), _TRY
    until = loop.time() + _LOCKED
    while True:
        try:
            return await in_thread(function, *args, **kwargs)
        except LockedError:
            if loop.time() >= until:
                raise
        await asyncio.sleep(pause)
        pause = min(2 * pause, _TRY_LAST)
