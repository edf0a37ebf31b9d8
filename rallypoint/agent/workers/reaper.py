"""Seeing processes end, by event: our own children by pidfd, their orphans (we are their subreaper) by SIGCHLD.

Every child is reaped here and nowhere else, so no exit code can be taken by the wrong reader.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator

__all__ = ["Ended", "Reaper"]

#: Is told the exit code, or minus the number of the signal, as `subprocess` writes it.
Ended = Callable[[int], None]


class Reaper:
    """Reaps every child of this process. One per process, made in the main thread inside the event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._watched: dict[int, Ended] = {}
        self._sheltered: set[int] = set()
        self._fds: dict[int, int] = {}
        self._births = 0
        self._listeners: list[Callable[[], None]] = []
        self._loop.add_signal_handler(signal.SIGCHLD, self._sweep)

    def close(self) -> None:
        """Stop watching; what still lives is not touched."""
        self._loop.remove_signal_handler(signal.SIGCHLD)
        for pid in tuple(self._fds):
            self._unwatch(pid)

    def listen(self, changed: Callable[[], None]) -> None:
        """Call `changed` whenever some child or orphan was reaped."""
        self._listeners.append(changed)

    def unlisten(self, changed: Callable[[], None]) -> None:
        """Undo `listen`."""
        self._listeners.remove(changed)

    @contextlib.contextmanager
    def birth(self) -> Iterator[None]:
        """While the context lasts no stranger is reaped: a child that dies at once must wait until it is watched."""
        self._births += 1
        try:
            yield
        finally:
            self._births -= 1
            self._sweep()

    def watch(self, pid: int, ended: Ended) -> None:
        """Call `ended` once when our child `pid` has ended and was reaped."""
        self._watched[pid] = ended
        try:
            fd = os.pidfd_open(pid)
        except (AttributeError, OSError):  # an old kernel, another system, or a sandbox that forbids it
            threading.Thread(target=self._wait, args=(pid,), daemon=True, name=f"wait-{pid}").start()
            return
        self._fds[pid] = fd
        self._loop.add_reader(fd, self._reap, pid)

    def shelter(self, session: int) -> None:
        """Count all processes of a session as started on purpose: forks of its leader become our children one by one."""
        self._sheltered.add(session)

    def unshelter(self, session: int) -> None:
        """Undo `shelter`."""
        self._sheltered.discard(session)

    def watched(self, pid: int) -> bool:
        """Return whether `pid` is a child that was started on purpose and has not ended."""
        if pid in self._watched:
            return True
        try:
            return os.getsid(pid) in self._sheltered
        except ProcessLookupError:
            return False

    def _wait(self, pid: int) -> None:
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody wants to know any more
            self._loop.call_soon_threadsafe(self._reap, pid)

    def _reap(self, pid: int) -> None:
        if pid not in self._watched:
            return
        try:
            reaped, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            reaped, status = pid, 0x7F00  # somebody else took the exit code; 127 says that it is not known
        if reaped == 0:
            return
        ended = self._watched.pop(pid)
        self._unwatch(pid)
        ended(os.waitstatus_to_exitcode(status))
        self._tell()

    def _unwatch(self, pid: int) -> None:
        fd = self._fds.pop(pid, None)
        if fd is not None:
            self._loop.remove_reader(fd)
            os.close(fd)

    def _sweep(self) -> None:
        """Reap orphans that became ours."""
        found = False
        while not self._births:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                break
            if ended is None:
                break
            if ended.si_pid in self._watched:
                self._reap(ended.si_pid)
            else:
                os.waitpid(ended.si_pid, 0)
                found = True
        if found:
            self._tell()

    def _tell(self) -> None:
        for changed in tuple(self._listeners):
            changed()
