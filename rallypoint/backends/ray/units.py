"""The units of a job with roles on a Ray cluster: every method is a call of the ledger."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from rallypoint.backends.contract import Backend, BackendError, Blueprint, LogLine, Tail, UnitBackend
from rallypoint.backends.ray import calls
from rallypoint.backends.ray.placement import FILE
from rallypoint.backends.ray.working_dir import local_folder
from rallypoint.supervision.record import JobRecord
from rallypoint.supervision.role_records import UnitKey, UnitSeen
from rallypoint.wire import codec
from rallypoint.wire.plan import Plan
from rallypoint.wire.role_plans import RolePlan

__all__ = ["RayUnits"]

#: Seconds for a call that changes actors or placement groups.
_ACT = 60.0


class RayUnits(UnitBackend):
    """Those of one job.

    Args:
        call: calls a method of the ledger (`RayBackend.call`).
        me: returns the id of this process where it holds a job, else "".
        jobs: has the jobs of the elastic roles.
    """

    def __init__(self, call: Callable[..., Awaitable[Any]], me: Callable[[str], str], jobs: Backend) -> None:
        self.jobs, self._ledger, self._me = jobs, call, me
        self._environment: Mapping[str, str] = {}

    async def _call(self, method: str, record: JobRecord, **given: Any) -> Any:
        name = record.name
        return await self._ledger(
            f"unit_{method}", job=name, timeout=_ACT, name=name, uid=record.uid, me=self._me(name), **given
        )

    async def observe(self, record: JobRecord, plan: Plan) -> tuple[UnitSeen, ...]:
        """Return what the ledger knows of the hosts; see `UnitBackend.observe`."""
        return await calls.read(tuple[UnitSeen, ...], await self._call("observe", record))

    async def admit(self, record: JobRecord, plan: Plan) -> None:
        """Reserve the base group; see `UnitBackend.admit`."""
        await self._call("admit", record)

    async def start(self, record: JobRecord, plan: Plan, key: UnitKey) -> None:
        """Have a host for the instance and start it there; see `UnitBackend.start`."""
        await self._call("start", record, key=codec.to_json(key))

    async def stop(self, record: JobRecord, plan: Plan, key: UnitKey, *, force: bool) -> None:
        """Pass the wish for an end on; see `UnitBackend.stop`."""
        await self._call("stop", record, key=codec.to_json(key), force=force)

    async def release(self, record: JobRecord, plan: Plan) -> bool:
        """End all hosts; see `UnitBackend.release`."""
        return bool(await self._call("release", record))

    async def blueprint(self, record: JobRecord, plan: Plan, role: RolePlan) -> Blueprint:
        """Return the job of an elastic role, with its bundles in the base group; see `UnitBackend.blueprint`.

        Any program on the Ray cluster can announce a ledger: what it returns must not name a folder of this machine.
        """
        data = await self._call("blueprint", record, role=role.name)
        environment = await calls.read(dict[str, str], calls.field(data, "environment"))
        job = await calls.read_job(calls.field(data, "document"))
        own = await calls.read(Plan, calls.field(data, "plan"))
        placement = await calls.read_placement(calls.field(data, "placement"))
        if folder := local_folder(placement.runtime_env):
            raise BackendError(
                f"role {role.name}: the ledger returned the working_dir {folder!r:.200}; expected the URI of an uploaded "
                "package, such as gcs://NAME.zip"
            )
        self._environment = environment
        return Blueprint(job=job, plan=own, objects=(), attached={FILE: codec.dumps(placement)})

    def environment(self, record: JobRecord, plan: Plan) -> Mapping[str, str]:
        """Return what the last blueprint said."""
        return self._environment

    async def logs(
        self, record: JobRecord, role: RolePlan, *, rank: int | None = None, cursor: str = "", follow: bool = False
    ) -> AsyncIterator[LogLine]:
        """Read the copies of the output that the ledger has; see `UnitBackend.logs`."""

        def request(cursor: str) -> Awaitable[Any]:
            return self._call("logs", record, role=role.name, rank=rank, cursor=cursor)

        async for line in calls.lines_of(request, cursor=cursor, follow=follow, rank=rank, ranks=role.total):
            yield line

    async def tail(self, record: JobRecord, role: RolePlan, *, lines: int, rank: int | None = None) -> Tail:
        """Read the ends of these copies; see `UnitBackend.tail`."""
        return await calls.read_tail(await self._call("tail", record, role=role.name, lines=lines, rank=rank))
