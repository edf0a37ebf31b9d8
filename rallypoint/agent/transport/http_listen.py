"""The HTTP ports of coordinators, agents and role directories, and the token that their requests need."""

from __future__ import annotations

import asyncio
import hmac
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from aiohttp import http_exceptions, web

from rallypoint.agent import descriptors
from rallypoint.agent.descriptors import Shares
from rallypoint.agent.errors import ConfigError
from rallypoint.agent.transport.first_request import NOT_HTTP, CertificateRule, FirstRequests, Page, PageNow, Text
from rallypoint.agent.transport.guarded_port import Admission, Connection, GuardedPort, Rejection
from rallypoint.agent.transport.request_head import NotHttpError, complete_head
from rallypoint.agent.transport.service import KEPT
from rallypoint.agent.transport.shared_port import SharedPort
from rallypoint.agent.transport.tls_port import HANDSHAKE_RECORD, Secured, has_hello
from rallypoint.wire.connections import HELD, PATIENCE, Limits
from rallypoint.wire.messages import TOKEN_HEADER
from rallypoint.wire.paths import HEALTH_PATH

if TYPE_CHECKING:
    from aiohttp.typedefs import Middleware  # older releases have no such name

__all__ = ["Text", "authenticated", "certified", "limits_for", "listen", "serve_pages"]

#: Seconds that answers under way get when a server closes.
_SHUTDOWN = 2.0

#: Seconds for which the body of a request that is refused is read and thrown away.
_LINGER = 1.0

#: Bytes of memory that a connection uses before it has authenticated: until it has its response; with TLS; and with TLS if
#: its client has sent more than its first message, but the handshake is not finished: OpenSSL accepts messages of 128 KiB.
_HTTP_HELD, _TLS_HELD, _UNFINISHED_HELD = 16 << 10, 96 << 10, 192 << 10

_NO_PAGES: Mapping[str, Page] = MappingProxyType({})
_NONE_NOW: Mapping[str, PageNow] = MappingProxyType({})

log = logging.getLogger("rallypoint.agent.http")

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def authenticated(token: str) -> Middleware:
    """Return what rejects requests without the token, except for the health; the comparison takes constant time.

    The first request of a connection has the token, or never gets here (`FirstRequests`); this is for later requests. A
    connection over which a request came without the token is closed with the answer.
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


def certified(rule: CertificateRule) -> Middleware:
    """Return what refuses requests by a rule about certificates."""

    @web.middleware
    async def certify(request: web.Request, handler: _Handler) -> web.StreamResponse:
        transport = request.transport
        refusal = rule.refusal(None if transport is None else transport.get_extra_info("peercert"), request.path)
        if refusal:
            raise _closing(web.HTTPForbidden(text=refusal))
        return await handler(request)

    return certify


def limits_for(shares: Shares, *, handshakes: int = 0) -> Limits:
    """Return the limits of a port for all agents of a job; they allow `handshakes` unfinished TLS handshakes at once."""
    strangers = shares.strangers
    return Limits(
        most=shares.requests,
        strangers=strangers,
        per_peer=max(strangers // 2, 1),
        patience=PATIENCE,
        held=max(HELD, min(handshakes, strangers) * _UNFINISHED_HELD),
    )


async def listen(
    app: web.Application,
    host: str,
    port: int | socket.socket,
    *,
    whose: str,
    token: str,
    limits: Limits | None = None,
    shares: Shares | None = None,
    store: Callable[[], str] | None = None,
    secured: Secured | None = None,
    pages: Mapping[str, Page] = _NO_PAGES,
    now: Mapping[str, PageNow] = _NONE_NOW,
    rule: CertificateRule | None = None,
) -> tuple[web.AppRunner, int]:
    """Serve `app` and return what to clean up, and the port, a free one when `port` is 0; it may be a socket that listens.

    A connection whose first request has the `token` is not ended for others; see `Connections`. Any other connection gets one
    of the `pages`, at once if it is known `now`, or an error: the app gets nothing from it, so that data from strangers cannot
    fill the memory. Without `limits` there are as many connections as the descriptors of this process allow, or its `shares`
    of them. Connections that are not HTTP are forwarded to the address that `store` returns, see `SharedPort`. With `secured`
    HTTP is served over TLS alone, and to clients with the certificates that the `rule` needs.

    Raises `ConfigError` when the port cannot be had; its `__cause__` is the `OSError`. `whose` is for that error.
    """
    runner = _runner(app)
    for path, page in pages.items():
        app.router.add_get(path, _shown(page))
    requests = FirstRequests(server=lambda: _server_protocol(runner), token=token, pages=pages, now=now, rule=rule)
    http = _HttpAdmission(requests, secured)
    shares = shares or descriptors.shares(forwards=store is not None)
    limits = limits or limits_for(shares, handshakes=0 if secured is None else secured.clients)
    served: GuardedPort | SharedPort
    served = GuardedPort(limits, http) if store is None else SharedPort(store, http=http, limits=limits, most=shares.forwarded)

    async def close(_: web.Application) -> None:
        await served.close()
        requests.close()

    app.on_shutdown.append(close)
    await runner.setup()
    try:
        return runner, await served.start(host, port)
    except OSError as error:
        await runner.cleanup()
        raise _not_opened(whose, host, port, error) from error


def _runner(app: web.Application) -> web.AppRunner:
    # handler_cancellation: a connection that breaks while its report is parked ends the report.
    # keepalive_timeout: a connection that is idle between two reports is not one that broke.
    log.addFilter(_is_ours)  # does nothing the second time
    return web.AppRunner(
        app,
        handler_cancellation=True,
        access_log=None,
        shutdown_timeout=_SHUTDOWN,
        keepalive_timeout=KEPT,
        lingering_time=_LINGER,
        logger=log,
    )


async def serve_pages(
    pages: Mapping[str, Page], host: str, port: int, *, whose: str, limits: Limits
) -> tuple[Callable[[], Awaitable[None]], int]:
    """Serve pages that need no token; return what to call at the end, and the port, a free one when `port` is 0.

    Raises `ConfigError` as `listen` does.
    """
    requests = FirstRequests(server=_no_server, pages=pages)
    served = GuardedPort(limits, _HttpAdmission(requests, None))

    async def close() -> None:
        await served.close()
        requests.close()

    try:
        return close, await served.start(host, port)
    except OSError as error:
        raise _not_opened(whose, host, port, error) from error


def _not_opened(server: str, host: str, port: int | socket.socket, error: OSError) -> ConfigError:
    return ConfigError(f"cannot open port {port} on {host} for the {server}: {error.strerror}")


def _shown(page: Page) -> _Handler:
    async def show(_: web.Request) -> web.Response:
        text = await page()
        return web.Response(body=text.body, headers={"Content-Type": text.kind})

    return show


def _server_protocol(runner: web.AppRunner) -> asyncio.Protocol:
    """Return the protocol of a connection to the HTTP server."""
    server = runner.server
    return _no_server() if server is None else server()


def _no_server() -> asyncio.Protocol:
    raise ConnectionAbortedError("the connection was closed, because this process has stopped its HTTP server")


def _is_ours(line: logging.LogRecord) -> bool:
    """Return whether a line of the server is about something else than a request that is not HTTP, which gets a 400.

    Anybody can send such a request, and each would cost a traceback.
    """
    error = line.exc_info[1] if line.exc_info else None
    return not isinstance(error, http_exceptions.HttpProcessingError)


class _HttpAdmission:
    """Admits a connection when the head of its first request is complete, and rejects data that is not HTTP."""

    def __init__(self, requests: FirstRequests, secured: Secured | None) -> None:
        self._requests, self._secured = requests, secured

    def __call__(self, data: bytes) -> Admission | Rejection | None:
        if self._secured is not None:
            if data[0] != HANDSHAKE_RECORD:
                return Rejection(answer=self._secured.refusal())
            allowed = has_hello(data)
            if allowed is None:
                return None
            if not allowed:
                return Rejection(answer=self._secured.too_large())
            return Admission(protocol=self._over_tls, held=_TLS_HELD)
        try:
            proven = self._requests.proves(data)
        except NotHttpError:
            return Rejection(answer=NOT_HTTP)
        if proven is None:
            return None
        if proven:
            return Admission(protocol=lambda _: self._requests.server(), proven=True)
        return self._without_token(data)

    def _without_token(self, data: bytes) -> Admission | Rejection:
        head = complete_head(data) or b""
        answer = self._requests.response(head, None)
        if isinstance(answer, bytes):
            return Rejection(answer=answer, lingers=True)
        return Admission(protocol=lambda one: self._requests.shown(answer, head, one.answered), begun=False, held=_HTTP_HELD)

    def _over_tls(self, connection: Connection) -> asyncio.BaseProtocol:
        assert self._secured is not None
        return self._secured.protocol(
            lambda: self._requests.protocol(connection.prove, connection.answered), lambda: connection.hold(_UNFINISHED_HELD)
        )
