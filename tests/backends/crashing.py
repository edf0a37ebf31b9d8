"""A backend whose process is killed at a given point: before or after any step that changes something."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from rallypoint.backends.contract import Backend, Blueprint, Changes, Pulse, Stored, UnitBackend
from rallypoint.supervision.actions import Action
from rallypoint.supervision.observation import Observation
from rallypoint.supervision.record import Holder, JobRecord
from rallypoint.supervision.role_records import UnitKey, UnitSeen
from rallypoint.wire.plan import OrphanPolicy, Plan
from rallypoint.wire.role_plans import RolePlan
from rallypoint.wire.status import JobStatus

__all__ = ["Crashed", "Crashing"]


class Crashed(BaseException):
    """The supervisor was killed here."""


@dataclass
class Fuse:
    """Burns one unit per step and kills at zero."""

    left: int

    def burn(self) -> None:
        if self.left == 0:
            raise Crashed
        self.left -= 1


class Crashing(Backend):
    """Another backend until the fuse is burnt; each step burns twice, before it and after it."""

    name = "crashing"

    def __init__(self, backend: Backend, steps: int) -> None:
        self._backend, self.fuse = backend, Fuse(steps)

    def plan(self, job, *, orphan_policy=OrphanPolicy.CONTINUE):
        return self._backend.plan(job, orphan_policy=orphan_policy)

    async def submit(self, blueprint: Blueprint, *, owner: str) -> Stored:
        return await self._backend.submit(blueprint, owner=owner)

    async def load(self, name: str) -> Stored | None:
        return await self._backend.load(name)

    async def save(self, record: JobRecord, *, version: str, blueprint: Blueprint | None = None) -> Stored:
        self.fuse.burn()
        stored = await self._backend.save(record, version=version, blueprint=blueprint)
        self.fuse.burn()
        return stored

    async def observe(self, record: JobRecord) -> Observation:
        return await self._backend.observe(record)

    async def act(self, record: JobRecord, plan: Plan, action: Action) -> None:
        self.fuse.burn()
        await self._backend.act(record, plan, action)
        self.fuse.burn()

    def units(self, name: str) -> UnitBackend:
        return _CrashingUnits(self._backend.units(name), self.fuse)

    def changes(self, name: str) -> AbstractAsyncContextManager[Changes]:
        return self._backend.changes(name)

    def hold(self, name: str, *, holder: str) -> AbstractAsyncContextManager[None]:
        return self._backend.hold(name, holder=holder)

    def heartbeat(self, holder: str) -> AbstractAsyncContextManager[Holder]:
        return self._backend.heartbeat(holder)

    async def pulse(self, holder: Holder) -> Pulse | None:
        return await self._backend.pulse(holder)

    async def sweep(self, record: JobRecord) -> bool:
        return await self._backend.sweep(record)

    async def status(self, name: str) -> JobStatus | None:
        return await self._backend.status(name)

    async def names(self) -> tuple[str, ...]:
        return await self._backend.names()

    async def tail(self, name, *, lines, rank=None):
        return await self._backend.tail(name, lines=lines, rank=rank)

    def logs(self, name, *, rank=None, cursor="", follow=False):
        return self._backend.logs(name, rank=rank, cursor=cursor, follow=follow)

    async def close(self) -> None:
        await self._backend.close()


class _CrashingUnits(UnitBackend):
    """Other units until the fuse is burnt; the jobs of elastic roles are not killed here."""

    def __init__(self, units: UnitBackend, fuse: Fuse) -> None:
        self.jobs, self._units, self._fuse = units.jobs, units, fuse

    async def observe(self, record: JobRecord, plan: Plan) -> tuple[UnitSeen, ...]:
        return await self._units.observe(record, plan)

    async def start(self, record: JobRecord, plan: Plan, key: UnitKey) -> None:
        self._fuse.burn()
        await self._units.start(record, plan, key)
        self._fuse.burn()

    async def stop(self, record: JobRecord, plan: Plan, key: UnitKey, *, force: bool) -> None:
        self._fuse.burn()
        await self._units.stop(record, plan, key, force=force)
        self._fuse.burn()

    async def release(self, record: JobRecord, plan: Plan) -> bool:
        self._fuse.burn()
        return await self._units.release(record, plan)

    async def blueprint(self, record: JobRecord, plan: Plan, role: RolePlan) -> Blueprint:
        return await self._units.blueprint(record, plan, role)

    def environment(self, record: JobRecord, plan: Plan) -> Mapping[str, str]:
        return self._units.environment(record, plan)
