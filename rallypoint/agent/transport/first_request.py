"""The first request of a connection: with the token of the job for the HTTP server, without it for a short response.

An HTTP server needs many times the bytes of a request for its objects, and a garbage collection to free them. So a client
without the token never reaches the server: it gets one of a few short responses, or one of the pages that every client may
read.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, cast

from rallypoint.agent.tls import Tls, is_of_job
from rallypoint.agent.transport.request_head import (
    NotHttpError,
    bad_request,
    check_head,
    complete_head,
    method_and_path,
    response,
)
from rallypoint.agent.transport.service import BODY_LIMIT
from rallypoint.wire.messages import TOKEN_HEADER
from rallypoint.wire.proof import NONCE_HEADER, PROOF_HEADER, proof_of

__all__ = ["NOT_HTTP", "CertificateRule", "FirstRequests", "Page", "PageNow", "Text"]

log = logging.getLogger("rallypoint.agent.http")

#: Seconds for which a client without the token may send a body after it has received its response; the body is discarded.
_LINGER = 1.0

#: Methods by which pages are read.
_METHODS = ("GET", "HEAD")

_NAME, _NONCE = TOKEN_HEADER.lower().encode(), NONCE_HEADER.lower().encode()

NOT_HTTP = bad_request("the request is not valid HTTP/1.1")
_NOT_UTF8 = bad_request(f"{TOKEN_HEADER}: is not valid UTF-8")
_NO_TOKEN = response(HTTPStatus.UNAUTHORIZED, f"{TOKEN_HEADER}: does not match the secret of this job".encode())
_NO_PAGE = response(HTTPStatus.NOT_FOUND, b"404: Not Found")
_NO_METHOD = response(HTTPStatus.METHOD_NOT_ALLOWED, b"405: Method Not Allowed", more="Allow: GET,HEAD\r\n")
_FAILED = response(HTTPStatus.INTERNAL_SERVER_ERROR, b"500: Internal Server Error")


@dataclass(frozen=True, kw_only=True)
class Text:
    """The content of a page, and its content type."""

    body: bytes
    kind: str

    @classmethod
    def of_json(cls, value: Any) -> Text:
        """Return a JSON value as a page."""
        return cls(body=json.dumps(value).encode(), kind="application/json; charset=utf-8")


#: Returns the content of a page that needs no token.
Page = Callable[[], Awaitable[Text]]

#: Returns the same if it is known now, otherwise None. A response that waits for nothing takes a third of the time.
PageNow = Callable[[], Text | None]


@dataclass(frozen=True, kw_only=True)
class CertificateRule:
    """Which requests need a certificate of the job: those for `paths`, for any path where none is named.

    A client that has sent a certificate needs one of this job for every path.
    """

    tls: Tls
    paths: tuple[str, ...] = ()

    def refusal(self, certificate: Mapping[str, Any] | None, path: str) -> str:
        """Return why a request is refused, "" if it is not."""
        # What `ssl` has verified is the authority's signature; an authority may sign for more than this job.
        if (certificate or not self.paths or path in self.paths) and not is_of_job(certificate, self.tls):
            return f"the client needs a TLS certificate with the DNS name {self.tls.name}"
        return ""


@dataclass(kw_only=True)
class FirstRequests:
    """How one port treats the first request of each connection.

    Attributes:
        server: returns the protocol of a connection to the HTTP server; raises `ConnectionAbortedError` if it has stopped.
        token: of the job; None if every client gets only pages.
        pages: texts for every client, by path.
        now: of some of these, the texts that are known without waiting.
        rule: for connections over TLS.
    """

    server: Callable[[], asyncio.Protocol]
    token: str | None = None
    pages: Mapping[str, Page] = field(default_factory=dict)
    now: Mapping[str, PageNow] = field(default_factory=dict)
    rule: CertificateRule | None = None
    open: set[_FirstRequest] = field(default_factory=set)

    def proves(self, data: bytes) -> bool | None:
        """Return whether a request has the token, None while its head is incomplete; raises `NotHttpError`.

        A head with the token is not checked further: it comes from a process of the job.
        """
        head = complete_head(data)
        if head is None:
            return None
        if self.token is not None and hmac.compare_digest(_header(head, _NAME), self.token.encode()):
            return True
        check_head(head)
        return False

    def response(self, head: bytes, certificate: Mapping[str, Any] | None) -> bytes | Page:
        """Return the response to a request without the token, or the page that it contains."""
        method, path = method_and_path(head)
        refusal = "" if self.rule is None else self.rule.refusal(certificate, path)
        if refusal:
            return response(HTTPStatus.FORBIDDEN, refusal.encode())
        page = self.pages.get(path)
        if page is None:
            return _NO_PAGE if self.token is None else _without_token(head)
        if method not in _METHODS:
            return _NO_METHOD
        text = self.now[path]() if path in self.now else None
        return page if text is None else self.page(text, head)

    def page(self, text: Text, head: bytes) -> bytes:
        """Return the response with a page; with the proof of this server if the request has a nonce."""
        proof = "" if self.token is None else proof_of(self.token, _header(head, _NONCE), text.body)
        more = f"{PROOF_HEADER}: {proof}\r\n" if proof else ""
        answer = response(HTTPStatus.OK, text.body, kind=text.kind, more=more)
        return answer.removesuffix(text.body) if head.startswith(b"HEAD ") else answer

    def protocol(self, prove: Callable[[], None], answered: Callable[[], None]) -> asyncio.Protocol:
        """Return the protocol of a new connection.

        It calls `prove` when the connection has authenticated, and `answered` when the whole response has been sent.
        """
        return _FirstRequest(self, prove, answered)

    def shown(self, page: Page, head: bytes, answered: Callable[[], None]) -> asyncio.Protocol:
        """Return the protocol of a connection that gets a page; its request is not kept."""
        return _FirstRequest(self, _never, answered, lambda one: one.show(page, head))

    def close(self) -> None:
        """Close the connections without the token."""
        for one in tuple(self.open):
            one.abort()


def _never() -> None:
    raise AssertionError("a connection that has its page does not authenticate")


def _header(head: bytes, wanted: bytes) -> bytes:
    """Return the value of a header, b"" if the head has none."""
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.lower() == wanted:
            return value.strip()
    return b""


def _without_token(head: bytes) -> bytes:
    try:
        _header(head, _NAME).decode()
    except UnicodeDecodeError:
        return _NOT_UTF8
    return _NO_TOKEN


class _FirstRequest(asyncio.Protocol):
    """Reads the first request of a connection.

    The HTTP server gets all data of a connection that has authenticated. Another connection gets a response to the head of its
    first request, and all further data is discarded.
    """

    def __init__(
        self,
        port: FirstRequests,
        prove: Callable[[], None],
        answered: Callable[[], None],
        begin: Callable[[_FirstRequest], None] | None = None,
    ) -> None:
        self._port, self._prove, self._answered, self._begin = port, prove, answered, begin
        self._begun = bytearray()
        self._discarding, self._discarded = False, 0
        self._transport: asyncio.Transport | None = None
        self._answering: asyncio.Task[None] | None = None
        self._lingering: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._port.open.add(self)
        if self._begin is not None:
            self._begin(self)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._port.open.discard(self)
        for pending in (self._answering, self._lingering):
            if pending is not None:
                pending.cancel()
        self._answering = self._lingering = None

    def abort(self) -> None:
        """Close the connection without waiting for its client."""
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._discarding:
            self._discard(data)
            return
        self._begun += data
        begun = bytes(self._begun)
        try:
            proven = self._port.proves(begun)
        except NotHttpError:
            self._respond(NOT_HTTP)
            return
        if proven is None:
            return
        self._begun.clear()
        if proven:
            self._forward(begun)
            return
        self._answer(complete_head(begun) or b"")

    def _forward(self, begun: bytes) -> None:
        assert self._transport is not None
        self._port.open.discard(self)
        try:
            inner = self._port.server()
        except ConnectionAbortedError:
            self._transport.abort()
            return
        self.data_received = inner.data_received  # type: ignore[method-assign]
        self.connection_lost = inner.connection_lost  # type: ignore[method-assign]
        self.eof_received = inner.eof_received  # type: ignore[method-assign]
        self.pause_writing = inner.pause_writing  # type: ignore[method-assign]
        self.resume_writing = inner.resume_writing  # type: ignore[method-assign]
        inner.connection_made(self._transport)
        self._prove()
        inner.data_received(begun)

    def _answer(self, head: bytes) -> None:
        assert self._transport is not None
        answer = self._port.response(head, self._transport.get_extra_info("peercert"))
        if isinstance(answer, bytes):
            self._respond(answer)
        else:
            self.show(answer, head)

    def show(self, page: Page, head: bytes) -> None:
        """Respond with a page as soon as there is its content."""
        self._discarding = True
        self._answering = asyncio.ensure_future(self._show(page, head))

    async def _show(self, page: Page, head: bytes) -> None:
        try:
            text = await page()
        except Exception:
            log.exception("cannot answer a request without the token")
            self._respond(_FAILED)
            return
        self._respond(self._port.page(text, head))

    def _respond(self, answer: bytes) -> None:
        """Send the response; the connection ends when its client closes it, or `_LINGER` seconds later."""
        assert self._transport is not None
        self._begun.clear()
        self._discarding, self._answering = True, None
        if self._transport.is_closing():
            return
        self._transport.write(answer)
        if not self._transport.get_write_buffer_size():  # the kernel has it: it arrives even if the connection is closed
            self._answered()
        if self._transport.is_closing():  # its place was taken
            return
        if self._transport.can_write_eof():
            with contextlib.suppress(OSError):  # the client has closed the connection
                self._transport.write_eof()
        self._lingering = asyncio.get_running_loop().call_later(_LINGER, self._transport.close)

    def _discard(self, data: bytes) -> None:
        self._discarded += len(data)
        if self._discarded > BODY_LIMIT and self._transport is not None:
            self._transport.abort()
