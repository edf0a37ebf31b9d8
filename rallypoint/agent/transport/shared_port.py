"""Forward a fixed port to the store of the current round; the coordinator may serve HTTP at the same port.

torchrun's agent serves a `TCPStore` at `--master-addr` and `--master-port` (or at the `--rdzv-endpoint`), and scripts connect
there. Each of our rounds has a fresh store at a port of its own, so a connection to the fixed port is forwarded to the store of
the round that is current when it arrives; before the first round it waits. HTTP requests begin with an upper-case letter and
messages of `TCPStore` with a small number, so the first byte distinguishes them. Strangers are limited as at any port
(`guarded_port.py`).
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable
from typing import cast

from rallypoint.agent import descriptors
from rallypoint.agent.transport.guarded_port import Admission, Connection, GuardedPort
from rallypoint.agent.transport.tls_port import HANDSHAKE_RECORD
from rallypoint.agent.waiting import set_within
from rallypoint.wire.connections import Connections, Limits
from rallypoint.wire.endpoint import split_address

__all__ = ["SharedPort"]

#: Seconds between two attempts to reach the store of the round.
_PAUSE = 0.05

#: Bytes that a client may send before the store is connected; its first messages have a few dozen.
_BUFFERED = 1 << 16

_LETTERS = range(ord("A"), ord("Z") + 1)


class SharedPort:
    """One listening port; `store` returns the `host:port` of the current round's store, "" before the first.

    `http` admits connections that begin with a letter, and `limits` are those of the port before a connection is forwarded; so
    many as `most` are, by default as descriptors allow. torch's stores ask for no proof. So a forwarded connection to which the
    store has answered stays, and of the others the oldest is ended where there are too many.
    """

    def __init__(
        self,
        store: Callable[[], str],
        *,
        http: Callable[[bytes], Admission | None] | None = None,
        limits: Limits | None = None,
        most: int = 0,
    ) -> None:
        self._store, self._http = store, http
        most = max(most or descriptors.shares(forwards=True).forwarded, 4)
        self._port = GuardedPort(limits or Limits.few(most), self._admit)
        self._forwarded: Connections[Connection] = Connections(Limits.few(most, patience=None))
        #: Both ends of connections that are forwarded.
        self._open: set[asyncio.Transport] = set()

    async def start(self, host: str, port: int) -> int:
        """Listen and return the port, a free one when `port` is 0; raises `OSError`.

        Without HTTP an address of another machine stands for all of this one: it may be a gateway's.
        """
        try:
            return await self._port.start(host, port)
        except OSError as error:
            elsewhere = isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL
            if self._http is not None or not elsewhere:
                raise
            return await self._port.start(None, port)

    async def close(self) -> None:
        """Stop listening and close forwarded connections; the HTTP server closes its own connections."""
        await self._port.close()
        while self._open:
            for transport in self._open:
                transport.abort()
            await asyncio.sleep(0)

    def opened(self, transport: asyncio.Transport) -> None:
        """Register a connection for `close`."""
        self._open.add(transport)

    def closed(self, transport: asyncio.Transport) -> None:
        """Unregister a connection."""
        self._open.discard(transport)

    def _admit(self, data: bytes) -> Admission | None:
        """Return the handler of a connection by its first byte."""
        if self._http is not None and (data[0] in _LETTERS or data[0] == HANDSHAKE_RECORD):
            return self._http(data)
        return Admission(protocol=lambda one: _Relay(self, self._store, one.prove).client, table=self._forwarded)


class _Relay:
    """Forwards one connection to the store, and back; calls `answered` when the store sends data."""

    def __init__(self, port: SharedPort, store: Callable[[], str], answered: Callable[[], None]) -> None:
        self._store = store
        self.client, self.server = _Half(port, self.close), _Half(port, self.close, answered)
        self.client.other, self.server.other = self.server, self.client
        self._connecting = asyncio.create_task(self._connect())

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            address = self._store()
            if address:
                try:
                    await loop.create_connection(lambda: self.server, *split_address(address))
                except OSError:
                    pass  # that round is over; the next one has another store
                else:
                    return
            await set_within(asyncio.Event(), _PAUSE)

    def close(self) -> None:
        """Close both connections after pending data has been sent."""
        self._connecting.cancel()
        for half in (self.client, self.server):
            half.close()


class _Half(asyncio.Protocol):
    """One of the two connections; received data is sent on the other connection."""

    other: _Half

    def __init__(self, port: SharedPort, lost: Callable[[], None], heard: Callable[[], None] | None = None) -> None:
        self._port, self._lost, self._heard = port, lost, heard
        self._transport: asyncio.Transport | None = None
        self._waiting = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._port.opened(self._transport)
        if self._waiting:
            self._transport.write(bytes(self._waiting))
            self._waiting.clear()
            self.other.resume_reading()

    def data_received(self, data: bytes) -> None:
        if self._heard is not None:
            self._heard()
            self._heard = None
        self.other.send(data)

    def send(self, data: bytes) -> None:
        """Send data now, or when the connection is open."""
        if self._transport is not None:
            self._transport.write(data)
            return
        self._waiting += data
        if len(self._waiting) > _BUFFERED:
            self.other.pause_reading()

    def pause_reading(self) -> None:
        """Pause reading until `resume_reading`."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Resume reading."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def pause_writing(self) -> None:
        self.other.pause_reading()

    def resume_writing(self) -> None:
        self.other.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is not None:
            self._port.closed(self._transport)
        self._lost()

    def close(self) -> None:
        """Close the connection if it is open."""
        if self._transport is not None:
            self._transport.close()
