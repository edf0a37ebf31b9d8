"""Following jobs: their processes by pidfd, which wake at once, and their two telling files by a look now and then.

An event loop looks at the files of all jobs that it follows in one go and in one thread, however many they are.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
import os
import select
import weakref
from collections.abc import Callable, Iterable, Iterator

from rallypoint.backends.contract import BackendError, Changes
from rallypoint.backends.local import proc
from rallypoint.backends.local.descriptors import Descriptors
from rallypoint.backends.local.files import read_optional, telling
from rallypoint.backends.local.layout import JobFolder, listed
from rallypoint.backends.uninterrupted import in_thread
from rallypoint.wire.unit_files import EXIT, STARTED, UNITS, UnitStarted

__all__ = ["LocalChanges"]

#: How often the files are looked at, in seconds.
_LOOK = 0.2

#: The same, in seconds, of an instance that is about to begin or to be told of as ended.
_SOON = 0.01

#: How often in a row it is looked that soon: a script can leave folders of instances that never begin.
_LOOKS = 1000

#: Processes of a job for which there is no descriptor (descriptors.py) are looked at so often, in seconds.
_CROWDED = 1.0

#: Those of all jobs in this process.
_DESCRIPTORS = Descriptors()

#: Identity of a file's content as far as `stat` tells: each writer replaces the whole file.
_Stamp = tuple[tuple[int, int, int] | None, ...]


class LocalChanges(Changes):
    """Changes of one job; `open` it before the first look at the job, `close` it at the end."""

    def __init__(self, folder: JobFolder, *, descriptors: Descriptors = _DESCRIPTORS) -> None:
        self._folder, self._descriptors = folder, descriptors
        self._stamp: _Stamp = ()
        #: What was seen between two waits is not lost.
        self._news = asyncio.Event()
        #: A pidfd for each live process by its folder, and None for each that has ended or is followed for another folder.
        self._shims: dict[str, int | None] = {}
        #: The processes that are followed: PID and start, by folder. A script can name one process in many folders.
        self._followed: dict[str, tuple[int, int]] = {}
        #: Whether there was no descriptor for a process, and how often in a row it was looked soon.
        self._crowded, self._looks = False, 0
        #: Instances of simple roles whose end was written down.
        self._over: set[str] = set()

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
        self._descriptors.give(len(self._followed))
        self._followed.clear()

    async def wait(self, timeout: float) -> None:
        """Return when something of the job may have changed since the last call, at the latest after `timeout` seconds."""
        # Where files were replaced before, there is nothing to wait for.
        if await in_thread(self._find_shims) or await in_thread(self.look):
            return
        ended, soon = await in_thread(self._find_units)
        if ended:
            return
        timeout = min(timeout, self._pause(soon=soon))
        loop = asyncio.get_running_loop()
        watched = [descriptor for descriptor in self._shims.values() if descriptor is not None]
        try:
            for descriptor in watched:
                loop.add_reader(descriptor, self._news.set)
            with _eyes().on(self, self._news):
                await _is_set_within(self._news, timeout)
        finally:
            for descriptor in watched:
                loop.remove_reader(descriptor)
        self._news.clear()
        self._forget_ended()

    def look(self) -> bool:
        """Return whether a file was replaced since the last look. Blocks."""
        before, self._stamp = self._stamp, self._files()
        return self._stamp != before

    def _files(self) -> _Stamp:
        return tuple(_stamp(str(path)) for path in (self._folder.record, self._folder.status))

    def _find_shims(self) -> bool:
        """Follow shims that were not followed yet; return whether one had ended before it could be."""
        missed = self._crowded = False
        with telling(self._folder.path):
            for node in self._folder.everyone():
                key = str(node.path)
                shim = node.shim() if key not in self._shims else None
                if shim is not None:
                    missed = self._follow(key, (shim.pid, shim.start_ticks), shim.open) or missed
        return missed

    def _find_units(self) -> tuple[bool, bool]:
        """Follow the processes of instances; return whether an end was written since the last look, and whether to look soon.

        It is looked soon for an instance that is about to begin, or that ended and whose end is not written yet.
        """
        ended = soon = False
        for folder in listed(self._folder.path, f"hosts/*/*/{UNITS}/*/*"):
            key = str(folder)
            if key in self._over:
                continue
            if (folder / EXIT).exists():
                self._over.add(key)
                ended = True
                continue
            if key not in self._shims:
                with contextlib.suppress(BackendError):
                    started = read_optional(UnitStarted, folder / STARTED)
                    if started is not None:
                        self._follow(key, (started.pid, started.start_ticks), functools.partial(_open, started))
            soon = soon or self._shims.get(key) is None
        return ended, soon

    def _follow(self, key: str, process: tuple[int, int], opened: Callable[[], int | None]) -> bool:
        """Follow a process, if it is not followed yet and there is a descriptor for it; return whether it had ended."""
        if process in self._followed.values():
            self._shims[key] = None
            return False
        if not self._descriptors.take(has=len(self._followed)):
            self._crowded = True
            return False
        descriptor = None
        try:
            descriptor = self._shims[key] = opened()
            if descriptor is not None:
                self._followed[key] = process
        finally:
            if descriptor is None:
                self._descriptors.give()
        return descriptor is None

    def _pause(self, *, soon: bool) -> float:
        """Return after how many seconds to look again, whatever happens until then."""
        self._looks = self._looks + 1 if soon else 0
        if self._crowded:
            return _CROWDED
        return math.inf if not soon else _SOON if self._looks <= _LOOKS else _LOOK

    def _forget_ended(self) -> None:
        for key, descriptor in self._shims.items():
            if descriptor is not None and _readable(descriptor):
                os.close(descriptor)
                self._shims[key] = None
                del self._followed[key]
                self._descriptors.give()


def _open(started: UnitStarted) -> int | None:
    """Return a pidfd of an instance, or None when it has ended."""
    try:
        descriptor = os.pidfd_open(started.pid)
    except ProcessLookupError:
        return None
    if proc.lives(started.pid, started.start_ticks, started.boot_id):
        return descriptor
    os.close(descriptor)
    return None


class _Eyes:
    """Looks at the files of all jobs that wait in one event loop."""

    def __init__(self) -> None:
        self._waiting: dict[LocalChanges, asyncio.Event] = {}
        self._task: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def on(self, changes: LocalChanges, news: asyncio.Event) -> Iterator[None]:
        """Set `news` when a file of the job is replaced while the context lasts."""
        self._waiting[changes] = news
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._look_now_and_then(), name="files of jobs")
        try:
            yield
        finally:
            del self._waiting[changes]

    async def _look_now_and_then(self) -> None:
        # It is never cancelled by those who leave: what a look has seen has to be told.
        while self._waiting:
            await asyncio.sleep(_LOOK)
            news = dict(self._waiting)
            for changes in await in_thread(_changed, tuple(news)):
                news[changes].set()


def _changed(every: Iterable[LocalChanges]) -> list[LocalChanges]:
    return [changes for changes in every if changes.look()]


#: Those of each event loop.
_every: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Eyes] = weakref.WeakKeyDictionary()


def _eyes() -> _Eyes:
    return _every.setdefault(asyncio.get_running_loop(), _Eyes())


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
