"""A coordinator that announces itself: the agent listens, and takes the newest word for true.

Where agents share no file with their coordinator, they cannot look up where it is. So each listens at its own address, and
whoever coordinates comes by (`coordinator/announcing.py`): `POST /v1/coordinator` with its `Endpoint`, and the job's secret as
the proof.
"""

from __future__ import annotations

import asyncio
import logging

from aiohttp import web

from rallypoint.agent.errors import StaleError
from rallypoint.agent.tls import Tls
from rallypoint.agent.transport.first_request import CertificateRule, Text
from rallypoint.agent.transport.http_listen import authenticated, certified, listen
from rallypoint.agent.transport.tls_port import Secured
from rallypoint.wire import codec
from rallypoint.wire.connections import Limits
from rallypoint.wire.endpoint import Endpoint
from rallypoint.wire.messages import MESSAGES_VERSION
from rallypoint.wire.paths import COORDINATOR_PATH, HEALTH_PATH

__all__ = ["AGENT_SERVICE", "AnnouncedEndpoint", "Listener"]

log = logging.getLogger("rallypoint.announced")

#: What an agent's `/healthz` answers.
AGENT_SERVICE = "rallypoint-agent"

#: Bytes of the longest announcement.
_BODY_LIMIT = 4096

#: Connections at a time: one coordinator comes, and whoever probes the health.
_CONNECTIONS = 64


class AnnouncedEndpoint:
    """The newest coordinator that announced itself; an `EndpointSource`."""

    def __init__(self, *, attempt: int, where: str) -> None:
        self._newest = (attempt, 0)
        self._where = where
        self._endpoint: Endpoint | None = None
        self._unread = asyncio.Event()

    def take(self, endpoint: Endpoint) -> None:
        """Believe an announcement; raises `StaleError` for one of a lower (attempt, term) than was ever announced.

        The same term may come from another address: its coordinator was restarted in place.
        """
        theirs = (endpoint.attempt, endpoint.term)
        if theirs < self._newest:
            raise StaleError(
                f"the coordinator of attempt {theirs[0]}, term {theirs[1]} was replaced; the newest coordinator has "
                f"attempt {self._newest[0]}, term {self._newest[1]}"
            )
        self._newest = theirs
        if endpoint != self._endpoint:
            log.info(
                "the agent received the coordinator's address: attempt=%d term=%d address=%s",
                endpoint.attempt,
                endpoint.term,
                endpoint.address,
            )
            self._endpoint = endpoint
            self._unread.set()

    @property
    def endpoint(self) -> Endpoint | None:
        """The newest, whether it was read or not; None before the first."""
        return self._endpoint

    async def read(self) -> Endpoint | None:
        """Return the newest, or None before the first."""
        self._unread.clear()
        return self._endpoint

    async def news(self) -> None:
        """Return when another one announces itself."""
        await self._unread.wait()

    def __str__(self) -> str:
        return self._where


class Listener:
    """The agent's own port."""

    def __init__(self, source: AnnouncedEndpoint, *, token: str, tls: Tls | None = None) -> None:
        self._source, self._token, self._tls = source, token, tls
        self._runner: web.AppRunner | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen and return the port; see `listen`."""
        tls, checks = self._tls, [authenticated(self._token)]
        rule = None if tls is None else CertificateRule(tls=tls)
        if rule is not None:
            checks.insert(0, certified(rule))
        app = web.Application(client_max_size=_BODY_LIMIT, middlewares=checks)
        app.router.add_post(COORDINATOR_PATH, self._coordinator)
        secured = None if tls is None else Secured(lambda: tls.server)
        limits = Limits.few(_CONNECTIONS)
        self._runner, bound = await listen(
            app,
            host,
            port,
            whose="agent",
            token=self._token,
            limits=limits,
            secured=secured,
            pages={HEALTH_PATH: _health},
            now={HEALTH_PATH: _health_text},
            rule=rule,
        )
        return bound

    async def close(self) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _coordinator(self, request: web.Request) -> web.Response:
        try:
            # What a later version says beyond the address is no concern of ours.
            endpoint = codec.loads(Endpoint, await request.read(), lenient=True)
        except codec.WireError as error:
            raise web.HTTPBadRequest(text=str(error)) from error
        try:
            self._source.take(endpoint)
        except StaleError as error:
            log.warning("rejected a request from %s: %s", endpoint.address, error)
            raise web.HTTPConflict(text=str(error)) from error
        return web.json_response({"service": AGENT_SERVICE})


async def _health() -> Text:
    return _health_text()


def _health_text() -> Text:
    return Text.of_json({"service": AGENT_SERVICE, "version": MESSAGES_VERSION})
