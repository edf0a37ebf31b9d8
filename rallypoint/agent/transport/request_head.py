"""The head of the first HTTP request of a connection that has not authenticated. Pure.

An HTTP parser keeps data that is not HTTP in its errors, several times as large as the data. So a head is checked here before
the parser gets it, and only requests of the form that clients of Rallypoint send are accepted.
"""

from __future__ import annotations

import re

__all__ = ["HEAD_LIMIT", "NotHttpError", "bad_request", "check_head", "complete_head"]

#: Bytes of the longest first message of a connection.
HEAD_LIMIT = 1 << 15

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
        raise NotHttpError("the data is not the head of an HTTP request")
    return None


def check_head(head: bytes) -> None:
    """Raise `NotHttpError` if a complete head has an invalid request line or invalid headers."""
    line, *headers = head.removesuffix(_END).split(b"\r\n")
    if not _REQUEST_LINE.fullmatch(line) or len(headers) > _MOST_HEADERS or not all(map(_HEADER.fullmatch, headers)):
        raise NotHttpError("the request line or a header is invalid")


def bad_request(text: str) -> bytes:
    """Return a response with status 400 that ends the connection."""
    body = text.encode()
    return (
        b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    )
