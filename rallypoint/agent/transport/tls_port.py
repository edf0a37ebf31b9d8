"""TLS on a port where the first byte of a connection selects its protocol: TLS, HTTP without TLS, or another.

asyncio's TLS servers expect TLS on every connection; they send no answer to other clients and log no rejected connection.
Here a plain HTTP request gets an error response, and each rejected connection is logged.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from asyncio import sslproto
from collections.abc import Callable
from typing import cast

from rallypoint.agent.tls import HANDSHAKE, explain
from rallypoint.agent.transport.request_head import bad_request

__all__ = ["HANDSHAKE_RECORD", "Secured", "feed"]

log = logging.getLogger("rallypoint.tls")

#: The first byte of every TLS connection.
HANDSHAKE_RECORD = 0x16

#: Seconds between two log lines about rejected connections; connections in between are counted.
_LINES_EVERY = 10.0

#: Bytes that a connection reads at a time: one record. asyncio's 256 KiB would be half a gigabyte for 2,000 agents.
_BUFFER = 1 << 14

_REFUSAL = bad_request("this port uses TLS: start the agent with --tls and the certificates of this job")


class Secured:
    """How one port serves HTTP over TLS; `context` returns the context of the next connection."""

    def __init__(self, context: Callable[[], ssl.SSLContext], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._context, self._clock = context, clock
        self._said, self._unsaid = -_LINES_EVERY, 0

    def protocol(self, http: Callable[[], asyncio.Protocol]) -> asyncio.BaseProtocol:
        """Return the protocol of a TLS connection; `http` is created for it."""
        loop = asyncio.get_running_loop()
        shaken: asyncio.Future[None] = loop.create_future()
        made = _Protocol(
            loop,
            http(),
            self._context(),
            shaken,
            server_side=True,
            ssl_handshake_timeout=HANDSHAKE,
        )
        shaken.add_done_callback(lambda _: self._shaken(shaken))
        return cast("asyncio.BaseProtocol", made)

    def refusal(self) -> bytes:
        """Log a connection without TLS, and return the answer to it."""
        self.refused("the peer does not use TLS")
        return _REFUSAL

    def _shaken(self, shaken: asyncio.Future[None]) -> None:
        error = None if shaken.cancelled() else shaken.exception()
        if error is not None:
            self.refused(explain(error))

    def refused(self, why: str) -> None:
        """Log a rejected connection, now or with the next line."""
        now = self._clock()
        if now - self._said < _LINES_EVERY:
            self._unsaid += 1
            return
        more = f" ({self._unsaid} more rejected connections since the last log line)" if self._unsaid else ""
        log.warning("rejected a TLS connection: %s%s", why, more)
        self._said, self._unsaid = now, 0


class _Protocol(sslproto.SSLProtocol):
    """asyncio's TLS with less memory: it fills a buffer of this size for each connection, and allocates one for each read."""

    max_size = _BUFFER


def feed(protocol: asyncio.BaseProtocol, data: bytes) -> None:
    """Pass the data received so far to the selected protocol."""
    if not isinstance(protocol, asyncio.BufferedProtocol):
        cast("asyncio.Protocol", protocol).data_received(data)
        return
    while data:
        buffer = memoryview(protocol.get_buffer(len(data)))
        count = min(len(buffer), len(data))
        buffer[:count] = data[:count]
        protocol.buffer_updated(count)
        data = data[count:]
