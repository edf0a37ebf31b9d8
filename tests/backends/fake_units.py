"""Units in memory: as strict as a real place. What was started once is known for ever, and nothing unwanted is started."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

from rallypoint.backends.contract import ActionError, Blueprint, JobNotFoundError, UnitBackend, role_job
from rallypoint.job.compile_roles import one_role
from rallypoint.supervision.conductor import wants
from rallypoint.supervision.record import JobRecord
from rallypoint.supervision.role_records import UnitKey, UnitSeen, UnitState
from rallypoint.wire.plan import Plan
from rallypoint.wire.role_plans import RolePlan

if TYPE_CHECKING:
    from tests.backends.fake import FakeBackend

__all__ = ["FakeUnits"]


class FakeUnits(UnitBackend):
    """The units of one job on a `World`; a role in `World.deaf_roles` ends only by force."""

    def __init__(self, backend: FakeBackend, name: str) -> None:
        self.jobs = backend
        self._world, self._name = backend.world, name

    @property
    def _units(self) -> dict[UnitKey, UnitSeen]:
        return self._world.units.setdefault(self._name, {})

    async def observe(self, record: JobRecord, plan: Plan) -> tuple[UnitSeen, ...]:
        return tuple(self._units[key] for key in sorted(self._units))

    async def start(self, record: JobRecord, plan: Plan, key: UnitKey) -> None:
        if self._world.failures:
            raise self._world.failures.pop(0)
        if key in self._units:
            return
        stored = self._world.jobs.get(self._name)
        if stored is None:
            raise ActionError(f"{self._name} was deleted")
        current = JobRecord.from_json(stored.record)
        self._world.serving[self._name] = 2
        if current.uid != record.uid or current.conductor is None or not wants(current.conductor, key):
            self._units[key] = UnitSeen(key=key, state=UnitState.LOST, present=False, reason="not started")
        else:
            self._units[key] = UnitSeen(key=key, state=UnitState.RUNNING, present=True)
        self._world.changed += 1

    async def stop(self, record: JobRecord, plan: Plan, key: UnitKey, *, force: bool) -> None:
        seen = self._units.get(key)
        if seen is None or not seen.present or (key.role in self._world.deaf_roles and not force):
            return
        self._world.end_unit(self._name, key, 137 if force else 143)

    async def release(self, record: JobRecord, plan: Plan) -> bool:
        assert not any(seen.present for seen in self._units.values()), "released while a unit is there"
        self._world.serving[self._name] = max(0, self._world.serving.get(self._name, 0) - 1)
        return not self._world.serving[self._name]

    async def blueprint(self, record: JobRecord, plan: Plan, role: RolePlan) -> Blueprint:
        stored = self._world.jobs.get(self._name)
        if stored is None:
            raise JobNotFoundError(self._name)
        job = one_role(stored.blueprint.job, role.name, job_name=role_job(self._name, role.name))
        return dataclasses.replace(self.jobs.plan(job), plan=role.read())

    def environment(self, record: JobRecord, plan: Plan) -> Mapping[str, str]:
        return {"RALLYPOINT_ROLES_URL": f"file:///{self._name}"}
