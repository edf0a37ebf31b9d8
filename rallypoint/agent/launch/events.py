"""`Events`: words between the program that called `launch_agent` and its workers, at step boundaries. One node only.

They lie in one file of shared memory. A flag is a word that its waiters sleep on, so nobody polls; and no lock is held while
anybody waits, so a worker that is killed at any point leaves nothing locked: whoever waits for it waits until its limit.

The order of a step boundary, in `Events.poll`: the step is told; where a pause is asked for, the worker says that it is paused
and waits for `resume`; where a checkpoint is asked for, it saves, and all wait for local rank 0 to say that it is saved; where
all tasks are to stop, `StopAllTasks` is raised. Every wait has a limit.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

from rallypoint.agent.flags import CHOICES
from rallypoint.agent.launch import futex
from rallypoint.wire import env
from rallypoint.wire.errors import RallypointError

__all__ = ["NAMES", "Events", "EventsTimeoutError", "Flag", "Number", "StopAllTasks"]

_FLAGS = (
    "pause",
    "paused",
    "resume",
    "stop_all_tasks",
    "trigger_save_checkpoint",
    "finished_save_checkpoint",
    "debugger_start",
    "debugger_end",
)
_NUMBERS = ("progress_bar_iter", "progress_bar_total")

#: What everybody who takes part has, be it ours or somebody else's object.
NAMES = (*_FLAGS, *_NUMBERS)

_START_METHODS = CHOICES["--start-method"]

#: Of the file: a word per flag (with room for more), the numbers of orders to save and of changes among the paused, eight bytes
#: per number, and a word per worker of the node with the process that is paused.
_SAVES, _CHANGES, _NUMBERS_AT, _PAUSED_AT, _WORKERS = 14 * 4, 15 * 4, 16 * 4, 16 * 4 + 2 * 8, 1024
_SIZE = _PAUSED_AT + _WORKERS * 4

#: Seconds after which a wait looks for paused workers that have died.
_LOOK = 1.0

#: Seconds that a worker waits at a boundary, where the caller names no limit.
_LIMIT = 600.0


class StopAllTasks(Exception):  # noqa: N818  the name that llutil's users catch
    """Raised at a step boundary of a worker that is to leave its loop."""


class EventsTimeoutError(RallypointError):
    """A wait at a step boundary took longer than its limit."""


class Flag:
    """A flag that processes share; as `multiprocessing.Event`."""

    def __init__(self, word: ctypes.c_uint32) -> None:
        self._word = word

    def is_set(self) -> bool:
        """Return whether it is set."""
        return bool(self._word.value)

    def set(self) -> None:
        """Set it, and wake all who wait."""
        self._word.value = 1
        futex.wake(self._word)

    def clear(self) -> None:
        """Clear it."""
        self._word.value = 0

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set and return True, or False after `timeout` seconds; None waits for ever."""
        until = None if timeout is None else time.monotonic() + timeout
        while not self.is_set():
            left = _LIMIT if until is None else until - time.monotonic()
            if left <= 0:
                return False
            futex.wait(self._word, 0, left)
        return True


class _Trigger(Flag):
    """A flag whose orders are counted: who is late finds that there was one, when local rank 0 has cleared it already."""

    def __init__(self, word: ctypes.c_uint32, orders: ctypes.c_uint32) -> None:
        super().__init__(word)
        self.orders = orders

    def set(self) -> None:
        """Set it; an order that is open is not given twice."""
        if not self.is_set():
            self.orders.value = (self.orders.value + 1) % (1 << 32)
        super().set()


class Number:
    """A whole number that processes share; -1 is unknown."""

    def __init__(self, word: ctypes.c_int64) -> None:
        self._word = word

    @property
    def value(self) -> int:
        """The number."""
        return self._word.value

    @value.setter
    def value(self, number: int) -> None:
        self._word.value = number


class Events:
    """The ten names of llutil's `Events`, and what a worker and its launcher do with them.

    Make one, pass it to `launch_agent` as `ice_events` and to the function among `args`. The file is removed when the object
    that made it is gone. `start_method` says how workers are started and changes nothing: processes find the file by its name.
    """

    pause: Flag
    paused: Flag
    resume: Flag
    stop_all_tasks: Flag
    trigger_save_checkpoint: _Trigger
    finished_save_checkpoint: Flag
    debugger_start: Flag
    debugger_end: Flag
    progress_bar_iter: Number
    progress_bar_total: Number

    def __init__(self, start_method: str = "spawn") -> None:
        if start_method not in _START_METHODS:
            raise ValueError(f"start_method: {start_method!r} is not allowed; expected one of {', '.join(_START_METHODS)}")
        shm = Path("/dev/shm")  # noqa: S108  mkstemp makes a name of its own, for us alone
        fd, name = tempfile.mkstemp(prefix="rallypoint-events-", dir=shm if os.access(shm, os.W_OK) else None)
        os.ftruncate(fd, _SIZE)
        self._open(Path(name), fd, start_method)
        for number in (self.progress_bar_iter, self.progress_bar_total):
            number.value = -1
        maker = os.getpid()
        weakref.finalize(self, _remove, Path(name), maker)

    def __reduce__(self) -> tuple[Callable[[str, str], Events], tuple[str, str]]:
        return _found, (str(self._path), self.start_method)

    def _open(self, path: Path, fd: int, start_method: str) -> None:
        self._path, self.start_method = path, start_method
        memory = mmap.mmap(fd, _SIZE)
        os.close(fd)
        for place, name in enumerate(_FLAGS):
            setattr(self, name, Flag(ctypes.c_uint32.from_buffer(memory, 4 * place)))
        saves = ctypes.c_uint32.from_buffer(memory, _SAVES)
        place = 4 * _FLAGS.index("trigger_save_checkpoint")
        self.trigger_save_checkpoint = _Trigger(ctypes.c_uint32.from_buffer(memory, place), saves)
        # An order that was carried out before this process came is none of its business.
        self._obeyed = (saves.value - self.trigger_save_checkpoint.is_set()) % (1 << 32)
        for place, name in enumerate(_NUMBERS):
            setattr(self, name, Number(ctypes.c_int64.from_buffer(memory, _NUMBERS_AT + 8 * place)))
        self._changes = ctypes.c_uint32.from_buffer(memory, _CHANGES)
        self._stopped = (ctypes.c_uint32 * _WORKERS).from_buffer(memory, _PAUSED_AT)

    # --- The launcher's side -----------------------------------------------------------------------------------------------

    def wait_paused(self, n: int, timeout: float) -> bool:
        """Wait until `n` workers of this node are paused, or for `timeout` seconds; return whether they are.

        `paused` is set by the first; this counts. One that has died is not counted.
        """
        until = time.monotonic() + timeout
        while True:
            seen = self._changes.value
            if self.paused_workers() >= n:
                return True
            left = until - time.monotonic()
            if left <= 0:
                return False
            futex.wait(self._changes, seen, min(left, _LOOK))

    def paused_workers(self) -> int:
        """Return how many workers are paused and alive."""
        return sum(1 for pid in self._stopped if pid and _alive(pid))

    # --- The worker's side -------------------------------------------------------------------------------------------------

    def poll(
        self,
        step: int | None = None,
        *,
        total: int | None = None,
        save: Callable[[], object] | None = None,
        local_rank: int | None = None,
        timeout: float = _LIMIT,
    ) -> None:
        """Do what is asked for at a step boundary, in the order that the module's docstring tells.

        The local rank is that of the environment (0 where it names none) unless it is given. `save` writes a checkpoint; it is
        called on every rank, and without one nothing is written, but whoever asked is answered.

        Raises `StopAllTasks`, and `EventsTimeoutError` when a wait takes longer than `timeout` seconds.
        """
        # LOCAL_RANK may be a virtual one, the same in all workers.
        named = os.environ.get(env.LOCAL_RANK) or os.environ.get("LOCAL_RANK") or "0"
        local_rank = int(named) if local_rank is None else local_rank
        if local_rank == 0:
            for number, told in ((self.progress_bar_iter, step), (self.progress_bar_total, total)):
                if told is not None:
                    number.value = told
        if self.pause.is_set():
            self._pause(local_rank, timeout)
        if self._obeyed != self.trigger_save_checkpoint.orders.value:
            self._obeyed = self.trigger_save_checkpoint.orders.value
            self._save(save, first=local_rank == 0, timeout=timeout)
        if self.stop_all_tasks.is_set():
            raise StopAllTasks

    def _pause(self, local_rank: int, timeout: float) -> None:
        self.paused.set()  # before it counts: whoever has counted finds it set
        self._mark(local_rank, os.getpid())
        try:
            if not self.resume.wait(timeout):
                raise EventsTimeoutError(f"nobody resumed this worker for {timeout:g} s")
        finally:
            self._mark(local_rank, 0)
            self.paused.clear()

    def _save(self, save: Callable[[], object] | None, *, first: bool, timeout: float) -> None:
        if save is not None:
            save()
        if first:
            # Set before the trigger is cleared: whoever finds the trigger cleared finds the answer, too.
            self.finished_save_checkpoint.set()
            self.trigger_save_checkpoint.clear()
        elif not self.finished_save_checkpoint.wait(timeout):
            raise EventsTimeoutError(f"local rank 0 did not say within {timeout:g} s that the checkpoint is saved")

    def _mark(self, local_rank: int, pid: int) -> None:
        self._stopped[local_rank] = pid
        with self._alone():
            self._changes.value = (self._changes.value + 1) % (1 << 32)
        futex.wake(self._changes)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Count changes one at a time; the kernel frees the lock of whoever dies with it."""
        with self._path.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _found(path: str, start_method: str) -> Events:
    """Return the events of another process."""
    events = Events.__new__(Events)
    events._open(Path(path), os.open(path, os.O_RDWR | os.O_CLOEXEC), start_method)  # noqa: SLF001  it is ours
    return events


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _remove(path: Path, maker: int) -> None:
    if os.getpid() == maker:  # a forked copy is not who made it
        path.unlink(missing_ok=True)
