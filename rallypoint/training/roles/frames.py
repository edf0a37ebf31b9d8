"""Messages of calls between roles as bytes. Pure: bytes in, messages out; a shell moves them through a socket.

A connection begins with a mutual proof of the job's secret. All parts have a fixed size, so that neither side stores data of
a stranger:

    server  magic (8 bytes), nonce (16)
    client  nonce (16), HMAC-SHA256 of "client" and both nonces under the secret (32)
    server  HMAC-SHA256 of "server" and both nonces under the secret (32)

After that both sides send frames:

    kind (1), number of buffers (2), bytes of the head (4), signature (16), sizes of the buffers (8 each), head (JSON), buffers

The signature covers kind, sizes and head and the number of the frame, under a key of the secret and both nonces. So a frame
cannot be changed, repeated or left out; the bytes of buffers are protected only by TLS, except those of pickles, whose digest
is in the head. A receiver allocates memory for buffers after it has verified the signature.
"""

from __future__ import annotations

import contextlib
import hmac
import mmap
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from rallypoint.training.roles.errors import AuthenticationError, ProtocolError, ValueTypeError
from rallypoint.training.roles.values import Buffer, dump_json, load_json

__all__ = [
    "ANSWER_SIZE",
    "GREETING_SIZE",
    "HEAD_LIMIT",
    "MESSAGE_LIMIT",
    "PROOF_SIZE",
    "Frame",
    "FrameReader",
    "FrameWriter",
    "Kind",
    "Session",
    "answer_greeting",
    "check_answer",
    "check_proof",
    "greeting",
]

#: Limits of a message, in bytes: its JSON part, and all of its buffers.
HEAD_LIMIT, MESSAGE_LIMIT = 32 << 20, 1 << 30

_BUFFERS = 4096
_MAGIC = b"RPROLES1"
_NONCE, _MAC = 16, 32

#: Bytes of the three parts of the proof.
GREETING_SIZE, ANSWER_SIZE, PROOF_SIZE = len(_MAGIC) + _NONCE, _NONCE + _MAC, _MAC

_PREFIX = struct.Struct(">BHI16s")
_SIGNED = struct.Struct(">QBHI")

#: Buffers up to this size are sent together with the head.
_SMALL = 1 << 16

#: Buffers from this size on are memory of their own.
_LARGE = 4 << 20


class Kind(IntEnum):
    """What a frame is."""

    CALL = 1
    RESULT = 2
    ERROR = 3
    RECEIVED = 4
    """The client has the items that the last result contained."""


@dataclass(frozen=True, kw_only=True)
class Frame:
    """One message: a JSON object, and the buffers that it refers to."""

    kind: Kind
    head: dict[str, Any]
    buffers: Sequence[Buffer] = ()


@dataclass(frozen=True, kw_only=True)
class Session:
    """The keys of one authenticated connection."""

    sending: bytes = field(repr=False)
    receiving: bytes = field(repr=False)


def greeting(nonce: bytes) -> bytes:
    """Return the first bytes of a server."""
    return _MAGIC + nonce


def answer_greeting(secret: bytes, told: bytes, nonce: bytes) -> bytes:
    """Return the client's answer to a greeting; raises `ProtocolError` if the server is none of ours."""
    return nonce + _proof(b"client", secret, _server_nonce(told), nonce)


def check_answer(secret: bytes, server_nonce: bytes, answer: bytes) -> tuple[bytes, Session]:
    """Return the server's proof and its session; raises `AuthenticationError` if the client does not have the secret."""
    client_nonce, proof = answer[:_NONCE], answer[_NONCE:]
    if not hmac.compare_digest(proof, _proof(b"client", secret, server_nonce, client_nonce)):
        raise AuthenticationError("authentication failed: the caller does not have the secret of this job")
    keys = [_proof(label, secret, server_nonce, client_nonce) for label in (b"server key", b"client key")]
    return _proof(b"server", secret, server_nonce, client_nonce), Session(sending=keys[0], receiving=keys[1])


def check_proof(secret: bytes, told: bytes, nonce: bytes, proof: bytes) -> Session:
    """Return the client's session; raises `AuthenticationError` if the server does not have the secret."""
    server_nonce = _server_nonce(told)
    if not hmac.compare_digest(proof, _proof(b"server", secret, server_nonce, nonce)):
        raise AuthenticationError("authentication failed: the called process does not have the secret of this job")
    keys = [_proof(label, secret, server_nonce, nonce) for label in (b"server key", b"client key")]
    return Session(sending=keys[1], receiving=keys[0])


class FrameWriter:
    """Turns frames into bytes; keeps their number."""

    def __init__(self, key: bytes) -> None:
        self._key, self._number = key, 0

    def write(self, frame: Frame) -> list[Buffer]:
        """Return the bytes of a frame as parts to send one after another; raises `ValueTypeError` if it is too large."""
        buffers = frame.buffers
        sizes = [len(part) for part in buffers]
        text = dump_json(frame.head)
        count, total, other = len(sizes), sum(sizes), len(text)
        if other > HEAD_LIMIT or total > MESSAGE_LIMIT or count > _BUFFERS:
            raise ValueTypeError(
                f"the values of a call between roles are too large: {count} arrays and tensors (at most {_BUFFERS}) of "
                f"{total} bytes (at most {MESSAGE_LIMIT}), and {other} bytes of other values (at most {HEAD_LIMIT})"
            )
        table = struct.pack(f">{len(sizes)}Q", *sizes)
        signature = _sign(self._key, self._number, (frame.kind, len(sizes), len(text)), (table, text))
        self._number += 1
        start = _PREFIX.pack(frame.kind, len(sizes), len(text), signature) + table + text
        if sum(sizes) <= _SMALL:
            return [b"".join((start, *buffers))]
        return [start, *buffers]


class FrameReader:
    """Turns bytes into frames: fill `target`, call `received`, until it returns a frame.

    After a `ProtocolError` the reader cannot be used again.
    """

    def __init__(self, key: bytes) -> None:
        self._key, self._number = key, 0
        self._begin()

    def _begin(self) -> None:
        self._prefix: tuple[int, int, int, bytes] | None = None
        self._head: dict[str, Any] | None = None
        self._sizes: list[int] = []
        self._buffers: list[bytearray | mmap.mmap] = []
        self._expect(_PREFIX.size)

    def _expect(self, size: int) -> None:
        self._part, self._filled = _memory(size), 0

    @property
    def between(self) -> bool:
        """Whether no byte of the next frame has been received."""
        return self._prefix is None and not self._filled

    def target(self) -> memoryview:
        """Return the memory for the next bytes; it is never empty."""
        return memoryview(self._part)[self._filled :]

    def received(self, count: int) -> Frame | None:
        """Take `count` bytes that were written to the target; return a frame if it is complete."""
        self._filled += count
        while self._filled == len(self._part):
            if self._prefix is None:
                self._read_prefix()
            elif self._head is None:
                self._read_head(*self._prefix)
            else:
                self._buffers.append(self._part)
            if self._head is not None:
                if len(self._buffers) == len(self._sizes):
                    return self._complete()
                self._expect(self._sizes[len(self._buffers)])
        return None

    def _read_prefix(self) -> None:
        kind, count, size, signature = _PREFIX.unpack(self._part)
        if kind not in tuple(Kind) or count > _BUFFERS or not 0 < size <= HEAD_LIMIT:
            raise ProtocolError(
                f"received an invalid message in a call between roles: message kind {kind} with {count} data buffers and "
                f"{size} bytes of JSON is not allowed; expected kind {min(Kind)} to {max(Kind)} with at most {_BUFFERS} data "
                f"buffers and 1 to {HEAD_LIMIT} bytes of JSON"
            )
        self._prefix = kind, count, size, signature
        self._expect(8 * count + size)

    def _read_head(self, kind: int, count: int, size: int, signature: bytes) -> None:
        table, text = bytes(self._part[: 8 * count]), bytes(self._part[8 * count :])
        if not hmac.compare_digest(signature, _sign(self._key, self._number, (kind, count, size), (table, text))):
            raise ProtocolError("received a message with a wrong signature in a call between roles")
        sizes = list(struct.unpack(f">{count}Q", table))
        if sum(sizes) > MESSAGE_LIMIT:
            raise ProtocolError(
                f"received a message of {sum(sizes)} bytes in a call between roles; expected at most {MESSAGE_LIMIT}"
            )
        head = load_json(text)
        if not isinstance(head, dict):
            raise ProtocolError("received an invalid message in a call between roles; its text must be a JSON object")
        self._head, self._sizes = head, sizes

    def _complete(self) -> Frame:
        assert self._prefix is not None and self._head is not None  # noqa: PT018  narrows two types
        frame = Frame(kind=Kind(self._prefix[0]), head=self._head, buffers=self._buffers)
        self._number += 1
        self._begin()
        return frame


def _memory(size: int) -> bytearray | mmap.mmap:
    """Return writable memory; large blocks have large pages, which the kernel provides several times faster."""
    if size < _LARGE:
        return bytearray(size)
    made = mmap.mmap(-1, size)
    with contextlib.suppress(AttributeError, OSError, ValueError):
        made.madvise(mmap.MADV_HUGEPAGE)
    return made


def _server_nonce(told: bytes) -> bytes:
    if told[: len(_MAGIC)] != _MAGIC:
        raise ProtocolError("the called process does not support this version of calls between roles")
    return told[len(_MAGIC) :]


def _proof(label: bytes, secret: bytes, server_nonce: bytes, client_nonce: bytes) -> bytes:
    return hmac.digest(secret, b"rallypoint roles " + label + b"\0" + server_nonce + client_nonce, "sha256")


def _sign(key: bytes, number: int, sizes: tuple[int, int, int], parts: Sequence[bytes]) -> bytes:
    return hmac.digest(key, b"".join((_SIGNED.pack(number, *sizes), *parts)), "sha256")[:16]
