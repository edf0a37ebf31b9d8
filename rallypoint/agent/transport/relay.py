"""Forward a connection to a second one, and back. A side that sends faster than the other one reads is paused."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

from rallypoint.agent.transport.guarded_port import Connection

__all__ = ["Relay", "RelayedTransports", "Rewrite"]

#: Bytes that wait for the server on one connection before the server has answered.
_BUFFERED = 1 << 13

#: Returns the data that is forwarded instead of received data; the second value is False if later data is forwarded unchanged.
Rewrite = Callable[[bytes], tuple[bytes, bool]]


class RelayedTransports:
    """Both ends of the connections that a port forwards."""

    def __init__(self) -> None:
        self._open: set[asyncio.Transport] = set()
        self._empty = asyncio.Event()
        self._empty.set()

    def opened(self, transport: asyncio.Transport) -> None:
        """Register a connection for `close`."""
        self._open.add(transport)
        self._empty.clear()

    def closed(self, transport: asyncio.Transport) -> None:
        """Unregister a connection."""
        self._open.discard(transport)
        if not self._open:
            self._empty.set()

    async def finish(self, seconds: float) -> None:
        """Wait until all connections have been closed, then close the others."""
        waiting = asyncio.ensure_future(self._empty.wait())
        await asyncio.wait({waiting}, timeout=seconds)
        waiting.cancel()
        await self.close()

    async def close(self) -> None:
        """Close all connections at once."""
        while self._open:
            for transport in tuple(self._open):
                transport.abort()
            await asyncio.sleep(0)


class Relay:
    """Forwards one connection to a server, and back.

    Args:
        transports: gets both ends of the connection.
        connect: connects the given protocol to the server; if it raises `OSError`, the connection is closed.
        unanswered: is marked as authenticated when the server sends data.
        begun: data for the server from before.
        rewrite: of the data that the client sends.

    """

    def __init__(
        self,
        transports: RelayedTransports,
        connect: Callable[[asyncio.Protocol], Awaitable[None]],
        *,
        unanswered: Connection | None = None,
        begun: bytes = b"",
        rewrite: Rewrite | None = None,
    ) -> None:
        self.client = _Half(transports, self.close, rewrite=rewrite)
        self._server = _Half(transports, self.close, unanswered)
        self.client.other, self._server.other = self._server, self.client
        if begun:
            self._server.send(begun)
        self._connecting = asyncio.create_task(self._connect(connect))

    async def _connect(self, connect: Callable[[asyncio.Protocol], Awaitable[None]]) -> None:
        try:
            await connect(self._server)
        except OSError:
            self.close()

    def close(self) -> None:
        """Close both connections after pending data has been sent."""
        self._connecting.cancel()
        for half in (self.client, self._server):
            half.close()


class _Half(asyncio.Protocol):
    """One of the two connections; received data is sent on the other connection."""

    other: _Half

    def __init__(
        self,
        transports: RelayedTransports,
        lost: Callable[[], None],
        unanswered: Connection | None = None,
        *,
        rewrite: Rewrite | None = None,
    ) -> None:
        self._transports, self._lost, self._unanswered, self._rewrite = transports, lost, unanswered, rewrite
        self._transport: asyncio.Transport | None = None
        self._waiting = bytearray()
        self._closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transports.opened(self._transport)
        if self._closed:
            self._transport.abort()
            return
        if self._unanswered is not None:
            self._transport.set_write_buffer_limits(high=_BUFFERED)
        if self._waiting:
            waiting, self._waiting = bytes(self._waiting), bytearray()
            self.other.resume_reading()
            self.send(waiting)

    def data_received(self, data: bytes) -> None:
        if self._unanswered is not None:
            self._answered(self._unanswered)
        if self._rewrite is not None:
            data, again = self._rewrite(data)
            self._rewrite = self._rewrite if again else None
        self.other.send(data)

    def _answered(self, connection: Connection) -> None:
        self._unanswered = None
        connection.prove()
        if self._transport is not None:
            self._transport.set_write_buffer_limits()

    def send(self, data: bytes) -> None:
        """Send data now, or when the connection is open."""
        if self._transport is not None:
            self._transport.write(data)
        else:
            self._waiting += data
            if len(self._waiting) >= _BUFFERED:
                self.other.pause_reading()
        if self._unanswered is not None:
            self._unanswered.hold(len(self._waiting) if self._transport is None else self._transport.get_write_buffer_size())

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
            self._transports.closed(self._transport)
        self._lost()

    def close(self) -> None:
        """Close the connection, at once after it has opened if it is not open."""
        self._closed = True
        if self._transport is not None:
            self._transport.close()
