"""Strangers at a port: connections of a process without a job's token, held open or opened again as fast as they end."""

from __future__ import annotations

import contextlib
import errno
import resource
import selectors
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from types import TracebackType

__all__ = ["Flood", "descendants", "listening_ports", "many_descriptors"]

#: Errors of a connection that is refused or ended, which a flood expects.
_ENDED = (errno.ECONNRESET, errno.EPIPE, errno.ECONNREFUSED, errno.ECONNABORTED, errno.ETIMEDOUT, errno.EADDRNOTAVAIL)

#: Seconds between two looks for the ports.
_LOOK = 0.5


@contextlib.contextmanager
def many_descriptors(number: int) -> Iterator[None]:
    """Let this process have so many descriptors open."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(number, before[0]), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


class Flood:
    """Connections of strangers.

    Args:
        ports: returns where to, from time to time; they are taken in turn.
        number: connections at a time.
        first: what each sends at once.
        drip: what each sends again and again.
        again: what is ended is opened again.

    """

    def __init__(
        self, ports: Callable[[], Collection[int]], *, number: int, first: bytes = b"", again: bool = False, drip: bytes = b""
    ) -> None:
        self._ports, self._number, self._first, self._again, self._drip = ports, number, first, again, drip
        self._open: dict[socket.socket, None] = {}
        self._stopping = threading.Event()
        self._full = threading.Event()
        self._thread = threading.Thread(target=self._run, name="flood", daemon=True)
        self.opened = self.ended = 0

    def __enter__(self) -> Flood:
        self._thread.start()
        if not self._full.wait(60):
            raise AssertionError(f"{self.opened} of {self._number} connections in 60 s")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stopping.set()
        self._thread.join()

    @property
    def held(self) -> int:
        """Connections that nobody has ended."""
        return len(self._open)

    def _run(self) -> None:
        self._targets = sorted(self._ports())
        looked = time.monotonic()
        with selectors.DefaultSelector() as selector, many_descriptors(self._number + 512):
            while not self._stopping.is_set():
                if time.monotonic() - looked > _LOOK:
                    self._targets, looked = sorted(self._ports()), time.monotonic()
                self._fill(selector)
                self._look(selector)
            for sock in self._open:
                sock.close()

    def _fill(self, selector: selectors.BaseSelector) -> None:
        until = time.monotonic() + 0.05
        while (
            time.monotonic() < until
            and self._targets
            and (self.opened < self._number or (self._again and self.held < self._number))
        ):
            sock = socket.socket()
            sock.settimeout(5)
            port = self._targets[self.opened % len(self._targets)]
            self.opened += 1
            try:
                sock.connect(("127.0.0.1", port))
                if self._first:
                    sock.sendall(self._first)
            except OSError as error:
                sock.close()
                if error.errno not in _ENDED and not isinstance(error, TimeoutError):
                    raise
                continue
            self._open[sock] = None
            selector.register(sock, selectors.EVENT_READ)
        if self.opened >= self._number:
            self._full.set()

    def _wanted(self) -> bool:
        return self.opened < self._number or (self._again and self.held < self._number)

    def _look(self, selector: selectors.BaseSelector) -> None:
        """Forget connections that were ended by the other side; send the next byte over the others where there is one."""
        for key, _ in selector.select(0.02):
            sock = key.fileobj
            assert isinstance(sock, socket.socket)
            with contextlib.suppress(OSError):
                if sock.recv(1 << 16):
                    continue
            selector.unregister(sock)
            sock.close()
            del self._open[sock]
            self.ended += 1
        if self._drip:
            for sock in self._open:
                with contextlib.suppress(OSError):
                    sock.send(self._drip, socket.MSG_DONTWAIT)


def descendants(pid: int) -> set[int]:
    """Return a process and all that it has started, and these have."""
    found, left = {pid}, [pid]
    while left:
        for path in Path(f"/proc/{left.pop()}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                new = set(map(int, path.read_text().split())) - found
                found |= new
                left += new
    return found


def listening_ports(pids: set[int]) -> set[int]:
    """Return the TCP ports on which these processes listen, as `ss -ltnp` shows them."""
    inodes = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for path in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    inodes.add(str(path.readlink()).removeprefix("socket:[").removesuffix("]"))
    ports = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and words[9] in inodes:
                ports.add(int(words[1].rpartition(":")[2], 16))
    return ports
