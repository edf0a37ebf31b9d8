"""The coordinator's HTTP transport.

`POST /v1/report` takes an `AgentReport` and gives a reply, by long poll; `GET /v1/status` gives the `JobStatus`; `GET /healthz`
says who is there, without a token.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from rallypoint.agent.errors import ConfigError
from rallypoint.agent.service import BODY_LIMIT, KEPT, CoordinatorService
from rallypoint.wire import codec
from rallypoint.wire.messages import MESSAGES_VERSION, TOKEN_HEADER, AgentReport, reply_to_json

__all__ = ["HEALTH_PATH", "REPORT_PATH", "SERVICE_NAME", "STATUS_PATH", "HttpServer"]

REPORT_PATH = "/v1/report"
STATUS_PATH = "/v1/status"
HEALTH_PATH = "/healthz"

#: What `/healthz` answers, so that somebody who finds the port in use knows by whom.
SERVICE_NAME = "rallypoint-coordinator"

#: Seconds that answers under way get when the server closes.
_SHUTDOWN = 2.0

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class HttpServer:
    """Serves one coordinator on one port."""

    def __init__(self, service: CoordinatorService, *, token: str) -> None:
        self._service, self._token = service, token.encode()
        self._runner: web.AppRunner | None = None
        self._heard: dict[str, asyncio.Task[Any]] = {}

    async def start(self, host: str, port: int) -> int:
        """Listen and return the port, a free one when `port` is 0.

        Raises `ConfigError` when the port cannot be had; its `__cause__` is the `OSError`.
        """
        app = web.Application(client_max_size=BODY_LIMIT, middlewares=[self._authenticate])
        app.router.add_post(REPORT_PATH, self._report)
        app.router.add_get(STATUS_PATH, self._status)
        app.router.add_get(HEALTH_PATH, self._health)
        # handler_cancellation: a connection that breaks while its report is parked ends the report.
        # keepalive_timeout: a connection that is idle between two reports is not one that broke.
        runner = web.AppRunner(
            app, handler_cancellation=True, access_log=None, shutdown_timeout=_SHUTDOWN, keepalive_timeout=KEPT
        )
        await runner.setup()
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:
            await runner.cleanup()
            raise ConfigError(f"port {port} on {host} cannot be opened for the coordinator: {error.strerror}") from error
        self._runner = runner
        bound: int = runner.addresses[0][1]
        return bound

    async def close(self) -> None:
        """Stop listening, let answers under way out, close the connections."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    @web.middleware
    async def _authenticate(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        told = request.headers.get(TOKEN_HEADER, "").encode()
        if request.path != HEALTH_PATH and not hmac.compare_digest(told, self._token):
            raise web.HTTPUnauthorized(text=f"{TOKEN_HEADER}: not the secret of this job")
        return await handler(request)

    async def _report(self, request: web.Request) -> web.Response:
        try:
            report = codec.loads(AgentReport, await request.read())
        except codec.WireError as error:
            raise web.HTTPBadRequest(text=str(error)) from error
        self._listen(report.agent, request.task)
        reply = await self._service.report(report)
        return web.json_response(reply_to_json(reply))

    def _listen(self, agent: str, connection: asyncio.Task[Any]) -> None:
        """Tell the service when the connection over which `agent` was heard last ends; it is one task from first to last.

        An agent that is killed between an answer and its next report has no request whose cancelling would tell of it.
        """
        if self._heard.get(agent) is connection:
            return
        self._heard[agent] = connection

        def ended(_: asyncio.Task[Any]) -> None:
            if self._heard.get(agent) is connection:
                del self._heard[agent]
                self._service.hung_up(agent)

        connection.add_done_callback(ended)

    async def _status(self, _: web.Request) -> web.Response:
        return web.json_response(codec.to_json(self._service.status()))

    async def _health(self, _: web.Request) -> web.Response:
        return web.json_response({"service": SERVICE_NAME, "version": MESSAGES_VERSION})
