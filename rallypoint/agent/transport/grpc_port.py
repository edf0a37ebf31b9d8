"""The port of gRPC without TLS: clients with the token of the job reach grpcio's servers, on Unix sockets of this process.

grpcio has no limit for the memory and the CPU time of a connection that has not sent the token. So each connection is accepted
here and forwarded when its first request has the token (`http2_head.py`). With TLS, grpcio accepts connections itself, because
a client without a certificate of the job sends nothing but a handshake.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path

from rallypoint.agent.transport.grpc_words import TOKEN_KEY
from rallypoint.agent.transport.guarded_port import Admission, Connection, GuardedPort, Rejection
from rallypoint.agent.transport.http2_head import (
    SETTINGS,
    AcknowledgementFilter,
    Header,
    NotHttp2Error,
    read_head,
    rejection,
)
from rallypoint.agent.transport.relay import Relay, RelayedTransports
from rallypoint.wire.connections import Connections, Limits
from rallypoint.wire.unix import reachable

__all__ = ["GrpcPort"]

log = logging.getLogger("rallypoint.grpc")

#: Seconds before a rejection: grpcio reports another error if it receives the rejection before it has sent the first message,
#: or the end of the connection soon after it.
_DELAY = 0.4

#: Seconds between two attempts to connect to a server whose queue of connections is full.
_PAUSE = 0.02


class GrpcPort:
    """One listening port in front of grpcio's servers, which get its connections in turn.

    `token`: of the job. `rejected`: text for a client without it. `most`: connections with the token, which use three
    descriptors each; twice as many may be open without it, half of them from one address.
    """

    def __init__(self, token: str, *, rejected: str, most: int) -> None:
        self._token, self._rejected = Header(TOKEN_KEY, token), rejected
        self._forwarded: Connections[Connection] = Connections(Limits.few(most))
        self._port = GuardedPort(Limits.few(2 * most), self._admit, tables=(self._forwarded,), greeting=SETTINGS)
        self._transports = RelayedTransports()
        #: Descriptors of the servers' sockets.
        self._servers: list[int] = []
        self._turns = itertools.count()

    async def add_server(self, bind: Callable[[str], object]) -> None:
        """Bind the Unix socket of a server by calling `bind` in a thread with its address. Raises `OSError`."""
        self._servers.append(await asyncio.to_thread(_bound, bind))

    async def start(self, host: str, port: int) -> int:
        """Listen and return the port, a free one when `port` is 0. Raises `OSError`."""
        return await self._port.start(host, port)

    async def stop_listening(self) -> None:
        """Accept no further connections; those that are forwarded stay."""
        await self._port.close()

    async def close(self, patience: float) -> None:
        """Wait until the servers have closed their connections and the clients have the data, then close the others."""
        await self._port.close()
        await self._transports.finish(patience)
        servers, self._servers = self._servers, []
        for server in servers:
            os.close(server)

    def _admit(self, data: bytes) -> Admission | Rejection | None:
        try:
            head = read_head(data)
        except NotHttp2Error:
            return Rejection(answer=b"")
        if head is None:
            return None
        if not self._token.is_in(head):
            answer = rejection(head, self._rejected)
            return Rejection(answer=answer, lingers=True, delay=_DELAY, half_closes=False)
        return Admission(protocol=lambda _: self._relay(data), begun=False, proven=True, table=self._forwarded)

    def _relay(self, begun: bytes) -> asyncio.Protocol:
        rewrite = AcknowledgementFilter()
        begun, again = rewrite(begun)
        return Relay(self._transports, self._connect, begun=begun, rewrite=rewrite if again else None).client

    async def _connect(self, half: asyncio.Protocol) -> None:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.setblocking(False)
        where = f"/proc/self/fd/{self._servers[next(self._turns) % len(self._servers)]}"
        try:
            while True:
                try:
                    sock.connect(where)
                    break
                except BlockingIOError:
                    await asyncio.sleep(_PAUSE)
            await asyncio.get_running_loop().create_unix_connection(lambda: half, sock=sock)
        except BaseException:
            sock.close()
            raise


def _bound(bind: Callable[[str], object]) -> int:
    """Bind a Unix socket and return a descriptor that refers to it.

    The socket gets no permanent name, so no other user can connect to it, and a killed process leaves no file.
    """
    with tempfile.TemporaryDirectory(prefix="rallypoint-") as folder:
        path = Path(folder, "grpc")
        with reachable(path) as address:
            bind(f"unix:{address}")
        return os.open(path, os.O_PATH)
