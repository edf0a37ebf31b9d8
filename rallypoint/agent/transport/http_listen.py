"""What the coordinator's and the agents' HTTP have in common: a port that is opened, and a secret that is asked for."""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from aiohttp import http_exceptions, web

from rallypoint.agent.errors import ConfigError
from rallypoint.agent.tls import Tls, is_of_job
from rallypoint.agent.transport.service import KEPT
from rallypoint.agent.transport.shared_port import SharedPort
from rallypoint.agent.transport.tls_port import Secured
from rallypoint.wire.messages import TOKEN_HEADER
from rallypoint.wire.paths import HEALTH_PATH

if TYPE_CHECKING:
    from aiohttp.typedefs import Middleware  # older releases have no such name

__all__ = ["authenticated", "certified", "listen"]

#: Seconds that answers under way get when a server closes.
_SHUTDOWN = 2.0

#: Connections that wait to be taken: all agents of a job may come at once, and one that finds no room comes again after a
#: second. The kernel may allow fewer (net.core.somaxconn).
_BACKLOG = 8192

log = logging.getLogger("rallypoint.agent.http")

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def authenticated(token: str) -> Middleware:
    """Return what lets nobody without the job's secret learn anything but who listens; the comparison takes constant time."""
    expected = token.encode()

    @web.middleware
    async def authenticate(request: web.Request, handler: _Handler) -> web.StreamResponse:
        try:
            told = request.headers.get(TOKEN_HEADER, "").encode()
        except UnicodeEncodeError:  # bytes that are no UTF-8 arrive as halves of surrogate pairs
            raise web.HTTPBadRequest(text=f"{TOKEN_HEADER}: not UTF-8") from None
        if request.path != HEALTH_PATH and not hmac.compare_digest(told, expected):
            raise web.HTTPUnauthorized(text=f"{TOKEN_HEADER}: not the secret of this job")
        return await handler(request)

    return authenticate


def certified(tls: Tls, *paths: str) -> Middleware:
    """Return what refuses requests for `paths`, for any path where none is named, without a certificate of the job."""

    @web.middleware
    async def certify(request: web.Request, handler: _Handler) -> web.StreamResponse:
        # What `ssl` has verified is the authority's signature; an authority may sign for more than this job.
        transport = request.transport
        peer = None if transport is None else transport.get_extra_info("peercert")
        if (peer or not paths or request.path in paths) and not is_of_job(peer, tls):
            raise web.HTTPForbidden(text=f"a certificate for {tls.name} is needed")
        return await handler(request)

    return certify


async def listen(
    app: web.Application,
    host: str,
    port: int,
    *,
    whose: str,
    store: Callable[[], str] | None = None,
    secured: Secured | None = None,
) -> tuple[web.AppRunner, int]:
    """Serve `app` and return what to clean up, and the port, a free one when `port` is 0.

    Connections that are not HTTP are forwarded to the address that `store` returns, see `SharedPort`. With `secured` HTTP is
    served over TLS alone.

    Raises `ConfigError` when the port cannot be had; its `__cause__` is the `OSError`. `whose` is for that error.
    """
    # handler_cancellation: a connection that breaks while its report is parked ends the report.
    # keepalive_timeout: a connection that is idle between two reports is not one that broke.
    log.addFilter(_is_ours)  # does nothing the second time
    runner = web.AppRunner(
        app, handler_cancellation=True, access_log=None, shutdown_timeout=_SHUTDOWN, keepalive_timeout=KEPT, logger=log
    )
    shared = _shared(runner, store, secured)
    if shared is not None:
        app.on_shutdown.append(lambda _: shared.close())
    await runner.setup()
    try:
        if shared is not None:
            return runner, await shared.start(host, port)
        await web.TCPSite(runner, host, port, backlog=_BACKLOG).start()
    except OSError as error:
        await runner.cleanup()
        raise ConfigError(f"port {port} on {host} cannot be opened for the {whose}: {error.strerror}") from error
    bound: int = runner.addresses[0][1]
    return runner, bound


def _shared(runner: web.AppRunner, store: Callable[[], str] | None, secured: Secured | None) -> SharedPort | None:
    if store is None and secured is None:
        return None
    return SharedPort(store, http=lambda: _protocol(runner), secured=secured)


def _is_ours(line: logging.LogRecord) -> bool:
    """Return whether a line of the server is about something else than a request that is not HTTP, which gets a 400.

    Anybody can send such a request, and each would cost a traceback.
    """
    error = line.exc_info[1] if line.exc_info else None
    return not isinstance(error, http_exceptions.HttpProcessingError)


def _protocol(runner: web.AppRunner) -> asyncio.Protocol:
    """Return the protocol of a new connection of HTTP."""
    server = runner.server
    if server is None:
        raise ConnectionAbortedError("the HTTP server has been closed")
    return server()
