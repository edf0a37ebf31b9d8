"""The agent's part in the rounds' stores: sockets that listen ahead, and the child that serves them.

Every round has a fresh store. Each agent keeps one listening socket ready and tells its address with every report; the
coordinator picks one of them per round. The agent that finds its own address in its assignment hands the socket to its store
host and opens the next. The host is started for the first round that is served here and kept: later ones cost no import.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import os
import socket
import struct
from collections.abc import Callable

from rallypoint.agent.errors import ConfigError, StoreError
from rallypoint.agent.workers.spawner import Command, Starter
from rallypoint.agent.workers.store_host import NO_TORCH
from rallypoint.wire.endpoint import split_address
from rallypoint.wire.python import run_module

__all__ = ["StoreKeeper", "end_crowd", "listening"]

log = logging.getLogger("rallypoint.store")

#: Connections that may wait for the host to start: every rank of the world, at once.
_BACKLOG = 4096

#: Connections that may wait before the store's port has been told to anybody.
_EARLY = 128

#: Where the kernel's `struct tcp_info` of a listening socket has the number of connections that wait.
_WAITING = 24


class StoreKeeper:
    """Offers sockets and serves the stores of the rounds that were given to this agent."""

    def __init__(self, host: str, spawner: Starter, lost: Callable[[str], None]) -> None:
        self._host, self._spawner, self._lost = host, spawner, lost
        self._socket: socket.socket | None = None
        self._line: socket.socket | None = None
        self._serving = False
        self._torchless = False
        self._closing = False
        self._starting = asyncio.Lock()
        self._ahead: asyncio.Task[None] | None = None
        self.offer = ""

    async def prepare(self) -> None:
        """Listen for the next round; raises `ConfigError` when that cannot be."""
        if self._socket is not None:
            return
        self._socket, self.offer = await listening(self._host)

    @property
    def prepared(self) -> bool:
        """Whether the process of the stores is not being started ahead just now."""
        return self._ahead is None

    async def assigned(self, store: str) -> None:
        """Serve the store of a round when it is ours; end the one of the round before.

        Raises `StoreError` when its process cannot be started now, and `ConfigError` as `prepare` does.
        """
        if self._socket is None or store != self.offer or self._torchless:
            self._tell({}, None)
            self._serving = False
            return
        try:
            async with self._starting:
                if self._line is None:
                    await self._start_host()
        except OSError as error:
            raise StoreError(f"cannot start the process of the rendezvous store (TCPStore): {error}") from error
        host, port = split_address(store)
        ours, self._socket = self._socket, None
        end_crowd(ours)
        self._serving = True
        self._tell({"host": host, "port": port}, ours.fileno())
        ours.close()  # a copy of ours would keep the port open after the store is gone
        await self.prepare()

    def host_ahead(self) -> None:
        """Start the host before a round needs it, now that it costs no import: the next store may be ours."""
        if self._line is None and not self._closing and not self._torchless and self._ahead is None:
            self._ahead = asyncio.create_task(self._start_ahead())
            self._ahead.add_done_callback(self._is_ahead)

    async def _start_ahead(self) -> None:
        async with self._starting:
            if self._line is None:
                await self._start_host()

    def _is_ahead(self, done: asyncio.Task[None]) -> None:
        self._ahead = None
        if not done.cancelled() and done.exception() is not None:
            log.warning(
                "the agent cannot start the process of the rendezvous store (TCPStore) in advance (%s); it starts the process "
                "with the next round",
                done.exception(),
            )

    def close(self) -> None:
        """End the store and its host."""
        self._closing = True
        if self._ahead is not None:
            self._ahead.cancel()
        for sock in (self._socket, self._line):
            if sock is not None:
                sock.close()
        self._socket = self._line = None

    async def _start_host(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        argv = run_module("rallypoint.agent.workers.store_host", str(theirs.fileno()))
        # One thread is plenty, and the workers need the cores.
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        try:
            with theirs:
                await self._spawner.spawn(Command(argv=argv, env=env, keep=(theirs.fileno(),)), self._host_ended)
        except BaseException:
            ours.close()
            raise
        self._line = ours

    def _tell(self, order: dict[str, object], fd: int | None) -> None:
        if self._line is None:
            return
        try:
            socket.send_fds(self._line, [json.dumps(order).encode()], [] if fd is None else [fd])
        except OSError as error:  # it has just ended; `_host_ended` tells what follows
            log.debug("the agent cannot send a command to the process of the rendezvous store (TCPStore): %s", error)

    def _host_ended(self, code: int) -> None:
        if self._line is not None:
            self._line.close()
        self._line = None
        if self._closing:
            return
        if code == NO_TORCH:
            self._torchless = True
            log.warning("torch is not installed, so the agent cannot start a rendezvous store (TCPStore) for the workers")
        elif self._serving:
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            self._lost(f"the process of the rendezvous store ended with {how}")
        self._serving = False


def end_crowd(sock: socket.socket) -> None:
    """End the connections that wait already, where they are too many to be those of ranks, which have just been told the port.

    torch's server would take all of them at once, and have no descriptor left.
    """
    with contextlib.suppress(OSError):
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _WAITING + 4)
        (waiting,) = struct.unpack_from("=I", info, _WAITING)
        if waiting <= _EARLY:
            return
        log.warning(
            "the agent closed %d unauthenticated connections that waited at the port of the rendezvous store (TCPStore)",
            waiting,
        )
        sock.setblocking(False)
        for _ in range(_BACKLOG):
            sock.accept()[0].close()


async def listening(host: str) -> tuple[socket.socket, str]:
    """Return a socket that listens for a store at a free port, and its `host:port`; raises `ConfigError` when none can."""
    try:
        info = await asyncio.get_running_loop().getaddrinfo(host, 0, type=socket.SOCK_STREAM)
        sock = _listen(info[0][0], info[0][4])
    except OSError as error:
        raise ConfigError(
            f"host {host}: cannot open a listening socket for the rendezvous store (TCPStore): {error}"
        ) from error
    port = sock.getsockname()[1]
    return sock, f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _listen(family: socket.AddressFamily, address: tuple[object, ...]) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        try:
            sock.bind(address)
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:
                raise
            # The address by which others reach us may belong to a gateway.
            sock.bind(("::" if family == socket.AF_INET6 else "", 0))
        sock.listen(_BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock
