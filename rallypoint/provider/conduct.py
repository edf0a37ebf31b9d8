"""Supervision of a job by a task: the same code in the worker, in the triggerer and in `dag.test()`."""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from rallypoint.backends.contract import Backend, BackendError, JobNotFoundError
from rallypoint.backends.requests import request_deletion
from rallypoint.backends.supervise import supervise
from rallypoint.provider.claim import Claim, End, Ending
from rallypoint.provider.failure import failure_of
from rallypoint.provider.publishing import Publication, publishing
from rallypoint.provider.ranks import ranks_of
from rallypoint.provider.task_log import Bookmark, Narrator, tell_culprit, telling_logs
from rallypoint.report.endings import culprit_of, failure_story, success_line
from rallypoint.report.roles import RoleSeen, read_roles, role_stories
from rallypoint.report.story import story_of
from rallypoint.report.summary import summarize
from rallypoint.supervision.record import JobRecord, Phase
from rallypoint.wire.plan import OrphanPolicy, Plan
from rallypoint.wire.status import JobStatus

__all__ = ["Log", "Post", "cancel", "conclude", "conduct", "is_local", "time_out"]

#: Seconds to wait for the last lines of a finished job.
LAST_LINES = 5.0

#: Seconds to wait for the clean-up of a finished job after the task has timed out.
LAST_TURNS = 30.0


class Log(Protocol):
    """A task's log: Airflow's, or one of the standard library."""

    def info(self, line: str, /, *values: Any) -> Any:
        """Write a line."""

    def warning(self, line: str, /, *values: Any) -> Any:
        """Write a warning."""

    def exception(self, line: str, /, *values: Any) -> Any:
        """Write a line and the exception that is being handled."""


@dataclass(frozen=True, kw_only=True)
class Post:
    """Context of a waiting task: the claim, the backend, and how another supervisor takes over.

    `spawn` leaves a supervisor of its own behind for the claim's job; it may block. `clock` is wall time in seconds since the
    epoch, which the claim's deadline is compared with. `orphan_policy` is that of a submission, for a job that names none: when
    every Airflow is gone for good, a task's job must not hold its machines for ever. `durable`: a job that runs for an earlier
    try of the task is adopted; `claimant` names the task over all of its tries; `tries` is what Airflow allows the task now,
    which a clear changes. `bookmark` keeps how far the output of the ranks was told, where the next process finds it.
    `publication`: where the job's page is published while it runs; None publishes none.
    """

    claim: Claim
    backend: Backend
    spawn: Callable[[Claim], None]
    log: Log
    clock: Callable[[], float] = time.time
    orphan_policy: OrphanPolicy = OrphanPolicy.STOP
    durable: bool = True
    tries: int = -1
    claimant: str = ""
    bookmark: Bookmark | None = None
    publication: Publication | None = None

    @property
    def holder(self) -> str:
        """Name of this process as the supervisor of the job."""
        return f"airflow task {self.claim.owner}"

    async def hand_over(self) -> None:
        """Hand the job over to a separate supervisor."""
        await asyncio.to_thread(self.spawn, self.claim)


async def conduct(post: Post) -> Ending:
    """Supervise the job to its end, or watch while another process supervises it; raises only if cancelled.

    If cancelled, the job continues, and the next supervisor takes over.
    """
    try:
        async with publishing(post.backend, post.claim.name, post.log, post.publication):
            ending = await _wait_and_tell(post)
    except Exception as error:
        post.log.exception("The supervision of job %s failed; the traceback follows", post.claim.name)
        return Ending(end=End.ERROR, name=post.claim.name, text=traceback.format_exc(), local_failure=is_local(error))
    else:
        return ending


async def _wait_and_tell(post: Post) -> Ending:
    """Wait for the end and log the output of the chosen ranks; after a failure, also that of the rank that failed first."""
    name, ranks = post.claim.name, ranks_of(post.claim.get_logs)
    if ranks is not None and not ranks:
        return await _wait(post)
    async with telling_logs(post.backend, name, post.log, ranks=ranks, bookmark=post.bookmark) as lines:
        ending = await _wait(post)
        if ending.end is End.FAILED:
            await _tell_culprit(post, ranks)
        if ending.end in (End.SUCCEEDED, End.FAILED):
            await asyncio.wait({lines}, timeout=LAST_LINES)
    return ending


async def _tell_culprit(post: Post, told: frozenset[int] | None) -> None:
    stored = await post.backend.load(post.claim.name)
    culprit = None if stored is None else await asyncio.to_thread(culprit_of, stored.record)
    if culprit is None or culprit.rank < 0 or told is None or culprit.rank in told:
        return
    try:
        await asyncio.wait_for(tell_culprit(post.backend, post.claim.name, post.log, culprit.rank), LAST_LINES)
    except (BackendError, asyncio.TimeoutError) as error:
        post.log.info("Cannot read the last output lines of rank %s, which failed first: %s", culprit.rank, error)


def is_local(error: Exception) -> bool:
    """Return whether an error concerns a disk or the backend's connection of this process; the job may be healthy."""
    return isinstance(error, (OSError, BackendError))


async def conclude(backend: Backend, record: JobRecord) -> Ending:
    """Return how a finished job ended."""
    stored = await backend.load(record.name) if record.conductor is not None else None
    plan = None if stored is None else stored.plan
    jobs = () if plan is None else await read_roles(backend, record, plan)
    # In a thread, because a record may have megabytes, and other triggers share the event loop.
    return await asyncio.to_thread(_ending, record, await backend.status(record.name), plan, jobs)


def _ending(record: JobRecord, status: JobStatus | None, plan: Plan | None, jobs: tuple[RoleSeen, ...]) -> Ending:
    story = story_of(record, status, now=record.last_now)
    summary = summarize(story, () if plan is None else role_stories(record, plan, jobs, now=record.last_now))
    if record.phase is Phase.SUCCEEDED:
        return Ending(end=End.SUCCEEDED, name=record.name, summary=summary, text=success_line(story))
    return Ending(end=End.FAILED, name=record.name, summary=summary, text=failure_story(record), failure=failure_of(record))


async def cancel(post: Post) -> bool:
    """Request the deletion of the job, if the claim allows it and still owns the job; return whether it will be deleted.

    A separate supervisor deletes the job, because Airflow kills a process a few seconds after SIGTERM.
    """
    if post.claim.on_kill_action != "delete_job":
        return False
    try:
        asked = await request_deletion(post.backend, post.claim.name, owner=post.claim.owner)
    except JobNotFoundError:
        return False
    if asked:
        await post.hand_over()
    return asked


async def time_out(post: Post) -> str:
    """Request the deletion of the job after a timeout of the task; a finished job is kept. Return a phrase about the action."""
    if await _has_ended(post):
        await post.hand_over()
        return "the job ended later, and its result is kept"
    return "the job is being deleted" if await cancel(post) else "the task did not change the job"


async def _wait(post: Post) -> Ending:
    claim, narrator = post.claim, Narrator(post.log.info)
    driving = asyncio.create_task(
        supervise(post.backend, claim.name, holder=post.holder, on_turn=narrator, poll=claim.poll_interval)
    )
    try:
        await _until_deadline(post, driving)
        await _last_turns(post, driving)
        if driving.done():
            return await _found(post, driving.result())
    finally:
        driving.cancel()
        await asyncio.wait({driving})
    text = f"job {claim.name} did not end within execution_timeout; {await time_out(post)}"
    return Ending(end=End.TIMEOUT, name=claim.name, text=text)


async def _until_deadline(post: Post, driving: asyncio.Task[JobRecord | None]) -> None:
    # Repeatedly, because the wall clock may be set back while the clock of the event loop continues.
    while not driving.done():
        left = None if post.claim.deadline is None else post.claim.deadline - post.clock()
        if left is not None and left <= 0:
            return
        await asyncio.wait({driving}, timeout=left)


async def _last_turns(post: Post, driving: asyncio.Task[JobRecord | None]) -> None:
    """Finish the last supervisor turns of a job that ended before the timeout."""
    loop = asyncio.get_running_loop()
    end = loop.time() + LAST_TURNS
    while not driving.done() and (left := end - loop.time()) > 0 and await _has_ended(post):
        await asyncio.wait({driving}, timeout=min(left, post.claim.poll_interval))


async def _has_ended(post: Post) -> bool:
    """Return whether the job has a verdict, in its record or in the last status of the coordinator."""
    stored = await post.backend.load(post.claim.name)
    if stored is None or stored.record.deletion:
        return False
    record, status = stored.record, await post.backend.status(post.claim.name)
    if record.finished or status is None:
        return record.finished
    return status.verdict is not None and (status.uid, status.fence.attempt) == (record.uid, record.attempt)


async def _found(post: Post, record: JobRecord | None) -> Ending:
    if record is None:
        return Ending(end=End.DELETED, name=post.claim.name, text=f"job {post.claim.name} was deleted by another client")
    return await conclude(post.backend, record)
