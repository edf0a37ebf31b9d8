"""The coordinator's HTTP transport.

`POST /v1/report` takes an `AgentReport` and gives a reply, by long poll; `GET /v1/status` gives the `JobStatus`;
`POST /v1/roster` takes a `Roster` from a supervisor; `GET /healthz` says who is there, without a token.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from aiohttp import web

from rallypoint.agent.descriptors import Shares
from rallypoint.agent.errors import StaleError
from rallypoint.agent.tls import Tls
from rallypoint.agent.transport.first_request import CertificateRule, Text
from rallypoint.agent.transport.http_listen import authenticated, certified, listen
from rallypoint.agent.transport.service import BODY_LIMIT, CoordinatorService, SupervisorDoor
from rallypoint.agent.transport.tls_port import Secured
from rallypoint.wire import codec
from rallypoint.wire.messages import MESSAGES_VERSION, AgentReport, reply_to_json
from rallypoint.wire.paths import HEALTH_PATH, REPORT_PATH, ROSTER_PATH, STATUS_PATH, SUPERVISOR_HEADER
from rallypoint.wire.roster import Roster

__all__ = ["SERVICE_NAME", "VERSION_REFUSED", "HttpServer", "read_body"]

#: What `/healthz` answers, so that somebody who finds the port in use knows by whom.
SERVICE_NAME = "rallypoint-coordinator"

#: HTTP status of a message whose version is not understood; all other mistakes are 400.
VERSION_REFUSED = 426

#: What agents alone ask for, with a certificate where there are any.
_AGENTS_PATHS = (REPORT_PATH,)

T = TypeVar("T")


class HttpServer:
    """Serves one coordinator of at most `agents` agents on one port.

    Without a `door`, the server accepts no roster and does not record requests of supervisors. `grpc` is the gRPC port of the
    coordinator, or 0; a health check waits until `settled` is set, because its answer contains that port. With a `store`,
    connections that are not HTTP are forwarded to the store of the current round (`SharedPort`).
    """

    def __init__(
        self,
        service: CoordinatorService,
        *,
        token: str,
        agents: int = 1,
        door: SupervisorDoor | None = None,
        store: Callable[[], str] | None = None,
        tls: Tls | None = None,
    ) -> None:
        self._service, self._token, self._door, self._store, self._tls = service, token, door, store, tls
        self._agents = agents
        self._runner: web.AppRunner | None = None
        self._connections: dict[str, set[asyncio.Task[Any]]] = {}
        self.grpc, self.settled = 0, asyncio.Event()
        self.settled.set()

    async def start(self, host: str, port: int, *, shares: Shares | None = None) -> int:
        """Listen and return the port; see `listen`."""
        tls, checks = self._tls, [authenticated(self._token)]
        rule = None if tls is None else CertificateRule(tls=tls, paths=_AGENTS_PATHS)
        if rule is not None:
            checks.insert(0, certified(rule))
        app = web.Application(client_max_size=BODY_LIMIT, middlewares=checks)
        app.router.add_post(REPORT_PATH, self._report)
        app.router.add_get(STATUS_PATH, self._status)
        if self._door is not None:
            app.router.add_post(ROSTER_PATH, self._roster)
        # Supervisors come through the API server of a cluster, which has no certificate of the job: they have its token alone.
        secured = None if tls is None else Secured(lambda: tls.open_server, clients=self._agents)
        self._runner, bound = await listen(
            app,
            host,
            port,
            whose="coordinator",
            token=self._token,
            shares=shares,
            store=self._store,
            secured=secured,
            pages={HEALTH_PATH: self._health},
            now={HEALTH_PATH: lambda: self._health_text() if self.settled.is_set() else None},
            rule=rule,
        )
        return bound

    async def close(self) -> None:
        """Stop listening, let answers under way out, close the connections."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _report(self, request: web.Request) -> web.Response:
        report = await read_body(AgentReport, request)
        self._listen(report.agent, request.task)
        reply = await self._service.report(report)
        return web.json_response(reply_to_json(reply))

    def _listen(self, agent: str, connection: asyncio.Task[Any]) -> None:
        """Tell the service when the last connection over which `agent` was heard ends; each is one task from first to last.

        An agent that is killed between an answer and its next report has no request whose cancelling would tell of it.
        """
        mine = self._connections.setdefault(agent, set())
        if connection in mine:
            return
        mine.add(connection)

        def ended(_: asyncio.Task[Any]) -> None:
            mine.discard(connection)
            if not mine and self._connections.get(agent) is mine:
                del self._connections[agent]
                self._service.hung_up(agent)

        connection.add_done_callback(ended)

    async def _status(self, request: web.Request) -> web.Response:
        self._note_supervisor(request)
        return web.json_response(codec.to_json(self._service.status()))

    async def _roster(self, request: web.Request) -> web.Response:
        roster = await read_body(Roster, request)
        self._note_supervisor(request)
        if self._door is not None:
            try:
                self._door.take(roster)
            except StaleError as error:
                raise web.HTTPConflict(text=str(error)) from error
        return web.json_response({"service": SERVICE_NAME, "agents": len(roster.agents)})

    def _note_supervisor(self, request: web.Request) -> None:
        mark = request.headers.get(SUPERVISOR_HEADER)
        if mark and self._door is not None:
            self._door.seen(mark)

    async def _health(self) -> Text:
        await self.settled.wait()
        return self._health_text()

    def _health_text(self) -> Text:
        return Text.of_json({"service": SERVICE_NAME, "version": MESSAGES_VERSION, "grpc": self.grpc})


async def read_body(cls: type[T], request: web.Request) -> T:
    """Return what was sent; raises HTTP 400 for what is none of ours, `VERSION_REFUSED` for a version we do not understand."""
    try:
        return codec.loads(cls, await request.read())
    except codec.VersionError as error:
        raise web.HTTPUpgradeRequired(text=str(error)) from error
    except codec.WireError as error:
        raise web.HTTPBadRequest(text=str(error)) from error
