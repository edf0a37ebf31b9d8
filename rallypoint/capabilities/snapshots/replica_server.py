"""Takes the snapshots of another node's workers, and keeps them: a port, a thread for each connection, and a shelf.

The shelf has areas beside those of the node's own workers, within a limit of bytes. An area has two buffers as that of a writer
has (checkpoint/memory.py), so that the last one stays whole while the next arrives. Whoever loads finds them there without
being told. Areas of ranks that the sender of a newer round has no more are given up.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hmac
import logging
import mmap
import os
import secrets
import shutil
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rallypoint.agent.tls import HANDSHAKE, Tls, explain, is_of_job
from rallypoint.capabilities.snapshots.replica_frames import (
    BLOCK,
    NONCE,
    Head,
    ReplicaError,
    answer,
    data_digest,
    read_exactly,
    read_head,
    read_proof,
)
from rallypoint.checkpoint.free_memory import free_memory
from rallypoint.checkpoint.memory import HEADER, Part, held, read_part, replica_area, replica_areas
from rallypoint.wire.codec import WireError
from rallypoint.wire.connections import Connections, Limits, peer_of

__all__ = ["ReplicaServer", "ReplicaShelf"]

log = logging.getLogger("rallypoint.replicas")

#: Seconds of silence after which a sender is given up: what it began is not complete, and what was kept before stays.
_SILENCE = 30.0

#: Snapshots that arrive at a time; a node's neighbour opens a connection for each of its workers.
_MOST = 16

#: Connections at a time that have not proven the secret yet. Of more the oldest is ended.
_STRANGERS = 32

#: Seconds after which it is tried again where a connection cannot be accepted or served.
_PAUSE = 0.1

_PAGE = 4096


class ReplicaServer:
    """One agent's port for replicas."""

    def __init__(self, shelf: ReplicaShelf, *, secret: str, tls: Tls | None = None) -> None:
        self._shelf, self._secret, self._tls = shelf, secret, tls
        self._listener: socket.socket | None = None
        limits = Limits(most=_MOST + _STRANGERS, strangers=_STRANGERS, per_peer=_STRANGERS // 2, patience=None)
        self._open: Connections[socket.socket] = Connections(limits)
        self._proven: set[socket.socket] = set()
        self._lock = threading.Lock()

    def start(self, host: str) -> int:
        """Listen on a free port of `host` and return it; raises `OSError`."""
        family = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0][0]
        self._listener = socket.create_server((host, 0), family=family, backlog=_MOST + _STRANGERS)
        port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, args=(self._listener,), name="rallypoint-replicas", daemon=True).start()
        return port

    def close(self) -> None:
        """Stop listening, and hang up on everybody."""
        with self._lock:
            listener, self._listener = self._listener, None
            known = (*self._open, *(() if listener is None else (listener,)))
        for sock in known:
            _hang_up(sock)
        if listener is not None:
            listener.close()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                sock, peer = listener.accept()
            except OSError as error:
                if self._listener is None:
                    return
                log.error("the agent cannot accept a snapshot from another node: %s; retrying in %g s", error.strerror, _PAUSE)  # noqa: TRY400  one line
                time.sleep(_PAUSE)
                continue
            if not self._admit(sock, peer[0]):
                continue
            thread = threading.Thread(target=self._serve, args=(sock, peer[0]), name="rallypoint-replica", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                log.error("the agent cannot start a thread that receives a snapshot from %s: %s", peer[0], error)  # noqa: TRY400  one line
                self._forget(sock)
                sock.close()
                time.sleep(_PAUSE)

    def _admit(self, sock: socket.socket, host: str) -> bool:
        """Count a connection, and end the one that is too many; return whether this one stays."""
        with self._lock:
            ended = self._open.opened(sock, peer_of(host), time.monotonic())
            if self._listener is None:
                ended.append(sock)
        for one in ended:
            _hang_up(one)
        if sock in ended:
            self._forget(sock)
            sock.close()
        return sock not in ended

    def _serve(self, sock: socket.socket, peer: str) -> None:
        try:
            sock = self._secured(sock)
        except (ReplicaError, OSError) as error:
            log.warning("rejected a connection from %s: %s", peer, explain(error))
            self._forget(sock)
            return
        try:
            with sock:
                sock.settimeout(_SILENCE)
                try:
                    self._take(sock)
                except ReplicaError as error:
                    self._say(sock, peer, error)
                    answer(sock, str(error))
        except OSError as error:
            self._say(sock, peer, error)
        finally:
            self._forget(sock)

    def _secured(self, sock: socket.socket) -> socket.socket:
        """Return a connection after the TLS handshake, where there is one; raises `ReplicaError`, `OSError`."""
        tls = self._tls
        if tls is None:
            return sock
        sock.settimeout(HANDSHAKE)
        made = tls.server.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        with self._lock:  # `close` ends the one that has the descriptor
            self._open.replaced(sock, made)
        try:
            made.do_handshake()
            _require_certificate(made, tls)
        except BaseException:
            made.close()
            self._forget(made)
            raise
        return made

    def _say(self, sock: socket.socket, peer: str, error: Exception) -> None:
        with self._lock:
            ended = sock not in self._open  # in favour of another one
        if not ended:
            log.warning("rejected a snapshot from %s: %s", peer, error)

    def _forget(self, sock: socket.socket) -> None:
        with self._lock:
            self._open.closed(sock)
            self._proven.discard(sock)

    def _prove(self, sock: socket.socket) -> None:
        """Note that a sender has proven the secret; raises `ReplicaError` where too many have."""
        with self._lock:
            if len(self._proven) >= _MOST:
                raise ReplicaError(f"snapshot rejected: this node is already receiving {_MOST} snapshots from other nodes")
            self._proven.add(sock)
            self._open.proven(sock)

    def _take(self, sock: socket.socket) -> None:
        nonce = secrets.token_bytes(NONCE)
        sock.sendall(nonce)
        read_proof(sock, self._secret, nonce)
        self._prove(sock)
        head = read_head(sock, self._secret, nonce)
        digest = data_digest(self._secret, nonce)
        with self._shelf.place(head) as (view, complete):
            answer(sock)
            at = 0
            while at < len(view):
                count = sock.recv_into(view[at : at + BLOCK])
                if count == 0:
                    raise ReplicaError(f"received {at} of {len(view)} bytes")
                digest.update(view[at : at + count])
                at += count
            if not hmac.compare_digest(read_exactly(sock, digest.digest_size), digest.digest()):
                raise ReplicaError("the data of the snapshot does not match its digest; it was corrupted in transit")
            complete()
        answer(sock)


def _hang_up(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def _require_certificate(sock: ssl.SSLSocket, tls: Tls) -> None:
    """Raise `ReplicaError` unless the other side's certificate is one of this job."""
    if not is_of_job(sock.getpeercert(), tls):
        raise ReplicaError(f"the client needs a TLS certificate with the DNS name {tls.name}")


class ReplicaShelf:
    """What one agent keeps for others.

    Args:
        folder: of its snapshots, in shared memory.
        limit: bytes that all of it may take.
        attempt: of the job; what another one sends is refused.

    """

    def __init__(self, folder: Path, *, limit: int, attempt: int) -> None:
        self._folder, self._limit, self._attempt = folder, limit, attempt

    @contextlib.contextmanager
    def place(self, head: Head) -> Iterator[tuple[memoryview, Callable[[], None]]]:
        """Yield memory for what `head` announces, and what to call when that is filled and proven: it is complete then.

        Raises:
            ReplicaError: when it is refused: another attempt's, not newer than what is kept, or beyond the limit.

        """
        part = self._accepted(head)
        area = replica_area(self._folder, part.rank)
        area.mkdir(mode=0o700, exist_ok=True)
        kept = held(area)
        path = area / ("1.bin" if kept and kept[0].path.name == "0.bin" else "0.bin")
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            with _locked(fd, path):
                path.with_suffix(HEADER).unlink(missing_ok=True)
                self._make_room(fd, area, part, head)
                mapped = mmap.mmap(fd, max(_PAGE, part.size))
                try:
                    with memoryview(mapped) as whole, whole[: part.size] as view:
                        yield view, lambda: self._publish(path, head, part)
                finally:
                    mapped.close()
        finally:
            os.close(fd)

    @property
    def size(self) -> int:
        """Bytes that it takes now."""
        return sum(path.stat().st_size for area in replica_areas(self._folder) for path in area.glob("*.bin"))

    def _accepted(self, head: Head) -> Part:
        try:
            part = read_part(head.part.encode())
        except WireError as error:
            raise ReplicaError(f"part: {error}") from error
        if (head.attempt, part.granted.attempt) != (self._attempt, self._attempt):
            raise ReplicaError(
                f"snapshot of attempt {head.attempt} is not allowed; "
                f"expected a snapshot of attempt {self._attempt}, the current attempt"
            )
        if part.rank not in head.ranks:
            raise ReplicaError(f"snapshot of rank {part.rank} is not allowed; the sending node has ranks {head.ranks}")
        if part.size <= 0:
            raise ReplicaError(f"snapshot of rank {part.rank}: a size of {part.size} bytes is not allowed; expected 1 or more")
        newest = next(iter(held(replica_area(self._folder, part.rank))), None)
        if newest is not None and newest.part.age >= part.age:
            have = newest.part
            raise ReplicaError(
                f"the snapshot of step {part.step} (fencing token {part.granted}) is not newer than the stored snapshot of "
                f"step {have.step} (fencing token {have.granted})"
            )
        return part

    def _make_room(self, fd: int, area: Path, part: Part, head: Head) -> None:
        before = os.fstat(fd).st_size
        more = max(0, part.size - before)
        if self.size + more > self._limit:
            self._give_up(part, head)
        # Both buffers count from the beginning: a limit that the second snapshot breaks would be found out too late.
        second = part.size if len(list(area.glob("*.bin"))) < 2 else 0
        needed = self.size + more + second
        if needed > self._limit:
            raise ReplicaError(
                f"snapshot of rank {part.rank} rejected: a node stores the last two snapshots of a rank; with two snapshots "
                f"of {part.size:,} bytes, this node would store {needed:,} bytes for other nodes, more than "
                f"recovery.replica_limit ({self._limit:,} bytes)"
            )
        free = free_memory(self._folder)
        if free < more:
            raise ReplicaError(f"snapshot of rank {part.rank}: not enough memory: {more:,} bytes needed, {free:,} free")
        try:
            os.posix_fallocate(fd, 0, max(_PAGE, part.size))
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.ENOMEM, errno.EFBIG):
                raise ReplicaError(
                    f"snapshot of rank {part.rank}: not enough memory for {part.size:,} bytes: {error.strerror}"
                ) from error
            raise

    def _publish(self, path: Path, head: Head, part: Part) -> None:
        header = path.with_suffix(HEADER)
        temporary = header.with_suffix(".new")
        temporary.write_text(head.part, encoding="utf-8")
        temporary.rename(header)
        self._give_up(part, head)

    def _give_up(self, part: Part, head: Head) -> None:
        """Drop what is of an older round and of ranks that the sender has not: the ring is another one by now."""
        for area in replica_areas(self._folder):
            kept = held(area)
            theirs = any(area == replica_area(self._folder, rank) for rank in head.ranks)
            if kept and not theirs and all(one.part.granted < part.granted for one in kept):
                shutil.rmtree(area, ignore_errors=True)


@contextlib.contextmanager
def _locked(fd: int, path: Path) -> Iterator[None]:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ReplicaError(
            f"the snapshot in {path.parent.name}/{path.name} cannot be replaced, because another process reads it"
        ) from error
    try:
        yield
    finally:
        fcntl.flock(fd, fcntl.LOCK_UN)
