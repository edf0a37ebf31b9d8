"""Serve the running round's store at a fixed port, beside the coordinator's HTTP where that has the same port.

torchrun's agent serves a `TCPStore` at `--master-addr` and `--master-port` (or at the `--rdzv-endpoint`), and scripts connect
there. Each of our rounds has a fresh store at a port of its own, so a connection to the fixed port is forwarded to the store of
the round that is current when it arrives; before the first round it waits. HTTP requests begin with an upper-case letter and
messages of `TCPStore` with a small number, so the first byte tells them apart.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable
from typing import cast

from rallypoint.agent.transport.tls_port import HANDSHAKE_RECORD, Secured, feed
from rallypoint.agent.waiting import set_within
from rallypoint.wire.endpoint import split_address

__all__ = ["SharedPort"]

#: Seconds in which a connection must send its first byte.
_SILENCE = 30.0

#: Seconds between two attempts to reach the store of the round.
_PAUSE = 0.05

#: Bytes that a client may send before the store is reached; its first messages have a few dozen.
_BUFFERED = 1 << 16

#: Connections that wait to be accepted: those of all ranks, at once.
_BACKLOG = 8192

_LETTERS = range(ord("A"), ord("Z") + 1)


class SharedPort:
    """One listening port; `store` returns the `host:port` of the current round's store, "" before the first.

    Without `store` other connections than HTTP are closed. With `secured` HTTP is served over TLS alone.
    """

    def __init__(
        self,
        store: Callable[[], str] | None,
        *,
        http: Callable[[], asyncio.Protocol] | None = None,
        secured: Secured | None = None,
    ) -> None:
        self._store, self._http, self._secured = store, http, secured
        self._server: asyncio.Server | None = None
        #: Connections without a first byte, and both ends of those that are forwarded.
        self._open: set[asyncio.Transport] = set()

    async def start(self, host: str, port: int) -> int:
        """Listen and return the port, a free one when `port` is 0; raises `OSError`.

        Without HTTP an address of another machine stands for all of this one: it may be a gateway's.
        """
        try:
            self._server = await self._listen(host, port)
        except OSError as error:
            elsewhere = isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL
            if self._http is not None or not elsewhere:
                raise
            self._server = await self._listen(None, port)
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def _listen(self, host: str | None, port: int) -> asyncio.Server:
        loop = asyncio.get_running_loop()
        return await loop.create_server(lambda: _FirstByte(self), host, port, backlog=_BACKLOG)

    async def close(self) -> None:
        """Stop listening and end what is forwarded; connections of HTTP are left to their server."""
        if self._server is not None:
            self._server.close()
            self._server = None
        while self._open:
            for transport in self._open:
                transport.abort()
            await asyncio.sleep(0)

    def opened(self, transport: asyncio.Transport) -> None:
        """Note a connection that `close` has to end."""
        self._open.add(transport)

    def closed(self, transport: asyncio.Transport) -> None:
        """Forget a connection."""
        self._open.discard(transport)

    def chosen(self, first: int) -> asyncio.BaseProtocol:
        """Return the protocol of a connection by its first byte."""
        if self._http is not None and self._secured is not None and first == HANDSHAKE_RECORD:
            return self._secured.protocol(self._http)
        if self._http is not None and (first in _LETTERS or self._store is None):
            return self._http() if self._secured is None else self._secured.refusal()
        assert self._store is not None
        return _Relay(self, self._store).client


class _FirstByte(asyncio.Protocol):
    """Waits for the first byte of a connection, and hands the connection on."""

    def __init__(self, port: SharedPort) -> None:
        self._port = port
        self._transport: asyncio.Transport | None = None
        self._silent: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._port.opened(self._transport)
        self._silent = asyncio.get_running_loop().call_later(_SILENCE, self._transport.abort)

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        self._forget()
        protocol = self._port.chosen(data[0])
        self._transport.set_protocol(protocol)
        protocol.connection_made(self._transport)
        feed(protocol, data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()

    def _forget(self) -> None:
        if self._transport is not None and self._silent is not None:
            self._silent.cancel()
            self._port.closed(self._transport)


class _Relay:
    """Forwards one connection to the store, and back."""

    def __init__(self, port: SharedPort, store: Callable[[], str]) -> None:
        self._store = store
        self.client, self.server = _Half(port, self.close), _Half(port, self.close)
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
        """End both connections after what was sent has been delivered."""
        self._connecting.cancel()
        for half in (self.client, self.server):
            half.close()


class _Half(asyncio.Protocol):
    """One of the two connections; what it receives goes out on the other one."""

    other: _Half

    def __init__(self, port: SharedPort, lost: Callable[[], None]) -> None:
        self._port, self._lost = port, lost
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
        self.other.send(data)

    def send(self, data: bytes) -> None:
        """Send, now or as soon as there is a connection."""
        if self._transport is not None:
            self._transport.write(data)
            return
        self._waiting += data
        if len(self._waiting) > _BUFFERED:
            self.other.pause_reading()

    def pause_reading(self) -> None:
        """Receive nothing until `resume_reading`."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Receive again."""
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
        """Close the connection, if there is one."""
        if self._transport is not None:
            self._transport.close()
