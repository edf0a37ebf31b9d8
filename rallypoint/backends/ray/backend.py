"""The Ray backend: every method is a call of the ledger, which runs on the cluster. Nothing here needs the package ray."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import secrets
from collections.abc import AsyncIterator, Awaitable
from typing import Any

from rallypoint.backends.contract import (
    Backend,
    BackendError,
    Blueprint,
    Changes,
    JobNotFoundError,
    LogLine,
    Pulse,
    Stored,
    Tail,
    UnitBackend,
)
from rallypoint.backends.cursors import MAX_RANKS, rank_limit
from rallypoint.backends.identity import require_job
from rallypoint.backends.local.layout import is_job_name
from rallypoint.backends.ray import calls
from rallypoint.backends.ray.access import Access, read_runtime_env
from rallypoint.backends.ray.dashboard import Cluster, NoLedgerError
from rallypoint.backends.ray.heart import Heart
from rallypoint.backends.ray.placement import FILE, Placement, draw
from rallypoint.backends.ray.roles import draw_roles
from rallypoint.backends.ray.units import RayUnits
from rallypoint.backends.uninterrupted import uninterrupted
from rallypoint.job import ElasticJob
from rallypoint.job.compile_roles import has_roles
from rallypoint.job.platform import refuse_elsewhere
from rallypoint.supervision.actions import Action
from rallypoint.supervision.observation import Observation
from rallypoint.supervision.record import Holder, JobRecord
from rallypoint.wire import codec
from rallypoint.wire.plan import OrphanPolicy, Plan
from rallypoint.wire.status import JobStatus

__all__ = ["RayBackend"]

#: Seconds beyond the wait for a change after which a call is given up, and the pause after a call that failed.
_SLACK, _PAUSE = 15.0, 1.0

#: Longest wait of one call for a change, and shortest time between two such calls, in seconds.
_WAIT, _SPACING = 15.0, 0.2

#: Seconds for a call that changes processes or placement groups.
_ACT = 60.0

#: Methods that start no ledger in a namespace without a submission, unless this process supervises; what they return there.
_READING = frozenset(("load", "names", "status", "logs", "tail", "unit_logs", "unit_tail", "pulse", "changes"))
_NOTHING: dict[str, Any] = {"load": None, "names": [], "status": None, "pulse": None}


class RayBackend(Backend):
    """Jobs of one namespace of a Ray cluster.

    Args:
        access: how the cluster is reached.
        cluster: its open connections; None opens them.
        within: the job whose elastic roles are the jobs of this backend; it shares the connections and the heart of `parent`.
        parent: the backend of that job.
    """

    name = "ray"
    #: The ledger wakes supervisors at every change.
    poll = 15.0
    clock_saved_every = 60.0

    def __init__(
        self, access: Access, *, cluster: Cluster | None = None, within: str = "", parent: RayBackend | None = None
    ) -> None:
        self.access = access
        self._opened = cluster
        self._hearts: Heart | None = None
        self._within, self._parent = within, parent

    @property
    def _cluster(self) -> Cluster:
        if self._parent is not None:
            return self._parent._cluster  # noqa: SLF001  another one of this class
        if self._opened is None:
            self._opened = Cluster(self.access)
        return self._opened

    async def call(self, method: str, *, job: str = "", timeout: float | None = None, **given: Any) -> Any:
        """Call a method of the ledger about a job of this backend; see `Cluster.call`."""
        more: dict[str, Any] = {} if timeout is None else {"timeout": timeout}
        if method in _READING and not self._heart.beats:
            more["reading"] = True
        try:
            return await self._cluster.call(method, job=job, parent=self._within, **more, **given)
        except NoLedgerError as error:
            if method not in _NOTHING:
                raise JobNotFoundError(f"job {job!r} not found: {error}") from error
            return _NOTHING[method]

    def me(self, name: str) -> str:
        """Return the id of this process where it holds the job, else ""."""
        return self._heart.id if self._key(name) in self._heart.jobs else ""

    def _key(self, name: str) -> str:
        return f"{self._within}/{name}" if self._within else name

    @property
    def _heart(self) -> Heart:
        if self._parent is not None:
            return self._parent._heart  # noqa: SLF001  another one of this class
        if self._hearts is None:

            async def beat(me: str, jobs: dict[str, str], leave: bool) -> str:  # noqa: FBT001  see `Heart`
                return str(await self.call("beat", me=me, jobs=jobs, leave=leave))

            self._hearts = Heart(beat)
        return self._hearts

    def plan(self, job: ElasticJob, *, orphan_policy: OrphanPolicy = OrphanPolicy.CONTINUE) -> Blueprint:
        """Return the placement groups and actors of the job's first attempt."""
        refuse_elsewhere(job.platform, job.namespace, backend=self.name, its_namespace=self.access.namespace)
        runtime_env = read_runtime_env(self.access.runtime_env)
        drawn = draw_roles if has_roles(job) else draw
        return drawn(job, namespace=self.access.namespace, runtime_env=runtime_env, orphan_policy=orphan_policy)

    async def submit(self, blueprint: Blueprint, *, owner: str) -> Stored:
        """Submit the Ray job with the job's uid, then create the record in the ledger; see `Backend.submit`."""
        uid = secrets.token_hex(8)
        if not self._within:
            await self._cluster.find(uid)
        given = await self._given(blueprint)
        name = blueprint.plan.name
        data = await self.call("submit", job=name, timeout=_ACT, owner=owner, uid=uid, **given)
        return _there(await calls.read_stored(data, name=name), name)

    async def _given(self, blueprint: Blueprint) -> dict[str, Any]:
        placement = blueprint.attached[FILE]
        if not self._within:  # the runtime environment of a role's job is in its ledger, and was uploaded before
            drawn = codec.loads(Placement, placement)
            placement = codec.dumps(dataclasses.replace(drawn, runtime_env=await self._cluster.upload()))
        return {
            "document": blueprint.job.to_document(),
            "plan": codec.to_json(blueprint.plan),
            "placement": placement,
            "function": blueprint.function,
            "claimant": blueprint.claimant,
        }

    async def load(self, name: str) -> Stored | None:
        """Read the record; raises `HeldError` where this process held the job and another has taken it over."""
        if not is_job_name(name):
            return None
        return await calls.read_stored(await self.call("load", job=name, name=name, me=self.me(name)), name=name)

    async def save(self, record: JobRecord, *, version: str, blueprint: Blueprint | None = None) -> Stored:
        """Replace the record; see `Backend.save`."""
        given = None if blueprint is None else await self._given(blueprint)
        saved = await self.call(
            "save", job=record.name, record=await calls.write_record(record), version=version, blueprint=given
        )
        plan, kept = await calls.read(Plan, calls.field(saved, "plan")), str(calls.field(saved, "version"))
        require_job(record, plan, name=record.name, where=calls.WHERE)
        return Stored(record=record, plan=plan, version=kept)

    async def observe(self, record: JobRecord) -> Observation:
        """Return the nodes as their actors report them, then the status."""
        data = await self.call("observe", job=record.name, record=await calls.write_record(record))
        return await calls.read(Observation, data)

    async def act(self, record: JobRecord, plan: Plan, action: Action) -> None:
        """Have the ledger do one action; see `Backend.act`."""
        await self.call(
            "act",
            job=record.name,
            timeout=_ACT,
            record=await calls.write_record(record),
            plan=codec.to_json(plan),
            action=calls.action_to(action),
            me=self.me(record.name),
        )

    @contextlib.asynccontextmanager
    async def changes(self, name: str) -> AsyncIterator[Changes]:
        """Follow a job by calls that the ledger answers when something has changed."""
        if not is_job_name(name):
            raise JobNotFoundError(f"{name!r} is not a valid job name; expected letters, digits, '-', '_' and '.'")
        following = _RayChanges(self, name)
        try:
            yield following
        finally:
            await following.close()

    @contextlib.asynccontextmanager
    async def hold(self, name: str, *, holder: str) -> AsyncIterator[None]:
        """Hold the job in the ledger for as long as this process beats."""
        heart = self._heart
        me = await heart.join(holder)
        try:
            await self.call("hold", job=name, name=name, me=me.id, holder=me.describe())
            heart.jobs[self._key(name)] = me.describe()
            try:
                yield
            finally:
                heart.jobs.pop(self._key(name), None)
                with contextlib.suppress(BackendError):
                    await uninterrupted(self.call("release", job=name, name=name, me=me.id))
        finally:
            await heart.leave()

    @contextlib.asynccontextmanager
    async def heartbeat(self, holder: str) -> AsyncIterator[Holder]:
        """Beat in the ledger."""
        me = await self._heart.join(holder)
        try:
            yield me
        finally:
            await self._heart.leave()

    async def pulse(self, holder: Holder) -> Pulse | None:
        """Read that heartbeat."""
        data = await self.call("pulse", holder=codec.to_json(holder))
        return None if data is None else await calls.read(Pulse, data)

    async def sweep(self, record: JobRecord) -> bool:
        """End what is left of a job; see `Backend.sweep`."""
        return bool(await self.call("sweep", job=record.name, record=await calls.write_record(record)))

    async def status(self, name: str) -> JobStatus | None:
        """Return the coordinator's last status."""
        data = await self.call("status", job=name, name=name) if is_job_name(name) else None
        return None if data is None else await calls.read_status(data, name=name)

    async def names(self) -> tuple[str, ...]:
        """List the jobs of the ledger."""
        found = await self.call("names")
        return tuple(name for name in found if isinstance(name, str) and is_job_name(name)) if isinstance(found, list) else ()

    async def logs(
        self, name: str, *, rank: int | None = None, cursor: str = "", follow: bool = False
    ) -> AsyncIterator[LogLine]:
        """Read the copies of the workers' output that the ledger has; see `Backend.logs`."""
        stored = await self.load(name)
        ranks = MAX_RANKS if stored is None else rank_limit(stored.plan)

        def request(cursor: str) -> Awaitable[Any]:
            return self.call("logs", job=name, name=name, rank=rank, cursor=cursor)

        async for line in calls.lines_of(request, cursor=cursor, follow=follow, rank=rank, ranks=ranks):
            yield line

    async def tail(self, name: str, *, lines: int, rank: int | None = None) -> Tail:
        """Read the ends of these copies; see `Backend.tail`."""
        return await calls.read_tail(await self.call("tail", job=name, name=name, lines=lines, rank=rank))

    def units(self, name: str) -> UnitBackend:
        """Return the units of a job with roles."""
        return RayUnits(self.call, self.me, RayBackend(self.access, within=name, parent=self))

    async def close(self) -> None:
        """Close the connections. The jobs go on."""
        if self._opened is not None:
            await self._opened.close()
        self._opened = self._hearts = None


class _RayChanges(Changes):
    """One call waits at the ledger at all times, so that nothing between two waits is lost."""

    def __init__(self, backend: RayBackend, name: str) -> None:
        self._backend, self._name, self._seen = backend, name, -1
        self._next = 0.0
        self._call: asyncio.Task[int] | None = None

    async def wait(self, timeout: float) -> None:
        if self._call is None:
            self._call = asyncio.create_task(self._ask())
        await asyncio.wait([self._call], timeout=timeout)
        if self._call.done():
            call, self._call = self._call, None
            self._seen = call.result()

    async def _ask(self) -> int:
        loop = asyncio.get_running_loop()
        while True:
            # Any program on the cluster can announce a ledger, and answer at once.
            await asyncio.sleep(max(0.0, self._next - loop.time()))
            self._next = loop.time() + _SPACING
            try:
                data = await self._backend.call(
                    "changes", job=self._name, timeout=_WAIT + _SLACK, name=self._name, seen=self._seen, within=_WAIT
                )
            except BackendError as error:
                # The next turn reports what is wrong.
                await asyncio.sleep(_WAIT if isinstance(error, JobNotFoundError) else _PAUSE)
                return -1
            if (seen := calls.number(data, "seen")) != self._seen:
                return seen

    async def close(self) -> None:
        if self._call is not None:
            self._call.cancel()
            await asyncio.wait([self._call])


def _there(stored: Stored | None, name: str) -> Stored:
    if stored is None:
        raise BackendError(f"job {name} was deleted right after it was changed")
    return stored
