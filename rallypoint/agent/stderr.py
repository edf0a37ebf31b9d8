"""A standard error that holds nobody up: what is written there waits for whoever reads it in a thread of its own.

Log lines and event lines are written from event loops. A pipe that nobody reads is full after 64 KiB, and the next line would
stop the loop, and with it a coordinator, for as long as that lasts. So lines are put into a bounded buffer and a thread writes
them, in their order. What finds no room is counted, and told in its place by one line as soon as there is room again. At
the end of the process the thread has `PATIENCE` seconds for what is left.

Neither a flag of the descriptor nor a lock of Python's own stream is touched: other processes share the first, and the end of
the interpreter waits for the second.
"""

from __future__ import annotations

import atexit
import collections
import io
import os
import sys
import threading
import time
from typing import BinaryIO, TextIO, cast

__all__ = ["PATIENCE", "ROOM", "Stderr", "unstalled"]

#: Bytes of lines that wait to be written, at the most.
ROOM = 1 << 20

#: Seconds that the end of the process waits for what is not written yet.
PATIENCE = 5.0


class Stderr(io.TextIOBase):
    """Takes text at once and writes whole lines to a descriptor, from any thread.

    Args:
        fd: where to; it stays open.
        room: see `ROOM`.
        buffer: what bytes may be written to by whoever can wait for the reader, None where there is no such thing.

    """

    def __init__(self, fd: int, *, room: int = ROOM, buffer: BinaryIO | None = None) -> None:
        self._fd, self._room, self.buffer = fd, room, buffer
        self._waiting: collections.deque[bytes] = collections.deque()
        self._size = self._missed = 0
        self._begun = ""
        # Held for a moment only, never while something is written.
        self._news = threading.Condition(threading.Lock())
        self._thread: threading.Thread | None = None

    def write(self, text: str) -> int:
        """Take a text; what is behind its last line's end waits for the rest of that line."""
        with self._news:
            lines, end, self._begun = (self._begun + text).rpartition("\n")
            if end:
                self._put((lines + end).encode(errors="backslashreplace"))
        return len(text)

    def _put(self, lines: bytes) -> None:
        if self._size + len(lines) > self._room:
            self._missed += lines.count(b"\n")
            return
        self._tell_missed()
        self._waiting.append(lines)
        self._size += len(lines)
        if self._thread is None:
            self._thread = threading.Thread(target=self._write_all, name="stderr", daemon=True)
            self._thread.start()
        self._news.notify_all()

    def _tell_missed(self) -> None:
        """Say in their place how many lines are missing; this one line has room in any case."""
        if self._missed:
            note = f"rallypoint: dropped {self._missed} log lines because stderr was blocked\n".encode()
            self._missed = 0
            self._waiting.append(note)
            self._size += len(note)

    def _write_all(self) -> None:
        while True:
            with self._news:
                while not self._waiting:
                    self._news.wait()
                lines = self._waiting[0]
            self._write(lines)
            with self._news:
                self._waiting.popleft()
                self._size -= len(lines)
                if not self._waiting:
                    self._tell_missed()
                self._news.notify_all()

    def _write(self, lines: bytes) -> None:
        left = memoryview(lines)
        while left:
            try:
                left = left[os.write(self._fd, left) :]
            except BlockingIOError:  # somebody who shares it made it so
                time.sleep(0.01)
            except OSError:  # nobody will ever read it
                return

    def drained(self, patience: float) -> bool:
        """Wait until everything is written, at most `patience` seconds; return whether it is."""
        with self._news:
            if self._begun:
                begun, self._begun = self._begun, ""
                self._put(begun.encode(errors="backslashreplace"))
            return self._news.wait_for(lambda: not self._waiting, patience)

    def flush(self) -> None:
        """Lines are on their way as soon as they are complete: there is nothing to be waited for."""

    def fileno(self) -> int:
        """Return the descriptor, for processes that are to share it."""
        return self._fd

    def isatty(self) -> bool:
        """Return whether a person reads."""
        return os.isatty(self._fd)

    def writable(self) -> bool:
        """Return True."""
        return True


def unstalled() -> None:
    """Let this process write to its standard error without ever waiting for its reader.

    Call it before logging is set up. Does nothing where somebody has put another stream in its place.
    """
    own = sys.__stderr__
    if own is None or sys.stderr is not own:
        return
    own.flush()
    stream = Stderr(own.fileno(), buffer=cast("BinaryIO", own.buffer))
    sys.stderr = cast("TextIO", stream)
    atexit.register(stream.drained, PATIENCE)
