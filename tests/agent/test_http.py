"""What is of HTTP alone: paths, bodies, and who comes by it beside agents. The rest is in `test_transports.py`."""

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
from rallypoint.agent.errors import ConfigError
from rallypoint.agent.transport.http_client import HttpExchange, speaks_rallypoint
from rallypoint.agent.transport.http_listen import listen
from rallypoint.agent.transport.http_server import HttpServer
from rallypoint.agent.transport.service import BODY_LIMIT
from rallypoint.wire import codec
from rallypoint.wire.endpoint import Endpoint
from rallypoint.wire.messages import TOKEN_HEADER
from rallypoint.wire.paths import HEALTH_PATH, REPORT_PATH, ROSTER_PATH, STATUS_PATH
from rallypoint.wire.status import JobStatus
from tests.agent.fakes import TOKEN, MemorySink, new_state, report

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
        pytest.param("GET", STATUS_PATH, {}, b"", 401, "does not match the secret", id="no token"),
        pytest.param("POST", REPORT_PATH, {TOKEN_HEADER: "guess"}, b"{}", 401, "does not match the secret", id="wrong token"),
        pytest.param("GET", "/else", {}, b"", 401, "does not match the secret", id="strangers learn no paths"),
        pytest.param("POST", REPORT_PATH, HEADERS, b"{torn", 400, "JSON text", id="torn"),
        pytest.param("POST", REPORT_PATH, HEADERS, b"[" * 200_000, 400, "nested too deep", id="deep"),
        pytest.param("POST", REPORT_PATH, HEADERS, b'{"job": ' + b"9" * 5000 + b"}", 400, "JSON text", id="large integer"),
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


async def test_a_header_that_is_not_utf8_is_a_bad_request(caplog: pytest.LogCaptureFixture) -> None:
    """The answer is one sentence, the log has no traceback, and the connection's successor is served."""
    async with listening() as (_, endpoint):
        for path in (STATUS_PATH, "/\xff", "/\x00"):
            reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
            head = f"GET {path} HTTP/1.1\r\nHost: x\r\nX-Else: \xff\r\n{TOKEN_HEADER}: \xff\xfe\r\nConnection: close\r\n\r\n"
            writer.write(head.encode("latin-1"))
            answer = await reader.read()
            writer.close()
            assert answer.split(b" ", 2)[1] == b"400"
    assert "Traceback" not in caplog.text


async def test_the_status_is_read_back() -> None:
    """What is published can also be asked for."""
    async with listening() as (shell, endpoint), aiohttp.ClientSession(headers=HEADERS) as session:
        async with session.get(f"http://{endpoint.address}{STATUS_PATH}") as response:
            status = codec.loads(JobStatus, await response.read())

        assert status.events == shell.status().events


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


async def test_a_coordinator_of_a_far_version_is_not_understood() -> None:
    """Its answer ends the agent with the reason, and not after the time for which a coordinator may be out of reach."""

    async def answer(_: web.Request) -> web.Response:
        return web.json_response({"version": 99, "kind": "continue", "body": {}})

    app = web.Application()
    app.router.add_post(REPORT_PATH, answer)
    runner, port = await listen(app, "127.0.0.1", 0, whose="coordinator", token=TOKEN)
    try:
        async with exchanging() as exchange:
            with pytest.raises(ConfigError, match=r"invalid response from the coordinator at .*version: 99"):
                await exchange.exchange(Endpoint(attempt=1, term=1, host="127.0.0.1", port=port), report(), timeout=60)
    finally:
        await runner.cleanup()
