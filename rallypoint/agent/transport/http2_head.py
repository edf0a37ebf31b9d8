"""The beginning of a gRPC connection until its first request, and a response that rejects this request. Pure.

grpcio stores everything that a client sends, and creates objects of it. So the frames before the first request, and its
headers, are read here, and grpcio gets them only from a client with the token of the job.

The token is searched for in the encoded headers: literally as grpcio sends it, or in the Huffman code of HPACK, which a proxy
may use. Only a client that has the token can send either.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass

__all__ = ["PREFACE", "SETTINGS", "AcknowledgementFilter", "Header", "NotHttp2Error", "RequestHead", "read_head", "rejection"]

#: The first bytes of a client.
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

_FRAME_HEAD = 9
_HEADERS, _SETTINGS, _PING, _WINDOW_UPDATE = 1, 4, 6, 8
_END_STREAM, _ACK, _END_HEADERS = 1, 1, 4

#: Empty settings, with which a server begins, and a client's acknowledgement of settings.
SETTINGS = bytes([0, 0, 0, _SETTINGS, 0, 0, 0, 0, 0])
_ACKNOWLEDGEMENT = bytes([0, 0, 0, _SETTINGS, _ACK, 0, 0, 0, 0])

#: Frames before the first request and bytes of each, and bytes of the headers of a request.
_MOST_FRAMES, _LONGEST_FRAME, _LONGEST_HEADERS = 16, 512, 8192

#: Characters of HPACK's Huffman code of 5, 6, 7 and 8 bits; the codes of each length are consecutive numbers.
_HUFFMAN = (
    "012aceiost",
    " %-./3456789=A_bdfghlmnpru",
    ":BCDEFGHIJKLMNOPQRSTUVWYjkqvwxyz",
    "&*,;XZ",
)

#: A header without an index, and `:status: 200`.
_LITERAL, _STATUS_OK = b"\x00", b"\x88"

_UNAUTHENTICATED = b"16"


class NotHttp2Error(ValueError):
    """The data is not the beginning of a gRPC connection."""


@dataclass(frozen=True, kw_only=True)
class RequestHead:
    """The beginning of a connection, with the headers of its first request.

    Attributes:
        stream: number of the request's stream.
        headers: content of the frame with the headers.
    """

    stream: int
    headers: bytes


def read_head(data: bytes) -> RequestHead | None:
    """Return the head of the first request, None while it is incomplete; raises `NotHttp2Error`."""
    at = len(PREFACE)
    if data[:at] != PREFACE[: len(data)]:
        raise NotHttp2Error("the received data does not begin as HTTP/2")
    for _ in range(_MOST_FRAMES):
        head = data[at : at + _FRAME_HEAD]
        if len(head) < _FRAME_HEAD:
            return None
        size, kind, flags, stream = _frame(head)
        if kind == _HEADERS:
            if not flags & _END_HEADERS or not stream % 2 or size > _LONGEST_HEADERS:
                raise NotHttp2Error("the headers of the first request are not in one short frame")
        elif kind not in (_SETTINGS, _PING, _WINDOW_UPDATE) or stream or size > _LONGEST_FRAME:
            raise NotHttp2Error("the client sent another frame before its first request")
        at += _FRAME_HEAD + size
        if at > len(data):
            return None
        if kind == _HEADERS:
            return RequestHead(stream=stream, headers=data[at - size : at])
    raise NotHttp2Error("the client sent too many frames before its first request")


def rejection(head: RequestHead, text: str) -> bytes:
    """Return a response with the status `UNAUTHENTICATED` and a text in printable ASCII without `%`."""
    fields = (("content-type", "application/grpc"), ("grpc-status", _UNAUTHENTICATED.decode()), ("grpc-message", text))
    block = _STATUS_OK + b"".join(_LITERAL + _string(name) + _string(value) for name, value in fields)
    start = len(block).to_bytes(3, "big") + bytes([_HEADERS, _END_STREAM | _END_HEADERS]) + head.stream.to_bytes(4, "big")
    return start + block


class Header:
    """A header with a secret value."""

    def __init__(self, name: str, value: str) -> None:
        self._names, self._values = _encodings(name), _encodings(value)

    def is_in(self, head: RequestHead) -> bool:
        """Return whether a request has this header; the comparison of the value takes constant time."""
        for name in self._names:
            _, found, rest = head.headers.partition(name)
            if found and any(hmac.compare_digest(rest[: len(value)], value) for value in self._values):
                return True
        return False


class AcknowledgementFilter:
    """Removes the first acknowledgement of settings from the data of a client: the one of `SETTINGS`.

    A server does not expect an acknowledgement of settings that it has not sent.
    """

    def __init__(self) -> None:
        self._left = len(PREFACE)  #: bytes until the next frame
        self._head = b""

    def __call__(self, data: bytes) -> tuple[bytes, bool]:
        """Return the data to forward, and whether the acknowledgement is still missing."""
        passed = []
        while data:
            if self._left:
                part, data = data[: self._left], data[self._left :]
                self._left -= len(part)
                passed.append(part)
                continue
            missing = _FRAME_HEAD - len(self._head)
            self._head, data = self._head + data[:missing], data[missing:]
            if self._head == _ACKNOWLEDGEMENT:
                return b"".join((*passed, data)), False
            if len(self._head) == _FRAME_HEAD:
                passed.append(self._head)
                self._left, self._head = _frame(self._head)[0], b""
        return b"".join(passed), True


def _frame(head: bytes) -> tuple[int, int, int, int]:
    """Return the length, kind, flags and stream of a frame."""
    return int.from_bytes(head[:3], "big"), head[3], head[4], int.from_bytes(head[5:9], "big") & 0x7FFF_FFFF


def _encodings(text: str) -> tuple[bytes, ...]:
    """Return the encodings of a string in HPACK."""
    huffman = _huffman(text)
    plain = _string(text)
    return (plain,) if huffman is None else (plain, _integer(len(huffman), 0x80) + huffman)


def _string(text: str) -> bytes:
    data = text.encode()
    return _integer(len(data), 0) + data


def _integer(value: int, flag: int) -> bytes:
    """Return an integer with a prefix of 7 bits after a flag."""
    if value < 0x7F:
        return bytes([flag | value])
    encoded, value = bytearray([flag | 0x7F]), value - 0x7F
    while value >= 0x80:
        encoded.append(0x80 | value & 0x7F)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _huffman(text: str) -> bytes | None:
    """Return the Huffman code of a text, None if it has characters with longer codes than a token can have."""
    codes, code = {}, 0
    for size, characters in enumerate(_HUFFMAN, 5):
        for character in characters:
            codes[character] = f"{code:0{size}b}"
            code += 1
        code <<= 1
    if not set(text) <= codes.keys():
        return None
    bits = "".join(codes[character] for character in text)
    bits += "1" * (-len(bits) % 8)
    return int(bits, 2).to_bytes(len(bits) // 8, "big") if bits else b""
