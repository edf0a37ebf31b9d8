"""The elastic roles of a job, each a job of its own: started, supervised, suspended, and seen as units of the conductor."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from rallypoint.backends.contract import (
    ROLE_OWNER,
    ActionError,
    Backend,
    BackendError,
    ConflictError,
    JobFinishedError,
    JobNotFoundError,
    Stored,
    UnitBackend,
    is_role_of,
    role_claimant,
    role_job,
)
from rallypoint.backends.requests import delete, request_suspension
from rallypoint.supervision.record import JobRecord, Phase
from rallypoint.supervision.role_records import UnitKey, UnitSeen, UnitState
from rallypoint.wire.plan import Plan
from rallypoint.wire.role_plans import role_plan, role_plans, roles_env

__all__ = ["ElasticRoles", "Supervise"]

log = logging.getLogger("rallypoint.backends.supervise")


class Supervise(Protocol):
    """The loop that supervises a job (supervise.py)."""

    def __call__(
        self,
        backend: Backend,
        name: str,
        *,
        holder: str,
        on_turn: Callable[[Any], None] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> Coroutine[Any, Any, JobRecord | None]:
        """See `supervise`."""
        ...


class ElasticRoles:
    """Those of one job, in one process.

    Args:
        units: of the job.
        holder: who supervises, for people.
        supervise: supervises the job of a role; `clock` is its wall clock.
        changed: called whenever something has happened to one of them.
    """

    def __init__(
        self,
        units: UnitBackend,
        *,
        holder: str,
        supervise: Supervise,
        clock: Callable[[], float],
        changed: Callable[[], None],
    ) -> None:
        self._units, self._holder, self._supervise, self._clock, self._changed = units, holder, supervise, clock, changed
        self._tasks: dict[str, asyncio.Task[JobRecord | None]] = {}
        self._ending: set[asyncio.Task[JobRecord | None]] = set()

    async def observe(self, record: JobRecord, plan: Plan) -> tuple[UnitSeen, ...]:
        """Return the units as they are; supervises each whose job is not over."""
        found = []
        for role in role_plans(plan):
            if not role.elastic or not role.total:
                continue
            name = role_job(record.name, role.name)
            stored = await self._units.jobs.load(name)
            seen = None if stored is None else _seen(record, role.name, stored.record)
            if seen is not None:
                found.append(seen)
                self._keep(name, wanted=seen.present)
        return tuple(found)

    async def start(self, record: JobRecord, plan: Plan, key: UnitKey) -> None:
        """Start a life of a role: submit its job, or have it begin again. A life that was started before is left alone."""
        jobs, name = self._units.jobs, role_job(record.name, key.role)
        owner = _owner(record.name, key)
        stored = await jobs.load(name)
        if stored is not None and not is_role_of(stored.record, record):
            raise ActionError(
                f"role {key.role} cannot start: it would run as job {name}, but another job has this name (owner "
                f"{stored.record.owner}); choose another name for the job or for the role",
                fatal=True,
            )
        if stored is None or stored.record.owner != owner:
            await self._units.admit(record, plan)
        if stored is None:
            await self._submit(record, plan, key, owner)
        elif stored.record.owner != owner:
            await self._again(stored, owner, record.last_now)
        self._keep(name, wanted=True)

    async def _submit(self, record: JobRecord, plan: Plan, key: UnitKey, owner: str) -> None:
        role = role_plan(plan, key.role)
        blueprint = await self._units.blueprint(record, plan, role)
        own, name = blueprint.plan, role_job(record.name, key.role)
        if (own.name, blueprint.job.name) != (name, name):  # a ledger on a Ray cluster returns any blueprint
            named = own.name if own.name != name else blueprint.job.name
            raise BackendError(f"role {key.role}: its job must be {name}, but the backend returned job {named!r:.100}")
        variables = {**own.env, **self._units.environment(record, plan), **roles_env(plan, role)}
        own = dataclasses.replace(own, env=variables, digest=record.digest, job=record.name)
        submitted = dataclasses.replace(blueprint, plan=own, claimant=role_claimant(record))
        await self._units.jobs.submit(submitted, owner=owner)

    async def _again(self, stored: Stored, owner: str, now: float) -> None:
        record = stored.record
        if record.finished and record.released:
            record = record.restarted(owner=owner, now=now)
        elif record.phase is Phase.SUSPENDED and record.suspend:
            record = dataclasses.replace(record, owner=owner, suspend=False)
        else:
            return  # it is still ending
        with contextlib.suppress(ConflictError):  # another turn tries again
            await self._units.jobs.save(record, version=stored.version)

    async def stop(self, record: JobRecord, key: UnitKey) -> None:
        """End a life: its job is suspended, which ends in force after its own grace, and its record stays."""
        owner = _owner(record.name, key)
        with contextlib.suppress(JobNotFoundError, JobFinishedError):
            await request_suspension(self._units.jobs, role_job(record.name, key.role), owner=owner)

    async def remove(self, record: JobRecord, plan: Plan) -> None:
        """Delete the jobs of all elastic roles, of which nothing runs any more."""
        await self.close()
        for role in role_plans(plan):
            name = role_job(record.name, role.name)
            stored = await self._units.jobs.load(name) if role.elastic else None
            if stored is not None and is_role_of(stored.record, record):
                with contextlib.suppress(JobNotFoundError):
                    await delete(self._units.jobs, name, holder=self._holder)

    async def close(self) -> None:
        """Supervise none of them any more."""
        tasks = tuple(self._tasks.values())
        for task in tasks:
            self._cancel(task)
        await asyncio.gather(*tasks, return_exceptions=True)

    def _cancel(self, task: asyncio.Task[JobRecord | None]) -> None:
        """Cancel a task once: a second time would cut short what it does in the end."""
        if task not in self._ending:
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
            task.cancel()

    def _keep(self, name: str, *, wanted: bool) -> None:
        """Supervise a role's job as long as something of it may run."""
        task = self._tasks.get(name)
        if task is not None and task.done():
            self._tasks.pop(name)
            if not task.cancelled() and task.exception() is not None:
                log.warning(
                    "job=%s: the supervision of this elastic role failed (%s); the supervisor restarts it",
                    name,
                    task.exception(),
                )
            task = None
        if wanted and task is None:
            jobs, holder, clock = self._units.jobs, self._holder, self._clock
            running = self._supervise(jobs, name, holder=holder, on_turn=lambda _: self._changed(), clock=clock)
            task = self._tasks[name] = asyncio.create_task(running, name=f"role {name}")
            task.add_done_callback(lambda _: self._changed())
        elif not wanted and task is not None:
            self._cancel(task)


def _owner(job: str, key: UnitKey) -> str:
    return f"{job}/{key.attempt}.{key.reset}.{key.incarnation}"


def _seen(job: JobRecord, role: str, record: JobRecord) -> UnitSeen | None:
    """Return the unit whose job has this record; None for a job that is none of ours."""
    life = ROLE_OWNER.fullmatch(record.owner)
    if life is None or not is_role_of(record, job):
        return None
    attempt, reset, incarnation = (int(life[name]) for name in ("attempt", "reset", "incarnation"))
    key = UnitKey(role=role, attempt=attempt, reset=reset, index=0, incarnation=incarnation)
    if record.finished:
        state = UnitState.SUCCEEDED if record.phase is Phase.SUCCEEDED else UnitState.FAILED
        message = "" if record.verdict is None else record.verdict.message
        reason = f"{role}: {message}" if message else ""
        ended_at = record.attempts[-1].ended_at if record.attempts else None
        seen = UnitSeen(key=key, state=state, present=not record.released, reason=reason, result=record.result)
        return dataclasses.replace(seen, ended_at=ended_at)
    if record.phase is Phase.SUSPENDED and record.suspend:
        return UnitSeen(key=key, state=UnitState.LOST, present=False, reason=f"{role} was stopped")
    return UnitSeen(key=key, state=UnitState.RUNNING, present=True)
