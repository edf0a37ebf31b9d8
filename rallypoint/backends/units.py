"""What a backend does for the units of a job with roles (supervision/conductor.py), beside what it does for every job.

An elastic role is a job of its own, named by `role_job`, in the backend `UnitBackend.jobs`; the loop in `conducting.py`
submits, supervises and suspends it by the usual contract. What is left for a backend are the instances of simple roles.
"""

from __future__ import annotations

import abc
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING

from rallypoint.supervision.conductor import UnitKey, UnitSeen
from rallypoint.supervision.record import JobRecord
from rallypoint.wire.plan import Plan
from rallypoint.wire.role_plans import RolePlan

if TYPE_CHECKING:
    from rallypoint.backends.contract import Backend, Blueprint, LogLine, Tail

__all__ = ["UnitBackend", "role_job"]


def role_job(name: str, role: str) -> str:
    """Return the name of the job that is an elastic role of job `name`."""
    return f"{name}-{role}"


class UnitBackend(abc.ABC):
    """Where the units of one job run. Safe to call from an event loop; every method may raise `BackendError`.

    A unit, or whatever starts its process, must become visible to `observe` first, then read the stored record, and run only if
    `conductor.wants(record.conductor, key)`: so a supervisor that was stopped for a while starts nothing that is not wanted
    any more.
    """

    #: Holds the jobs of elastic roles. `Backend.names` of the backend that users see does not list them.
    jobs: Backend

    @abc.abstractmethod
    async def observe(self, record: JobRecord, plan: Plan) -> tuple[UnitSeen, ...]:
        """Return every life of an instance of a simple role that was ever started, and what became of it.

        `present` is true while any process of it may run. A life whose end nobody saw is `lost`. `reason` is a phrase about the
        unit (`rollout 1 exited with code 3`). Lives of earlier attempts may be forgotten once nothing of them is left.
        """

    @abc.abstractmethod
    async def start(self, record: JobRecord, plan: Plan, key: UnitKey) -> None:
        """Start a life of an instance, unless it was started before, whatever became of it. Raises `ActionError`."""

    @abc.abstractmethod
    async def stop(self, record: JobRecord, plan: Plan, key: UnitKey, *, force: bool) -> None:
        """End a life: with SIGTERM, or at once if `force`. Returns when that was asked for; what is gone is fine.

        After SIGTERM a backend waits for as long as it takes: the conductor asks again by force when the grace is over.
        """

    @abc.abstractmethod
    async def release(self, record: JobRecord, plan: Plan) -> bool:
        """End what serves units (hosts of instances, zygotes, directory); return whether nothing is left.

        Called again and again when no unit is left of a job that is over, suspended or being deleted.
        """

    @abc.abstractmethod
    async def blueprint(self, record: JobRecord, plan: Plan, role: RolePlan) -> Blueprint:
        """Return the submission of an elastic role as a job of its own (`role_job`), with `role.read()` as its plan.

        The caller adds the variables of the job to the plan's `env`. `roles.one_role` makes its `ElasticJob`.
        """

    @abc.abstractmethod
    def environment(self, record: JobRecord, plan: Plan) -> Mapping[str, str]:
        """Return the variables of every process of the job that only the backend knows.

        They say where instances find each other: RALLYPOINT_ROLES_URL, RALLYPOINT_ROLES_SECRET_FILE (or
        RALLYPOINT_ROLES_SECRET), RALLYPOINT_CONFIG_FILE, and RALLYPOINT_HOST where it is the same for all.
        """

    def logs(
        self, record: JobRecord, role: RolePlan, *, rank: int | None = None, cursor: str = "", follow: bool = False
    ) -> AsyncIterator[LogLine]:
        """Yield what the instances of a simple role have written, as `Backend.logs` does; `rank` is the index of one."""
        raise _no_output(record, role)

    async def tail(self, record: JobRecord, role: RolePlan, *, lines: int, rank: int | None = None) -> Tail:
        """Return the last lines of the instances of a simple role, as `Backend.tail` does."""
        raise _no_output(record, role)


def _no_output(record: JobRecord, role: RolePlan) -> Exception:
    from rallypoint.backends.contract import BackendError  # noqa: PLC0415  it imports this module

    return BackendError(
        f"job {record.name}: this backend does not read the output of role {role.name}; read it where the role runs"
    )
