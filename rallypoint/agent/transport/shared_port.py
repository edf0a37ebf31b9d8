"""Forward a fixed port to the store of the current round; the coordinator may serve HTTP at the same port.

torchrun's agent serves a `TCPStore` at `--master-addr` and `--master-port` (or at the `--rdzv-endpoint`), and scripts connect
there. Each of our rounds has a fresh store at a port of its own, so a connection to the fixed port is forwarded to the store of
the round that is current when it arrives; before the first round it waits, for as long as a client of torch does by default.
HTTP requests begin with an upper-case letter and
messages of `TCPStore` with a small number, so the first byte distinguishes them. Strangers are limited as at any port
(`guarded_port.py`).
"""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import socket
from collections.abc import Callable

from rallypoint.agent import descriptors
from rallypoint.agent.transport.guarded_port import Admission, Connection, GuardedPort, Rejection
from rallypoint.agent.transport.relay import Relay, RelayedTransports
from rallypoint.agent.transport.tls_port import HANDSHAKE_RECORD
from rallypoint.agent.waiting import set_within
from rallypoint.wire.connections import Connections, Limits
from rallypoint.wire.endpoint import split_address

__all__ = ["SharedPort"]

#: Seconds between two looks for the store of the round, and the longest pause between two attempts to reach it.
_PAUSE, _LONGEST_PAUSE = 0.05, 1.0

#: Bytes that wait for the store on all connections before the store has answered; the first messages of a client have a few
#: dozen bytes.
_BUFFERED_BY_ALL = 1 << 24

#: Seconds in which the store must answer: the default timeout of torch's clients.
_FIRST_ANSWER = 300.0

_LETTERS = range(ord("A"), ord("Z") + 1)


class SharedPort:
    """One listening port; `store` returns the `host:port` of the current round's store, "" before the first.

    `http` admits connections that begin with a letter, and `limits` are those of the port before a connection is forwarded; so
    many as `most` are, by default as descriptors allow. torch's stores ask for no proof. So a forwarded connection to which the
    store has answered stays; the others are limited in number, hold `waiting` bytes at most, and end after `patience` seconds.
    """

    def __init__(
        self,
        store: Callable[[], str],
        *,
        http: Callable[[bytes], Admission | Rejection | None] | None = None,
        limits: Limits | None = None,
        most: int = 0,
        patience: float = _FIRST_ANSWER,
        waiting: int = _BUFFERED_BY_ALL,
    ) -> None:
        self._store, self._http = store, http
        self._finding: asyncio.Task[str] | None = None
        most = max(most or descriptors.shares(forwards=True).forwarded, 4)
        forwarded = dataclasses.replace(Limits.few(most, patience), held=waiting)
        self._forwarded: Connections[Connection] = Connections(forwarded)
        self._port = GuardedPort(limits or Limits.few(most), self._admit, tables=(self._forwarded,))
        self._transports = RelayedTransports()

    async def start(self, host: str, port: int | socket.socket) -> int:
        """Listen and return the port, a free one when `port` is 0; it may be a socket that listens. Raises `OSError`.

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
        if self._finding is not None:
            self._finding.cancel()
        await self._transports.close()

    async def _found(self) -> str:
        """Return the address of the current round's store as soon as there is one; all connections share one timer."""
        address = self._store()
        if address:
            return address
        if self._finding is None:
            self._finding = asyncio.create_task(self._find())
        return await asyncio.shield(self._finding)

    async def _find(self) -> str:
        while not (address := self._store()):
            await set_within(asyncio.Event(), _PAUSE)
        self._finding = None
        return address

    def _admit(self, data: bytes) -> Admission | Rejection | None:
        """Return the handler of a connection by its first byte."""
        if self._http is not None and (data[0] in _LETTERS or data[0] == HANDSHAKE_RECORD):
            return self._http(data)
        return Admission(protocol=self._relay, table=self._forwarded, held=len(data))

    def _relay(self, connection: Connection) -> asyncio.Protocol:
        return Relay(self._transports, self._connect, unanswered=connection).client

    async def _connect(self, half: asyncio.Protocol) -> None:
        loop, pause = asyncio.get_running_loop(), _PAUSE
        while True:
            address = await self._found()
            try:
                await loop.create_connection(lambda: half, *split_address(address))
            except OSError:
                pass  # that round is over; the next one has another store
            else:
                return
            await set_within(asyncio.Event(), pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
