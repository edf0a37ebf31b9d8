"""TLS on a port where the first byte of a connection selects its protocol: TLS, HTTP without TLS, or another.

asyncio's TLS servers expect TLS on every connection; they send no answer to other clients and log no rejected connection.
Here a plain HTTP request gets an error response, and each rejected connection is logged.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import sys
import time
from asyncio import sslproto
from collections.abc import Callable
from typing import cast

from rallypoint.agent.tls import HANDSHAKE, explain
from rallypoint.agent.transport.request_head import bad_request

__all__ = ["HANDSHAKE_RECORD", "Secured", "feed", "has_hello"]

log = logging.getLogger("rallypoint.tls")

#: The first byte of every TLS connection.
HANDSHAKE_RECORD = 0x16

#: Bytes of the largest first message of a client. OpenSSL allocates at once as many as the message announces, up to 128 KiB.
_LARGEST_HELLO = 1 << 14

#: Bytes before the content of a record, and before the content of the message in it.
_RECORD_HEAD, _MESSAGE_HEAD = 5, 4

#: Seconds between two log lines about rejected connections; connections in between are counted.
_LINES_EVERY = 10.0

#: Bytes that a connection reads at a time: one record. asyncio's 256 KiB would be half a gigabyte for 2,000 agents.
_BUFFER = 1 << 14

#: Alert `illegal_parameter`.
_ALERT = b"\x15\x03\x03\x00\x02\x02\x2f"

_REFUSAL = bad_request("this port uses TLS: start the agent with --tls and the certificates of this job")


class Secured:
    """How one port serves HTTP over TLS.

    Args:
        context: returns the context of the next connection.
        clients: number of clients that may connect at once.

    """

    def __init__(
        self, context: Callable[[], ssl.SSLContext], *, clients: int = 1, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._context, self._clock, self.clients = context, clock, clients
        self._said, self._unsaid = -_LINES_EVERY, 0

    def protocol(self, http: Callable[[], asyncio.Protocol], unfinished: Callable[[], None]) -> asyncio.BaseProtocol:
        """Return the protocol of a TLS connection; `http` is created for it.

        `unfinished` is called whenever the client has sent data after its first message and the handshake is not finished.
        """
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
        made.unfinished = unfinished
        shaken.add_done_callback(lambda _: self._shaken(made, shaken))
        return cast("asyncio.BaseProtocol", made)

    def refusal(self) -> bytes:
        """Log a connection without TLS, and return the answer to it."""
        self.refused("the peer does not use TLS")
        return _REFUSAL

    def too_large(self) -> bytes:
        """Log a connection whose first message is too large, and return the answer to it."""
        self.refused("the first message of the client is too large")
        return _ALERT

    def _shaken(self, made: _Protocol, shaken: asyncio.Future[None]) -> None:
        made.unfinished = None
        error = None if shaken.cancelled() else shaken.exception()
        if error is not None:
            self.refused(explain(error))
            error.__traceback__ = None  # it refers to the protocol, and would keep both until a garbage collection

    def refused(self, why: str) -> None:
        """Log a rejected connection, now or with the next line."""
        now = self._clock()
        if now - self._said < _LINES_EVERY:
            self._unsaid += 1
            return
        more = f" ({self._unsaid} more rejected connections since the last log line)" if self._unsaid else ""
        log.warning("rejected a TLS connection: %s%s", why, more)
        self._said, self._unsaid = now, 0


def has_hello(data: bytes) -> bool | None:
    """Return whether a TLS connection begins with a message of an allowed size, None while its size is not there yet."""
    if len(data) < _RECORD_HEAD + _MESSAGE_HEAD:
        return None
    record, size = int.from_bytes(data[3:5], "big"), int.from_bytes(data[6:9], "big")
    return record >= _MESSAGE_HEAD and size <= _LARGEST_HELLO


class _Protocol(sslproto.SSLProtocol):
    """asyncio's TLS with less memory: it fills a buffer of this size for each connection, and allocates one for each read."""

    max_size = _BUFFER
    #: Called for data after the first; None when the handshake has ended. The future of the handshake is not stored here,
    #: because its error refers to this object.
    unfinished: Callable[[], None] | None
    _begun = False

    if sys.version_info >= (3, 11):

        def buffer_updated(self, nbytes: int) -> None:
            super().buffer_updated(nbytes)
            self._received()

    else:

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._received()

    def _received(self) -> None:
        if self._begun and self.unfinished is not None:
            self.unfinished()
        self._begun = True


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
