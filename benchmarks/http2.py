"""As much of HTTP/2 and gRPC as one stream of a simulated agent needs: its frames, written and read by hand.

A header is sent as it is, without compression, and of what comes back only the messages are read. Windows are never enlarged:
an agent that is simulated says and hears a few kilobytes.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

__all__ = ["Stream"]

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GOAWAY = 0, 1, 3, 4, 6, 7
_ACK, _END_STREAM, _END_HEADERS = 1, 1, 4


class Stream:
    """The first stream of a connection, and all that is on it."""

    def __init__(self, method: str, metadata: Mapping[str, str]) -> None:
        fields = {"content-type": "application/grpc", "te": "trailers", **metadata}
        # Of the static table: POST, http, and the names :path and :authority.
        head = b"\x83\x86" + b"\x04" + _text(method) + b"\x01" + _text("bench")
        head += b"".join(b"\x00" + _text(name) + _text(value) for name, value in fields.items())
        self._first = _PREFACE + _frame(_SETTINGS, 0, 0, b"") + _frame(_HEADERS, _END_HEADERS, 1, head)
        self._read, self._message = b"", b""

    def sent(self, message: bytes) -> bytes:
        """Return what sends a message; before the first one the stream is opened."""
        first, self._first = self._first, b""
        return first + _frame(_DATA, 0, 1, struct.pack(">BI", 0, len(message)) + message)

    def received(self, data: bytes) -> tuple[list[bytes], bytes]:
        """Return the messages that are complete, and what must be sent in return; raises `SystemExit` at the stream's end."""
        self._read += data
        reply = b""
        while len(self._read) >= 9 and len(self._read) >= 9 + (length := int.from_bytes(self._read[:3], "big")):
            kind, flags, body = self._read[3], self._read[4], self._read[9 : 9 + length]
            self._read = self._read[9 + length :]
            if kind in (_RESET, _GOAWAY) or (kind == _HEADERS and flags & _END_STREAM):
                raise SystemExit(f"an agent's stream was ended: frame {kind}, {body[:200]!r}")
            if kind in (_SETTINGS, _PING) and not flags & _ACK:
                reply += _frame(kind, _ACK, 0, body if kind == _PING else b"")
            if kind == _DATA:
                self._message += body
        return list(self._complete()), reply

    def _complete(self) -> list[bytes]:
        messages = []
        while len(self._message) >= 5 and len(self._message) >= 5 + (length := int.from_bytes(self._message[1:5], "big")):
            messages.append(self._message[5 : 5 + length])
            self._message = self._message[5 + length :]
        return messages


def _text(text: str) -> bytes:
    raw = text.encode()
    assert len(raw) < 127  # a longer one has a length of several bytes
    return bytes([len(raw)]) + raw


def _frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    return len(body).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + body
