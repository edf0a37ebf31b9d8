"""The heartbeat of a supervising process: `$RALLYPOINT_HOME/supervisors/ID.json`, replaced every second or so.

One task per event loop writes it, whatever number of jobs is supervised there. It is a task and no thread, so that a process
whose loop is stuck does not look alive. Readers look for a change of the file and for nothing else: no two clocks are compared.
On a full disk nothing can be replaced, but the file can still be touched, and that is a change, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import re
import secrets
import time
import weakref
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from rallypoint.backends.contract import BackendError, Pulse
from rallypoint.backends.local import durable, proc
from rallypoint.backends.local.files import FULL, UnreadableError, pinned, read_optional, telling
from rallypoint.backends.uninterrupted import in_thread
from rallypoint.supervision.record import Holder
from rallypoint.wire import codec
from rallypoint.wire.bounds import PID, WHOLE
from rallypoint.wire.private import private_folder, tighten

__all__ = ["BEAT", "Heartbeat", "beating", "read_pulse"]

log = logging.getLogger(__name__)

#: Seconds between two beats.
BEAT = 1.0

#: A process that lives and has not beaten for so many seconds does nothing for its jobs: it is stopped, or its loop is stuck.
_STUCK = 60.0

_FOLDER = "supervisors"

#: Names of heartbeat files.
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*\.json", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Heartbeat:
    """What the file says: which process beats, named as one process for ever, and how often it has beaten."""

    limits: ClassVar = {"pid": PID, "start_ticks": WHOLE, "counter": WHOLE}

    id: str
    name: str
    host: str
    pid: int
    boot_id: str
    start_ticks: int
    counter: int = 0

    @classmethod
    def of_this_process(cls, name: str) -> Heartbeat:
        """Return a new heartbeat of the process that calls. Blocks."""
        pid = os.getpid()
        ticks = proc.start_ticks(pid) or 0
        return cls(
            id=f"{pid}-{ticks}-{secrets.token_hex(4)}",
            name=name,
            host=os.uname().nodename,
            pid=pid,
            boot_id=proc.boot_id(),
            start_ticks=ticks,
        )

    def alive(self) -> bool:
        """Return whether its process lives. Blocks."""
        return proc.lives(self.pid, self.start_ticks, self.boot_id)


class _Heart:
    """The heart of one event loop in one home; beats as long as somebody uses it."""

    def __init__(self, home: Path) -> None:
        self._folder = home / _FOLDER
        self._beat: Heartbeat | None = None
        self._troubled = False
        self._begun = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.users = 0

    async def holder(self, name: str) -> Holder:
        """Return how records name it, once its first beat is written; `name` is for people."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(name))
        await self._begun.wait()
        if self._beat is None:  # it ended before its first beat, and says why
            error = self._task.exception()
            raise BackendError(f"cannot write the heartbeat file of this process in {self._folder}: {error}") from error
        beat = self._beat
        return Holder(id=beat.id, name=name, host=beat.host, pid=beat.pid, heartbeat=str(self._path(beat)))

    async def stop(self) -> None:
        """Stop to beat, and leave no file."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._beat is not None:
            await in_thread(self._path(self._beat).unlink, missing_ok=True)

    def _path(self, beat: Heartbeat) -> Path:
        return self._folder / f"{beat.id}.json"

    async def _run(self, name: str) -> None:
        try:
            self._beat = await in_thread(Heartbeat.of_this_process, name)
            await in_thread(self._tidy)
            await self._beat_on(self._beat)
        finally:
            self._begun.set()

    async def _beat_on(self, beat: Heartbeat) -> None:
        while True:
            beat = dataclasses.replace(beat, counter=beat.counter + 1)
            try:
                await in_thread(_write, self._path(beat), codec.dumps(beat))
                self._troubled = False
            except (OSError, UnreadableError) as error:
                if not self._troubled:
                    log.warning("this supervisor cannot write its heartbeat (%s); retrying every %g s", error, BEAT)
                self._troubled = True
            self._begun.set()
            await asyncio.sleep(BEAT)

    def _tidy(self) -> None:
        """Remove the files of processes that were killed; the job's record tells when they were there last."""
        for folder in (self._folder, self._folder.with_name("jobs")):
            tighten(folder)
        with contextlib.suppress(OSError):
            for path in self._folder.glob("*.json"):
                with contextlib.suppress(BackendError):
                    beat = read_optional(Heartbeat, path)
                    if beat is not None and not beat.alive():
                        path.unlink(missing_ok=True)


#: The heart of each event loop by the home that it beats in.
_hearts: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Path, _Heart]] = weakref.WeakKeyDictionary()


@contextlib.asynccontextmanager
async def beating(home: Path, name: str) -> AsyncIterator[Holder]:
    """Have this loop's heart beat while the context lasts; see `Backend.heartbeat`."""
    hearts = _hearts.setdefault(asyncio.get_running_loop(), {})
    heart = hearts.setdefault(home, _Heart(home))
    heart.users += 1
    try:
        yield await heart.holder(name)
    finally:
        heart.users -= 1
        if heart.users == 0:
            del hearts[home]
            await heart.stop()


def read_pulse(holder: Holder, home: Path) -> Pulse | None:
    """Return the heartbeat of a supervisor as it is on disk; see `Backend.pulse`. Blocks; raises `BackendError`."""
    # Only the name counts: a script can write any path into the record of its job.
    name = Path(holder.heartbeat).name if holder.heartbeat else f"{holder.id}.json"
    if _FILE.fullmatch(name) is None:
        return None
    path = home / _FOLDER / name
    beat = read_optional(Heartbeat, path)
    if beat is None:
        return None
    with telling(path):
        try:
            told = path.stat()
        except FileNotFoundError:
            return None
        alive = beat.alive()
        note = _note(home, silent=time.time() - told.st_mtime) if alive else ""
    return Pulse(beat=f"{beat.counter}@{told.st_mtime_ns}", alive=alive, at=told.st_mtime, note=note)


def _note(home: Path, *, silent: float) -> str:
    if silent > _STUCK:
        return "its process is alive but makes no progress"
    disk = os.statvfs(home)
    return "" if disk.f_bavail else "waiting for free disk space"


def _write(path: Path, text: str) -> None:
    """Replace the file; where there is no room for that, touch it. Nothing is flushed: no process outlives a power failure.

    Raises `OSError`, and `UnreadableError` where a script has put a link in the place of the folder.
    """
    private_folder(path.parent)
    with pinned(path.parent, path.parents[1]) as folder:
        file, temporary = folder / path.name, folder / path.with_suffix(".tmp").name
        try:
            with os.fdopen(durable.open_regular(str(temporary), os.O_WRONLY | os.O_CREAT), "w") as opened:
                opened.write(text)
                opened.truncate()
            temporary.replace(file)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            if error.errno not in FULL:
                raise
            os.utime(file)
