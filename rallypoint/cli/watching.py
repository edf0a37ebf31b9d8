"""Watching a job until it ends. The job continues if the watching process exits."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from rallypoint.cli.document import JobDocument
from rallypoint.cli.lookup import roles_of, supervisor_of
from rallypoint.cli.options import Where, spell_command
from rallypoint.cli.screens import Screen, choose_screen
from rallypoint.cli.services import Services
from rallypoint.cli.supervisors import Left, SupervisorLostError
from rallypoint.supervision.record import Phase

__all__ = ["Watched", "watch_to_the_end"]

_INTERRUPTED = 130  # 128 + SIGINT, as shells count

#: Seconds to wait for the end of the job after its supervisor has exited.
_LAST_LOOK = 5.0


@dataclass(frozen=True, kw_only=True)
class Watched:
    """The job that is watched.

    Attributes:
        left: the supervisor that this process started, if any.
        here: this process supervises the job while it watches, until the job has ended and its resources are released.
    """

    name: str
    where: Where
    left: Left = field(default_factory=Left)
    here: bool = False


def watch_to_the_end(services: Services, job: Watched, *, json: bool) -> int:
    """Show a job until it ends; return 0 if it succeeded, 1 if it failed or was deleted, 130 after Ctrl-C."""
    try:
        screen = choose_screen(json=json)
        with screen:
            last = asyncio.run(_follow(services, job, screen))
            screen.end(last)
    except KeyboardInterrupt:
        print(f"Job {job.name} {_goes_on(job)}", file=sys.stderr)
        return _INTERRUPTED
    if last.record.finished:
        return 0 if last.record.phase is Phase.SUCCEEDED else 1
    print(f"rallypoint: job {job.name} was deleted", file=sys.stderr)
    return 1


def _goes_on(job: Watched) -> str:
    if job.here:
        return f"continues without a supervisor; to supervise it again: {spell_command(job.where, 'supervise', job.name)}"
    return f"continues; to watch it again: {spell_command(job.where, 'status', job.name, '--watch')}"


async def _follow(services: Services, job: Watched, screen: Screen) -> JobDocument:
    showing = asyncio.create_task(_show(services, job, screen))
    if job.here:
        return await _supervised(services, job, showing)
    watchers = {showing}
    if job.left.lost is not None:
        watchers.add(asyncio.create_task(_supervisor_lost(job, job.left.lost, showing)))
    done, others = await asyncio.wait(watchers, return_when=asyncio.FIRST_COMPLETED)
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    return done.pop().result()


async def _supervised(services: Services, job: Watched, showing: asyncio.Task[JobDocument]) -> JobDocument:
    """Supervise until the job has ended, also if the screen fails; return the last document."""
    from rallypoint.backends.supervise import supervise  # noqa: PLC0415  as below

    async with services.backend(job.where) as backend:
        await supervise(backend, job.name, holder="rallypoint submit")
    return await showing


async def _show(services: Services, job: Watched, screen: Screen) -> JobDocument:
    from rallypoint.backends.contract import JobNotFoundError  # noqa: PLC0415  --help does without the backends
    from rallypoint.backends.supervise import watch  # noqa: PLC0415

    last = None
    async with services.backend(job.where) as backend:
        async for seen in watch(backend, job.name):
            supervisor = await supervisor_of(backend, seen.record)
            roles = await roles_of(backend, seen.record, seen.plan)
            last = JobDocument(record=seen.record, plan=seen.plan, status=seen.status, supervisor=supervisor, roles=roles)
            screen.show(last)
    if last is None:
        raise JobNotFoundError(f"job {job.name!r} not found")
    return last


async def _supervisor_lost(job: Watched, lost: Callable[[], Awaitable[str]], showing: asyncio.Task[JobDocument]) -> JobDocument:
    """Return the last document, or raise an error if the supervisor exits before the job ends."""
    story = await lost()
    done, _ = await asyncio.wait({showing}, timeout=_LAST_LOOK)
    if done:
        return showing.result()
    raise SupervisorLostError(job.name, story, job.where)
