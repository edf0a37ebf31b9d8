"""The coordinator tells each agent where it listens, until the agent has heard it.

A supervisor sees all pods and pushes the roster; an agent that is on it need not be up yet. One that knows a later coordinator
says so (409), and is left alone: this one is of the past, which its next publication will tell it, too.
"""

from __future__ import annotations

import asyncio
import logging

import aiohttp

from rallypoint.agent.errors import StaleError
from rallypoint.agent.tls import Tls
from rallypoint.agent.transport.announced import AGENT_SERVICE
from rallypoint.agent.transport.http_client import health, scheme, secured, trouble
from rallypoint.agent.waiting import in_background
from rallypoint.wire import codec
from rallypoint.wire.endpoint import Endpoint
from rallypoint.wire.messages import TOKEN_HEADER
from rallypoint.wire.paths import COORDINATOR_PATH, HEALTH_PATH
from rallypoint.wire.roster import AgentAddress, Roster

__all__ = ["Announcer"]

log = logging.getLogger("rallypoint.announcing")

#: Seconds before the first retry; doubled up to `_RETRY_LAST`: a pod has its address seconds before its agent listens.
_RETRY_FIRST, _RETRY_LAST = 0.1, 2.0

#: Seconds for an agent to answer.
_PATIENCE = 5.0

#: Agents that are told at the same time.
_AT_ONCE = 64


class Announcer:
    """Tells the agents of the newest roster; a change of it concerns only those that are new in it, or gone from it."""

    def __init__(self, endpoint: Endpoint, *, token: str, tls: Tls | None = None) -> None:
        self._endpoint, self._token, self._tls = endpoint, token, tls
        self._told: dict[AgentAddress, asyncio.Task[None]] = {}
        self._session: aiohttp.ClientSession | None = None

    def take(self, roster: Roster) -> None:
        """Tell those who are on it; raises `StaleError` for the roster of another attempt or term."""
        ours = (self._endpoint.attempt, self._endpoint.term)
        if (roster.attempt, roster.term) != ours:
            raise StaleError(
                f"the coordinator rejected a request for attempt {roster.attempt}, term {roster.term}, "
                f"because this coordinator has attempt {ours[0]}, term {ours[1]}"
            )
        wanted = set(roster.agents)
        for gone in self._told.keys() - wanted:
            self._told.pop(gone).cancel()
        for agent in sorted(wanted - self._told.keys()):
            self._told[agent] = in_background(self._tell(agent), log, f"announcing the coordinator to node {agent.node}")

    async def close(self) -> None:
        """Tell nobody any more."""
        tasks = tuple(self._told.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _tell(self, agent: AgentAddress) -> None:
        place = f"{scheme(self._tls)}://{_address(agent)}"
        url = f"{place}{COORDINATOR_PATH}"
        delay, last = _RETRY_FIRST, ""
        while True:
            status, text = await self._ask(place)
            if status == 200:
                log.info("the coordinator sent its address to the agent of node %d at %s", agent.node, url)
            elif status == 409:
                log.warning(
                    "the agent of node %d at %s rejected the address that this coordinator sent: %s", agent.node, url, text
                )
            else:
                if text != last:
                    log.log(
                        logging.WARNING if status else logging.DEBUG, "cannot reach node %d at %s: %s", agent.node, url, text
                    )
                last = text
                await asyncio.sleep(delay)
                delay = min(2 * delay, _RETRY_LAST)
                continue
            return

    async def _ask(self, place: str) -> tuple[int, str]:
        """Send the address of this coordinator; return the HTTP status (0 without a response) and the text of the response.

        The token is sent only to a program that has proven that it has the token, because another pod may have the address now.
        """
        session = self._open()
        try:
            status, found = await health(session, f"{place}{HEALTH_PATH}", self._tls, self._token)
            if found is None or found.get("service") != AGENT_SERVICE:
                return 0, f"HTTP {status}: the server is no agent with the secret of this job"
            post = session.post(
                f"{place}{COORDINATOR_PATH}",
                data=codec.dumps(self._endpoint).encode(),
                headers={TOKEN_HEADER: self._token},
                allow_redirects=False,
                **secured(self._tls),
            )
            async with post as response:
                text = (await response.content.read(200)).decode(errors="replace")
                return response.status, text if response.status in (200, 409) else f"HTTP {response.status}: {text}"
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError, ValueError) as error:
            return 0, trouble(error, self._tls) or type(error).__name__

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=_AT_ONCE, force_close=True),
                timeout=aiohttp.ClientTimeout(total=_PATIENCE * 2, sock_connect=_PATIENCE),
            )
        return self._session


def _address(agent: AgentAddress) -> str:
    return Endpoint(attempt=0, term=0, host=agent.host, port=agent.port).address
