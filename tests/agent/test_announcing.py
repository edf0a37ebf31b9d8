"""A coordinator announces itself to agents that listen, over real sockets of this machine."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import aiohttp
import pytest

from rallypoint.agent.coordinator.announcing import Announcer
from rallypoint.agent.errors import ConfigError, StaleError
from rallypoint.agent.transport.announced import AnnouncedEndpoint, Listener
from rallypoint.agent.transport.client import CoordinatorClient
from rallypoint.wire import codec
from rallypoint.wire.endpoint import Endpoint
from rallypoint.wire.fence import Fence
from rallypoint.wire.messages import TOKEN_HEADER, AgentReport, Continue, Reply
from rallypoint.wire.paths import COORDINATOR_PATH, HEALTH_PATH
from rallypoint.wire.roster import AgentAddress, Roster
from tests.agent.fakes import TOKEN, report
from tests.waiting import eventually_async

HEADERS = {TOKEN_HEADER: TOKEN}
HERE = "127.0.0.1"


def coordinator(term: int = 1, *, attempt: int = 1, host: str = "10.0.0.9", port: int = 29600) -> Endpoint:
    return Endpoint(attempt=attempt, term=term, host=host, port=port)


@contextlib.asynccontextmanager
async def agent(port: int = 0, *, token: str = TOKEN) -> AsyncIterator[tuple[AnnouncedEndpoint, int]]:
    source = AnnouncedEndpoint(attempt=1, where="the announcement")
    listener = Listener(source, token=token)
    bound = await listener.start(HERE, port)
    try:
        yield source, bound
    finally:
        await listener.close()


@contextlib.asynccontextmanager
async def announcer(endpoint: Endpoint, *, token: str = TOKEN) -> AsyncIterator[Announcer]:
    announcing = Announcer(endpoint, token=token)
    try:
        yield announcing
    finally:
        await announcing.close()


def roster(*ports: int, term: int = 1, attempt: int = 1) -> Roster:
    agents = tuple(AgentAddress(node=node, incarnation=1, host=HERE, port=port) for node, port in enumerate(ports))
    return Roster(attempt=attempt, term=term, agents=agents)


# --- Who may announce what -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "headers", "body", "status", "text"),
    [
        pytest.param("GET", HEALTH_PATH, {}, "", 200, "rallypoint-agent", id="health needs no token"),
        pytest.param("POST", COORDINATOR_PATH, {}, codec.dumps(coordinator()), 401, "does not match the secret", id="no token"),
        pytest.param(
            "POST", COORDINATOR_PATH, {TOKEN_HEADER: "x"}, codec.dumps(coordinator()), 401, "does not match", id="wrong"
        ),
        pytest.param("POST", COORDINATOR_PATH, HEADERS, "{torn", 400, "JSON text", id="torn"),
        pytest.param("POST", COORDINATOR_PATH, HEADERS, '{"attempt": 1}', 400, "term: None", id="incomplete"),
        pytest.param("POST", COORDINATOR_PATH, HEADERS, " " * 5000, 413, "", id="too large"),
        pytest.param("POST", COORDINATOR_PATH, HEADERS, codec.dumps(coordinator(attempt=0)), 409, "was replaced", id="stale"),
        pytest.param("POST", COORDINATOR_PATH, HEADERS, codec.dumps(coordinator()), 200, "rallypoint-agent", id="welcome"),
        pytest.param(
            "POST",
            COORDINATOR_PATH,
            HEADERS,
            codec.dumps(coordinator())[:-1] + ', "zone": "b"}',
            200,
            "",
            id="of a later version",
        ),
    ],
)
async def test_what_an_agent_takes(method: str, path: str, headers: dict[str, str], body: str, status: int, text: str) -> None:
    """The secret on everything but the health, bounded bodies, errors that name the place."""
    async with agent() as (source, port), aiohttp.ClientSession(headers=headers) as session:
        async with session.request(method, f"http://{HERE}:{port}{path}", data=body.encode()) as response:
            told = await response.text()

        assert (response.status, text in told) == (status, True)
        assert await source.read() == (coordinator() if (method, status) == ("POST", 200) else None)


async def test_an_older_coordinator_is_not_believed_again() -> None:
    """Neither an earlier term nor an earlier attempt, ever; the same term may come from another address."""
    source = AnnouncedEndpoint(attempt=2, where="the announcement")
    source.take(coordinator(3, attempt=2))

    for older in (coordinator(2, attempt=2), coordinator(9, attempt=1)):
        with pytest.raises(StaleError, match="was replaced; the newest coordinator has attempt 2, term 3"):
            source.take(older)
    assert await source.read() == coordinator(3, attempt=2)
    source.take(coordinator(3, attempt=2, host="10.0.0.10"))
    assert await source.read() == coordinator(3, attempt=2, host="10.0.0.10")


async def test_a_port_in_use_is_named() -> None:
    """The error names port and host."""
    async with agent() as (_, port):
        with pytest.raises(ConfigError, match=f"cannot open port {port} on {HERE} for the agent"):
            await Listener(AnnouncedEndpoint(attempt=1, where=""), token=TOKEN).start(HERE, port)


# --- Announcing ------------------------------------------------------------------------------------------------------------


async def test_everybody_on_the_roster_is_told() -> None:
    """Also those that are added later; those that know it are not told again."""
    async with agent() as (one, first), agent() as (two, second), announcer(coordinator()) as announcing:
        announcing.take(roster(first))
        await eventually_async(lambda: one.endpoint)
        one.take(coordinator(host="10.0.0.10"))
        announcing.take(roster(first, second))
        await eventually_async(lambda: two.endpoint)

        assert await one.read() == coordinator(host="10.0.0.10")


async def test_an_agent_may_come_up_after_the_roster() -> None:
    """A pod has its address before its agent listens."""
    async with agent() as (_, port):
        pass
    async with announcer(coordinator()) as announcing:
        announcing.take(roster(port))
        await asyncio.sleep(0.3)
        async with agent(port) as (late, _):
            assert await eventually_async(lambda: late.endpoint) == coordinator()


async def test_who_is_gone_from_the_roster_is_told_no_more() -> None:
    """The secret does not travel to an address that may be somebody else's by now."""
    async with agent() as (_, port):
        pass
    async with announcer(coordinator()) as announcing:
        announcing.take(roster(port))
        announcing.take(roster())
        async with agent(port) as (stranger, _), agent() as (other, second):
            announcing.take(roster(second))
            await eventually_async(lambda: other.endpoint)

            assert await stranger.read() is None


async def test_an_agent_that_knows_a_later_coordinator_is_left_alone() -> None:
    """It refuses, and is not asked again."""
    async with agent() as (source, port), agent() as (other, second), announcer(coordinator(1)) as announcing:
        source.take(coordinator(2))
        announcing.take(roster(port, second))
        await eventually_async(lambda: other.endpoint)

        assert await source.read() == coordinator(2)


@pytest.mark.parametrize(("attempt", "term"), [pytest.param(1, 2, id="later term"), pytest.param(2, 1, id="later attempt")])
async def test_the_roster_of_another_term_is_refused(attempt: int, term: int) -> None:
    """Who pushes it supervises another coordinator than this one."""
    async with announcer(coordinator(1)) as announcing:
        with pytest.raises(
            StaleError, match=f"request for attempt {attempt}, term {term}, because this coordinator has attempt 1"
        ):
            announcing.take(roster(1, attempt=attempt, term=term))


# --- Waking the agent ------------------------------------------------------------------------------------------------------


class DeadHosts:
    """Swallows all that is sent to hosts other than `alive`."""

    def __init__(self, alive: str) -> None:
        self.alive, self.asked = alive, asyncio.Event()

    async def exchange(self, endpoint: Endpoint, report: AgentReport, *, timeout: float) -> Reply:
        self.asked.set()
        if endpoint.host != self.alive:
            await asyncio.get_running_loop().create_future()
        return Continue(fence=Fence(attempt=endpoint.attempt, term=endpoint.term))

    async def close(self) -> None:
        pass


async def test_a_new_coordinator_wakes_an_agent_that_waits_for_a_dead_one() -> None:
    """A host that vanished answers nothing and refuses nothing; no time-out has to pass."""
    source = AnnouncedEndpoint(attempt=1, where="the announcement")
    source.take(coordinator(1, host="dead"))
    exchange = DeadHosts(alive="new")
    client = CoordinatorClient(source=source, exchange=exchange, fence_timeout=1e6, attempt=1)
    asking = asyncio.create_task(client.ask(report(hold=1e5)))
    await exchange.asked.wait()

    source.take(coordinator(2, host="new"))

    assert await asyncio.wait_for(asking, timeout=60) == Continue(fence=Fence(attempt=1, term=2))


async def test_the_first_announcement_wakes_an_agent_that_waits_for_any() -> None:
    """Before it there is nobody to ask."""
    source = AnnouncedEndpoint(attempt=1, where="the announcement")
    client = CoordinatorClient(source=source, exchange=DeadHosts(alive="new"), fence_timeout=1e6, attempt=1)
    asking = asyncio.create_task(client.ask(report(hold=1e5)))
    await asyncio.sleep(0)
    source.take(coordinator(1, host="new"))

    assert await asyncio.wait_for(asking, timeout=60) == Continue(fence=Fence(attempt=1, term=1))
