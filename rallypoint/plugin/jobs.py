"""Read-only access of the API server to the job of a task instance."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rallypoint.plugin.live_access import LiveAccess, NotLiveError, open_live
from rallypoint.plugin.task import TaskSeen
from rallypoint.provider.place import Place
from rallypoint.report.headline import no_data, no_job, not_live, unreachable
from rallypoint.report.page.roles import roles_as_of, roles_page
from rallypoint.report.page.values import Page
from rallypoint.report.page.view import as_of, page_of, plain_page
from rallypoint.report.roles import RoleSeen, read_roles, tail_of
from rallypoint.supervision.masking import masked_status
from rallypoint.wire import codec
from rallypoint.wire.errors import RallypointError
from rallypoint.wire.masked import mask_of_plan

if TYPE_CHECKING:
    from rallypoint.backends.contract import Backend, LogLine, Stored, Tail
    from rallypoint.supervision.record import JobRecord
    from rallypoint.wire.plan import Plan
    from rallypoint.wire.status import JobStatus

__all__ = ["Looker"]

#: Seconds for which a backend is kept open; afterwards its connection is read again.
KEPT_OPEN = 60.0

#: Seconds for which the page of a job is cached.
FRESH = 1.0

#: An error is cached for so many times the seconds that the request took, and for so many seconds at most: a hostile server may
#: answer with megabytes that take seconds to parse.
_REST, _LONGEST_REST = 10.0, 60.0

#: Seconds after which a backend that does not respond counts as unreachable.
PATIENCE = 10.0

#: Limits of cached jobs and open backends, because tasks choose their names.
MOST_JOBS, MOST_BACKENDS = 256, 16

#: Requests that read log lines of one connection at a time: each may need 64 MiB of memory.
_TAILS = 4

#: Characters of each line of a log; longer ones are cut before they are masked, which takes time.
_WIDTH = 2000


@dataclass(frozen=True, kw_only=True)
class _Seen:
    at: float
    stored: Stored | None
    status: JobStatus | None
    age: float | None = None
    roles: tuple[RoleSeen, ...] = ()


class _UnreadableError(RallypointError):
    """The job could not be read a moment ago."""


class Looker:
    """Reads jobs for the browsers of one API server; call `close` at the end.

    Args:
        open_backend: opens the backend of a place that `access` allows; may block.
        access: places that may be opened.
        clock: seconds that never run backwards.
        patience: seconds after which a backend that does not respond counts as unreachable.
        linger: seconds after which an unused backend is closed; other requests may still wait for it.
    """

    def __init__(
        self,
        open_backend: Callable[[Place], Backend] = open_live,
        *,
        access: LiveAccess,
        clock: Callable[[], float] = time.monotonic,
        patience: float = PATIENCE,
        linger: float = PATIENCE,
    ) -> None:
        self._open, self._access, self._clock, self._patience = open_backend, access, clock, patience
        self._linger = linger
        self._backends: dict[Place, tuple[float, Backend]] = {}
        self._seen: dict[tuple[Place, str], _Seen] = {}
        self._errors: dict[tuple[Place, str], tuple[float, str]] = {}
        self._opening = asyncio.Lock()
        self._looking: dict[tuple[Place, str], asyncio.Lock] = {}
        self._tails: dict[str, asyncio.Semaphore] = {}
        self._pages: dict[tuple[Place, str, frozenset[tuple[str, int]]], tuple[_Seen, asyncio.Future[Page]]] = {}

    async def look(self, task: TaskSeen) -> Page:
        """Return the page of a task's job: live, or as published by the task, or the reason why there is none."""
        if not task.job:
            return await _published(task) or plain_page(no_job())
        try:
            place = self._access.allowed(task.place)
        except NotLiveError as error:
            notice = str(error)
            return await _published(task, notice=notice) or plain_page(not_live(task.job, notice), job=task.job)
        try:
            seen = await self._own(place, task)
        except asyncio.TimeoutError:
            return await _unreachable(task, self._silent)
        except (OSError, RallypointError) as error:
            return await _unreachable(task, str(error))
        if seen is None:
            return await _published(task, gone=True) or plain_page(no_data(task.job), job=task.job)
        try:
            return await asyncio.wait_for(asyncio.shield(self._shared_page(place, task, seen)), self._patience)
        except asyncio.TimeoutError:
            return await _unreachable(task, f"no page of its record within {self._patience:g} s")
        except Exception as error:  # noqa: BLE001  whatever a damaged record makes of it: the tab says so
            return await _unreachable(task, f"cannot display its record ({type(error).__name__})")

    def _shared_page(self, place: Place, task: TaskSeen, seen: _Seen) -> asyncio.Future[Page]:
        """Return the page of a job for all requests: it is built once, in one thread, also if the requests are cancelled."""
        key = (place, task.job, frozenset(task.tries.items()))
        made_of, page = self._pages.get(key, (None, None))
        if page is None or (made_of is not seen and page.done()):
            page = asyncio.ensure_future(asyncio.to_thread(_page, place, task.tries, seen))
            page.add_done_callback(_retrieved)
            self._pages[key] = (seen, page)
        return page

    async def tail(self, task: TaskSeen, rank: int, *, lines: int, role: str = "") -> tuple[LogLine, ...]:
        """Return the last lines of a rank of the task's job, or of one of its roles; none if the job no longer exists.

        Raises `RallypointError`, such as `NotLiveError` where the API server may not read the job.
        """
        if not task.job:
            return ()
        place = self._access.allowed(task.place)
        seen = await self._own(place, task)
        if seen is None or seen.stored is None:
            return ()
        backend = await self._backend(place)
        found = await asyncio.wait_for(self._read_tail(place, backend, seen.stored, role, lines, rank), self._patience)
        # Meanwhile the job may have started again, with another secret.
        seen = await self._own(place, task)
        if seen is None or seen.stored is None:
            return ()
        return await asyncio.to_thread(_masked, found.lines, seen.stored.plan)

    async def _read_tail(self, place: Place, backend: Backend, stored: Stored, role: str, lines: int, rank: int) -> Tail:
        async with self._tails.setdefault(place.conn_id, asyncio.Semaphore(_TAILS)):
            return await tail_of(backend, stored, role, lines=lines, rank=rank)

    async def _own(self, place: Place, task: TaskSeen) -> _Seen | None:
        """Return the state of a task's job; None if it does not exist or belongs to another task.

        Raises `OSError`, `RallypointError` and `asyncio.TimeoutError`.
        """
        try:
            seen = await asyncio.wait_for(self._ask(place, task.job), self._patience)
        except asyncio.TimeoutError:
            self._keep_error((place, task.job), self._silent, took=self._patience / _REST)
            raise
        if seen.stored is None or not _owned(seen.stored.record, task.tries):
            return None
        return seen

    async def close(self) -> None:
        """Close every backend."""
        backends, self._backends = self._backends, {}
        for _, backend in backends.values():
            with contextlib.suppress(OSError, RallypointError):
                await backend.close()

    async def _ask(self, place: Place, job: str) -> _Seen:
        key = (place, job)
        async with self._looking.setdefault(key, asyncio.Lock()):
            known, now = self._seen.get(key), self._clock()
            if known is not None and now - known.at < FRESH:
                return known
            until, error = self._errors.get(key, (now, ""))
            if now < until:
                raise _UnreadableError(error)
            try:
                backend = await self._backend(place)
                stored = await backend.load(job)
                # Not `status`, which connects to the job's coordinator at an address that a pod of the job has set.
                status = None if stored is None else await backend.written(job)
                age = None if status is None else await backend.status_age(job, status)
                roles = () if stored is None else await read_roles(backend, stored.record, stored.plan, live=False)
                self._seen[key] = _Seen(at=self._clock(), stored=stored, status=status, age=age, roles=roles)
                self._errors.pop(key, None)
            except (OSError, RallypointError) as error:
                self._keep_error(key, str(error), took=self._clock() - now)
                raise
            finally:
                self._forget(now)
            return self._seen[key]

    @property
    def _silent(self) -> str:
        return f"no answer within {self._patience:g} s"

    def _keep_error(self, key: tuple[Place, str], error: str, *, took: float) -> None:
        self._errors[key] = (self._clock() + min(max(FRESH, _REST * took), _LONGEST_REST), error)

    def _forget(self, now: float) -> None:
        """Drop entries that were not used for a while, the oldest of too many, and unused locks and pages."""
        errors = sorted(self._errors.items(), key=lambda item: item[1][0])[-MOST_JOBS:]
        self._errors = {key: error for key, error in errors if now < error[0]}
        kept = sorted(self._seen.items(), key=lambda item: item[1].at)[-MOST_JOBS:]
        self._seen = {key: seen for key, seen in kept if now - seen.at <= FRESH}
        self._looking = {key: lock for key, lock in self._looking.items() if key in self._seen or lock.locked()}
        self._pages = {key: kept for key, kept in self._pages.items() if key[:2] in self._seen or not kept[1].done()}

    async def _backend(self, place: Place) -> Backend:
        async with self._opening:
            now = self._clock()
            opened, backend = self._backends.get(place, (0.0, None))
            if backend is not None and now - opened < KEPT_OPEN:
                return backend
            fresh = await asyncio.to_thread(self._open, place)
            self._backends[place] = (now, fresh)
            old = [backend] if backend is not None else []
            surplus = sorted(self._backends, key=lambda place: self._backends[place][0])[:-MOST_BACKENDS]
            old += [self._backends.pop(other)[1] for other in surplus]
        for backend in old:
            self._close_later(backend)
        return fresh

    def _close_later(self, backend: Backend) -> None:
        """Close a backend after its pending requests have ended."""
        asyncio.get_running_loop().call_later(self._linger, lambda: asyncio.ensure_future(backend.close()))


def _retrieved(page: asyncio.Future[Page]) -> None:
    """Retrieve the error of a page without waiting requests, so that asyncio does not log it."""
    if not page.cancelled():
        page.exception()


def _owned(record: JobRecord, tries: Collection[str]) -> bool:
    """Return whether a job is that of this task: its record names a try of it as the owner.

    A task may store any name. A job that another task has adopted belongs to that task.
    """
    return record.owner in tries


def _masked(lines: Iterable[LogLine], plan: Plan) -> tuple[LogLine, ...]:
    mask = mask_of_plan(plan)
    return tuple(dataclasses.replace(line, text=mask(line.text[:_WIDTH])) for line in lines)


def _page(place: Place, tries: Mapping[str, int], seen: _Seen) -> Page:
    assert seen.stored is not None
    record, plan, status = seen.stored.record, seen.stored.plan, seen.status
    site = None if place.conn_id else place.site
    label = f"connection {place.conn_id}" if place.conn_id else place.site.kind
    if plan.roles:
        now = roles_as_of(record, seen.roles)
        return roles_page(record, plan, seen.roles, now=now, site=site, tries=tries, label=label)
    status = None if status is None else masked_status(status, mask_of_plan(plan))
    now = as_of(record, status)
    return page_of(record, status, now=now, plan=plan, status_age=seen.age, site=site, tries=tries, label=label)


async def _unreachable(task: TaskSeen, why: str) -> Page:
    found = await _published(task, notice=f"Cannot read the job: {why}")
    return found or plain_page(unreachable(task.job, why), job=task.job)


async def _published(task: TaskSeen, *, notice: str = "", gone: bool = False) -> Page | None:
    """Return the page that the task published last; `gone`: its job no longer exists."""
    if task.kept is None:
        return None
    try:
        page = await asyncio.to_thread(codec.from_json, Page, task.kept)  # any task may write one of 130,000 values
    except (codec.WireError, RecursionError):  # published by another version, or no page at all
        return None
    if gone:
        return dataclasses.replace(page, live=False, kept=True, coming=())
    return dataclasses.replace(page, notice=notice if page.live else "")
