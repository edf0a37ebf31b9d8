"""What the coordinator's and the agents' HTTP have in common: a port that is opened, and a secret that is asked for."""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from aiohttp import http_exceptions, web

from rallypoint.agent import descriptors
from rallypoint.agent.descriptors import Shares
from rallypoint.agent.errors import ConfigError
from rallypoint.agent.tls import Tls, is_of_job
from rallypoint.agent.transport.guarded_port import HEAD_LIMIT, Admission, Connection, FirstHead, GuardedPort
from rallypoint.agent.transport.service import KEPT
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
            raise web.HTTPForbidden(text=f"the client needs a TLS certificate with the DNS name {tls.name}")
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

    A connection whose first request has the `token` is not ended for others; see `Connections`. Without `limits` there are as
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
    """Admits a connection when the head of its first request is complete; what is no request gets its answer from aiohttp."""

    def __init__(self, runner: web.AppRunner, token: str | None, secured: Secured | None) -> None:
        self._runner, self._secured = runner, secured
        self._name = TOKEN_HEADER.lower().encode()
        self._token = None if token is None else token.encode()

    def __call__(self, data: bytes) -> Admission | None:
        if self._secured is not None:
            return Admission(protocol=self._over_tls if data[0] == HANDSHAKE_RECORD else lambda _: self._refusal())
        head, end, _ = data.partition(b"\r\n\r\n")
        if not end and data[:1].isalpha() and len(data) < HEAD_LIMIT:
            return None
        return Admission(protocol=lambda _: self._protocol(), proven=self._proves(head))

    def _over_tls(self, connection: Connection) -> asyncio.BaseProtocol:
        assert self._secured is not None
        return self._secured.protocol(lambda: FirstHead(self._protocol(), self._proves, connection.prove))

    def _refusal(self) -> asyncio.Protocol:
        assert self._secured is not None
        return self._secured.refusal()

    def _proves(self, head: bytes) -> bool:
        if self._token is None:
            return False
        for line in head.split(b"\r\n")[1:]:
            name, _, value = line.partition(b":")
            if name.lower() == self._name:
                return hmac.compare_digest(value.strip(), self._token)
        return False

    def _protocol(self) -> asyncio.Protocol:
        server = self._runner.server
        if server is None:
            raise ConnectionAbortedError("the connection was closed, because this process has stopped its HTTP server")
        return server()
