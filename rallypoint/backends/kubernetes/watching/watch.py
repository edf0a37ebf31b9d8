"""One watch of one kind of objects: a list, then what happens to them from there on, without a gap.

A cut stream goes on where it ended. Where the server does not keep the history so far back (410) everything is listed anew, and
what is not in that list is gone. A watch that is not connected says so (`fresh`): whoever decides something then asks the
server itself, and hears that it does not answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import random
import time
from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from rallypoint.backends.contract import BackendError
from rallypoint.backends.kubernetes.client import PAGE_VALUES, Api, parse
from rallypoint.backends.kubernetes.errors import ApiError, GoneError, TooLargeError
from rallypoint.backends.kubernetes.watching.bounded import identity
from rallypoint.kube.time_slices import TimeSlices

__all__ = ["Page", "Shelves", "Target", "Watch", "pages"]

log = logging.getLogger(__name__)

#: Seconds after which the server ends a watch, so that its load can move to another server; and without a byte until we do.
#: Bookmarks come about once a minute.
_LASTS, _SILENCE = 300, 100.0

#: Pauses between two tries to connect, in seconds: doubled from the first to the last.
_FIRST_PAUSE, _LAST_PAUSE = 0.05, 10.0

#: Seconds until a list is read again that was too large.
_LONG_PAUSE = 300.0

#: A stream that lasted so many seconds worked, even if nothing happened meanwhile.
_WORTH = 0.5

#: Seconds between two log lines about the same kind of failure.
_LOGGED_EVERY = 60.0

#: Objects of one page of a list.
_PAGE = 500

#: Objects and bytes of a whole list. A job has at most 16,384 nodes, and the JSON of a pod has about 8 KB.
_MOST_OBJECTS, _MOST_BYTES = 200_000, 512 << 20


class Shelves(Protocol):
    """Where the objects go."""

    @property
    def full(self) -> bool:
        """Whether some objects were not kept, because all together are too large."""
        ...

    def put(self, found: Mapping[str, Any]) -> object:
        """Take an object as it is now."""
        ...

    def remove(self, found: Mapping[str, Any]) -> None:
        """Take note that an object was deleted."""
        ...

    def keep(self, uids: Collection[str], version: str) -> None:
        """End a list as it was at `version`: an older object whose uid is not among `uids` was deleted."""
        ...


@dataclass(frozen=True, kw_only=True)
class Target:
    """What is watched: the path of a collection, and a label selector."""

    path: str
    selector: str = ""

    @property
    def query(self) -> dict[str, str]:
        """What every request asks for."""
        return {"labelSelector": self.selector} if self.selector else {}


@dataclass(frozen=True, kw_only=True)
class Page:
    """Some objects of a list; `version` is that of the whole list, and only the last page has one."""

    items: tuple[Mapping[str, Any], ...]
    version: str = ""


class Watch:
    """A watch that goes on until it is stopped. `fresh` is set while its shelves hold what the server has told up to now.

    One that can be done without says what it is like then (`without`, in words), and ends where it is refused.
    """

    def __init__(self, api: Api, target: Target, shelves: Shelves, *, without: str = "") -> None:
        self._api, self._target, self._shelves, self._without = api, target, shelves, without
        self._version = ""
        self._connected = self._failing = False
        self._logged: dict[str, float] = {}
        self._listed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.refused = False
        self.relisted = self.resumed = 0

    @property
    def fresh(self) -> bool:
        """Whether the shelves hold all objects as the server has sent them up to now."""
        return self._connected and not self._shelves.full

    def start(self) -> None:
        """Begin to watch."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"watch {self._target.path}")

    async def stop(self) -> None:
        """End it."""
        task, self._task = self._task, None
        self._connected = False
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def listed(self, timeout: float) -> bool:
        """Return whether everything was listed once, at the latest after `timeout` seconds."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._listed.wait(), timeout)
        return self._listed.is_set()

    async def _run(self) -> None:
        pause = _FIRST_PAUSE
        while True:
            try:
                if await self._connect():
                    pause = _FIRST_PAUSE
            except GoneError:
                self._expired()
            except BackendError as error:
                if self._gives_up(error):
                    return
                if self._failed("failed"):
                    log.warning(
                        "the Kubernetes watch of %s failed: %s; the supervisor starts the watch again", self._target.path, error
                    )
                if isinstance(error, TooLargeError):  # the same event would follow the same version again
                    self._version, pause = "", _LONG_PAUSE
            except Exception:
                # Any user of the namespace can write objects. One that cannot be read must not end the watch.
                if self._failed("unreadable"):
                    log.exception("the Kubernetes watch of %s failed; listing the objects again", self._target.path)
                self._version = ""
            finally:
                self._connected = False
            await asyncio.sleep(pause * random.uniform(0.8, 1.2))  # noqa: S311  spread, not secret
            pause = min(2 * pause, _LAST_PAUSE)

    async def _connect(self) -> bool:
        """List the objects unless they are known, then read one stream to its end; return whether the watch works."""
        if not self._version:
            await self._list()
        heard, lasted = await self._listen()
        self.resumed += 1
        # After a failure, one event does not show that it works again.
        works = lasted or (heard and not self._failing)
        self._failing = self._failing and not works
        self._version = "" if self._shelves.full else self._version
        return works

    def _expired(self) -> None:
        self._version = ""
        self.relisted += 1
        if self._is_due("expired"):
            log.info("the Kubernetes watch of %s expired; the supervisor lists the objects again", self._target.path)

    def _failed(self, kind: str) -> bool:
        """Record a failure; return whether to log it."""
        first, self._failing = not self._failing, True
        return first and self._is_due(kind)

    def _is_due(self, kind: str) -> bool:
        """Return whether nothing of this kind was logged for a minute: a server may fail after each event."""
        now = time.monotonic()
        if now - self._logged.get(kind, -math.inf) < _LOGGED_EVERY:
            return False
        self._logged[kind] = now
        return True

    def _gives_up(self, error: BackendError) -> bool:
        """Return whether the server refuses a watch that is optional; then it is not tried again."""
        if not (self._without and isinstance(error, ApiError) and error.status in (401, 403, 404)):
            return False
        self.refused = True
        self._listed.set()
        log.warning("cannot watch %s (%s): %s", self._target.path, error.said, self._without)
        return True

    async def _list(self) -> None:
        uids, version, slices = set(), "", TimeSlices()
        async for page in pages(self._api, self._target):
            for found in page.items:
                self._shelves.put(found)
                uids.add(identity(found["metadata"].get("uid")))
                await slices.give_way()
            version = page.version
        self._shelves.keep(uids, version)
        self._version = version
        self._listed.set()
        if self._shelves.full:
            log.warning(
                "the objects of the Kubernetes watch of %s are too large to keep; reading each job's own", self._target.path
            )

    async def _listen(self) -> tuple[bool, bool]:
        """Process events until the stream ends; return whether there was one, and whether the stream lasted for `_WORTH`."""
        query = {
            **self._target.query,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(int(_LASTS * random.uniform(0.9, 1.1))),  # noqa: S311  spread, not secret
        }
        clock = asyncio.get_running_loop().time
        heard, begun, slices = False, clock(), TimeSlices()
        async with self._api.stream(self._target.path, query=query, silence=_SILENCE) as lines:
            self._connected = True
            async for line in _whole(lines):
                self._take(await parse(line, f"watch {self._target.path}"))
                heard = True
                await slices.give_way()
        return heard, clock() - begun > _WORTH

    def _take(self, event: Mapping[str, Any]) -> None:
        kind, found = event.get("type"), event.get("object") or {}
        if kind == "ERROR":
            code, said = int(found.get("code") or 500), str(found.get("message") or "")
            error = GoneError if code == 410 else ApiError
            raise error(f"watch {self._target.path}", status=code, reason=str(found.get("reason") or ""), said=said)
        if kind in ("ADDED", "MODIFIED"):
            self._shelves.put(found)
        elif kind == "DELETED":
            self._shelves.remove(found)
        # The version is taken last: what could not be understood is told again.
        self._version = found["metadata"]["resourceVersion"]


async def _whole(lines: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the lines that came whole: the last one of a cut stream is told again."""
    async for line in lines:
        if line.endswith(b"\n") and line.strip():
            yield line


async def pages(api: Api, target: Target) -> AsyncIterator[Page]:
    """Yield all objects as they are now, page by page, so that one page at a time is in memory.

    Raises `BackendError`, and `TooLargeError` for a list without an end.
    """
    size, query, what = _PAGE, dict(target.query), f"GET {target.path}"
    objects, length = 0, 0
    while True:
        try:
            data = await api.request("GET", target.path, query={**query, "limit": str(size)})
            page = await (parse(data, what) if size == 1 else parse(data, what, values=PAGE_VALUES))
        except TooLargeError:
            if size == 1:
                raise
            size = max(1, size // 8)
            continue
        objects, length = objects + len(page.get("items") or ()), length + len(data)
        if objects > _MOST_OBJECTS or length > _MOST_BYTES:
            said = f"the list has more than {_MOST_OBJECTS} objects or {_MOST_BYTES} bytes"
            raise TooLargeError(what, status=502, said=said)
        meta = page.get("metadata") or {}
        more, version = meta.get("continue"), str(meta.get("resourceVersion") or "")
        yield Page(items=tuple(page.get("items") or ()), version="" if more else version)
        if not more:
            return
        query["continue"] = more
