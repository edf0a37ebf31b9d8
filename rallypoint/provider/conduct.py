"""The one way in which a task waits for its job: in the worker, in the triggerer and in `dag.test()` alike."""

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

#: How long the last lines of a finished job may take to arrive, in seconds.
LAST_LINES = 5.0

#: How long a job that has ended may take to be cleaned up after the task's time is over, in seconds.
LAST_TURNS = 30.0


class Log(Protocol):
    """A task's log: Airflow's, or one of the standard library."""

    def info(self, line: str, /, *values: Any) -> Any:
        """Write a line."""

    def warning(self, line: str, /, *values: Any) -> Any:
        """Write a line that asks for attention."""

    def exception(self, line: str, /, *values: Any) -> Any:
        """Write a line and the exception that is being handled."""


@dataclass(frozen=True, kw_only=True)
class Post:
    """Where a task stands while it waits: whose job, on which backend, and who takes over when it has to leave.

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
        """How this process is named as the supervisor of its job."""
        return f"airflow task {self.claim.owner}"

    async def hand_over(self) -> None:
        """Leave the job to a supervisor of its own."""
        await asyncio.to_thread(self.spawn, self.claim)


async def conduct(post: Post) -> Ending:
    """Supervise the job to its end, or watch while another process does; raises only when it is cancelled.

    When it is cancelled the job goes on, and whoever holds it next takes over.
    """
    try:
        async with publishing(post.backend, post.claim.name, post.log, post.publication):
            ending = await _wait_and_tell(post)
    except Exception as error:
        post.log.exception("Supervision of job %s failed", post.claim.name)
        return Ending(end=End.ERROR, name=post.claim.name, text=traceback.format_exc(), local_failure=is_local(error))
    else:
        return ending


async def _wait_and_tell(post: Post) -> Ending:
    """Wait for the end, and tell the output of the chosen ranks meanwhile; of a failure first of who broke first."""
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
        post.log.info("Cannot read the output of rank %s: %s", culprit.rank, error)


def is_local(error: Exception) -> bool:
    """Return whether an error is about a disk or the backend as this process saw it: the job may well be healthy."""
    return isinstance(error, (OSError, BackendError))


async def conclude(backend: Backend, record: JobRecord) -> Ending:
    """Return how a finished job ended."""
    stored = await backend.load(record.name) if record.conductor is not None else None
    plan = None if stored is None else stored.plan
    jobs = () if plan is None else await read_roles(backend, plan)
    # In a thread: a record of megabytes takes long, and other triggers share the event loop.
    return await asyncio.to_thread(_ending, record, await backend.status(record.name), plan, jobs)


def _ending(record: JobRecord, status: JobStatus | None, plan: Plan | None, jobs: tuple[RoleSeen, ...]) -> Ending:
    story = story_of(record, status, now=record.last_now)
    summary = summarize(story, () if plan is None else role_stories(record, plan, jobs, now=record.last_now))
    if record.phase is Phase.SUCCEEDED:
        return Ending(end=End.SUCCEEDED, name=record.name, summary=summary, text=success_line(story))
    return Ending(end=End.FAILED, name=record.name, summary=summary, text=failure_story(record), failure=failure_of(record))


async def cancel(post: Post) -> bool:
    """Have the job deleted, if the claim says so and the job still belongs to it; return whether it will be.

    A supervisor of its own sees to it: Airflow kills a process a few seconds after it asked it to end.
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
    """Have the job deleted because the task's time is over; one that has ended is kept. Return what was done, in words."""
    if await _has_ended(post):
        await post.hand_over()
        return "it has ended and its result is kept"
    return "it is being deleted" if await cancel(post) else "the task did not change it"


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
    # Again and again, since the wall clock may be set back while the event loop's own clock goes on.
    while not driving.done():
        left = None if post.claim.deadline is None else post.claim.deadline - post.clock()
        if left is not None and left <= 0:
            return
        await asyncio.wait({driving}, timeout=left)


async def _last_turns(post: Post, driving: asyncio.Task[JobRecord | None]) -> None:
    """Let a job come to rest that ended before its time was over, though nobody was there to see it."""
    loop = asyncio.get_running_loop()
    end = loop.time() + LAST_TURNS
    while not driving.done() and (left := end - loop.time()) > 0 and await _has_ended(post):
        await asyncio.wait({driving}, timeout=min(left, post.claim.poll_interval))


async def _has_ended(post: Post) -> bool:
    """Whether the job has its verdict, in its record or as yet only by its coordinator's last word."""
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
