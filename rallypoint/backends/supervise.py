"""The one loop that drives a job, whoever runs it: the CLI, an Airflow task, a triggerer, a detached supervisor.

A turn (turns.py) is: load the record, read the clock, observe, `reconcile`, save, and only then act. Whoever is killed between
any two of these leaves a record that the next supervisor goes on from; see supervision/reconcile.py. One process holds a job
(holding.py) and acts; all others only look on, and the next one takes over when the holder is gone. The record names the holder
and its heartbeat: a job whose supervisor died without a successor finds that out by itself, after its lease.

A record that vanishes without our doing was deleted from outside. That ends the job at once: nothing is created again, and
what still runs of it is ended by force.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import time
from collections.abc import AsyncIterator, Callable

from rallypoint.backends.contract import Backend, BackendError, Changes, HeldError, JobNotFoundError
from rallypoint.backends.turns import Backoff, Job, OnTurn, Snapshot, Turn, Turns, held, told
from rallypoint.supervision.masking import masked_status
from rallypoint.supervision.record import Holder, JobRecord
from rallypoint.supervision.resizing import sized
from rallypoint.wire.masked import mask_of_plan
from rallypoint.wire.plan import Plan
from rallypoint.wire.status import JobStatus

__all__ = ["supervise", "watch"]


async def supervise(
    backend: Backend,
    name: str,
    *,
    holder: str,
    on_turn: OnTurn | None = None,
    poll: float | None = None,
    clock: Callable[[], float] = time.time,
    whole: Plan | None = None,
) -> JobRecord | None:
    """Drive a job to its end; return its final record, or None when it was deleted (or is not there).

    A job that is submitted with the same name after a deletion is another job. While another process holds the job, this
    one waits to take over. Failures of the backend (also `OSError`) are retried. Cancelling leaves the job to others.

    Args:
        backend: where the job runs.
        name: the job's name.
        holder: who supervises, for people (`rallypoint supervise`, a task instance's key).
        on_turn: called after each turn, in the event loop.
        poll: longest pause between two turns, in seconds; None is the backend's own.
        clock: wall time in seconds since the epoch.
        whole: the plan of the job that this one is an elastic role of: the secrets of all its roles are masked.
    """
    tell = on_turn or _tell_nobody
    poll = backend.poll if poll is None else poll
    backoff = Backoff(name)
    job = Job(backend, name, whole=whole)
    async with contextlib.AsyncExitStack() as following:
        changes = await _follow(following, job, backoff)
        while True:
            try:
                async with held(job, holder) as me:
                    return await (await _turns(job))(job, changes, tell, clock, me).run(poll)
            except JobNotFoundError:
                return None
            except HeldError as refused:
                job.held_by(refused.holder)
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


async def _turns(job: Job) -> Callable[[Job, Changes, OnTurn, Callable[[], float], Holder], Turns]:
    """Return what takes the turns of a job: those of a job with roles are its conductor's."""
    stored = await told(job.load())
    if stored is None or not stored.plan.roles:
        return Turns
    # It supervises the jobs of its roles by this loop, so it cannot be imported above; and an import reads files.
    conducting = await asyncio.to_thread(importlib.import_module, "rallypoint.backends.conducting")
    found: type[Turns] = conducting.ConductorTurns
    return found


async def watch(backend: Backend, name: str, *, poll: float = 1.0) -> AsyncIterator[Snapshot]:
    """Yield a job's snapshot now and after each change, at the latest each `poll` seconds, until it is over or deleted.

    Raises `JobNotFoundError` when it is not there at first.
    """
    job = Job(backend, name)
    async with backend.changes(name) as changes:
        snapshot = await _look(job)
        if snapshot is None:
            raise JobNotFoundError(f"job {name!r} not found")
        while snapshot is not None:
            yield snapshot
            if _is_over(snapshot.record):
                return
            await changes.wait(poll)
            snapshot = await _look(job)


async def _follow(following: contextlib.AsyncExitStack, job: Job, backoff: Backoff) -> Changes:
    """Follow the job's changes for as long as `following` is open. Raises `JobNotFoundError` for what can be no job's name."""
    while True:
        try:
            return await told(following.enter_async_context(job.backend.changes(job.name)))
        except JobNotFoundError:
            raise
        except BackendError as error:
            await backoff.pause(error)


async def _look_on(job: Job, changes: Changes, tell: OnTurn, poll: float) -> Turn:
    """A turn of somebody who does not hold the job, and the pause after it. Raises `BackendError`."""
    snapshot = await told(_look(job))
    if snapshot is None:
        return Turn(over=True)
    tell(snapshot)
    if _is_over(snapshot.record):
        return Turn(over=True, record=snapshot.record)
    await told(changes.wait(poll))
    return Turn()


def _masked(status: JobStatus, plan: Plan) -> JobStatus:
    """Return what is known of a job without its secrets, because the caller may log it."""
    return masked_status(status, mask_of_plan(plan))


async def _look(job: Job) -> Snapshot | None:
    stored = await job.load()
    if stored is None:
        return None
    status = await job.backend.status(job.name)
    if status is not None:
        # In a thread, as all that takes long with a status of a megabyte.
        status = await asyncio.to_thread(_masked, status, job.whole or stored.plan)
    return Snapshot(record=stored.record, plan=sized(stored.plan, stored.record), status=status, supervising=False)


def _is_over(record: JobRecord) -> bool:
    return record.released and not record.deletion


def _tell_nobody(_: Snapshot) -> None:
    """Take the place of `on_turn` where nobody asked."""
