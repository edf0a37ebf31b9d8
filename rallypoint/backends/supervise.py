"""The one loop that drives a job, whoever runs it: the CLI, an Airflow task, a triggerer, a detached supervisor.

A turn is: load the record, read the clock, observe, `reconcile`, save, and only then act. Whoever is killed between any two of
these leaves a record that the next supervisor goes on from; see supervision/reconcile.py. One process holds a job and acts;
all others only look on, and the next one takes over when the holder is gone. The record names the holder and its heartbeat:
a job whose supervisor died without a successor finds that out by itself, after its lease.

A record that vanishes without our doing was deleted from outside. That ends the job at once: nothing is created again, and
what still runs of it is ended by force.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from rallypoint.backends.contract import (
    ActionError,
    Backend,
    BackendError,
    Changes,
    ConflictError,
    HeldError,
    JobNotFoundError,
    Stored,
)
from rallypoint.backends.story import describe_holder
from rallypoint.supervision.actions import Action, CreateComponents, CreateCoordinator, CreateNode, Purge
from rallypoint.supervision.observation import CreateError, Observation
from rallypoint.supervision.policy import Policy
from rallypoint.supervision.reconcile import Decision, reconcile
from rallypoint.supervision.record import Holder, JobRecord
from rallypoint.supervision.resizing import sized
from rallypoint.wire.plan import Plan
from rallypoint.wire.status import JobStatus

__all__ = ["Snapshot", "supervise", "watch"]

log = logging.getLogger(__name__)

T = TypeVar("T")

#: Shortest pause between two turns, in seconds: a deadline that is due by a rounding error must not spin.
_SHORTEST = 0.01

#: Longest that a supervisor that is cancelled takes to say so in the record, in seconds.
_LAST_WORD = 5.0

#: Pause after a failure of the backend, in seconds: doubled from the first to the last while it goes on.
_FIRST_PAUSE, _LAST_PAUSE = 0.5, 30.0


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A job after one turn. `supervising`: this process holds the job; otherwise it only looks on."""

    record: JobRecord
    plan: Plan
    status: JobStatus | None
    supervising: bool


OnTurn = Callable[[Snapshot], None]


async def supervise(
    backend: Backend,
    name: str,
    *,
    holder: str,
    on_turn: OnTurn | None = None,
    poll: float | None = None,
    clock: Callable[[], float] = time.time,
) -> JobRecord | None:
    """Drive a job to its end; return its final record, or None when it was deleted (or is not there).

    The job is the one that was there first: one submitted under its name after its deletion is another.

    While another process holds the job this one only looks on, and takes over when that one is gone. Failures of the backend
    (an `OSError`, too) are logged and tried again, ever more slowly. Cancelling leaves the job to the next supervisor.

    Args:
        backend: where the job runs.
        name: the job's name.
        holder: who supervises, for people (`rallypoint supervise`, a task instance's key).
        on_turn: called after each turn, in the event loop.
        poll: longest pause between two turns, in seconds; None is the backend's own.
        clock: wall time in seconds since the epoch.
    """
    tell = on_turn or _tell_nobody
    poll = backend.poll if poll is None else poll
    backoff = _Backoff(name)
    job = _Job(backend, name)
    async with contextlib.AsyncExitStack() as following:
        changes = await _follow(following, job, backoff)
        while True:
            try:
                async with _held(job, holder) as me:
                    return await _Supervisor(job, changes, tell, clock, me).run(poll)
            except JobNotFoundError:
                return None
            except HeldError as held:
                job.held_by(held.holder)
            except BackendError as error:
                await backoff.pause(error)
                continue
            try:
                turn = await _look_on(job, changes, tell, poll)
            except BackendError as error:
                await backoff.pause(error)
                continue
            backoff.reset()
            if turn.over:
                return turn.record


async def watch(backend: Backend, name: str, *, poll: float = 1.0) -> AsyncIterator[Snapshot]:
    """Yield a job's snapshot now and after each change, at the latest each `poll` seconds, until it is over or deleted.

    Raises `JobNotFoundError` when it is not there at first.
    """
    job = _Job(backend, name)
    async with backend.changes(name) as changes:
        snapshot = await _look(job)
        if snapshot is None:
            raise JobNotFoundError(f"there is no job {name}")
        while snapshot is not None:
            yield snapshot
            if _is_over(snapshot.record):
                return
            await changes.wait(poll)
            snapshot = await _look(job)


class _Job:
    """The job that was there first under a name."""

    def __init__(self, backend: Backend, name: str) -> None:
        self.backend, self.name = backend, name
        self._uid = self._holder = ""

    def held_by(self, holder: str) -> None:
        """Log who supervises it, once for each holder."""
        if holder != self._holder:
            self._holder = holder
            log.info("job %s: %s supervises it; looking on", self.name, holder)

    async def load(self) -> Stored | None:
        """Return it, or None when it was deleted, even if there is another of its name by now."""
        stored = await self.backend.load(self.name)
        if stored is None or self._uid not in ("", stored.record.uid):
            return None
        self._uid = stored.record.uid
        return stored


async def _told(call: Awaitable[T]) -> T:
    """Return what a call of the backend returns; an `OSError` of it is a failure of the backend, unlike one of `on_turn`."""
    try:
        return await call
    except OSError as error:
        raise BackendError(str(error)) from error


@contextlib.asynccontextmanager
async def _held(job: _Job, holder: str) -> AsyncIterator[Holder]:
    """Hold a job, with a heart that beats meanwhile; who is cancelled lets it go. Raises what `Backend.hold` does."""
    async with contextlib.AsyncExitStack() as holds:
        await _told(holds.enter_async_context(job.backend.hold(job.name, holder=holder)))
        me = await _told(holds.enter_async_context(job.backend.heartbeat(holder)))
        try:
            yield me
        except asyncio.CancelledError:
            await _let_go(job, me)
            raise


async def _let_go(job: _Job, me: Holder) -> None:
    """Say in the record that this process supervises the job no more.

    Its heart goes on beating for its other jobs, and this one's lease would never be over.
    """
    word = asyncio.create_task(_take_name_out(job, me))
    try:
        await asyncio.wait({word}, timeout=_LAST_WORD)
    finally:
        word.cancel()


async def _take_name_out(job: _Job, me: Holder) -> None:
    while True:
        try:
            stored = await job.load()
            if stored is None or stored.record.holder is None or stored.record.holder.id != me.id:
                return
            gone = dataclasses.replace(stored.record.holder, id="", heartbeat="")
            await job.backend.save(dataclasses.replace(stored.record, holder=gone), version=stored.version)
        except ConflictError:
            continue
        except (BackendError, OSError) as error:
            log.info("job %s: its record still names this process as its supervisor: %s", job.name, error)
        return


async def _follow(following: contextlib.AsyncExitStack, job: _Job, backoff: _Backoff) -> Changes:
    """Follow the job's changes for as long as `following` is open. Raises `JobNotFoundError` for what can be no job's name."""
    while True:
        try:
            return await _told(following.enter_async_context(job.backend.changes(job.name)))
        except JobNotFoundError:
            raise
        except BackendError as error:
            await backoff.pause(error)


async def _look_on(job: _Job, changes: Changes, tell: OnTurn, poll: float) -> _Turn:
    """A turn of somebody who does not hold the job, and the pause after it. Raises `BackendError`."""
    snapshot = await _told(_look(job))
    if snapshot is None:
        return _Turn(over=True)
    tell(snapshot)
    if _is_over(snapshot.record):
        return _Turn(over=True, record=snapshot.record)
    await _told(changes.wait(poll))
    return _Turn()


async def _look(job: _Job) -> Snapshot | None:
    stored = await job.load()
    if stored is None:
        return None
    status = await job.backend.status(job.name)
    return Snapshot(record=stored.record, plan=sized(stored.plan, stored.record), status=status, supervising=False)


def _is_over(record: JobRecord) -> bool:
    return record.released and not record.deletion


def _tell_nobody(_: Snapshot) -> None:
    """Take the place of `on_turn` where nobody asked."""


@dataclass(frozen=True, kw_only=True)
class _Turn:
    """What one turn came to: the job is over, or when to look again."""

    over: bool = False
    record: JobRecord | None = None
    snapshot: Snapshot | None = None
    at_once: bool = False
    wake_at: float | None = None


class _Backoff:
    """Ever longer pauses while the backend fails."""

    def __init__(self, name: str) -> None:
        self._name, self._seconds = name, _FIRST_PAUSE

    async def pause(self, error: BackendError) -> None:
        log.warning("job %s: %s; trying again in %g s", self._name, error, self._seconds)
        await asyncio.sleep(self._seconds)
        self._seconds = min(2 * self._seconds, _LAST_PAUSE)

    def reset(self) -> None:
        self._seconds = _FIRST_PAUSE


class _Supervisor:
    """The holder's side: what one process remembers between its turns, none of which the next one needs."""

    def __init__(self, job: _Job, changes: Changes, tell: OnTurn, clock: Callable[[], float], me: Holder) -> None:
        self._job, self._backend, self._name = job, job.backend, job.name
        self._changes, self._tell, self._clock, self._me = changes, tell, clock, me
        self._last: JobRecord | None = None
        self._create_errors: tuple[CreateError, ...] = ()
        self._last_actions: tuple[Action, ...] = ()

    async def run(self, poll: float) -> JobRecord | None:
        backoff = _Backoff(self._name)
        while True:
            try:
                turn = await _told(self._turn())
                if turn.snapshot is not None:
                    self._tell(turn.snapshot)
                await self._pause(turn, poll)
            except ConflictError:
                continue
            except HeldError:
                raise  # this process slept so long that another took the job over
            except BackendError as error:
                await backoff.pause(error)
                continue
            backoff.reset()
            if turn.over:
                return turn.record

    async def _pause(self, turn: _Turn, poll: float) -> None:
        if not turn.over and not turn.at_once:
            left = poll if turn.wake_at is None else turn.wake_at - self._clock()
            await _told(self._changes.wait(max(_SHORTEST, min(poll, left))))

    async def _turn(self) -> _Turn:
        stored = await self._job.load()
        if stored is None:
            return await self._vanished()
        self._last = stored.record
        now = self._clock()
        seen = await self._backend.observe(stored.record)
        decision = self._decide(stored, seen, now)
        if decision.record.phase is not stored.record.phase:
            # What ends a phase was waited for, or is gone for good: neither is decided on what was seen a while ago.
            seen = await self._backend.confirm(stored.record) or seen
            decision = self._decide(stored, seen, now)
        self._narrate(stored.record, decision.record)
        saved = await self._save(stored, decision)
        purged = await self._act(decision, stored.plan)
        shown = sized(stored.plan, decision.record)
        snapshot = Snapshot(record=decision.record, plan=shown, status=seen.status, supervising=True)
        if decision.done and (purged or not (await self._look_again(decision.record)).present):
            # Looked at once more after the record was saved: whoever starts a node reads the record after showing the node.
            return _Turn(over=True, record=None if purged else saved, snapshot=snapshot)
        fresh = decision.actions != self._last_actions
        self._last_actions = decision.actions
        at_once = decision.done or (fresh and bool(decision.actions))
        return _Turn(at_once=at_once, wake_at=decision.wake_at, snapshot=snapshot)

    async def _vanished(self) -> _Turn:
        """The record is gone, and not by our doing: end what is left of the job."""
        if self._last is None:
            return _Turn(over=True)
        log.warning("job %s: its record was deleted from outside; what is left of it is ended", self._name)
        return _Turn(over=await self._backend.sweep(self._last))

    def _decide(self, stored: Stored, seen: Observation, now: float) -> Decision:
        seen = dataclasses.replace(seen, create_errors=self._create_errors)
        return self._signed(reconcile(stored.record, seen, Policy.from_plan(stored.plan), now))

    def _narrate(self, before: JobRecord, after: JobRecord) -> None:
        known = set(before.history)
        for event in after.history:
            if event not in known:
                log.info("job %s: %s: %s", self._name, event.kind, event.detail)

    async def _look_again(self, record: JobRecord) -> Observation:
        return await self._backend.confirm(record) or await self._backend.observe(record)

    def _signed(self, decision: Decision) -> Decision:
        """Name this process in the record: by its heartbeat the job knows that it is supervised."""
        record, before = decision.record, decision.record.holder
        if decision.done or (before is not None and before.id == self._me.id):
            return decision
        record = dataclasses.replace(record, holder=dataclasses.replace(self._me, since=record.last_now))
        if before is not None:
            told = f"{describe_holder(self._me)} took over from {describe_holder(before)}"
            record = record.with_history("supervisor", told)
        return dataclasses.replace(decision, record=record)

    async def _save(self, stored: Stored, decision: Decision) -> JobRecord:
        """Save what was decided, unless only time has passed; return the record as it is stored now."""
        old, new = stored.record, decision.record
        idle = dataclasses.replace(new, clock=old.clock, last_now=old.last_now) == old
        # Either way: a clock that was set back must be saved, or the next turn would start from the future again.
        if idle and abs(new.last_now - old.last_now) < self._backend.clock_saved_every:
            return old
        await self._backend.save(new, version=stored.version)
        return new

    async def _act(self, decision: Decision, plan: Plan) -> bool:
        """Do the actions; return whether the job was purged. What cannot be created is told to the next turn."""
        errors = []
        for action in decision.actions:
            if action not in self._last_actions:
                log.info("job %s: %s", self._name, _words(action))
            try:
                await self._backend.act(decision.record, plan, action)
            except ActionError as error:
                log.warning("job %s: %s: %s", self._name, _words(action), error)
                errors.append((action, error))
        self._create_errors = tuple(_create_errors(errors))
        return any(isinstance(action, Purge) for action in decision.actions)


def _create_errors(errors: Iterable[tuple[Action, ActionError]]) -> Iterable[CreateError]:
    for action, error in errors:
        if isinstance(action, (CreateNode, CreateCoordinator, CreateComponents)):
            node = action.node if isinstance(action, CreateNode) else -1
            yield CreateError(attempt=action.attempt, node=node, reason=str(error), fatal=error.fatal, waits=error.waits)


def _words(action: Action) -> str:
    """Return an action as a log line has it: `create node: attempt 1, node 0, incarnation 1`."""
    kind = "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in type(action).__name__).strip()
    fields = ", ".join(f"{name} {value}" for name, value in vars(action).items() if value is not False)
    return f"{kind}: {fields}".rstrip(": ").replace("force True", "by force")
