"""Strangers at a port: connections of a process without a job's token, held open or opened again as fast as they end."""

from __future__ import annotations

import contextlib
import errno
import resource
import selectors
import socket
import ssl
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from types import TracebackType

from typing_extensions import Self

__all__ = ["Background", "Flood", "Torrent", "descendants", "listening_ports", "many_descriptors", "peak_memory"]

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


class Background:
    """Runs `_run` in a thread while the context lasts; it has to end soon after `_stopping` is set."""

    def __init__(self) -> None:
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=type(self).__name__, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        raise NotImplementedError


class Flood(Background):
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
        super().__init__()
        self._ports, self._number, self._first, self._again, self._drip = ports, number, first, again, drip
        self._open: dict[socket.socket, None] = {}
        self._stopping = threading.Event()
        self._full = threading.Event()
        self._thread = threading.Thread(target=self._run, name="flood", daemon=True)
        self.opened = self.ended = 0

    def __enter__(self) -> Self:
        super().__enter__()
        if not self._full.wait(60):
            raise AssertionError(f"{self.opened} of {self._number} connections in 60 s")
        return self

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


class Torrent(Background):
    """Connections of strangers that each send `size` bytes as fast as they can, and are then opened again.

    They come from three addresses of this machine, since a port limits the strangers of one address. With `tls` they have
    shaken hands before, without a certificate.
    """

    def __init__(self, ports: Sequence[int], *, number: int, first: bytes, then: bytes, size: int, tls: bool = False) -> None:
        super().__init__()
        self._ports, self._number, self._tls = ports, number, tls
        self._data = memoryview(first + then * ((size - len(first)) // len(then)))
        self._open: dict[socket.socket, int] = {}
        self.opened = self.sent = 0

    def _run(self) -> None:
        with many_descriptors(self._number + 512):
            while not self._stopping.is_set():
                self._fill()
                for sock in tuple(self._open):
                    self._send(sock)
                time.sleep(0.01)  # this thread shares its processor with the test
            for sock in self._open:
                sock.close()

    def _fill(self) -> None:
        until = time.monotonic() + 0.1
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        while len(self._open) < self._number and time.monotonic() < until and not self._stopping.is_set():
            sock = socket.socket()
            sock.settimeout(1)
            try:
                sock.bind((f"127.0.0.{2 + self.opened % 3}", 0))
                sock.connect(("127.0.0.1", self._ports[self.opened % len(self._ports)]))
            except OSError:
                sock.close()
                return
            sock.setblocking(False)
            if self._tls:
                sock = context.wrap_socket(sock, do_handshake_on_connect=False)
            self.opened += 1
            self._open[sock] = 0

    def _send(self, sock: socket.socket) -> None:
        try:
            count = sock.send(self._data[self._open[sock] :])
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return
        except OSError:
            count = len(self._data)
        self._open[sock] += count
        self.sent += count
        if self._open[sock] >= len(self._data):
            del self._open[sock]
            sock.close()


def peak_memory(pid: int) -> int:
    """Return the largest memory that a process has had, in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


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
