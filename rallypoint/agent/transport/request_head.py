"""The head of the first HTTP request of a connection that has not authenticated, and short responses to it. Pure.

An HTTP server creates objects of everything that a request contains, several times as large as its head. So the head of such a
request is read here, and the server never gets it.
"""

from __future__ import annotations

import re
from http import HTTPStatus

__all__ = ["HEAD_LIMIT", "NotHttpError", "bad_request", "check_head", "complete_head", "method_and_path", "response"]

#: Bytes of the longest first message of a connection.
HEAD_LIMIT = 1 << 14

_END = b"\r\n\r\n"

#: Headers of a request.
_MOST_HEADERS = 100

_METHOD, _TARGET = rb"[A-Z]{1,20}", rb"[\x21-\x7e]{1,4096}"
_REQUEST_LINE = re.compile(_METHOD + b" " + _TARGET + rb" HTTP/1\.[01]")
_BEGINNING = re.compile(_METHOD + b"(?: (?:" + _TARGET + rb"(?: [A-Z0-9./]{0,8}\r?)?)?)?")
#: A name that HTTP allows, and a value without control characters; the parser accepts 8,190 bytes.
_HEADER = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}:[\t\x20-\x7e\x80-\xff]{0,8190}")


class NotHttpError(ValueError):
    """The data is not the head of an HTTP request."""


def complete_head(data: bytes) -> bytes | None:
    """Return the head with the empty line at its end, None while it is incomplete; raises `NotHttpError`."""
    head, end, _ = data.partition(_END)
    if end:
        return head + end
    line, _, _ = data.partition(b"\r\n")
    if len(data) >= HEAD_LIMIT or not (_BEGINNING if line == data else _REQUEST_LINE).fullmatch(line):
        raise NotHttpError("the received data is not the head of an HTTP request")
    return None


def check_head(head: bytes) -> None:
    """Raise `NotHttpError` if a complete head has an invalid request line or invalid headers."""
    line, *headers = head.removesuffix(_END).split(b"\r\n")
    if not _REQUEST_LINE.fullmatch(line) or len(headers) > _MOST_HEADERS or not all(map(_HEADER.fullmatch, headers)):
        raise NotHttpError("the request line or a header of the HTTP request is invalid")


def method_and_path(head: bytes) -> tuple[str, str]:
    """Return the method and the path, without its query, of a head that `check_head` has accepted."""
    method, target, _ = head.partition(b"\r\n")[0].split(b" ")
    return method.decode(), target.partition(b"?")[0].decode()


def response(status: HTTPStatus, body: bytes, *, kind: str = "text/plain; charset=utf-8", more: str = "") -> bytes:
    """Return a response that ends the connection; `kind` is its content type, and `more` are header lines."""
    head = f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {kind}\r\nConnection: close\r\n{more}"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def bad_request(text: str) -> bytes:
    """Return a response with status 400 that ends the connection."""
    return response(HTTPStatus.BAD_REQUEST, text.encode())
