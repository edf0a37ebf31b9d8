"""Publishing the page of a job while its task waits, at a bounded rate.

The API server shows the published page; it reads a job itself only if the administrator has allowed that
(rallypoint/plugin/live_access.py).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from rallypoint.backends.contract import Backend
from rallypoint.report.page.published import published_page

__all__ = ["Publication", "publish_interval", "publishing"]

#: Seconds until the first page; a short job publishes only its end.
FIRST = 5.0

#: Seconds that the end of a task waits for a running write, which must not overwrite the final page.
_LAST_WRITE = 10.0

_DEFAULT_INTERVAL = 60.0


class Log(Protocol):
    """Where a failure is logged."""

    def info(self, line: str, /, *values: object) -> object:
        """Write a line."""


@dataclass(frozen=True, kw_only=True)
class Publication:
    """Where and how often a page is published.

    Attributes:
        write: stores a page; may block, and may raise any error of an XCom backend. Called in a thread.
        interval: seconds between two pages.
        owner, number: id of the task's try, and which try it is.
        place: where the job is, in words.
        first: seconds until the first page.
    """

    write: Callable[[dict[str, Any]], object]
    interval: float
    owner: str
    number: int
    place: str
    first: float = FIRST


def publish_interval() -> float:
    """Return `[rallypoint] ui_publish_interval`: seconds between two pages, 0 for none while a job runs."""
    from airflow.sdk import conf  # noqa: PLC0415  read when a task runs

    return max(0.0, float(conf.getfloat("rallypoint", "ui_publish_interval", fallback=_DEFAULT_INTERVAL)))


@contextlib.asynccontextmanager
async def publishing(backend: Backend, name: str, log: Log, publication: Publication | None) -> AsyncIterator[None]:
    """Publish the page of a job for the duration of the context. A failure is logged once, and does not fail the task."""
    if publication is None or publication.interval <= 0:
        yield
        return
    publisher = _Publisher(backend, name, log, publication)
    task = asyncio.create_task(publisher.run(), name=f"page of {name}")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})
        await publisher.written()


class _Publisher:
    def __init__(self, backend: Backend, name: str, log: Log, publication: Publication) -> None:
        self._backend, self._name, self._log, self._to = backend, name, log, publication
        self._last: dict[str, Any] | None = None
        self._writing: asyncio.Future[object] | None = None
        self._failed = False

    async def run(self) -> None:
        await asyncio.sleep(self._to.first)
        while True:
            await self._logged(self._publish())
            await asyncio.sleep(self._to.interval)

    async def _publish(self) -> None:
        tries = {self._to.owner: self._to.number}
        page = await published_page(self._backend, self._name, tries=tries, place=self._to.place, live=True)
        if page is None or page == self._last:
            return
        self._writing = asyncio.ensure_future(asyncio.to_thread(self._to.write, page))
        await asyncio.shield(self._writing)
        self._last = page

    async def written(self) -> None:
        """Wait for a running write, which must not overwrite a newer page."""
        if self._writing is not None:
            await asyncio.wait({self._writing}, timeout=_LAST_WRITE)
            if self._writing.done() and not self._writing.cancelled():
                self._writing.exception()

    async def _logged(self, attempt: Awaitable[None]) -> None:
        try:
            await attempt
            self._failed = False
        except Exception as error:  # noqa: BLE001  whatever a backend or an XCom backend may raise: no task fails for its page
            if not self._failed:
                self._log.info('Cannot update the tab "Elastic training" of job %s: %s', self._name, error)
            self._failed = True
