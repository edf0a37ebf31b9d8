"""A port that strangers cannot fill: heads in parts, deadlines, floods, and a process without descriptors."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
from collections.abc import AsyncIterator, Iterator

import aiohttp
import pytest
from aiohttp import web

from rallypoint.agent.transport.guarded_port import HEAD_LIMIT
from rallypoint.agent.transport.http_listen import authenticated, listen
from rallypoint.wire.connections import Limits
from rallypoint.wire.messages import TOKEN_HEADER
from rallypoint.wire.paths import HEALTH_PATH
from tests.waiting import eventually_async

HERE, TOKEN = "127.0.0.1", "the job's secret"
PATIENCE = 0.3


@contextlib.asynccontextmanager
async def served(*, most: int = 12, strangers: int = 8, per_peer: int = 4, patience: float = PATIENCE) -> AsyncIterator[int]:
    app = web.Application(middlewares=[authenticated(TOKEN)])
    app.router.add_get(HEALTH_PATH, _answer)
    app.router.add_post("/echo", _echo)
    limits = Limits(most=most, strangers=strangers, per_peer=per_peer, patience=patience)
    runner, port = await listen(app, HERE, 0, whose="test", token=TOKEN, limits=limits)
    try:
        yield port
    finally:
        await runner.cleanup()


async def _answer(_: web.Request) -> web.Response:
    return web.Response(text="here")


async def _echo(request: web.Request) -> web.Response:
    return web.Response(body=await request.read())


async def idle(port: int, number: int) -> list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    return [await asyncio.open_connection(HERE, port) for _ in range(number)]


async def ended(readers: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]) -> int:
    """Return how many of the connections the other side has ended; close all."""
    count = 0
    for reader, writer in readers:
        with contextlib.suppress(OSError):
            count += reader.at_eof() or reader.exception() is not None
        writer.close()
    return count


@pytest.mark.parametrize("size", [1, 7, 40])
async def test_a_request_may_come_in_parts(size: int) -> None:
    """Its head is put together before anything is decided, and its body is not cut."""
    text = f"POST /echo HTTP/1.1\r\nHost: x\r\n{TOKEN_HEADER.upper()}:  {TOKEN} \r\nContent-Length: 5\r\n\r\nhello".encode()
    async with served(patience=30.0) as port:
        reader, writer = await asyncio.open_connection(HERE, port)
        for begin in range(0, len(text), size):
            writer.write(text[begin : begin + size])
            await writer.drain()
            await asyncio.sleep(0)
        head = await reader.readuntil(b"\r\n\r\n")

        assert (head.split(b" ", 2)[1], await reader.readexactly(5)) == (b"200", b"hello")
        writer.close()


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: x\r\n", id="half a head"),
        pytest.param(b"POST /echo HTTP/1.1\r\nContent-Length: 9\r\nExpect: 100-continue\r\n", id="no end of the head"),
    ],
)
async def test_a_stranger_has_a_deadline(first: bytes) -> None:
    """Also one that sends a byte from time to time."""
    async with served() as port:
        began = asyncio.get_running_loop().time()
        reader, writer = await asyncio.open_connection(HERE, port)
        writer.write(first)

        def drip() -> bool:
            with contextlib.suppress(OSError):
                writer.write(b"x" if first else b"")
            return reader.at_eof()

        reading = asyncio.ensure_future(_read(reader))
        await eventually_async(drip)
        assert asyncio.get_running_loop().time() - began >= PATIENCE - 0.05
        await reading
        writer.close()


async def _read(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except OSError:
        return b""


async def test_a_body_without_the_token_is_not_waited_for() -> None:
    """The answer comes with the head, and ends the connection."""
    async with served(patience=30.0) as port:
        reader, writer = await asyncio.open_connection(HERE, port)
        writer.write(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n" + b"x" * 1000)
        answer = await asyncio.wait_for(reader.read(), 60)

        assert (answer.split(b" ", 2)[1], b"connection: close" in answer.lower()) == (b"401", True)
        writer.close()


async def test_a_head_without_end_is_ended() -> None:
    """It is not kept beyond a limit."""
    async with served(patience=30.0) as port:
        reader, writer = await asyncio.open_connection(HERE, port)
        writer.write(b"G" * (HEAD_LIMIT + 1))

        assert (await asyncio.wait_for(_read(reader), 60)).split(b" ", 2)[1:2] in ([], [b"400"])
        writer.close()


async def test_the_health_answers_and_closes() -> None:
    """It needs no token, so its connection is a stranger's."""
    async with served() as port, aiohttp.ClientSession() as session:
        for _ in range(20):
            async with session.get(f"http://{HERE}:{port}{HEALTH_PATH}") as response:
                assert (await response.text(), response.headers["Connection"]) == ("here", "close")


async def test_agents_outlive_strangers() -> None:
    """Connections with the token stay open, idle ones too, and new ones come in, however many others are opened."""
    headers = {TOKEN_HEADER: TOKEN}
    async with (
        served(most=40, patience=30.0) as port,
        aiohttp.ClientSession(headers=headers, connector=aiohttp.TCPConnector(limit=20)) as session,
    ):
        url = f"http://{HERE}:{port}/echo"

        async def ask() -> int:
            async with session.post(url, data=b"hello") as response:
                return response.status

        async with session.post(url, data=b"first") as response:
            assert await response.text() == "first"
        strangers = await idle(port, 50)
        assert [await ask() for _ in range(30)] == [200] * 30
        await eventually_async(lambda: sum(reader.at_eof() or reader.exception() is not None for reader, _ in strangers) >= 46)
        assert await ended(strangers) == 46


@contextlib.contextmanager
def free_descriptors(number: int) -> Iterator[None]:
    """Leave this process room for so many descriptors more."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, before[1]))
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.dup(0))
        for _ in range(number):
            os.close(taken.pop())
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for fd in taken:
            os.close(fd)


async def test_without_descriptors_strangers_are_shed(caplog: pytest.LogCaptureFixture) -> None:
    """One line is logged, and an agent is served as soon as there is room."""
    async with served(most=500, strangers=400, per_peer=400, patience=60.0) as port:
        strangers = [socket.socket() for _ in range(60)]
        agent = socket.socket()
        agent.setblocking(False)
        with free_descriptors(30):
            for sock in strangers:
                sock.connect((HERE, port))
            await eventually_async(lambda: "had not authenticated" in caplog.text)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(agent, (HERE, port))
            await loop.sock_sendall(agent, f"GET {HEALTH_PATH} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            assert (await asyncio.wait_for(loop.sock_recv(agent, 100), 60)).startswith(b"HTTP/1.1 200")
        for sock in (*strangers, agent):
            sock.close()
    assert len(caplog.records) < 20
    assert "Too many open files" in caplog.text
