"""What every controller does: follow kinds of objects, remember which keys to look at and when, look at one after the other."""

from __future__ import annotations

import abc
import asyncio
import logging
import time
from collections.abc import Callable

import aiohttp

from tests.emulator.controllers.api import Api, ApiError, Kind, Object

__all__ = ["Agenda", "Controller", "follow", "key_of"]

log = logging.getLogger(__name__)

Key = tuple[str, str]  #: namespace and name

#: Pauses after something went wrong, in seconds.
_RELIST, _FIRST_RETRY, _LAST_RETRY = 0.2, 0.05, 2.0


def key_of(found: Object) -> Key:
    """Return the namespace and name of an object."""
    return found["metadata"].get("namespace", ""), found["metadata"]["name"]


async def follow(api: Api, kind: Kind, tell: Callable[[str, Object], None]) -> None:
    """Tell of all objects of a kind, `ADDED` for those that are there, and of every change, for ever.

    After a cut or a 410 everything is listed again: what has gone meanwhile is told as `DELETED`.
    """
    known: dict[Key, Object] = {}

    def seen(event: str, found: Object) -> None:
        if event == "BOOKMARK":
            return
        if event == "DELETED":
            known.pop(key_of(found), None)
        else:
            known[key_of(found)] = found
        tell(event, found)

    while True:
        try:
            items, version = await api.list(kind)
            here = {key_of(item) for item in items}
            for gone in [found for key, found in known.items() if key not in here]:
                seen("DELETED", gone)
            for item in items:
                seen("ADDED", item)
            async for event, found in api.watch(kind, version):
                seen(event, found)
        except (ApiError, aiohttp.ClientError, asyncio.TimeoutError, ValueError) as error:
            log.debug("%s: %s; listed again soon", kind.plural, error)
        await asyncio.sleep(_RELIST)


class Agenda:
    """Keys to look at, each at its earliest time."""

    def __init__(self) -> None:
        self._due: dict[Key, float] = {}
        self._more = asyncio.Event()

    def add(self, key: Key, after: float = 0.0) -> None:
        """Have a key looked at in so many seconds at the latest."""
        at = time.monotonic() + after
        self._due[key] = min(at, self._due.get(key, at))
        self._more.set()

    async def next(self) -> Key:
        """Return the key that is due, and forget it."""
        while True:
            key = min(self._due, key=self._due.__getitem__, default=None)
            left = None if key is None else self._due[key] - time.monotonic()
            if key is not None and left is not None and left <= 0:
                del self._due[key]
                return key
            self._more.clear()
            # Not `wait_for`: before Python 3.12 it forgets a cancellation that comes together with what it waits for.
            more = asyncio.ensure_future(self._more.wait())
            try:
                await asyncio.wait([more], timeout=left)
            finally:
                more.cancel()


class Controller(abc.ABC):
    """One controller: which kinds it follows, and what it does about one key."""

    def __init__(self, api: Api) -> None:
        self.api, self.agenda = api, Agenda()

    @abc.abstractmethod
    async def follow(self, group: Callable[[Kind, Callable[[str, Object], None]], None]) -> None:
        """Say with `group(kind, tell)` what is followed; `tell` puts keys on the agenda."""

    @abc.abstractmethod
    async def reconcile(self, key: Key) -> float | None:
        """Look at one key and do what is to be done; return in how many seconds to look again, None for only on a change."""

    async def run(self) -> None:
        """Work for ever."""
        tasks: list[asyncio.Task[None]] = []
        await self.follow(lambda kind, tell: tasks.append(asyncio.create_task(follow(self.api, kind, tell))))
        retries: dict[Key, float] = {}
        try:
            while True:
                key = await self.agenda.next()
                try:
                    after = await self.reconcile(key)
                except (ApiError, aiohttp.ClientError, asyncio.TimeoutError) as error:
                    after = retries[key] = min(2 * retries.get(key, _FIRST_RETRY), _LAST_RETRY)
                    log.debug("%s %s: %s; again in %g s", type(self).__name__, key, error, after)
                else:
                    retries.pop(key, None)
                if after is not None:
                    self.agenda.add(key, after)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
