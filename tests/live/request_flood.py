"""Send requests over new connections: `python -m tests.live.request_flood PORT SECONDS KIND RATE`.

`RATE` connections are opened per second, from many addresses of this machine; up to 8,000 of them wait for a response, and the
last 3,000 that have one stay open. Prints how many connections were opened, and how many got a response.
"""

from __future__ import annotations

import collections
import contextlib
import select
import socket
import sys
import time

from tests.live.flood import many_descriptors

__all__ = ["KINDS"]

#: Connections without a response at a time, opened at a time, and addresses from which they come.
_NUMBER, _AT_ONCE, _ADDRESSES = 8000, 300, 50

#: Connections with a response that stay open.
_KEPT = 3000

#: What each connection sends.
KINDS = {
    "get": b"GET /x HTTP/1.1\r\nHost: x\r\n\r\n",
    "post": b"POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n",
    "health": b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n",
    "idle": b"",
}


class _Flood:
    """All connections of this process."""

    def __init__(self, port: int, text: bytes) -> None:
        self._port, self._text = port, text
        self._poll = select.epoll()
        self._open: dict[int, socket.socket] = {}
        self._kept: collections.deque[socket.socket] = collections.deque()
        self.opened = self.answered = 0

    def run(self, seconds: float, rate: float) -> None:
        """Open `rate` connections per second, for so many seconds."""
        began = time.monotonic()
        with many_descriptors(_NUMBER + _KEPT + 512):
            while (passed := time.monotonic() - began) < seconds:
                for _ in range(min(_AT_ONCE, _NUMBER - len(self._open), int(passed * rate) - self.opened)):
                    self._connect()
                for number, event in self._poll.poll(0.01, 500):
                    self._look(number, event)

    def _connect(self) -> None:
        sock = socket.socket()
        sock.setblocking(False)
        self.opened += 1
        try:
            with contextlib.suppress(BlockingIOError):
                sock.bind((f"127.0.0.{2 + self.opened % _ADDRESSES}", 0))
                sock.connect(("127.0.0.1", self._port))
        except OSError:
            sock.close()
            return
        self._open[sock.fileno()] = sock
        self._poll.register(sock, select.EPOLLOUT)

    def _look(self, number: int, event: int) -> None:
        sock = self._open[number]
        try:
            if event & select.EPOLLOUT:
                sock.send(self._text)
                self._poll.modify(sock, select.EPOLLIN)
                return
            data = sock.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self.answered += bool(data)
        if not data:
            self._poll.unregister(sock)
            self._kept.append(self._open.pop(number))
            if len(self._kept) > _KEPT:
                self._kept.popleft().close()


if __name__ == "__main__":
    flood = _Flood(int(sys.argv[1]), KINDS[sys.argv[3]])
    flood.run(float(sys.argv[2]), float(sys.argv[4]))
    print(f"{flood.opened} {flood.answered}")
