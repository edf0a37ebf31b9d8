"""`Events`: flags and numbers shared by the program that called `launch_agent` and its workers, of one node.

They lie in one file of shared memory. A flag is a word that its waiters sleep on, so no process polls; and no lock is held
during a wait, so a worker that is killed at any point leaves nothing locked: the others wait until their limit.

`pause`, `trigger_save_checkpoint` and `stop_all_tasks` are requests. Setting one gives it the next number, and the workers
of the node carry out each number at one step boundary, on which they agree first (`rallypoint.wire.boundary`). So no worker
stops while another waits for it in a collective, and all save the same step. Requests that are set while the workers are
paused are carried out at the boundary of the pause, once `resume` is set.

The order of a step boundary, in `Events.poll`: the step is published; after a request to pause, the worker sets `paused`
and waits for `resume`; after one to save, it saves, and all wait until local rank 0 (the lowest that still runs) has saved;
after one to stop, `StopAllTasks` is raised. Every wait has a limit.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import mmap
import os
import shutil
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

from rallypoint.agent.flags import CHOICES
from rallypoint.compat.launch_agent import futex
from rallypoint.wire import env
from rallypoint.wire.boundary import BoundaryAgreement, BoundaryFile, Visit, perform
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

#: The attributes that every object passed as `ice_events` has.
NAMES = (*_FLAGS, *_NUMBERS)

#: Flags that are requests to the workers, by the code of their verb.
_REQUESTS = ("pause", "trigger_save_checkpoint", "stop_all_tasks")

_START_METHODS = CHOICES["--start-method"]

#: Workers of a node, and requests whose verbs are kept: more than can be open at once.
_WORKERS, _KEPT = 1024, 64

#: Seconds after which a wait looks for workers that have died, and after which a held worker looks at its agreement again.
_LOOK, _HELD_LOOK = 1.0, 0.05

#: Seconds that a worker waits at a boundary, where the caller names no limit.
_LIMIT = 600.0

#: A step lower than the last one begins another epoch; boundaries are numbered by epoch, then by step.
_EPOCH = 1 << 40


class _Memory(ctypes.Structure):
    """The file: 32-bit words that can be waited on, and two numbers."""

    _fields_ = (
        ("flags", ctypes.c_uint32 * len(_FLAGS)),
        ("requests", ctypes.c_uint32),  # number of the last request
        ("resumed", ctypes.c_uint32),  # number of the last request when `resume` was set
        ("saved", ctypes.c_uint32),  # number of the last request whose checkpoint local rank 0 has saved
        ("changes", ctypes.c_uint32),  # counts what waiters look at again
        ("round", ctypes.c_uint32),  # of the newest workers, plus one
        ("base", ctypes.c_uint32),  # number of the last request that was carried out before that round
        ("numbers", ctypes.c_int64 * len(_NUMBERS)),
        ("latest", ctypes.c_uint32 * len(_REQUESTS)),  # number of the last request, by verb
        ("verbs", ctypes.c_uint32 * _KEPT),  # verb of a request, by its number modulo the size
        ("paused", ctypes.c_uint32 * _WORKERS),  # pid of a worker that is paused, by local rank
        ("left", ctypes.c_uint32 * _WORKERS),  # round, plus one, in which a worker has ended by itself
    )


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


class _Request(Flag):
    """A flag that asks the workers for something: setting it counts a request."""

    def __init__(self, word: ctypes.c_uint32, count: Callable[[Callable[[], None]], None]) -> None:
        super().__init__(word)
        self._count = count

    def set(self) -> None:
        """Set it; does nothing while it is set."""
        if not self.is_set():
            self._count(super().set)


class _Pause(_Request):
    """The request to pause; clearing it ends the pause for workers that have not reached its boundary yet."""

    def __init__(self, word: ctypes.c_uint32, count: Callable[[Callable[[], None]], None], resumed: Callable[[], None]) -> None:
        super().__init__(word, count)
        self._resumed = resumed

    def clear(self) -> None:
        """Clear it."""
        self._resumed()
        super().clear()


class _Resume(Flag):
    """The flag that ends a pause: workers then carry out all requests up to the last one that was set before it."""

    def __init__(self, word: ctypes.c_uint32, resumed: Callable[[], None]) -> None:
        super().__init__(word)
        self._resumed = resumed

    def set(self) -> None:
        """Set it."""
        self._resumed()
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

    Make one, pass it to `launch_agent` as `ice_events` and to the function among `args`. Its folder is removed when the object
    that made it is gone. `start_method` says how workers are started and changes nothing: processes find the file by its name.
    """

    pause: _Request
    paused: Flag
    resume: _Resume
    stop_all_tasks: _Request
    trigger_save_checkpoint: _Request
    finished_save_checkpoint: Flag
    debugger_start: Flag
    debugger_end: Flag
    progress_bar_iter: Number
    progress_bar_total: Number

    def __init__(self, start_method: str = "spawn") -> None:
        if start_method not in _START_METHODS:
            raise ValueError(f"start_method: {start_method!r} is not allowed; expected one of {', '.join(_START_METHODS)}")
        shm = Path("/dev/shm")  # noqa: S108  mkdtemp makes a name of its own, with mode 0700
        folder = Path(tempfile.mkdtemp(prefix="rallypoint-events-", dir=shm if os.access(shm, os.W_OK) else None))
        fd = os.open(folder / "memory", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        os.ftruncate(fd, ctypes.sizeof(_Memory))
        self._open(folder, fd, start_method)
        for number in (self.progress_bar_iter, self.progress_bar_total):
            number.value = -1
        weakref.finalize(self, _remove, folder, os.getpid())

    def __reduce__(self) -> tuple[Callable[[str, str], Events], tuple[str, str]]:
        return _found, (str(self._folder), self.start_method)

    def _open(self, folder: Path, fd: int, start_method: str) -> None:
        self._folder, self.start_method = folder, start_method
        self._memory = memory = _Memory.from_buffer(mmap.mmap(fd, ctypes.sizeof(_Memory)))
        os.close(fd)
        for place, name in enumerate(_FLAGS):
            word = ctypes.c_uint32.from_buffer(memory, _Memory.flags.offset + 4 * place)
            setattr(self, name, self._flag(name, word))
        for place, name in enumerate(_NUMBERS):
            setattr(self, name, Number(ctypes.c_int64.from_buffer(memory, _Memory.numbers.offset + 8 * place)))
        self._requests = ctypes.c_uint32.from_buffer(memory, _Memory.requests.offset)
        self._changes = ctypes.c_uint32.from_buffer(memory, _Memory.changes.offset)
        self._done = 0
        self._place: tuple[int, int] | None = None
        self._step, self._boundary = -1, 0
        self._agreement: tuple[str, BoundaryAgreement] | None = None

    def _flag(self, name: str, word: ctypes.c_uint32) -> Flag:
        if name == "resume":
            return _Resume(word, self._note_resumed)
        if name not in _REQUESTS:
            return Flag(word)
        count = functools.partial(self._count_request, _REQUESTS.index(name))
        return _Pause(word, count, self._note_resumed) if name == "pause" else _Request(word, count)

    def _count_request(self, code: int, set_flag: Callable[[], None]) -> None:
        with self._alone():  # a worker that begins now sees both the flag and its number, or neither
            set_flag()
            number = self._memory.requests + 1
            self._memory.latest[code] = number
            self._memory.verbs[number % _KEPT] = code
            self._memory.requests = number

    def _note_resumed(self) -> None:
        with self._alone():
            self._memory.resumed = self._memory.requests

    # --- The launcher's side -----------------------------------------------------------------------------------------------

    def wait_paused(self, n: int, timeout: float) -> bool:
        """Wait until each of `n` workers of this node is paused or has finished; return False after `timeout` seconds.

        `paused` is set by the first; this counts. A worker that was killed counts as neither.
        """
        return self._wait(lambda: self.paused_workers() + len(self._left(self._memory.round)) >= n, timeout)

    def paused_workers(self) -> int:
        """Return how many workers are paused and alive."""
        return sum(1 for pid in self._memory.paused if pid and _alive(pid))

    # --- The worker's side -------------------------------------------------------------------------------------------------

    def poll(
        self,
        step: int | None = None,
        *,
        total: int | None = None,
        save: Callable[[], object] | None = None,
        local_rank: int | None = None,
        workers: int | None = None,
        timeout: float = _LIMIT,
    ) -> None:
        """Carry out the open requests at a step boundary, in the order that the module's docstring tells.

        Each worker of the node calls it once per step, with the same `step`, or with none on all of them. `local_rank` and
        `workers`, the number of workers on this node, are those of the environment (0 and 1 where it names none) unless
        they are given. `save` writes a checkpoint; it is called on every rank, and without one nothing is written, but the
        request is answered.

        Raises `StopAllTasks`, and `EventsTimeoutError` when a wait takes longer than `timeout` seconds.
        """
        place = self._place
        if place is None or local_rank is not None:
            place = self._take_place(local_rank, workers)
        self._number_boundary(step)
        if place[0] == 0:
            if step is not None:
                self.progress_bar_iter.value = step
            if total is not None:
                self.progress_bar_total.value = total
        while self._done != self._requests.value:
            if not self._carry_out(self._done + 1, place, save, timeout):
                return

    def _take_place(self, local_rank: int | None, workers: int | None) -> tuple[int, int]:
        # LOCAL_RANK may be a virtual one, the same in all workers.
        named = os.environ.get(env.LOCAL_RANK) or os.environ.get("LOCAL_RANK") or "0"
        rank = int(named) if local_rank is None else local_rank
        place = rank, workers or int(os.environ.get("LOCAL_WORLD_SIZE") or "1")
        if self._place is None:
            self._done = self._begin_round()
            weakref.finalize(self, _leave, self._memory, self._changes, rank, os.getpid())
        self._place = place
        return place

    def _begin_round(self) -> int:
        """Return the number of the last request that was carried out before this round, the same for all of its workers."""
        memory, round_ = self._memory, _round()
        with self._alone():
            if memory.round < round_:
                standing = [memory.latest[code] for code, name in enumerate(_REQUESTS) if getattr(self, name).is_set()]
                memory.round, memory.base = round_, min(standing, default=memory.requests + 1) - 1
            return int(memory.base)

    def _number_boundary(self, step: int | None) -> None:
        if step is None:
            self._boundary += 1
            return
        if step < self._step:
            self._boundary += _EPOCH
        self._step = step
        self._boundary = self._boundary // _EPOCH * _EPOCH + step

    def _carry_out(self, number: int, place: tuple[int, int], save: Callable[[], object] | None, timeout: float) -> bool:
        """Carry out request `number`, and those that a pause has gathered; return False when its boundary is not reached."""
        if not self._reaches(number, place, timeout):
            return False
        covered = self._pause(number, place[0], timeout) if self._verb(number) == "pause" else number
        verbs = {self._verb(one) for one in range(number, covered + 1)}
        self._done = covered
        if "trigger_save_checkpoint" in verbs:
            self._save(save, place, covered, timeout)
        if "stop_all_tasks" in verbs and self.stop_all_tasks.is_set():
            raise StopAllTasks
        return True

    def _verb(self, number: int) -> str:
        return _REQUESTS[self._memory.verbs[number % _KEPT]]

    def _reaches(self, number: int, place: tuple[int, int], timeout: float) -> bool:
        """Return whether this boundary is the one that all workers have agreed on; holds here while they have not."""
        rank, size = place
        round_ = _round()
        name = f"{round_}-{number}"
        if self._agreement is None or self._agreement[0] != name:
            self._agreement = name, BoundaryAgreement(rank, size)
        agreement = self._agreement[1]
        store = BoundaryFile(self._folder / name, size, lambda: self._left(round_))
        began = time.monotonic()
        while True:
            seen = self._changes.value
            held = time.monotonic() - began
            marked = agreement.mark
            visit = perform(agreement.visit(self._boundary, patient=held < min(agreement.patience, timeout)), store)
            if agreement.mark != marked or agreement.agreed is not None:
                self._change()
            if visit is not Visit.HOLD:
                return visit is Visit.ACT
            futex.wait(self._changes, seen, _HELD_LOOK)

    def _pause(self, number: int, local_rank: int, timeout: float) -> int:
        """Wait for the end of the pause; return the number of the last request that is carried out here."""
        if self._memory.resumed >= number:
            return int(self._memory.resumed)
        self.paused.set()  # before it counts: a caller of `wait_paused` finds it set
        self._mark_paused(local_rank, os.getpid())
        try:
            if not self.resume.wait(timeout):
                raise EventsTimeoutError(f"this worker is paused and was not resumed within {timeout:g} s")
        finally:
            self._mark_paused(local_rank, 0)
            self.paused.clear()
        return max(number, int(self._memory.resumed))

    def _save(self, save: Callable[[], object] | None, place: tuple[int, int], number: int, timeout: float) -> None:
        if save is not None:
            save()
        rank, size = place
        if rank == min(set(range(size)) - self._left(_round()), default=rank):
            self.trigger_save_checkpoint.clear()  # first: a caller that is answered may ask again
            self._memory.saved = number
            self.finished_save_checkpoint.set()
            self._change()
        # By number: the caller may have cleared the answer for its next request before this worker looks.
        elif not self._wait(lambda: self._memory.saved >= number, timeout):
            raise EventsTimeoutError(f"local rank 0 did not save its checkpoint within {timeout:g} s")

    def _wait(self, so: Callable[[], bool], timeout: float) -> bool:
        """Wait until it is so after some change, or for `timeout` seconds; return whether it is."""
        until = time.monotonic() + timeout
        while True:
            seen = self._changes.value
            if so():
                return True
            left = until - time.monotonic()
            if left <= 0:
                return False
            futex.wait(self._changes, seen, min(left, _LOOK))

    def _mark_paused(self, local_rank: int, pid: int) -> None:
        self._memory.paused[local_rank] = pid
        self._change()

    def _left(self, round_: int) -> frozenset[int]:
        """Return the workers that have ended by themselves in a round."""
        return frozenset(rank for rank, left in enumerate(self._memory.left) if left and left == round_)

    def _change(self) -> None:
        with self._alone():
            self._changes.value = (self._changes.value + 1) % (1 << 32)
        futex.wake(self._changes)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Change the memory one process at a time; the kernel frees the lock of a process that dies with it."""
        with (self._folder / "memory").open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _round() -> int:
    """Return the round of this worker plus one; 0 means none."""
    return int(os.environ.get(env.ROUND) or "0") + 1


def _found(folder: str, start_method: str) -> Events:
    """Return the events of another process."""
    events = Events.__new__(Events)
    fd = os.open(Path(folder, "memory"), os.O_RDWR | os.O_CLOEXEC)
    events._open(Path(folder), fd, start_method)  # noqa: SLF001  it is ours
    return events


def _leave(memory: _Memory, changes: ctypes.c_uint32, local_rank: int, pid: int) -> None:
    """Note that a worker reaches no boundary any more: its process ends by itself, or has no events any more."""
    if os.getpid() == pid:  # a forked copy is not the worker
        memory.left[local_rank] = _round()
        changes.value = (changes.value + 1) % (1 << 32)
        futex.wake(changes)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _remove(folder: Path, maker: int) -> None:
    if os.getpid() == maker:  # a forked copy is not who made it
        shutil.rmtree(folder, ignore_errors=True)
