"""A listening port with limits for unauthenticated connections.

asyncio's servers accept every connection. Without a free file descriptor they log a traceback for each pending connection once
a second and block the event loop. Here a connection is accepted and its first bytes are read; when the first message is
complete, the connection gets a transport and a protocol. Until then it uses a socket and a callback. `Connections` selects the
connections to close when there are too many or when they are too slow.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from rallypoint.agent.transport.tls_port import feed
from rallypoint.wire.connections import Connections, Limits, peer_of

__all__ = ["HEAD_LIMIT", "Admission", "Connection", "FirstHead", "GuardedPort"]

log = logging.getLogger("rallypoint.port")

#: Bytes of the longest first message of a connection.
HEAD_LIMIT = 1 << 15

#: Backlog of the socket: all agents of a job may connect at once. The kernel may allow fewer
#: (net.core.somaxconn).
_BACKLOG = 8192

#: Connections accepted per turn of the event loop; a low number, so that open connections are served in between.
_AT_ONCE = 32

#: Pause of accepting, in seconds, after connections were closed because of a limit, and after an error.
_PAUSE, _ERROR_PAUSE = 0.01, 0.1


@dataclass(frozen=True, kw_only=True)
class Admission:
    """Handling of a connection whose first message is complete.

    Attributes:
        protocol: factory of the protocol.
        proven: the connection has authenticated, so its deadline is removed.
        table: counts the connection from now on; None for the table of its port.
    """

    protocol: Callable[[Connection], asyncio.BaseProtocol]
    proven: bool = False
    table: Connections[Connection] | None = None


class GuardedPort:
    """One port, on each address of its host.

    Args:
        limits: of its connections.
        admit: returns the handling of a connection by its first bytes, or None while more bytes are needed.

    """

    def __init__(self, limits: Limits, admit: Callable[[bytes], Admission | None]) -> None:
        self.table: Connections[Connection] = Connections(limits)
        self.admit = admit
        #: Connections whose first message is incomplete, and tasks that create transports.
        self.waiting: set[Connection] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self._listeners: list[socket.socket] = []
        self._timer: asyncio.TimerHandle | None = None
        self._pauses: dict[socket.socket, asyncio.TimerHandle] = {}

    async def start(self, host: str | None, port: int) -> int:
        """Listen and return the port, a free one when `port` is 0; raises `OSError`."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            for family, address in dict.fromkeys((family, address) for family, _, _, _, address in found):
                self._listeners.append(_listening(family, address))
        except OSError:
            await self.close()
            raise
        for listener in self._listeners:
            loop.add_reader(listener, self._accept, listener)
        bound: int = self._listeners[0].getsockname()[1]
        return bound

    async def close(self) -> None:
        """Stop listening, and close connections whose first message is incomplete."""
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            asyncio.get_running_loop().remove_reader(listener)
            listener.close()
        for pause in (*self._pauses.values(), *filter(None, (self._timer,))):
            pause.cancel()
        self._pauses.clear()
        self._timer = None
        for connection in tuple(self.waiting):
            connection.end()

    def _accept(self, listener: socket.socket) -> None:
        crowded = False
        for _ in range(_AT_ONCE):
            try:
                sock, address = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                break
            except OSError as error:
                self._exhausted(listener, error)
                return
            crowded |= self._opened(sock, str(address[0]))
        self._arm()
        if crowded:
            self._pause(listener, _PAUSE)

    def _opened(self, sock: socket.socket, host: str) -> bool:
        """Accept a connection; return whether another one was closed for it."""
        sock.setblocking(False)
        connection = Connection(self, sock, host)
        if connection.count(self.table):
            connection.read()  # an agent's first message is often there already
            return connection.crowding
        log.warning(
            "rejected a connection from %s: the limit of %d authenticated connections is reached", host, len(self.table)
        )
        return True

    def _exhausted(self, listener: socket.socket, error: OSError) -> None:
        """Close connections when the process or the machine has no free file descriptor."""
        ended = self.table.shed()
        for one in ended:
            one.end()
        log.error(
            "the operating system refused a new connection (%s); to free file descriptors, this process closed %d connections "
            "that had not authenticated; it accepts connections again in %g s",
            error.strerror,
            len(ended),
            _ERROR_PAUSE,
        )
        self._pause(listener, _ERROR_PAUSE)

    def _pause(self, listener: socket.socket, seconds: float) -> None:
        loop = asyncio.get_running_loop()

        def resume() -> None:
            del self._pauses[listener]
            loop.add_reader(listener, self._accept, listener)

        loop.remove_reader(listener)
        self._pauses[listener] = loop.call_later(seconds, resume)

    def _arm(self) -> None:
        due = self.table.next_deadline()
        if self._timer is None and due is not None and self._listeners:
            self._timer = asyncio.get_running_loop().call_at(due, self._expire)

    def _expire(self) -> None:
        self._timer = None
        for one in self.table.expired(asyncio.get_running_loop().time()):
            one.end()
        self._arm()


class Connection:
    """One accepted connection, from its first byte to its end."""

    def __init__(self, port: GuardedPort, sock: socket.socket, host: str) -> None:
        self._port, self._sock, self._peer = port, sock, peer_of(host)
        self._table = port.table
        self._begun = bytearray()
        self._reading = self._ended = False
        self._transport: asyncio.Transport | None = None
        self.crowding = False  #: another connection was closed for it
        port.waiting.add(self)

    def count(self, table: Connections[Connection]) -> bool:
        """Add this connection to a table, and close those above its limits; return whether this one may stay."""
        self._table.closed(self)
        self._table = table
        ended = table.opened(self, self._peer, asyncio.get_running_loop().time())
        self.crowding = bool(ended)
        for one in ended:
            one.end()
        return not self._ended

    def prove(self) -> None:
        """Mark the connection as authenticated."""
        self._table.proven(self)

    def read(self) -> None:
        """Read available data; when the first message is complete, serve the connection."""
        try:
            data = self._sock.recv(HEAD_LIMIT)
        except (BlockingIOError, InterruptedError):
            self._watch()
            return
        except OSError:
            data = b""
        self._begun += data
        admission = self._port.admit(bytes(self._begun)) if data else None
        if admission is not None:
            self._serve(admission)
        elif data and len(self._begun) < HEAD_LIMIT:
            self._watch()
        else:
            self.end()

    def end(self) -> None:
        """Close the connection in any state; ignored the second time."""
        if self._ended:
            return
        self._ended = True
        self._table.closed(self)
        if self._transport is not None:
            self._transport.abort()
        elif self in self._port.waiting:
            self._unwatch()
            self._sock.close()

    def made(self, transport: asyncio.Transport) -> None:
        """Store the transport."""
        self._transport = transport
        if self._ended:
            transport.abort()

    def _serve(self, admission: Admission) -> None:
        if admission.table is not None and not self.count(admission.table):
            return
        if admission.proven:
            self.prove()
        self._unwatch()
        served = _served(self, admission.protocol(self), bytes(self._begun))
        task = asyncio.get_running_loop().create_task(self._connect(served))
        self._port.tasks.add(task)
        task.add_done_callback(self._port.tasks.discard)

    async def _connect(self, served: asyncio.BaseProtocol) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: served, self._sock)
        except BaseException as error:
            self._sock.close()
            self.end()
            if not isinstance(error, OSError):
                raise

    def _watch(self) -> None:
        if not self._reading:
            self._reading = True
            asyncio.get_running_loop().add_reader(self._sock, self.read)

    def _unwatch(self) -> None:
        self._port.waiting.discard(self)
        if self._reading:
            self._reading = False
            asyncio.get_running_loop().remove_reader(self._sock)


def _served(connection: Connection, inner: asyncio.BaseProtocol, begun: bytes) -> asyncio.BaseProtocol:
    if isinstance(inner, asyncio.BufferedProtocol):
        return _ServedBuffered(connection, inner, begun)
    return _Served(connection, cast("asyncio.Protocol", inner), begun)


class _Wrapped(asyncio.BaseProtocol):
    """Forward all calls to the protocol of a connection, and report its end."""

    def __init__(self, connection: Connection, inner: asyncio.BaseProtocol, begun: bytes) -> None:
        self._connection, self._inner, self._begun = connection, inner, begun
        self.pause_writing = inner.pause_writing  # type: ignore[method-assign]
        self.resume_writing = inner.resume_writing  # type: ignore[method-assign]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._inner.connection_made(transport)
        self._connection.made(cast("asyncio.Transport", transport))
        begun, self._begun = self._begun, b""
        feed(self._inner, begun)

    def connection_lost(self, exc: Exception | None) -> None:
        self._inner.connection_lost(exc)
        self._connection.end()


class _Served(_Wrapped, asyncio.Protocol):
    """Wrapper of a protocol that receives data."""

    def __init__(self, connection: Connection, inner: asyncio.Protocol, begun: bytes) -> None:
        super().__init__(connection, inner, begun)
        self.data_received = inner.data_received  # type: ignore[method-assign]  # each message comes this way
        self.eof_received = inner.eof_received  # type: ignore[method-assign]


class _ServedBuffered(_Wrapped, asyncio.BufferedProtocol):
    """Wrapper of a protocol that provides a buffer, such as TLS."""

    def __init__(self, connection: Connection, inner: asyncio.BufferedProtocol, begun: bytes) -> None:
        super().__init__(connection, inner, begun)
        self.get_buffer = inner.get_buffer  # type: ignore[method-assign]
        self.buffer_updated = inner.buffer_updated  # type: ignore[method-assign]
        self.eof_received = inner.eof_received  # type: ignore[method-assign]


class FirstHead(asyncio.Protocol):
    """Forward all calls to `inner`, and call `prove` when `proves` accepts the head of the first request."""

    def __init__(self, inner: asyncio.Protocol, proves: Callable[[bytes], bool], prove: Callable[[], None]) -> None:
        self._inner, self._proves, self._prove = inner, proves, prove
        self._begun = bytearray()
        self.connection_made = inner.connection_made  # type: ignore[method-assign]
        self.connection_lost = inner.connection_lost  # type: ignore[method-assign]
        self.eof_received = inner.eof_received  # type: ignore[method-assign]
        self.pause_writing = inner.pause_writing  # type: ignore[method-assign]
        self.resume_writing = inner.resume_writing  # type: ignore[method-assign]

    def data_received(self, data: bytes) -> None:  # noqa: D102  as of any protocol
        self._begun += data
        head, end, _ = bytes(self._begun).partition(b"\r\n\r\n")
        if end or len(self._begun) > HEAD_LIMIT:
            if self._proves(head):
                self._prove()
            self._begun.clear()
            self.data_received = self._inner.data_received  # type: ignore[method-assign]
        self._inner.data_received(data)


def _listening(family: int, address: tuple[object, ...]) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)
        sock.listen(_BACKLOG)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock
