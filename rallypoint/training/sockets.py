"""Which connections a process group has opened, and how to end them under whoever waits for them.

gloo has no abort that works: a rank that waits for a lost peer waits until its time-out. But its connections are sockets of
this process, and a socket that is shut down fails whoever waits for it, at once. Sockets that listen are left alone: gloo ends
the process when one of its own is shut down. Linux only, as /proc is.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator

__all__ = ["Opened"]

_FDS = "/proc/self/fd"


class Opened:
    """The connections that were opened while this was `watching`; until that ends, all since it began."""

    def __init__(self) -> None:
        self._before: frozenset[str] = frozenset()
        self._found: frozenset[str] | None = frozenset()

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Note what is opened in the block. Another thread's connections are taken for the group's meanwhile."""
        self._before, self._found = frozenset(inode for _, inode in _sockets()), None
        try:
            yield
        finally:
            self._found = self._since()

    def shut_down(self) -> int:
        """End the connections, in any thread; returns how many there were. Whoever waits for one has an error."""
        wanted = self._since() if self._found is None else self._found
        return sum(_shut_down(fd) for fd, inode in _sockets() if inode in wanted)

    def _since(self) -> frozenset[str]:
        return frozenset(inode for _, inode in _sockets()) - self._before


def _sockets() -> Iterator[tuple[int, str]]:
    """Yield each open socket with a name that no later one has."""
    for name in os.listdir(_FDS):  # noqa: PTH208  a path object for each would be thrown away
        with contextlib.suppress(OSError):  # it was closed meanwhile
            target = os.readlink(f"{_FDS}/{name}")  # noqa: PTH115  as above
            if target.startswith("socket:"):
                yield int(name), target


def _shut_down(fd: int) -> bool:
    try:
        with socket.socket(fileno=os.dup(fd)) as found:
            if found.family not in (socket.AF_INET, socket.AF_INET6) or found.type != socket.SOCK_STREAM:
                return False
            if found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                return False
            found.shutdown(socket.SHUT_RDWR)
    except OSError:  # it was closed meanwhile, or never connected
        return False
    return True
