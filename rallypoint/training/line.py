"""The worker's end of its line to the agent: a thread that reads, and a word now and then from the script's own.

The thread blocks in a read and nowhere else, so it hears its agent while the script is stuck in a collective. What it hears is
told to a `Listener` in this thread.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
from pathlib import Path
from typing import Protocol

from rallypoint.wire import env
from rallypoint.wire import line as wire
from rallypoint.wire.codec import WireError
from rallypoint.wire.unix import reachable

__all__ = ["Line", "Listener", "current_line"]

_log = logging.getLogger(__name__)


class Listener(Protocol):
    """Who is told what the agent says, in the thread of the line: nothing of it may block for long."""

    def leave(self, word: wire.Leave) -> None:
        """Free whoever is stuck in the world of that round."""

    def assign(self, word: wire.Assign) -> None:
        """Hand the place to whoever waits for it."""

    def order(self, word: wire.Order) -> None:
        """Note what must be done at the next step boundary."""

    def closed(self) -> None:
        """Nothing more will be said: the agent is gone."""


class Line:
    """One connection to the agent. `say` may be called in any thread."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    @classmethod
    def connect(cls, path: Path) -> Line:
        """Connect to an agent's socket; raises `OSError` when nobody listens there."""
        connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with reachable(path) as address:
                connected.connect(address)
        except BaseException:
            connected.close()
            raise
        return cls(connected)

    def listen(self, listener: Listener) -> None:
        """Begin to read; once."""
        self._thread = threading.Thread(target=self._read, args=(listener,), name="rallypoint-line", daemon=True)
        self._thread.start()

    def say(self, word: wire.FromWorker) -> None:
        """Say something; raises `OSError` when the agent is gone."""
        with self._lock:
            self._socket.sendall(wire.write(word))

    def close(self) -> None:
        """Hang up; the thread ends."""
        with contextlib.suppress(OSError):  # it was closed from the other side
            self._socket.shutdown(socket.SHUT_RDWR)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._socket.close()

    def _read(self, listener: Listener) -> None:
        with contextlib.suppress(OSError), self._socket.makefile("rb") as lines:
            while said := lines.readline(wire.MAX_LINE):
                _tell(listener, said)
        listener.closed()
        with self._lock:  # a word that is being said is said, or refused as that of a lost agent
            self._socket.close()


def _tell(listener: Listener, said: bytes) -> None:
    try:
        word = wire.read_from_agent(said)
    except WireError as error:
        _log.warning("this worker ignored a message of the agent that this version of rallypoint cannot read: %s", error)
        return
    if isinstance(word, wire.Leave):
        listener.leave(word)
    elif isinstance(word, wire.Assign):
        listener.assign(word)
    else:
        listener.order(word)


def current_line() -> Line | None:
    """Return a new connection to this worker's agent; None outside a job, or where nobody answers."""
    path = os.environ.get(env.LINE)
    if not path:
        return None
    try:
        return Line.connect(Path(path))
    except OSError as error:
        _log.warning("in-place recovery is off for this worker, because it cannot connect to the agent at %s (%s)", path, error)
        return None
