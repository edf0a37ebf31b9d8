"""A listening port with limits for unauthenticated connections.

asyncio's servers accept every connection. Without a free file descriptor they log a traceback for each pending connection once
a second and block the event loop. Here a connection is accepted and its first bytes are read; when the first message is
complete, the connection gets a transport and a protocol. Until then it uses a socket and a callback. `Connections` selects the
connections to close when there are too many, when they are too slow, or when they hold too many bytes.

asyncio reads 256 KiB at a time. A connection that has not authenticated reads at most `_LITTLE` bytes at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from rallypoint.agent.transport.request_head import HEAD_LIMIT
from rallypoint.agent.transport.tls_port import feed
from rallypoint.wire.connections import Connections, Limits, peer_of

__all__ = ["Admission", "Connection", "GuardedPort", "Rejection"]

log = logging.getLogger("rallypoint.port")

#: Backlog of the socket: all agents of a job may connect at once. The kernel may allow fewer
#: (net.core.somaxconn).
_BACKLOG = 8192

#: Connections accepted per turn of the event loop; a low number, so that open connections are served in between.
_AT_ONCE = 32

#: Pause of accepting, in seconds, after unanswered connections were closed because of a limit, and after an error. Up to
#: `_AT_ONCE` connections for each pause are more than 4,096, a full queue of the kernel, in a second.
_PAUSE, _ERROR_PAUSE = 0.002, 0.1

#: Seconds for which the further data of a rejected connection is discarded, and bytes.
_LINGER, _DISCARDED = 1.0, 1 << 17

#: Bytes of memory that it uses meanwhile.
_LINGERING = 1 << 12

#: Bytes that a connection reads at a time before it has authenticated.
_LITTLE = 1 << 13


@dataclass(frozen=True, kw_only=True)
class Admission:
    """Handling of a connection whose first message is complete.

    Attributes:
        protocol: factory of the protocol.
        begun: the protocol receives the first message.
        proven: the connection has authenticated, so its deadline is removed.
        table: counts the connection from now on; None for the table of its port.
        held: bytes of memory that the connection uses until it has authenticated.
    """

    protocol: Callable[[Connection], asyncio.BaseProtocol]
    begun: bool = True
    proven: bool = False
    table: Connections[Connection] | None = None
    held: int = 0


@dataclass(frozen=True, kw_only=True)
class Rejection:
    """Handling of a connection whose first message is rejected: send `answer` and close the connection.

    Attributes:
        answer: of a few hundred bytes.
        lingers: discard further data for a moment before closing, so that a client that still sends reads the answer.
        delay: seconds before the answer to a connection that lingers.
        half_closes: end the data in this direction after the answer, before the connection is closed.
    """

    answer: bytes
    lingers: bool = False
    delay: float = 0.0
    half_closes: bool = True


class GuardedPort:
    """One port, on each address of its host.

    Args:
        limits: of its connections.
        admit: returns the handling of a connection by its first bytes, or None while more bytes are needed.
        tables: other tables to which `admit` moves connections; their deadlines are also checked.
        greeting: a few bytes that each accepted connection gets at once.

    """

    def __init__(
        self,
        limits: Limits,
        admit: Callable[[bytes], Admission | Rejection | None],
        *,
        tables: tuple[Connections[Connection], ...] = (),
        greeting: bytes = b"",
    ) -> None:
        self.greeting = greeting
        self.table: Connections[Connection] = Connections(limits)
        self.admit = admit
        self._tables = (self.table, *tables)
        #: Receives the data of connections that have not authenticated, one after the other.
        self.buffer = memoryview(bytearray(_LITTLE))
        #: Connections whose first message is incomplete, and tasks that create transports.
        self.waiting: set[Connection] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        #: Whether more connections waited in the queue of the kernel than the port accepts at once.
        self.busy = False
        self._listeners: list[socket.socket] = []
        self._timer: asyncio.TimerHandle | None = None
        self._pauses: dict[socket.socket, asyncio.TimerHandle] = {}

    async def start(self, host: str | None, port: int | socket.socket) -> int:
        """Listen and return the port, a free one when `port` is 0; it may be a socket that listens. Raises `OSError`."""
        loop = asyncio.get_running_loop()
        if isinstance(port, socket.socket):
            port.listen(_BACKLOG)
            port.setblocking(False)
            self._listeners.append(port)
        else:
            await self._open(host, port)
        for listener in self._listeners:
            loop.add_reader(listener, self._accept, listener)
        bound: int = self._listeners[0].getsockname()[1]
        return bound

    async def _open(self, host: str | None, port: int) -> None:
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            for family, address in dict.fromkeys((family, address) for family, _, _, _, address in found):
                self._listeners.append(_listening(family, (address[0], port, *address[2:])))
                port = self._listeners[0].getsockname()[1]  # one free port for all addresses
        except OSError:
            await self.close()
            raise

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
        crowded = more = False
        for _ in range(_AT_ONCE):
            try:
                sock, address = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                break
            except OSError as error:
                self._exhausted(listener, error)
                return
            crowded |= self._opened(sock, str(address[0]))
        else:
            more = True
        self.busy = more
        self.arm()
        if crowded:
            self._pause(listener, _PAUSE)

    def _opened(self, sock: socket.socket, host: str) -> bool:
        """Accept a connection; return whether an unanswered one was closed for it."""
        sock.setblocking(False)
        connection = Connection(self, sock, host)
        if connection.count(self.table):
            if self.greeting:
                connection.greet(self.greeting)
            connection.read()  # an agent's first message is often there already
            return connection.crowding
        number = len(self.table)
        log.warning("this process rejected a connection from %s, because all %d allowed connections are in use", host, number)
        return True

    def _exhausted(self, listener: socket.socket, error: OSError) -> None:
        """Close connections when the process or the machine has no free file descriptor."""
        ended = self.table.shed()
        for one in ended:
            one.end()
        log.error(
            "this process cannot accept a connection (%s); it closed %d unauthenticated connections to free file descriptors, "
            "and accepts connections again in %g s",
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

    def arm(self) -> None:
        """Set the timer to the next deadline of a connection."""
        due = min((due for table in self._tables if (due := table.next_deadline()) is not None), default=None)
        if due is None or not self._listeners or (self._timer is not None and self._timer.when() <= due):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(due, self._expire)

    def _expire(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        for one in [one for table in self._tables for one in table.expired(now)]:
            one.end()
        self.arm()


class Connection:
    """One accepted connection, from its first byte to its end."""

    def __init__(self, port: GuardedPort, sock: socket.socket, host: str) -> None:
        self._port, self._sock, self._peer = port, sock, peer_of(host)
        self._number = sock.fileno()
        self._table = port.table
        self._begun = bytearray()
        self._left = -1  #: bytes that are still discarded; negative until the connection is rejected
        self._lingering: asyncio.TimerHandle | None = None
        self._reading = self._ended = False
        self._transport: asyncio.Transport | None = None
        self._slow: _ServedSlowly | None = None
        self.is_answered = False
        self.crowding = False  #: a connection without a response was closed for it
        port.waiting.add(self)

    def count(self, table: Connections[Connection]) -> bool:
        """Add this connection to a table, and close those above its limits; return whether this one may stay."""
        self._table.closed(self)
        self._table = table
        ended = table.opened(self, self._peer, asyncio.get_running_loop().time())
        self.crowding |= not all(one.is_answered for one in ended)
        for one in ended:
            one.end()
        return not self._ended

    def answered(self) -> None:
        """Mark the connection as answered: its client only reads the response, so others may have its place.

        While other connections wait to be accepted, it is closed at once, because each further event takes time from them.
        """
        self.is_answered = True
        if self._port.busy:
            self.end()
            return
        for one in self._table.answered(self, asyncio.get_running_loop().time()):
            one.end()

    def prove(self) -> None:
        """Mark the connection as authenticated."""
        self._table.proven(self)
        if self._slow is not None:
            self._slow.hasten()
            self._slow = None

    def hold(self, size: int) -> None:
        """Set the bytes of memory that the connection uses; close those above the limit."""
        for one in self._table.holding(self, size):
            one.end()

    def greet(self, data: bytes) -> None:
        """Send the first bytes of a new connection."""
        with contextlib.suppress(OSError):  # `read` reports a connection that has ended
            self._sock.send(data)

    def read(self) -> None:
        """Read available data; when the first message is complete, serve the connection."""
        try:
            data = self._sock.recv(_LITTLE)
        except (BlockingIOError, InterruptedError):
            self._watch()
            return
        except OSError:
            data = b""
        if self._left >= 0:
            self._discard(data)
            return
        self._begun += data
        handling = self._port.admit(bytes(self._begun)) if data else None
        if isinstance(handling, Rejection):
            self._reject(handling)
        elif handling is not None:
            self._serve(handling)
        elif data and len(self._begun) < HEAD_LIMIT:
            self.hold(len(self._begun))
            self._watch()
        else:
            self.end()

    def end(self) -> None:
        """Close the connection in any state; ignored the second time."""
        if self._ended:
            return
        self._ended = True
        self._slow = None
        if self._lingering is not None:
            self._lingering.cancel()
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
        else:
            self._port.arm()  # the deadlines of another table may be earlier
            self.hold(admission.held)
            if self._ended:
                return
        self._unwatch()
        begun, self._begun = bytes(self._begun) if admission.begun else b"", bytearray()
        served = self._wrapped(admission.protocol(self), begun, proven=admission.proven)
        task = asyncio.get_running_loop().create_task(self._connect(served))
        self._port.tasks.add(task)
        task.add_done_callback(self._port.tasks.discard)

    def _wrapped(self, inner: asyncio.BaseProtocol, begun: bytes, *, proven: bool) -> asyncio.BaseProtocol:
        if isinstance(inner, asyncio.BufferedProtocol):
            return _ServedBuffered(self, inner, begun)
        plain = cast("asyncio.Protocol", inner)
        if proven:
            return _Served(self, plain, begun)
        self._slow = _ServedSlowly(self, plain, begun, self._port.buffer)
        return self._slow

    def _reject(self, rejection: Rejection) -> None:
        self._begun = bytearray()
        self._left = _DISCARDED
        if not rejection.delay:
            self._send_last(rejection.answer)
        if rejection.lingers:
            self.answered()
            self.hold(_LINGERING)
        else:
            self.end()
        if self._ended:
            return
        loop = asyncio.get_running_loop()
        if rejection.delay:
            self._lingering = loop.call_later(rejection.delay, self._answer, rejection)
        else:
            self._linger(rejection)
        self._watch()

    def _answer(self, rejection: Rejection) -> None:
        self._send_last(rejection.answer)
        if not self._ended:
            self._linger(rejection)

    def _send_last(self, answer: bytes) -> None:
        try:
            self._sock.send(answer)
        except OSError:
            self.end()

    def _linger(self, rejection: Rejection) -> None:
        self._lingering = asyncio.get_running_loop().call_later(_LINGER, self.end)
        if not rejection.half_closes:
            return
        try:
            self._sock.shutdown(socket.SHUT_WR)
        except OSError:
            self.end()

    def _discard(self, data: bytes) -> None:
        self._left -= len(data)
        if not data or self._left < 0:
            self.end()
        else:
            self._watch()

    async def _connect(self, served: asyncio.BaseProtocol) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: served, self._sock)
        except BaseException as error:
            self._sock.close()
            self.end()
            if not isinstance(error, OSError):
                raise

    def _watch(self) -> None:
        if not self._reading and not self._ended:
            self._reading = True
            asyncio.get_running_loop().add_reader(self._number, self.read)

    def _unwatch(self) -> None:
        self._port.waiting.discard(self)
        if self._reading:
            self._reading = False
            asyncio.get_running_loop().remove_reader(self._number)


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
        if begun:
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


class _ServedSlowly(_Wrapped, asyncio.BufferedProtocol):
    """Wrapper of a protocol that receives data, for a connection that has not authenticated: it reads into a small buffer."""

    def __init__(self, connection: Connection, inner: asyncio.Protocol, begun: bytes, buffer: memoryview) -> None:
        super().__init__(connection, inner, begun)
        self._receiver, self._buffer = inner, buffer
        self._transport: asyncio.Transport | None = None
        self.eof_received = inner.eof_received  # type: ignore[method-assign]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        super().connection_made(transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._receiver.data_received(bytes(self._buffer[:nbytes]))

    def hasten(self) -> None:
        """Read as much at a time as other connections; the connection has authenticated."""
        if self._transport is not None:
            self._transport.set_protocol(_Served(self._connection, self._receiver, b""))


class _ServedBuffered(_Wrapped, asyncio.BufferedProtocol):
    """Wrapper of a protocol that provides a buffer, such as TLS."""

    def __init__(self, connection: Connection, inner: asyncio.BufferedProtocol, begun: bytes) -> None:
        super().__init__(connection, inner, begun)
        self.get_buffer = inner.get_buffer  # type: ignore[method-assign]
        self.buffer_updated = inner.buffer_updated  # type: ignore[method-assign]
        self.eof_received = inner.eof_received  # type: ignore[method-assign]


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
