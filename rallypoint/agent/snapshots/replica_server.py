"""Takes the snapshots of another node's workers: a port, and a thread for each connection."""

from __future__ import annotations

import contextlib
import hmac
import logging
import secrets
import socket
import ssl
import threading

from rallypoint.agent.snapshots.replica_frames import (
    BLOCK,
    NONCE,
    ReplicaError,
    answer,
    data_digest,
    read_exactly,
    read_head,
)
from rallypoint.agent.snapshots.replica_shelf import ReplicaShelf
from rallypoint.agent.tls import HANDSHAKE, Tls, explain, is_of_job

__all__ = ["ReplicaServer"]

log = logging.getLogger("rallypoint.replicas")

#: Seconds of silence after which a sender is given up: what it began is not complete, and what was kept before stays.
_SILENCE = 30.0

#: Connections that are served at a time; a node's neighbour opens one for each of its workers.
_MOST = 16


class ReplicaServer:
    """One agent's port for replicas."""

    def __init__(self, shelf: ReplicaShelf, *, secret: str, tls: Tls | None = None) -> None:
        self._shelf, self._secret, self._tls = shelf, secret, tls
        self._listener: socket.socket | None = None
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()

    def start(self, host: str) -> int:
        """Listen on a free port of `host` and return it; raises `OSError`."""
        family = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0][0]
        self._listener = socket.create_server((host, 0), family=family, backlog=_MOST)
        port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, args=(self._listener,), name="rallypoint-replicas", daemon=True).start()
        return port

    def close(self) -> None:
        """Stop listening, and hang up on everybody."""
        with self._lock:
            listener, self._listener = self._listener, None
            known = (*self._open, *(() if listener is None else (listener,)))
        for sock in known:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        if listener is not None:
            listener.close()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                sock, peer = listener.accept()
            except OSError:
                return
            with self._lock:
                full = self._listener is None or len(self._open) >= _MOST
                if not full:
                    self._open.add(sock)
            if full:
                sock.close()
                continue
            threading.Thread(target=self._serve, args=(sock, peer[0]), name="rallypoint-replica", daemon=True).start()

    def _serve(self, sock: socket.socket, peer: str) -> None:
        try:
            sock = self._secured(sock)
        except (ReplicaError, OSError) as error:
            log.warning("a connection of %s is refused: %s", peer, explain(error))
            self._forget(sock)
            return
        try:
            with sock:
                sock.settimeout(_SILENCE)
                try:
                    self._take(sock)
                except ReplicaError as error:
                    log.warning("a snapshot of %s is not kept: %s", peer, error)
                    answer(sock, str(error))
        except OSError as error:
            log.warning("a snapshot of %s is not kept: %s", peer, error)
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
            self._open.discard(sock)
            self._open.add(made)
        try:
            made.do_handshake()
            _require_certificate(made, tls)
        except BaseException:
            made.close()
            self._forget(made)
            raise
        return made

    def _forget(self, sock: socket.socket) -> None:
        with self._lock:
            self._open.discard(sock)

    def _take(self, sock: socket.socket) -> None:
        nonce = secrets.token_bytes(NONCE)
        sock.sendall(nonce)
        head = read_head(sock, self._secret, nonce)
        digest = data_digest(self._secret, nonce)
        with self._shelf.place(head) as (view, complete):
            answer(sock)
            at = 0
            while at < len(view):
                count = sock.recv_into(view[at : at + BLOCK])
                if count == 0:
                    raise ReplicaError(f"{at} of {len(view)} bytes arrived")
                digest.update(view[at : at + count])
                at += count
            if not hmac.compare_digest(read_exactly(sock, digest.digest_size), digest.digest()):
                raise ReplicaError("data: its digest is another one: it was damaged on the way")
            complete()
        answer(sock)


def _require_certificate(sock: ssl.SSLSocket, tls: Tls) -> None:
    """Raise `ReplicaError` unless the other side's certificate is one of this job."""
    if not is_of_job(sock.getpeercert(), tls):
        raise ReplicaError(f"a certificate for {tls.name} is needed")
