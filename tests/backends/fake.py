"""A backend in memory: the contract's second body, and the world in which the loop is tested with a clock of its own."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from rallypoint.backends.contract import (
    ActionError,
    Backend,
    Blueprint,
    Changes,
    ConflictError,
    HeldError,
    JobExistsError,
    JobNotFoundError,
    LogLine,
    Pulse,
    Stored,
    SubmitError,
    Tail,
    UnitBackend,
)
from rallypoint.job import ElasticJob, compile_plan
from rallypoint.job.compile_roles import compile_roles, has_roles
from rallypoint.supervision.actions import Action, CreateCoordinator, CreateNode, Purge, RemoveCoordinator, RemoveNode
from rallypoint.supervision.observation import NodeSeen, NodeState, Observation
from rallypoint.supervision.record import Holder, JobRecord
from rallypoint.supervision.role_records import UnitKey, UnitSeen, UnitState
from rallypoint.wire.plan import OrphanPolicy, Plan
from rallypoint.wire.status import JobStatus
from tests.backends.fake_units import FakeUnits

__all__ = ["FakeBackend", "FakeClock", "World"]


@dataclass
class FakeClock:
    """Wall time that passes when somebody waits."""

    now: float = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class _Job:
    blueprint: Blueprint
    record: str
    version: str
    nodes: dict[tuple[int, int, int], NodeSeen] = field(default_factory=dict)
    status: JobStatus | None = None
    logs: list[LogLine] = field(default_factory=list)


@dataclass
class World:
    """What all backends of one test share, as processes share a machine.

    Attributes:
        pause: seconds that each wait really takes, for callers who live by the real clock; the world's own jumps anyway.
        refusal: what is missing here, so that nothing can be submitted.
        deaf: nodes do not end when they are asked to, only by force.
        done: every action that was asked for, in order; `failures` are raised by the next creations instead.
        units: instances of simple roles by the job's name; those of `deaf_roles` end only by force.
        serving: what serves the units of a job and is not released yet.
        hearts: how many jobs each supervising process (its backend) supervises, by the id of its holder.
        left: what still runs of jobs that were deleted by another client, by uid; each sweep ends one thing of it.
        lock: records are read and written whole, also by a test's other threads.
    """

    clock: FakeClock = field(default_factory=FakeClock)
    pause: float = 0.0
    refusal: str = ""
    deaf: bool = False
    jobs: dict[str, _Job] = field(default_factory=dict)
    holders: dict[str, str] = field(default_factory=dict)
    hearts: dict[str, int] = field(default_factory=dict)
    left: dict[str, int] = field(default_factory=dict)
    done: list[Action] = field(default_factory=list)
    failures: list[ActionError] = field(default_factory=list)
    units: dict[str, dict[UnitKey, UnitSeen]] = field(default_factory=dict)
    serving: dict[str, int] = field(default_factory=dict)
    deaf_roles: set[str] = field(default_factory=set)
    changed: int = 0
    versions: itertools.count = field(default_factory=lambda: itertools.count(1))
    processes: itertools.count = field(default_factory=lambda: itertools.count(1))
    lock: threading.Lock = field(default_factory=threading.Lock)

    def record(self, name: str) -> JobRecord:
        """The record as it is stored."""
        return JobRecord.from_json(self.jobs[name].record)

    def delete_from_outside(self, name: str) -> None:
        """Let a job's record vanish; what ran of it runs on."""
        self.left[self.record(name).uid] = len(self.alive(name))
        del self.jobs[name]
        self.changed += 1

    def end(self, name: str, key: tuple[int, int, int], exit_code: int | None) -> None:
        """End a node (attempt, node, incarnation), or a coordinator (attempt, -1, term)."""
        job = self.jobs[name]
        state = NodeState.LOST if exit_code is None else NodeState.FAILED if exit_code else NodeState.SUCCEEDED
        job.nodes[key] = dataclasses.replace(job.nodes[key], state=state, present=False, exit_code=exit_code)
        self.changed += 1

    def end_unit(self, name: str, key: UnitKey, exit_code: int | None) -> None:
        """End a life of an instance; None is nobody saw how."""
        state = UnitState.LOST if exit_code is None else UnitState.FAILED if exit_code else UnitState.SUCCEEDED
        how = "was lost" if exit_code is None else f"exited with code {exit_code}"
        self.units[name][key] = UnitSeen(key=key, state=state, present=False, reason=f"{key.role} {key.index} {how}")
        self.changed += 1

    def running_units(self, name: str) -> list[UnitKey]:
        """The instances of simple roles that run."""
        return sorted(key for key, seen in self.units.get(name, {}).items() if seen.present)

    def alive(self, name: str) -> list[tuple[int, int, int]]:
        """What runs, coordinators (node -1) first."""
        nodes = self.jobs[name].nodes if name in self.jobs else {}
        return sorted((key for key, seen in nodes.items() if seen.present), key=lambda key: (key[0], key[1], key[2]))


class _FakeChanges(Changes):
    def __init__(self, world: World) -> None:
        self._world = world
        self._seen = world.changed

    async def wait(self, timeout: float) -> None:
        await asyncio.sleep(self._world.pause)
        if self._seen == self._world.changed:
            self._world.clock.now += timeout
        self._seen = self._world.changed


class FakeBackend(Backend):
    """The contract on a `World`; several may share one."""

    name = "fake"

    def __init__(self, world: World) -> None:
        self.world = world
        self._id = f"process-{next(world.processes)}"

    def plan(self, job: ElasticJob, *, orphan_policy: OrphanPolicy = OrphanPolicy.CONTINUE) -> Blueprint:
        if has_roles(job):
            plan = compile_roles(job, orphan_policy=orphan_policy)
        else:
            (plan,) = compile_plan(job, orphan_policy=orphan_policy)
        return Blueprint(job=job, plan=plan, objects=({"kind": "record", "name": job.name},))

    async def submit(self, blueprint: Blueprint, *, owner: str) -> Stored:
        name, digest = blueprint.plan.name, blueprint.plan.digest
        existing = self._stored(name)
        if existing is not None:
            if (existing.record.digest, existing.record.owner) == (digest, owner):
                return existing
            raise JobExistsError(f"{name}: owner {existing.record.owner}, {existing.record.phase.value}")
        self._check()
        record = JobRecord.new(
            name=name,
            uid=f"uid-{next(self.world.versions)}",
            digest=digest,
            owner=owner,
            claimant=blueprint.claimant,
            now=self.world.clock.now,
        )
        self.world.jobs[name] = _Job(blueprint=blueprint, record=record.to_json(), version="")
        return self._write(record)

    def _check(self) -> None:
        if self.world.refusal:
            raise SubmitError(self.world.refusal)

    def _write(self, record: JobRecord) -> Stored:
        job = self.world.jobs[record.name]
        job.record, job.version = record.to_json(), str(next(self.world.versions))
        self.world.changed += 1
        return Stored(record=record, plan=job.blueprint.plan, version=job.version)

    async def load(self, name: str) -> Stored | None:
        return self._stored(name)

    def _stored(self, name: str) -> Stored | None:
        job = self.world.jobs.get(name)
        if job is None:
            return None
        with self.world.lock:
            return Stored(record=JobRecord.from_json(job.record), plan=job.blueprint.plan, version=job.version)

    async def save(self, record: JobRecord, *, version: str, blueprint: Blueprint | None = None) -> Stored:
        if blueprint is not None:
            self._check()
        with self.world.lock:
            job = self.world.jobs.get(record.name)
            if job is None or job.version != version:
                raise ConflictError(f"{record.name} is not at {version}")
            if blueprint is not None:
                job.blueprint = blueprint
            return self._write(record)

    async def observe(self, record: JobRecord) -> Observation:
        job = self.world.jobs.get(record.name)
        if job is None:
            return Observation()
        seen = [job.nodes[key] for key in sorted(job.nodes)]
        return Observation(
            nodes=tuple(node for node in seen if node.node >= 0),
            coordinators=tuple(node for node in seen if node.node < 0),
            status=job.status,
        )

    async def act(self, record: JobRecord, plan: Plan, action: Action) -> None:
        self.world.done.append(action)
        job = self.world.jobs.get(record.name)
        if job is None or JobRecord.from_json(job.record).uid != record.uid:
            if isinstance(action, (CreateNode, CreateCoordinator)):
                raise ActionError(f"{record.name} was deleted")
            return
        if isinstance(action, Purge):
            del self.world.jobs[record.name]
            self.world.changed += 1
        elif isinstance(action, (CreateNode, CreateCoordinator)):
            self._create(job, action)
        elif isinstance(action, (RemoveNode, RemoveCoordinator)):
            self._remove(record.name, job, _key(action), force=action.force)

    def _create(self, job: _Job, action: CreateNode | CreateCoordinator) -> None:
        if self.world.failures:
            raise self.world.failures.pop(0)
        attempt, node, incarnation = key = _key(action)
        fresh = NodeSeen(
            attempt=attempt, node=node, incarnation=incarnation, state=NodeState.RUNNING, present=True, host="here"
        )
        if key not in job.nodes:
            job.nodes[key] = fresh
            self.world.changed += 1

    def _remove(self, name: str, job: _Job, key: tuple[int, int, int], *, force: bool) -> None:
        seen = job.nodes.get(key)
        if seen is None or not seen.present:
            return
        if force:
            self.world.end(name, key, 137)
        elif self.world.deaf:
            job.nodes[key] = dataclasses.replace(seen, state=NodeState.ENDING)
        else:
            self.world.end(name, key, 143)

    @contextlib.asynccontextmanager
    async def changes(self, name: str) -> AsyncIterator[Changes]:
        yield _FakeChanges(self.world)

    @contextlib.asynccontextmanager
    async def hold(self, name: str, *, holder: str) -> AsyncIterator[None]:
        if name not in self.world.jobs:
            raise JobNotFoundError(name)
        if name in self.world.holders:
            raise HeldError(name, self.world.holders[name])
        self.world.holders[name] = holder
        try:
            yield
        finally:
            del self.world.holders[name]

    @contextlib.asynccontextmanager
    async def heartbeat(self, holder: str) -> AsyncIterator[Holder]:
        hearts = self.world.hearts
        hearts[self._id] = hearts.get(self._id, 0) + 1
        try:
            yield Holder(id=self._id, name=holder, host="here", pid=1, heartbeat=f"hearts/{self._id}")
        finally:
            hearts[self._id] -= 1
            if not hearts[self._id]:
                del hearts[self._id]

    async def pulse(self, holder: Holder) -> Pulse | None:
        if holder.id not in self.world.hearts:
            return None
        return Pulse(beat=str(next(self.world.versions)), alive=True, at=self.world.clock.now)

    async def sweep(self, record: JobRecord) -> bool:
        left = self.world.left
        left[record.uid] = max(0, left.get(record.uid, 0) - 1)
        return not left[record.uid]

    async def status(self, name: str) -> JobStatus | None:
        job = self.world.jobs.get(name)
        return job.status if job else None

    async def names(self) -> tuple[str, ...]:
        return tuple(sorted(name for name, job in self.world.jobs.items() if not job.blueprint.plan.job))

    def units(self, name: str) -> UnitBackend:
        return FakeUnits(self, name)

    async def logs(
        self, name: str, *, rank: int | None = None, cursor: str = "", follow: bool = False
    ) -> AsyncIterator[LogLine]:
        if name not in self.world.jobs:
            raise JobNotFoundError(name)
        told = int(cursor or 0)
        while True:
            job = self.world.jobs.get(name)
            for line in job.logs[told:] if job else ():
                told += 1
                if rank in (None, line.rank):
                    yield dataclasses.replace(line, cursor=str(told))
            if not follow or job is None or JobRecord.from_json(job.record).released:
                return
            await asyncio.sleep(self.world.pause)

    async def tail(self, name: str, *, lines: int, rank: int | None = None) -> Tail:
        if name not in self.world.jobs:
            raise JobNotFoundError(name)
        every = self.world.jobs[name].logs
        mine = [line for line in every if rank in (None, line.rank)]
        kept = [
            line
            for number, line in enumerate(mine)
            if sum((later.rank, later.stream) == (line.rank, line.stream) for later in mine[number:]) <= lines
        ]
        return Tail(lines=tuple(kept), cursor=str(len(every)))

    async def close(self) -> None:
        """Nothing is held."""


def _key(action: Action) -> tuple[int, int, int]:
    if isinstance(action, (CreateNode, RemoveNode)):
        return action.attempt, action.node, action.incarnation
    assert isinstance(action, (CreateCoordinator, RemoveCoordinator)), "this world wraps no components"
    return action.attempt, -1, action.term
