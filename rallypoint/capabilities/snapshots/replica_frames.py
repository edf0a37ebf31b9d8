"""How a snapshot travels from one node's agent to another's. The secret of the job proves who sends, and every byte of it.

```
server  nonce (16 bytes)
client  proof: HMAC-SHA256 of nonce and a fixed text under the secret
client  length (4 bytes, big endian), head (JSON), HMAC-SHA256 of nonce and head under the secret
server  answer (a JSON line): go on, or why not
client  data (the head says how many bytes), BLAKE2b of it under a key of secret and nonce
server  answer (a JSON line): it is kept, or why not
```

The proof comes first and has a fixed size, so the server reads 32 bytes of a stranger and keeps nothing of it.

Plain sockets in threads: a gibibyte must not pass through the loop that hears a worker die.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import socket
import struct
import time
from dataclasses import dataclass

from rallypoint.wire import codec
from rallypoint.wire.errors import RallypointError

__all__ = [
    "BLOCK",
    "HEAD_TIME",
    "NONCE",
    "PROOF_TIME",
    "Answer",
    "Head",
    "ReplicaError",
    "answer",
    "data_digest",
    "read_answer",
    "read_exactly",
    "read_head",
    "read_proof",
    "write_head",
]

#: Bytes that are sent, digested and received at once.
BLOCK = 1 << 20

#: Seconds in which a sender must prove the secret, and then have sent its head.
PROOF_TIME, HEAD_TIME = 5.0, 30.0

#: Bytes of what makes each conversation another one.
NONCE = 16

_LENGTH = struct.Struct(">I")
_MAC, _SENDER = 32, b"sender of a snapshot"
_HEAD_LIMIT, _ANSWER_LIMIT = 32 << 20, 1 << 16


class ReplicaError(RallypointError):
    """A replica could not be sent or taken; what was kept before stays."""


@dataclass(frozen=True, kw_only=True)
class Head:
    """What is sent: the header of a part as it lies beside its buffer, and all ranks of the node that sends."""

    attempt: int
    ranks: tuple[int, ...]
    part: str


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Nothing to say against it, or `error`."""

    error: str = ""


def write_head(head: Head, secret: str, nonce: bytes) -> bytes:
    """Return the client's proof and its head."""
    text = codec.dumps(head).encode()
    return _mac(_SENDER, secret, nonce) + _LENGTH.pack(len(text)) + text + _mac(text, secret, nonce)


def read_proof(sock: socket.socket, secret: str, nonce: bytes) -> None:
    """Read the client's proof, within `PROOF_TIME` in all. Raises `ReplicaError`, `OSError`."""
    proof = read_exactly(sock, _MAC, until=time.monotonic() + PROOF_TIME)
    if not hmac.compare_digest(proof, _mac(_SENDER, secret, nonce)):
        raise ReplicaError("authentication failed: the sender does not have the secret of this job")


def read_head(sock: socket.socket, secret: str, nonce: bytes) -> Head:
    """Read the head of a client that has proven who it is, within `HEAD_TIME`. Raises `ReplicaError`, `OSError`."""
    until = time.monotonic() + HEAD_TIME
    (length,) = _LENGTH.unpack(read_exactly(sock, _LENGTH.size, until=until))
    if length > _HEAD_LIMIT:
        raise ReplicaError(f"the header of the snapshot has {length} bytes; at most {_HEAD_LIMIT} are allowed")
    text = read_exactly(sock, length, until=until)
    if not hmac.compare_digest(read_exactly(sock, _MAC, until=until), _mac(text, secret, nonce)):
        raise ReplicaError("authentication failed: the header of the snapshot was signed with the secret of another job")
    try:
        return codec.loads(Head, text)
    except codec.WireError as error:
        raise ReplicaError(f"head: {error}") from error


def answer(sock: socket.socket, error: str = "") -> None:
    """Say yes, or why not."""
    sock.sendall(codec.dumps(Answer(error=error[:1000])).encode() + b"\n")


def read_answer(sock: socket.socket) -> None:
    """Return when the server says yes; raises `ReplicaError` with what it says, `OSError`."""
    text = bytearray()
    while not text.endswith(b"\n"):
        if len(text) > _ANSWER_LIMIT:
            raise ReplicaError(f"the agent that receives the snapshot sent a reply of more than {_ANSWER_LIMIT} bytes")
        text += read_exactly(sock, 1)
    try:
        told = codec.loads(Answer, bytes(text))
    except (codec.WireError, json.JSONDecodeError) as error:
        raise ReplicaError(f"answer: {error}") from error
    if told.error:
        raise ReplicaError(told.error)


def data_digest(secret: str, nonce: bytes) -> hashlib.blake2b:
    """Return what the data goes through on both sides; it ends in 32 bytes that only who knows the secret can make."""
    return hashlib.blake2b(key=hashlib.sha256(secret.encode() + nonce).digest(), digest_size=32)


def read_exactly(sock: socket.socket, size: int, *, until: float | None = None) -> bytes:
    """Read `size` bytes; raises `ReplicaError` when the other side ends before, `TimeoutError` when it takes too long.

    `until` is a time of `time.monotonic`; without it each part may take as long as the socket's own time-out.
    """
    text = bytearray()
    usual = sock.gettimeout()
    try:
        while len(text) < size:
            if until is not None:
                left = until - time.monotonic()
                if left <= 0:
                    raise TimeoutError("transfer of a snapshot: the agent on the other node did not respond in time")
                sock.settimeout(left)
            data = sock.recv(min(size - len(text), BLOCK))
            if not data:
                raise ReplicaError("transfer of a snapshot: the agent on the other node closed the connection")
            text += data
    finally:
        if until is not None and sock.fileno() >= 0:
            sock.settimeout(usual)
    return bytes(text)


def _mac(text: bytes, secret: str, nonce: bytes) -> bytes:
    return hmac.new(secret.encode(), nonce + text, hashlib.sha256).digest()
