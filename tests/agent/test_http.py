"""The HTTP transport, both sides of it, on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import io
from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web

from rallypoint.agent.clock import monotone_clock
from rallypoint.agent.coordinator.shell import Coordinator
from rallypoint.agent.coordinator.sink import MemorySink
from rallypoint.agent.errors import ConfigError, UnreachableError
from rallypoint.agent.transport.http_client import HttpExchange, speaks_rallypoint
from rallypoint.agent.transport.http_listen import listen
from rallypoint.agent.transport.http_server import HttpServer
from rallypoint.agent.transport.service import BODY_LIMIT
from rallypoint.wire import codec
from rallypoint.wire.endpoint import Endpoint
from rallypoint.wire.messages import MESSAGES_VERSION, TOKEN_HEADER, Assignment, Continue
from rallypoint.wire.paths import HEALTH_PATH, REPORT_PATH, ROSTER_PATH, STATUS_PATH
from rallypoint.wire.status import JobStatus
from tests.agent.fakes import TOKEN, new_state, report
from tests.waiting import eventually_async

HEADERS = {TOKEN_HEADER: TOKEN}


@contextlib.asynccontextmanager
async def listening() -> AsyncIterator[tuple[Coordinator, Endpoint]]:
    clock = monotone_clock()
    shell = Coordinator(new_state(now=clock()), sink=MemorySink(), clock=clock)
    server = HttpServer(shell, token=TOKEN)
    port = await server.start("127.0.0.1", 0)
    serve = asyncio.create_task(shell.serve())
    try:
        yield shell, Endpoint(attempt=1, term=1, host="127.0.0.1", port=port)
    finally:
        shell.stop()
        await serve
        await server.close()


@contextlib.asynccontextmanager
async def exchanging(token: str = TOKEN) -> AsyncIterator[HttpExchange]:
    exchange = HttpExchange(token)
    try:
        yield exchange
    finally:
        await exchange.close()


@pytest.mark.parametrize(
    ("method", "path", "headers", "body", "status", "text"),
    [
        pytest.param("GET", HEALTH_PATH, {}, b"", 200, "rallypoint-coordinator", id="health needs no token"),
        pytest.param("GET", STATUS_PATH, {}, b"", 401, "not the secret", id="no token"),
        pytest.param("POST", REPORT_PATH, {TOKEN_HEADER: "guess"}, b"{}", 401, "not the secret", id="wrong token"),
        pytest.param("GET", "/else", {}, b"", 401, "not the secret", id="strangers learn no paths"),
        pytest.param("POST", REPORT_PATH, HEADERS, b"{torn", 400, "JSON text", id="torn"),
        pytest.param("POST", REPORT_PATH, HEADERS, b'{"job": 1}', 400, "job: 1 is not allowed", id="mistyped"),
        pytest.param("POST", REPORT_PATH, HEADERS, b" " * (BODY_LIMIT + 1), 413, "", id="too large"),
        pytest.param("POST", REPORT_PATH, HEADERS, b'{"version": 99}', 426, "version: 99 is not allowed", id="version"),
        pytest.param("POST", ROSTER_PATH, HEADERS, b"{}", 404, "", id="no roster without a door"),
        pytest.param("GET", STATUS_PATH, HEADERS, b"", 200, "digits", id="status"),
    ],
)
async def test_what_a_stranger_gets(
    method: str, path: str, headers: dict[str, str], body: bytes, status: int, text: str
) -> None:
    """A token on everything but the health, bounded bodies, errors that name the place."""
    async with (
        listening() as (_, endpoint),
        aiohttp.ClientSession(headers=headers) as session,
        session.request(method, f"http://{endpoint.address}{path}", data=io.BytesIO(body)) as response,
    ):
        told = await response.text()

    assert (response.status, text in told) == (status, True)


async def test_reports_and_answers_travel() -> None:
    """The answer to one agent waits for the other; a kept connection serves many reports."""
    async with listening() as (_, endpoint), exchanging() as one, exchanging() as other:
        assert isinstance(await one.exchange(endpoint, report(0, hold=0.0), timeout=60), Continue)
        first = asyncio.create_task(one.exchange(endpoint, report(0, sequence=1), timeout=60))
        second = await other.exchange(endpoint, report(1), timeout=60)

        assert [type(await first), type(second)] == [Assignment, Assignment]


async def test_the_status_is_read_back() -> None:
    """What is published can also be asked for."""
    async with listening() as (shell, endpoint), aiohttp.ClientSession(headers=HEADERS) as session:
        async with session.get(f"http://{endpoint.address}{STATUS_PATH}") as response:
            status = codec.loads(JobStatus, await response.read())

        assert status.events == shell.status().events


async def test_the_end_of_a_parked_client_is_noticed() -> None:
    """A killed agent closes its connection; a lease would take far longer to expire."""
    async with listening() as (shell, endpoint):
        async with exchanging() as exchange:
            parked = asyncio.create_task(exchange.exchange(endpoint, report(0), timeout=60))
            await eventually_async(lambda: shell.status().waiting)
            parked.cancel()
        await eventually_async(lambda: not shell.status().waiting, timeout=10.0)


async def test_the_end_of_a_client_between_two_reports_is_noticed() -> None:
    """It has its answer and has not asked again: nothing is parked, and still its end is seen at once."""
    async with listening() as (shell, endpoint):
        async with exchanging() as exchange:
            assert isinstance(await exchange.exchange(endpoint, report(0, hold=0.0), timeout=60), Continue)
            assert shell.status().waiting
        await eventually_async(lambda: not shell.status().waiting, timeout=10.0)


async def test_another_connection_takes_the_place_of_the_first() -> None:
    """An agent that was heard over a new connection is there, whatever becomes of the old one."""
    async with listening() as (shell, endpoint), exchanging() as new:
        async with exchanging() as old:
            await old.exchange(endpoint, report(0, hold=0.0), timeout=60)
            await new.exchange(endpoint, report(0, hold=0.0, sequence=1), timeout=60)
        # Whoever were gone would be lost by the time that an agent which hangs up later is.
        async with exchanging() as other:
            await other.exchange(endpoint, report(1, hold=0.0), timeout=60)
        await eventually_async(lambda: [member.node for member in shell.status().waiting] == [0], timeout=10.0)


@pytest.mark.parametrize(
    ("token", "port_shift", "message"),
    [
        pytest.param("guess", 0, "HTTP 401: X-Rallypoint-Token: not the secret of this job", id="wrong token"),
        pytest.param(TOKEN, None, "Cannot connect", id="nobody listens"),
    ],
)
async def test_what_does_not_answer_is_unreachable(token: str, port_shift: int | None, message: str) -> None:
    """One error for all that may be over at the next try, with what was seen in its text."""
    async with listening() as (_, endpoint):
        where = endpoint
    if port_shift is not None:
        async with listening() as (_, where), exchanging(token) as exchange:
            with pytest.raises(UnreachableError, match=message):
                await exchange.exchange(where, report(), timeout=60)
        return
    async with exchanging(token) as exchange:
        with pytest.raises(UnreachableError, match=message):
            await exchange.exchange(where, report(), timeout=60)


async def test_an_answer_that_does_not_come_is_unreachable() -> None:
    """A host that swallows everything is given up after the time that was asked for."""

    class Swallow(asyncio.Protocol):
        def connection_lost(self, exc: Exception | None) -> None:
            closed.set()

    closed = asyncio.Event()
    server = await asyncio.get_running_loop().create_server(Swallow, "127.0.0.1", 0)
    endpoint = Endpoint(attempt=1, term=1, host="127.0.0.1", port=server.sockets[0].getsockname()[1])
    async with exchanging() as exchange:
        with pytest.raises(UnreachableError, match="no answer within"):
            await exchange.exchange(endpoint, report(), timeout=0.1)
    await closed.wait()
    server.close()


async def test_who_listens_on_a_port() -> None:
    """A coordinator says so, anything else is not one, and nobody is neither."""

    class Chatter(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.Transport)
            transport.write(b"220 smtp.example.org ready\r\n")
            transport.close()

        def connection_lost(self, exc: Exception | None) -> None:
            closed.set()

    closed = asyncio.Event()
    other = await asyncio.get_running_loop().create_server(Chatter, "127.0.0.1", 0)
    stranger = Endpoint(attempt=1, term=1, host="127.0.0.1", port=other.sockets[0].getsockname()[1])
    async with listening() as (_, endpoint):
        assert await speaks_rallypoint(endpoint) is True
    assert await speaks_rallypoint(endpoint) is None
    assert await speaks_rallypoint(stranger) is False
    await closed.wait()
    other.close()


async def test_a_port_in_use_is_named() -> None:
    """The error names the port and the host."""
    async with listening() as (shell, endpoint):
        with pytest.raises(ConfigError, match=f"port {endpoint.port} on 127.0.0.1 cannot be opened"):
            await HttpServer(shell, token=TOKEN).start("127.0.0.1", endpoint.port)


async def test_an_agent_of_a_far_version_is_told_so_at_once() -> None:
    """One clear error, and no try after it: it would only be refused again."""
    async with listening() as (_, endpoint), exchanging() as exchange:
        with pytest.raises(ConfigError, match=r"does not understand us: version: \d+ is not allowed; expected 1 to \d+"):
            await exchange.exchange(endpoint, report(version=MESSAGES_VERSION + 2), timeout=60)


async def test_an_agent_of_a_neighbouring_version_takes_part() -> None:
    """As any other."""
    async with listening() as (_, endpoint), exchanging() as exchange:
        reply = await exchange.exchange(endpoint, report(version=MESSAGES_VERSION + 1, hold=0.0), timeout=60)

    assert isinstance(reply, Continue)


async def test_a_coordinator_of_a_far_version_is_not_understood() -> None:
    """Its answer ends the agent with the reason, and not after the time for which a coordinator may be out of reach."""

    async def answer(_: web.Request) -> web.Response:
        return web.json_response({"version": 99, "kind": "continue", "body": {}})

    app = web.Application()
    app.router.add_post(REPORT_PATH, answer)
    runner, port = await listen(app, "127.0.0.1", 0, whose="coordinator")
    try:
        async with exchanging() as exchange:
            with pytest.raises(ConfigError, match="is not understood: version: 99"):
                await exchange.exchange(Endpoint(attempt=1, term=1, host="127.0.0.1", port=port), report(), timeout=60)
    finally:
        await runner.cleanup()
