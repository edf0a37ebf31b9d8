"""An agent's part in the ring: it takes the snapshots of the node before it, and sends those of its own to the node behind.

Theory of operation
===================

What lies on two nodes is of use only if all ranks have the same step of it: a lost node's part of step 40 goes with the others'
part of step 40, and with no other. So the steps are the multiples of one number on all nodes, each worker keeps its own last
two of them (training/snapshots/buffers.py), and offers the next one only when its last offer is settled. Ranks that train
together are never more than a step apart, so while one waits nobody else can get as far as to give up the step that it has kept
elsewhere. Nobody has to be asked for that.
"""

from __future__ import annotations

import asyncio
import logging
import mmap
import socket
import ssl
from pathlib import Path

from rallypoint.agent.tls import Tls, explain
from rallypoint.capabilities.snapshots.replica_frames import (
    BLOCK,
    NONCE,
    Head,
    ReplicaError,
    data_digest,
    read_answer,
    read_exactly,
    write_head,
)
from rallypoint.capabilities.snapshots.replica_server import ReplicaServer, ReplicaShelf
from rallypoint.capabilities.snapshots.threads import in_thread
from rallypoint.capabilities.snapshots.wire import PlanSection
from rallypoint.checkpoint.errors import CheckpointError
from rallypoint.checkpoint.memory import Held, area_of, held, pinned
from rallypoint.wire import codec
from rallypoint.wire.endpoint import split_address
from rallypoint.wire.plan import Plan
from rallypoint.wire.replica import SOCKET, Offer, Settled
from rallypoint.wire.unix import reachable

__all__ = ["ReplicaSender", "Replicas", "send"]

log = logging.getLogger("rallypoint.replicas")

#: Seconds for the other node to be reached, and for which it may be silent.
_CONNECT, _SILENCE = 5.0, 30.0


class Replicas:
    """Both sides of one agent.

    Args:
        folder: of its snapshots.
        plan: of the job, which asks for replicas.
        attempt, secret: of the job.
        host: where other nodes reach this one.
        tls: certificates of the job; None is without TLS.

    """

    def __init__(self, folder: Path, plan: Plan, *, attempt: int, host: str, secret: str, tls: Tls | None = None) -> None:
        shelf = ReplicaShelf(folder, limit=PlanSection.of(plan).replica_limit, attempt=attempt)
        self._host, self._server = host, ReplicaServer(shelf, secret=secret, tls=tls)
        self._sender = ReplicaSender(folder, secret=secret, attempt=attempt, tls=tls)
        self.address = ""

    async def begin(self) -> None:
        """Listen, to workers and to another node. Where that cannot be, no replicas are kept, and the log says so."""
        try:
            await self._sender.begin()
            port = self._server.start(self._host)
        except OSError as error:
            log.warning(
                "this node cannot receive copies of other nodes' snapshots, because the agent cannot open a socket on host "
                "%s: %s",
                self._host,
                error.strerror or error,
            )
            return
        host = f"[{self._host}]" if ":" in self._host else self._host
        self.address = f"{host}:{port}"

    def assigned(self, target: str, ranks: range) -> None:
        """Take note of the next node, "" where there is none, and of this node's ranks."""
        self._sender.assigned(target, ranks)

    def close(self) -> None:
        """Neither take nor send any more."""
        self._server.close()
        self._sender.close()


class ReplicaSender:
    """One agent's side of it, in its loop.

    Args:
        folder: of its snapshots.
        secret, attempt: of the job.

    """

    def __init__(self, folder: Path, *, secret: str, attempt: int, tls: Tls | None = None) -> None:
        self._folder, self._secret, self._attempt, self._tls = folder, secret, attempt, tls
        self._target, self._ranks = "", tuple[int, ...]()
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._told = ""

    async def begin(self) -> None:
        """Listen to the workers; raises `OSError`."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with reachable(self._folder / SOCKET) as address:
                listener.bind(address)
            listener.listen(64)
        except BaseException:
            listener.close()
            raise
        self._server = await asyncio.start_unix_server(self._serve, sock=listener)

    def assigned(self, target: str, ranks: range) -> None:
        """Take note of the next node in the ring, "" where there is none, and of this node's ranks."""
        self._target, self._ranks = target, tuple(ranks)

    def close(self) -> None:
        """Listen no more."""
        if self._server is not None:
            self._server.close()
        for writer in tuple(self._open):
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            while line := await reader.readline():
                offer = codec.loads(Offer, line)
                error = await self._settle(offer)
                writer.write(codec.dumps(Settled(step=offer.step, error=error)).encode() + b"\n")
                await writer.drain()
        except ConnectionError:
            pass  # it has ended, and what it offered is sent all the same
        except (OSError, ValueError) as error:
            log.warning("the agent stopped copying the snapshots of one worker of this node to another node: %s", error)
        finally:
            self._open.discard(writer)
            writer.close()

    async def _settle(self, offer: Offer) -> str:
        """Return why the offer could not be sent, "" where it was."""
        target, ranks = self._target, self._ranks
        if not target:
            return self._said("no other node of this round stores snapshots of this node")
        try:
            area = area_of(self._folder, offer.local_rank)
            one = next((one for one in held(area) if one.part.age == (offer.fence, offer.step)), None)
            if one is None:
                return self._said(f"local rank {offer.local_rank} has already overwritten the snapshot of step {offer.step}")
            if one.part.whole:
                return self._said("not needed, because the state is not sharded and each node has a full copy")
            head = Head(attempt=self._attempt, ranks=ranks, part=one.text.decode())
            await in_thread(lambda: send(one, head, target, self._secret, self._tls), "rallypoint-replica")
        except (ReplicaError, CheckpointError, OSError) as error:
            return self._said(f"{target}: {error}")
        self._told = ""
        return ""

    def _said(self, error: str) -> str:
        if error != self._told:  # it would be said at each step otherwise
            log.warning("the agent cannot copy snapshots to another node: %s; it retries with the next snapshot", error)
        self._told = error
        return error


def _connected(host: str, port: int, tls: Tls | None) -> socket.socket:
    """Return a connection to another node; raises `OSError`, and `ReplicaError` where the handshake fails."""
    sock = socket.create_connection((host, port), timeout=_CONNECT)
    if tls is None:
        return sock
    try:
        return tls.client.wrap_socket(sock, server_hostname=tls.name)
    except ssl.SSLError as error:
        raise ReplicaError(explain(error)) from error
    finally:
        sock.close()  # what was wrapped has a descriptor of its own


def send(one: Held, head: Head, target: str, secret: str, tls: Tls | None = None) -> None:
    """Send a complete snapshot, which nobody overwrites meanwhile; raises `ReplicaError`, `CheckpointError`, `OSError`."""
    host, port = split_address(target)
    with pinned(one) as fd, _connected(host, port, tls) as sock:
        sock.settimeout(_SILENCE)
        nonce = read_exactly(sock, NONCE)
        sock.sendall(write_head(head, secret, nonce))
        read_answer(sock)
        digest = data_digest(secret, nonce)
        with mmap.mmap(fd, one.part.size, prot=mmap.PROT_READ) as mapped, memoryview(mapped) as view:
            for begin in range(0, one.part.size, BLOCK):
                with view[begin : min(begin + BLOCK, one.part.size)] as block:
                    digest.update(block)
                    sock.sendall(block)
        sock.sendall(digest.digest())
        read_answer(sock)
