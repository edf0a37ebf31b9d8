"""Takes the snapshots of another node's workers: a port, and a thread for each connection."""

from __future__ import annotations

import contextlib
import hmac
import logging
import secrets
import socket
import ssl
import threading
import time

from rallypoint.agent.tls import HANDSHAKE, Tls, explain, is_of_job
from rallypoint.capabilities.snapshots.replica_frames import (
    BLOCK,
    NONCE,
    ReplicaError,
    answer,
    data_digest,
    read_exactly,
    read_head,
    read_proof,
)
from rallypoint.capabilities.snapshots.replica_shelf import ReplicaShelf
from rallypoint.wire.connections import Connections, Limits, peer_of

__all__ = ["ReplicaServer"]

log = logging.getLogger("rallypoint.replicas")

#: Seconds of silence after which a sender is given up: what it began is not complete, and what was kept before stays.
_SILENCE = 30.0

#: Snapshots that arrive at a time; a node's neighbour opens a connection for each of its workers.
_MOST = 16

#: Connections at a time that have not proven the secret yet. Of more the oldest is ended.
_STRANGERS = 32

#: Seconds after which it is tried again where a connection cannot be accepted or served.
_PAUSE = 0.1


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
