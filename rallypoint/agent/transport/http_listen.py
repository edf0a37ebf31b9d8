"""What the coordinator's and the agents' HTTP have in common: a port that is opened, and a secret that is asked for."""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, cast

from aiohttp import http_exceptions, web

from rallypoint.agent import descriptors
from rallypoint.agent.descriptors import Shares
from rallypoint.agent.errors import ConfigError
from rallypoint.agent.tls import Tls, is_of_job
from rallypoint.agent.transport.guarded_port import Admission, Connection, GuardedPort, Rejection
from rallypoint.agent.transport.request_head import NotHttpError, bad_request, check_head, complete_head
from rallypoint.agent.transport.service import BODY_LIMIT, KEPT
from rallypoint.agent.transport.shared_port import SharedPort
from rallypoint.agent.transport.tls_port import HANDSHAKE_RECORD, Secured
from rallypoint.wire.connections import PATIENCE, Limits
from rallypoint.wire.messages import TOKEN_HEADER
from rallypoint.wire.paths import HEALTH_PATH

if TYPE_CHECKING:
    from aiohttp.typedefs import Middleware  # older releases have no such name

__all__ = ["authenticated", "certified", "limits_for", "listen"]

#: Seconds that answers under way get when a server closes.
_SHUTDOWN = 2.0

#: Seconds for which the body of a request that is refused is read and thrown away.
_LINGER = 1.0

_NOT_HTTP = bad_request("the request is not valid HTTP/1.1")

#: Bytes of memory that a connection uses before it has authenticated: in the HTTP server, and with TLS.
_HTTP_HELD, _TLS_HELD = 16 << 10, 96 << 10

log = logging.getLogger("rallypoint.agent.http")

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def authenticated(token: str) -> Middleware:
    """Return what lets nobody without the job's secret learn anything but who listens; the comparison takes constant time.

    A connection over which a request came without it is closed with the answer.
    """
    expected = token.encode()

    @web.middleware
    async def authenticate(request: web.Request, handler: _Handler) -> web.StreamResponse:
        try:
            told = request.headers.get(TOKEN_HEADER, "").encode()
        except UnicodeEncodeError:  # bytes that are no UTF-8 arrive as halves of surrogate pairs
            raise _closing(web.HTTPBadRequest(text=f"{TOKEN_HEADER}: is not valid UTF-8")) from None
        if hmac.compare_digest(told, expected):
            return await handler(request)
        if request.path != HEALTH_PATH:
            raise _closing(web.HTTPUnauthorized(text=f"{TOKEN_HEADER}: does not match the secret of this job"))
        response = await handler(request)
        response.force_close()
        return response

    return authenticate


def _closing(error: web.HTTPException) -> web.HTTPException:
    error.force_close()
    return error


def certified(tls: Tls, *paths: str) -> Middleware:
    """Return what refuses requests for `paths`, for any path where none is named, without a certificate of the job."""

    @web.middleware
    async def certify(request: web.Request, handler: _Handler) -> web.StreamResponse:
        # What `ssl` has verified is the authority's signature; an authority may sign for more than this job.
        transport = request.transport
        peer = None if transport is None else transport.get_extra_info("peercert")
        if (peer or not paths or request.path in paths) and not is_of_job(peer, tls):
            raise _closing(web.HTTPForbidden(text=f"the client needs a TLS certificate with the DNS name {tls.name}"))
        return await handler(request)

    return certify


def limits_for(shares: Shares) -> Limits:
    """Return the limits of a port for all agents of a job."""
    strangers = shares.strangers
    return Limits(most=shares.requests, strangers=strangers, per_peer=max(strangers // 2, 1), patience=PATIENCE)


async def listen(
    app: web.Application,
    host: str,
    port: int,
    *,
    whose: str,
    token: str | None = None,
    limits: Limits | None = None,
    shares: Shares | None = None,
    store: Callable[[], str] | None = None,
    secured: Secured | None = None,
) -> tuple[web.AppRunner, int]:
    """Serve `app` and return what to clean up, and the port, a free one when `port` is 0.

    A connection whose first request has the `token` is not ended for others; see `Connections`. Of any other connection the app
    gets one request without its body, so that data from strangers cannot fill the memory. Without `limits` there are as
    many connections as the descriptors of this process allow, or its `shares` of them. Connections that are not HTTP are
    forwarded to the address that `store` returns, see `SharedPort`. With `secured` HTTP is served over TLS alone.

    Raises `ConfigError` when the port cannot be had; its `__cause__` is the `OSError`. `whose` is for that error.
    """
    # handler_cancellation: a connection that breaks while its report is parked ends the report.
    # keepalive_timeout: a connection that is idle between two reports is not one that broke.
    log.addFilter(_is_ours)  # does nothing the second time
    runner = web.AppRunner(
        app,
        handler_cancellation=True,
        access_log=None,
        shutdown_timeout=_SHUTDOWN,
        keepalive_timeout=KEPT,
        lingering_time=_LINGER,
        logger=log,
    )
    http = _HttpAdmission(runner, token, secured)
    shares = shares or descriptors.shares(forwards=store is not None)
    limits = limits or limits_for(shares)
    served: GuardedPort | SharedPort
    served = GuardedPort(limits, http) if store is None else SharedPort(store, http=http, limits=limits, most=shares.forwarded)
    app.on_shutdown.append(lambda _: served.close())
    await runner.setup()
    try:
        return runner, await served.start(host, port)
    except OSError as error:
        await runner.cleanup()
        raise ConfigError(f"cannot open port {port} on {host} for the {whose}: {error.strerror}") from error


def _is_ours(line: logging.LogRecord) -> bool:
    """Return whether a line of the server is about something else than a request that is not HTTP, which gets a 400.

    Anybody can send such a request, and each would cost a traceback.
    """
    error = line.exc_info[1] if line.exc_info else None
    return not isinstance(error, http_exceptions.HttpProcessingError)


class _HttpAdmission:
    """Admits a connection when the head of its first request is complete, and rejects data that is not HTTP."""

    def __init__(self, runner: web.AppRunner, token: str | None, secured: Secured | None) -> None:
        self._runner, self._secured = runner, secured
        self._name = TOKEN_HEADER.lower().encode()
        self._token = None if token is None else token.encode()

    def __call__(self, data: bytes) -> Admission | Rejection | None:
        if self._secured is not None:
            if data[0] != HANDSHAKE_RECORD:
                return Rejection(answer=self._secured.refusal())
            return Admission(protocol=self._over_tls, held=_TLS_HELD)
        try:
            proven = self.proves(data)
        except NotHttpError:
            return Rejection(answer=_NOT_HTTP)
        if proven is None:
            return None
        if proven:
            return Admission(protocol=lambda _: self.http(), proven=True)
        return Admission(protocol=lambda one: _FirstRequest(self, one.prove), held=_HTTP_HELD)

    def proves(self, data: bytes) -> bool | None:
        """Return whether a request has the token, None while its head is incomplete; raises `NotHttpError`.

        A head with the token is not checked further: it comes from a process of the job.
        """
        head = complete_head(data)
        if head is None:
            return None
        if self._has_token(head):
            return True
        check_head(head)
        return False

    def http(self) -> asyncio.Protocol:
        """Return the protocol of a connection to the HTTP server."""
        server = self._runner.server
        if server is None:
            raise ConnectionAbortedError("the connection was closed, because this process has stopped its HTTP server")
        return server()

    def _over_tls(self, connection: Connection) -> asyncio.BaseProtocol:
        assert self._secured is not None
        return self._secured.protocol(lambda: _FirstRequest(self, connection.prove))

    def _has_token(self, head: bytes) -> bool:
        if self._token is None:
            return False
        for line in head.split(b"\r\n")[1:]:
            name, _, value = line.partition(b":")
            if name.lower() == self._name:
                return hmac.compare_digest(value.strip(), self._token)
        return False


class _FirstRequest(asyncio.Protocol):
    """Checks the first request of a connection before the HTTP server gets it.

    The server gets all data of a connection that has authenticated. Of another connection it gets the head of one valid
    request, and all further data is discarded.
    """

    def __init__(self, admission: _HttpAdmission, prove: Callable[[], None]) -> None:
        self._admission, self._prove = admission, prove
        self._begun = bytearray()
        self._discarding, self._discarded = False, 0
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self._discarding:
            self._discard(data)
            return
        self._begun += data
        begun = bytes(self._begun)
        try:
            proven = self._admission.proves(begun)
        except NotHttpError:
            self._reject()
            return
        if proven is not None:
            self._begun.clear()
            self._discarding = not proven
            self._forward(begun, proven=proven)

    def _forward(self, begun: bytes, *, proven: bool) -> None:
        assert self._transport is not None
        try:
            inner = self._admission.http()
        except ConnectionAbortedError:
            self._transport.abort()
            return
        if proven:
            self.data_received = inner.data_received  # type: ignore[method-assign]
        self.connection_lost = inner.connection_lost  # type: ignore[method-assign]
        self.eof_received = inner.eof_received  # type: ignore[method-assign]
        self.pause_writing = inner.pause_writing  # type: ignore[method-assign]
        self.resume_writing = inner.resume_writing  # type: ignore[method-assign]
        inner.connection_made(self._transport)
        if proven:
            self._prove()
        inner.data_received(begun if proven else complete_head(begun) or b"")

    def _discard(self, data: bytes) -> None:
        self._discarded += len(data)
        if self._discarded > BODY_LIMIT and self._transport is not None:
            self._transport.abort()

    def _reject(self) -> None:
        assert self._transport is not None
        self._begun.clear()
        self._discarding = True
        self._transport.write(_NOT_HTTP)
        self._transport.close()
