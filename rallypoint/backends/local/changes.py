"""Following one job: its processes by pidfd, which wake at once, and its two telling files by a look now and then."""

from __future__ import annotations

import asyncio
import os
import select

from rallypoint.backends.contract import Changes
from rallypoint.backends.local.files import telling
from rallypoint.backends.local.layout import JobFolder
from rallypoint.backends.local.threads import in_thread

__all__ = ["LocalChanges"]

#: How often the files are looked at, in seconds.
_LOOK = 0.2

#: Identity of a file's content as far as `stat` tells: each writer replaces the whole file.
_Stamp = tuple[tuple[int, int, int] | None, ...]


class LocalChanges(Changes):
    """Changes of one job; `open` it before the first look at the job, `close` it at the end."""

    def __init__(self, folder: JobFolder) -> None:
        self._folder = folder
        self._stamp: _Stamp = ()
        #: A pidfd for each live shim by its folder, and None for each that has ended.
        self._shims: dict[str, int | None] = {}

    def open(self) -> None:
        """Start to follow. Blocks; raises `BackendError`."""
        self._stamp = self._files()
        self._find_shims()

    def close(self) -> None:
        """Let go of everything."""
        for descriptor in self._shims.values():
            if descriptor is not None:
                os.close(descriptor)
        self._shims.clear()

    async def wait(self, timeout: float) -> None:
        """Return when something of the job may have changed since the last call, at the latest after `timeout` seconds."""
        if await in_thread(self._find_shims):
            return
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        ended = asyncio.Event()
        watched = [descriptor for descriptor in self._shims.values() if descriptor is not None]
        try:
            for descriptor in watched:
                loop.add_reader(descriptor, ended.set)
            while not await in_thread(self._files_changed):
                left = deadline - loop.time()
                if left <= 0 or await _is_set_within(ended, min(left, _LOOK)):
                    break
        finally:
            for descriptor in watched:
                loop.remove_reader(descriptor)
        self._forget_ended()

    def _files(self) -> _Stamp:
        return tuple(_stamp(str(path)) for path in (self._folder.record, self._folder.status))

    def _files_changed(self) -> bool:
        before, self._stamp = self._stamp, self._files()
        return self._stamp != before

    def _find_shims(self) -> bool:
        """Follow shims that were not followed yet; return whether one had ended before it could be."""
        missed = False
        with telling(self._folder.path):
            for node in self._folder.everyone():
                key = str(node.path)
                shim = node.shim() if key not in self._shims else None
                if shim is not None:
                    self._shims[key] = shim.open()
                    missed = missed or self._shims[key] is None
        return missed

    def _forget_ended(self) -> None:
        for key, descriptor in self._shims.items():
            if descriptor is not None and _readable(descriptor):
                os.close(descriptor)
                self._shims[key] = None


def _stamp(path: str) -> tuple[int, int, int] | None:
    try:
        told = os.stat(path)  # noqa: PTH116  a plain call, five times a second
    except OSError:
        return None
    return told.st_ino, told.st_mtime_ns, told.st_size


async def _is_set_within(event: asyncio.Event, timeout: float) -> bool:
    # Not `wait_for`: before Python 3.12 it forgets a cancellation that comes together with the event.
    waiting = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait([waiting], timeout=timeout)
    finally:
        waiting.cancel()
    return event.is_set()


def _readable(pidfd: int) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))
