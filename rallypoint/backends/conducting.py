"""The turns of a job with roles: load, observe all units, decide, save, and only then act.

Beside them each elastic role, a job of its own, has a supervisor of its own in the same process.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Callable, Iterable

from rallypoint.backends.contract import (
    ROLE_OWNER,
    ActionError,
    BackendError,
    Blueprint,
    Changes,
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
from rallypoint.backends.roles import policy_of
from rallypoint.backends.supervise import supervise
from rallypoint.backends.turns import Job, OnTurn, Snapshot, Turn, Turns, log, new_lines, told
from rallypoint.supervision.actions import Purge
from rallypoint.supervision.conducting import RolesDecision, conduct_job, final, taken_over
from rallypoint.supervision.following import LIMIT
from rallypoint.supervision.record import Holder, JobRecord
from rallypoint.supervision.record import Phase as JobPhase
from rallypoint.supervision.role_records import ConductorPolicy, Phase, StartUnit, StopUnit, UnitKey, UnitSeen, UnitState
from rallypoint.supervision.trimming import cut
from rallypoint.wire.masked import mask_of_plan
from rallypoint.wire.plan import Plan
from rallypoint.wire.role_plans import role_plan, role_plans, roles_env
from rallypoint.wire.sanitize import clean_text

__all__ = ["ConductorTurns"]

#: Seconds between two looks at what serves units, while it is being ended.
_LOOK = 0.05

#: Digits that no number of an attempt has.
_DIGITS = 10

#: Shortest pause between two turns, in seconds.
_SHORTEST = 0.005


class ConductorTurns(Turns):
    """The holder's side of a job with roles."""

    def __init__(self, job: Job, changes: Changes, tell: OnTurn, clock: Callable[[], float], me: Holder) -> None:
        super().__init__(job, changes, tell, clock, me)
        self._units = self._backend.units(self._name)
        self._news = asyncio.Event()
        self._roles = _ElasticRoles(self._units, holder=me.name, clock=clock, changed=self._news.set)
        self._acted: tuple[StartUnit | StopUnit, ...] = ()
        #: What could not be started in the last turn, and what of it waited for resources in the turn before, too.
        self._refused: dict[UnitKey, ActionError] = {}
        self._waits: tuple[ActionError, ...] = ()
        self._waiting: asyncio.Task[None] | None = None
        self._plan: Plan | None = None

    async def run(self, poll: float) -> JobRecord | None:
        """Take turns until the job is over; see `Turns.run`."""
        try:
            return await super().run(poll)
        finally:
            await self._roles.close()
            if self._waiting is not None:
                self._waiting.cancel()

    async def _pause(self, turn: Turn, poll: float) -> None:
        """Wait for something to happen to the job, to one of its units or to the job of one of its roles."""
        if turn.over or turn.at_once:
            return
        left = poll if turn.wake_at is None else turn.wake_at - self._clock()
        if self._waiting is None:  # one that is cut off could lose what it has seen: the next pause waits for the same one
            self._waiting = asyncio.create_task(told(self._changes.wait(poll)))
        news = asyncio.create_task(self._news.wait())
        try:
            timeout = max(_SHORTEST, min(poll, left))
            await asyncio.wait({self._waiting, news}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            news.cancel()
        if self._waiting.done():
            waited, self._waiting = self._waiting, None
            waited.result()

    async def _vanished(self) -> Turn:
        if self._last is not None and self._plan is not None:
            await self._roles.remove(self._last, self._plan)
        return await super()._vanished()

    async def _turn(self) -> Turn:
        self._news.clear()
        stored = await self._job.load()
        if stored is None:
            return await self._vanished()
        self._last, self._plan = stored.record, stored.plan
        now, plan, policy = self._clock(), stored.plan, policy_of(stored.plan)
        record = self._greeted(stored.record, policy, now)
        seen = (*await self._units.observe(record, plan), *await self._roles.observe(record, plan))
        seen += tuple(_hopeless(key, error) for key, error in self._refused.items() if error.fatal)
        decision = await asyncio.to_thread(_conducted, record, seen, plan, policy, now)
        decision = dataclasses.replace(decision, record=self._named(_waiting(decision.record, plan, self._waits)))
        for line in await asyncio.to_thread(new_lines, stored.record, decision.record):
            log.info("job=%s %s", self._name, line)
        saved = await self._keep(stored, decision.record)
        failed = await self._perform(decision, plan)
        snapshot = Snapshot(record=saved.record, plan=plan, status=None, supervising=True)
        if decision.at_rest and decision.released is not None and await self._units.release(saved.record, plan):
            return await self._rest(saved, decision, snapshot)
        fresh = bool(set(decision.actions) - set(self._acted)) and not failed
        self._acted = decision.actions
        wake_at = now + _LOOK if decision.at_rest else now + 1.0 if failed else decision.wake_at
        return Turn(at_once=fresh, wake_at=wake_at, snapshot=snapshot)

    async def _rest(self, saved: Stored, decision: RolesDecision, snapshot: Snapshot) -> Turn:
        """Nothing of the job is left: say so in the record, or remove it."""
        record = saved.record
        if record.deletion and record.conductor is not None and record.conductor.finished:
            await self._remove(record, saved.plan)
            return Turn(over=True, record=None, snapshot=snapshot)
        if not record.finished:  # it is suspended
            return Turn(snapshot=snapshot)
        released = dataclasses.replace(decision.released or record, holder=record.holder)
        saved = await self._keep(saved, released)
        return Turn(over=True, record=saved.record, snapshot=dataclasses.replace(snapshot, record=saved.record))

    async def _remove(self, record: JobRecord, plan: Plan) -> None:
        await self._roles.remove(record, plan)
        await self._backend.act(record, plan, Purge())

    def _greeted(self, record: JobRecord, policy: ConductorPolicy, now: float) -> JobRecord:
        """Return the record under this process: where its predecessor was lost, that costs one of the job's masters."""
        before = record.holder
        if before is None or not before.id or before.id == self._me.id:
            return record
        return taken_over(record, policy, now)

    def _named(self, record: JobRecord) -> JobRecord:
        before = record.holder
        if before is not None and before.id == self._me.id:
            return record
        record = dataclasses.replace(record, holder=dataclasses.replace(self._me, since=record.last_now))
        if before is None or before.describe() == self._me.describe():
            return record
        return record.with_history("supervisor", f"{self._me.describe()} took over the supervision from {before.describe()}")

    async def _keep(self, stored: Stored, new: JobRecord) -> Stored:
        old = stored.record
        idle = dataclasses.replace(new, clock=old.clock, last_now=old.last_now) == old
        if idle and abs(new.last_now - old.last_now) < self._backend.clock_saved_every:
            return stored
        return await self._backend.save(new, version=stored.version)

    async def _perform(self, decision: RolesDecision, plan: Plan) -> bool:
        """Do the actions; return whether one of them could not be done."""
        failed, record = False, decision.record
        before, self._refused = self._refused, {}
        elastic = {role.name for role in policy_of(plan).roles if role.elastic}
        for action in decision.actions:
            if action not in self._acted:
                log.info("job=%s: %s", self._name, _described(action))
            try:
                await self._do(record, plan, action, elastic=action.key.role in elastic)
            except ActionError as error:
                failed = True
                if isinstance(action, StartUnit):
                    self._refused[action.key] = error
                told = clean_text(mask_of_plan(plan)(str(error)))
                log.warning("job=%s: failed to %s: %s", self._name, _described(action), told)
        self._waits = tuple(error for key, error in self._refused.items() if error.waits and key in before)
        return failed

    async def _do(self, record: JobRecord, plan: Plan, action: StartUnit | StopUnit, *, elastic: bool) -> None:
        key = action.key
        if isinstance(action, StartUnit):
            await (self._roles.start(record, plan, key) if elastic else self._units.start(record, plan, key))
        elif elastic:
            await self._roles.stop(record, key)
        else:
            await self._units.stop(record, plan, key, force=action.force)


def _conducted(record: JobRecord, seen: Iterable[UnitSeen], plan: Plan, policy: ConductorPolicy, now: float) -> RolesDecision:
    """Decide on units whose last words do not show the secrets of the job (wire/masked.py)."""
    mask, simple = mask_of_plan(plan), {role.name for role in policy.roles if not role.elastic}
    units = [dataclasses.replace(unit, reason=mask(unit.reason)) for unit in seen]
    units = [
        dataclasses.replace(unit, final=unit.final or final(unit, plan)) if unit.key.role in simple else unit for unit in units
    ]
    return conduct_job(record, units, policy, now)


def _hopeless(key: UnitKey, error: ActionError) -> UnitSeen:
    """Return a unit that can never be started: it fails the job."""
    return UnitSeen(key=key, state=UnitState.FAILED, present=False, reason=str(error), final="another attempt cannot help")


def _waiting(record: JobRecord, plan: Plan, errors: Iterable[ActionError]) -> JobRecord:
    """Note for people what the job waits for; the amounts change while it waits, and only its begin is history."""
    running = record.conductor is not None and record.conductor.phase is Phase.RUNNING
    why = "; ".join(dict.fromkeys(map(str, errors))) if running else ""
    told = cut(mask_of_plan(plan)(why), LIMIT) if why else ""
    if told and not record.waits_for:
        record = record.with_history("waiting", told)
    return record if told == record.waits_for else dataclasses.replace(record, waits_for=told)


def _described(action: StartUnit | StopUnit) -> str:
    key = action.key
    what = "start" if isinstance(action, StartUnit) else "stop"
    life = f"attempt={key.attempt} reset={key.reset} incarnation={key.incarnation}"
    return f"{what} {key.role} {key.index} {life}{' force=true' if isinstance(action, StopUnit) and action.force else ''}"


class _ElasticRoles:
    """The elastic roles of one job, each a job of its own: started, supervised, suspended, and seen as units of the conductor.

    Args:
        units: of the job.
        holder: who supervises, for people.
        clock: wall clock of the supervision.
        changed: called whenever something has happened to one of them.
    """

    def __init__(self, units: UnitBackend, *, holder: str, clock: Callable[[], float], changed: Callable[[], None]) -> None:
        self._units, self._holder, self._clock, self._changed = units, holder, clock, changed
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
                self._keep(name, plan, wanted=seen.present)
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
            await self._again(stored, record, plan, key, owner)
        self._keep(name, plan, wanted=True)

    async def _submit(self, record: JobRecord, plan: Plan, key: UnitKey, owner: str) -> None:
        await self._units.jobs.submit(await self._blueprint(record, plan, key.role), owner=owner)

    async def _blueprint(self, record: JobRecord, plan: Plan, name: str) -> Blueprint:
        role = role_plan(plan, name)
        blueprint = await self._units.blueprint(record, plan, role)
        own, name = blueprint.plan, role_job(record.name, name)
        if (own.name, blueprint.job.name) != (name, name):  # a ledger on a Ray cluster returns any blueprint
            named = own.name if own.name != name else blueprint.job.name
            raise BackendError(f"role {role.name}: its job must be {name}, but the backend returned job {named!r:.100}")
        variables = {**own.env, **self._units.environment(record, plan), **roles_env(plan, role)}
        own = dataclasses.replace(own, env=variables, digest=record.digest, job=record.name)
        return dataclasses.replace(blueprint, plan=own, claimant=role_claimant(record))

    async def _again(self, stored: Stored, whole: JobRecord, plan: Plan, key: UnitKey, owner: str) -> None:
        """Start the job of a role again, with the plan of the new submission if this attempt belongs to one."""
        record, changed = stored.record, stored.plan.digest != whole.digest
        anew = changed or _attempt(record.owner) != key.attempt  # what Ray is asked for may change with the same digest
        if record.finished and record.released:
            record = record.restarted(owner=owner, now=whole.last_now)
        elif record.phase is JobPhase.SUSPENDED and record.suspend:
            # It ended with the whole job. What it was charged, and its size, are those of another plan.
            fresh = {"size": None, "retries": 0, "charges": (), "restarts": 0} if changed else {}
            record = dataclasses.replace(record, owner=owner, suspend=False, **fresh)  # type: ignore[arg-type]
        else:
            return  # it is still ending
        blueprint = await self._blueprint(whole, plan, key.role) if anew else None
        record = dataclasses.replace(record, digest=whole.digest)
        with contextlib.suppress(ConflictError):  # another turn tries again
            await self._units.jobs.save(record, version=stored.version, blueprint=blueprint)

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

    def _keep(self, name: str, plan: Plan, *, wanted: bool) -> None:
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
            running = supervise(jobs, name, holder=holder, on_turn=lambda _: self._changed(), clock=clock, whole=plan)
            task = self._tasks[name] = asyncio.create_task(running, name=f"role {name}")
            task.add_done_callback(lambda _: self._changed())
        elif not wanted and task is not None:
            self._cancel(task)


def _owner(job: str, key: UnitKey) -> str:
    return f"{job}/{key.attempt}.{key.reset}.{key.incarnation}"


def _attempt(owner: str) -> int:
    """Return the attempt of the whole job in which an owner started a role; -1 if that is no owner of a role."""
    text = owner.rpartition("/")[2].partition(".")[0]
    return int(text) if text.isdecimal() and len(text) < _DIGITS else -1


def _seen(job: JobRecord, role: str, record: JobRecord) -> UnitSeen | None:
    """Return the unit whose job has this record; None for a job that is none of ours."""
    life = ROLE_OWNER.fullmatch(record.owner)
    if life is None or not is_role_of(record, job):
        return None
    attempt, reset, incarnation = (int(life[name]) for name in ("attempt", "reset", "incarnation"))
    key = UnitKey(role=role, attempt=attempt, reset=reset, index=0, incarnation=incarnation)
    if record.finished:
        state = UnitState.SUCCEEDED if record.phase is JobPhase.SUCCEEDED else UnitState.FAILED
        message = "" if record.verdict is None else record.verdict.message
        reason = f"{role}: {message}" if message else ""
        ended_at = record.attempts[-1].ended_at if record.attempts else None
        seen = UnitSeen(key=key, state=state, present=not record.released, reason=reason, result=record.result)
        return dataclasses.replace(seen, ended_at=ended_at)
    if record.phase is JobPhase.SUSPENDED and record.suspend:
        return UnitSeen(key=key, state=UnitState.LOST, present=False, reason=f"{role} was stopped")
    return UnitSeen(key=key, state=UnitState.RUNNING, present=True)
