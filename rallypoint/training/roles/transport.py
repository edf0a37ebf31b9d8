"""One connection between two instances: a socket with a deadline for everything, and the proof at its beginning."""

from __future__ import annotations

import contextlib
import secrets
import select
import socket
import ssl
import time
from collections.abc import Callable

from rallypoint.training.roles.context import Settings
from rallypoint.training.roles.errors import CallTimeoutError
from rallypoint.training.roles.frames import (
    ANSWER_SIZE,
    GREETING_SIZE,
    PROOF_SIZE,
    Frame,
    FrameReader,
    FrameWriter,
    Session,
    answer_greeting,
    check_answer,
    check_proof,
    greeting,
)
from rallypoint.training.roles.secure import client_context, require_peer, server_context
from rallypoint.wire.tls import peer_name

__all__ = ["LOOK", "Channel", "accept", "connect", "tune"]

#: Seconds between two looks at the directory while a call waits.
LOOK = 0.5

#: Seconds that connecting to one address may take, and the proof after it.
_CONNECT, _PROOF = 5.0, 10.0

#: Seconds without an acknowledgement of the other machine after which a connection counts as broken.
_DEAD = 15

_CHUNK = 1 << 20
_NONCE = 16

Watch = Callable[[], None]


class Channel:
    """An authenticated connection; used by one thread at a time."""

    def __init__(self, sock: socket.socket, session: Session) -> None:
        self.sock = sock
        self._writer, self._reader = FrameWriter(session.sending), FrameReader(session.receiving)

    def send(self, frame: Frame, *, until: float, watch: Watch | None = None) -> None:
        """Send a frame; raises `CallTimeoutError` at the time `until`, `ValueTypeError`, `OSError`, and what `watch` raises."""
        for part in self._writer.write(frame):
            self._send_part(memoryview(part).cast("B") if len(part) else memoryview(b""), until, watch)

    def receive(self, *, until: float, watch: Watch | None = None) -> Frame:
        """Receive a frame; raises `CallTimeoutError`, `ProtocolError`, `OSError`, and what `watch` raises."""
        while True:
            count = _patiently(self._receive_part, self.sock, until, watch)
            frame = self._reader.received(count)
            if frame is not None:
                return frame

    def receive_next(self, silence: float) -> Frame | None:
        """Wait for the next frame for any time, then receive it; None if the other side has closed the connection before it.

        Raises `CallTimeoutError` after `silence` seconds without a byte within a frame, `ProtocolError`, `OSError`.
        """
        self.sock.settimeout(None)
        while True:
            count = self.sock.recv_into(self._reader.target())
            if count == 0:
                if self._reader.between:
                    return None
                raise ConnectionResetError("the calling process closed the connection in the middle of a message")
            frame = self._reader.received(count)
            if frame is not None:
                return frame
            self.sock.settimeout(silence)

    def is_silent(self) -> bool:
        """Return whether the other side has neither sent a byte nor closed the connection."""
        with contextlib.suppress(OSError, ValueError):
            poll = select.poll()
            poll.register(self.sock, select.POLLIN | select.POLLERR | select.POLLHUP)
            pending = self.sock.pending() if isinstance(self.sock, ssl.SSLSocket) else 0
            return not pending and not poll.poll(0)
        return False

    def close(self) -> None:
        """Close the connection; ignored the second time."""
        with contextlib.suppress(OSError):
            self.sock.close()

    def _receive_part(self) -> int:
        count = self.sock.recv_into(self._reader.target())
        if count == 0:
            raise ConnectionResetError("the other process of the call closed the connection")
        return count

    def _send_part(self, view: memoryview, until: float, watch: Watch | None) -> None:
        while len(view):
            part = view[:_CHUNK]
            view = view[_patiently(lambda part=part: self.sock.send(part), self.sock, until, watch) :]  # type: ignore[misc]


def connect(settings: Settings, host: str, port: int, *, until: float) -> Channel:
    """Connect to an instance and prove the secret to each other; raises `OSError`, `ProtocolError`, `CallTimeoutError`."""
    sock = socket.create_connection((host, port), timeout=min(_left(until), _CONNECT))
    try:
        tune(sock)
        sock.settimeout(min(_left(until), _PROOF))
        if settings.tls is not None:
            sock = client_context(settings.tls).wrap_socket(sock, server_hostname=peer_name(settings.job))
        until = min(until, time.monotonic() + _PROOF)
        told = _read(sock, GREETING_SIZE, until)
        nonce = secrets.token_bytes(_NONCE)
        sock.sendall(answer_greeting(settings.secret, told, nonce))
        return Channel(sock, check_proof(settings.secret, told, nonce, _read(sock, PROOF_SIZE, until)))
    except BaseException:
        sock.close()
        raise


def accept(settings: Settings, sock: socket.socket, replaced: Callable[[socket.socket], None], proven: Watch) -> Channel:
    """Prove the secret to each other on an accepted connection; raises `OSError`, `ProtocolError`.

    `replaced` gets the socket after the TLS handshake; `proven` is called once the other side has proven the secret.
    """
    tune(sock)
    until = time.monotonic() + _PROOF
    sock.settimeout(_PROOF)
    if settings.tls is not None:
        sock = server_context(settings.tls).wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        replaced(sock)
        assert isinstance(sock, ssl.SSLSocket)
        sock.do_handshake()
        require_peer(sock, settings.job)
    nonce = secrets.token_bytes(_NONCE)
    sock.sendall(greeting(nonce))
    proof, session = check_answer(settings.secret, nonce, _read(sock, ANSWER_SIZE, until))
    proven()
    sock.sendall(proof)
    return Channel(sock, session)


def tune(sock: socket.socket) -> None:
    """Send small messages at once, and notice a machine that has vanished."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 2), ("TCP_USER_TIMEOUT", _DEAD * 1000)):
        option = getattr(socket, name, None)
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


def _read(sock: socket.socket, size: int, until: float) -> bytes:
    """Read `size` bytes of the proof, within the deadline in all."""
    text = b""
    while len(text) < size:
        sock.settimeout(_left(until))
        data = sock.recv(size - len(text))
        if not data:
            raise ConnectionResetError(
                "the other process closed the connection before it proved that it has the secret of the job"
            )
        text += data
    return text


def _patiently(act: Callable[[], int], sock: socket.socket, until: float, watch: Watch | None) -> int:
    """Repeat an operation of a socket until it succeeds; between two tries look at the clock and call `watch`."""
    while True:
        sock.settimeout(min(_left(until), LOOK))
        try:
            return act()
        except TimeoutError:
            if watch is not None:
                watch()


def _left(until: float) -> float:
    left = until - time.monotonic()
    if left <= 0:
        raise CallTimeoutError(
            "the call to another role did not finish within its timeout; whether the function was executed is unknown"
        )
    return left
