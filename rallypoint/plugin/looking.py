"""Looking at the job of a task instance, from the API server: it reads, and never touches a job."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rallypoint.backends.site import SiteError
from rallypoint.plugin.task import TaskSeen
from rallypoint.plugin.values import Page
from rallypoint.plugin.view import as_of, page_of, plain_page
from rallypoint.plugin.words import no_data, no_job, unreachable
from rallypoint.provider import doors
from rallypoint.provider.place import Place
from rallypoint.wire import codec
from rallypoint.wire.errors import RallypointError

if TYPE_CHECKING:
    from rallypoint.backends.contract import Backend, LogLine, Stored
    from rallypoint.supervision.record import JobRecord
    from rallypoint.wire.status import JobStatus

__all__ = ["Looker"]

#: Seconds for which a backend is kept open: its connection is read anew after that.
KEPT_OPEN = 60.0

#: Seconds for which all who look at a job see the same.
FRESH = 1.0

#: Seconds after which a backend that does not answer is said to be out of reach.
PATIENCE = 10.0


@dataclass(frozen=True, kw_only=True)
class _Seen:
    at: float
    stored: Stored | None
    status: JobStatus | None


class Looker:
    """Looks at jobs for the browsers of one API server; `close` when it is no longer used.

    Args:
        open_backend: opens that of a place; may block.
        clock: seconds that never run backwards.
    """

    def __init__(
        self,
        open_backend: Callable[[Place], Backend] = doors.open_backend,
        *,
        clock: Callable[[], float] = time.monotonic,
        patience: float = PATIENCE,
    ) -> None:
        self._open, self._clock, self._patience = open_backend, clock, patience
        self._backends: dict[Place, tuple[float, Backend]] = {}
        self._seen: dict[tuple[Place, str], _Seen] = {}
        self._opening = asyncio.Lock()
        self._looking: dict[tuple[Place, str], asyncio.Lock] = {}

    async def look(self, task: TaskSeen) -> Page:
        """Return the page of a task's job: as it is now, or as the task has kept it, or why there is none."""
        if not task.job:
            return _kept(task) or plain_page(no_job())
        try:
            seen = await asyncio.wait_for(self._ask(task.place, task.job), self._patience)
        except asyncio.TimeoutError:
            return _kept(task) or plain_page(unreachable(task.job, f"no answer within {self._patience:g} s"), job=task.job)
        except (OSError, RallypointError) as error:
            return _kept(task) or plain_page(unreachable(task.job, str(error)), job=task.job)
        if seen.stored is None or not _owned(seen.stored.record, task.tries):
            return _kept(task) or plain_page(no_data(task.job), job=task.job)
        record, status = seen.stored.record, seen.status
        return page_of(
            record,
            status,
            now=as_of(record, status),
            plan=seen.stored.plan,
            site=None if task.place.conn_id else task.place.site,
            tries=task.tries,
            label=_label(task.place),
        )

    async def log(self, task: TaskSeen, rank: int) -> AsyncIterator[LogLine]:
        """Yield the lines of a rank of the task's job; none where the job is gone. Raises `BackendError`."""
        if not task.job:
            return
        seen = await self._ask(task.place, task.job)
        if seen.stored is None or not _owned(seen.stored.record, task.tries):
            return
        backend = await self._backend(task.place)
        async for line in backend.logs(task.job, rank=rank):
            yield line

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
            backend = await self._backend(place)
            stored = await backend.load(job)
            status = None if stored is None else await backend.status(job)
            seen = _Seen(at=self._clock(), stored=stored, status=status)
            self._forget(now)
            self._seen[key] = seen
            return seen

    def _forget(self, now: float) -> None:
        """Drop what nobody looks at any more."""
        for key in [key for key, seen in self._seen.items() if now - seen.at > KEPT_OPEN]:
            del self._seen[key]
            if not self._looking[key].locked():
                del self._looking[key]

    async def _backend(self, place: Place) -> Backend:
        async with self._opening:
            now = self._clock()
            opened, backend = self._backends.get(place, (0.0, None))
            if backend is not None and now - opened < KEPT_OPEN:
                return backend
            fresh = await asyncio.to_thread(self._open, place)
            self._backends[place] = (now, fresh)
        if backend is not None:
            asyncio.get_running_loop().call_later(self._patience, lambda: asyncio.ensure_future(backend.close()))
        return fresh


def _owned(record: JobRecord, tries: Collection[str]) -> bool:
    """Return whether a job is that of this task: what a task notes is its author's word, and shows nobody else's job."""
    return record.owner in tries or any(attempt.owner in tries for attempt in record.attempts)


def _kept(task: TaskSeen) -> Page | None:
    if task.kept is None:
        return None
    try:
        return codec.from_json(Page, task.kept)
    except codec.WireError:  # kept by another version, or no page at all
        return None


def _label(place: Place) -> str:
    if place.conn_id:
        return f"connection {place.conn_id}"
    try:
        return place.site.kind
    except SiteError:
        return place.backend
