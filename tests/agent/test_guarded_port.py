"""A port that strangers cannot fill: heads in parts, deadlines, floods, and a process without descriptors."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import tracemalloc
from collections.abc import AsyncIterator, Iterator

import aiohttp
import pytest
from aiohttp import web
from aiohttp.typedefs import Handler

from rallypoint.agent.transport.first_request import Text
from rallypoint.agent.transport.http_listen import authenticated, listen
from rallypoint.agent.transport.request_head import HEAD_LIMIT
from rallypoint.wire.connections import Limits
from rallypoint.wire.messages import TOKEN_HEADER
from rallypoint.wire.paths import HEALTH_PATH
from tests.waiting import eventually_async

HERE, TOKEN = "127.0.0.1", "the job's secret"
PATIENCE = 0.3


@contextlib.asynccontextmanager
async def served(
    *,
    most: int = 12,
    strangers: int = 8,
    per_peer: int = 4,
    patience: float = PATIENCE,
    held: int = 1 << 26,
    seen: list[str] | None = None,
) -> AsyncIterator[int]:
    @web.middleware
    async def noted(request: web.Request, handler: Handler) -> web.StreamResponse:
        if seen is not None:
            seen.append(request.path)
        return await handler(request)

    app = web.Application(middlewares=[noted, authenticated(TOKEN)])
    app.router.add_post("/echo", _echo)
    limits = Limits(most=most, strangers=strangers, per_peer=per_peer, patience=patience, held=held)
    runner, port = await listen(
        app,
        HERE,
        0,
        whose="test",
        token=TOKEN,
        limits=limits,
        pages={HEALTH_PATH: _answer, "/now": _answer, "/later": _answer, "/broken": _broken},
        now={"/now": lambda: Text(body=b"now", kind="text/plain"), "/later": lambda: None},
    )
    try:
        yield port
    finally:
        await runner.cleanup()


async def _answer() -> Text:
    return Text(body=b"here", kind="text/plain")


async def _broken() -> Text:
    raise ValueError("broken")


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


BINARY, CHUNKED = b"A\x80\xff", b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"

GARBAGE = [
    pytest.param(b"", BINARY, b"400", id="binary"),
    pytest.param(b"", b"A", b"400", id="letters"),
    pytest.param(b"GET /", b"a%41", b"400", id="a long target"),
    pytest.param(b"GET / HTTP/1.1\r\n", b"A: b\r\n", b"400", id="headers"),
    pytest.param(b"GET / HTTP/1.1\r\nHost: x\r\nA: \x01\r\n\r\n", b"", b"400", id="a control character"),
    pytest.param(f"GET {HEALTH_PATH} HTTP/1.1\r\nHost: x\r\n\r\n".encode(), BINARY, b"200", id="after a request"),
    pytest.param(CHUNKED, BINARY, b"401", id="no chunks"),
    pytest.param(CHUNKED, b"1\r\na\r\n", b"401", id="many chunks"),
]


@pytest.mark.parametrize(("first", "then", "status"), GARBAGE)
async def test_data_that_is_not_http_is_not_repeated(first: bytes, then: bytes, status: bytes) -> None:
    """The answer is one, short, and holds nothing of it."""
    async with served(patience=30.0) as port:
        reader, writer = await asyncio.open_connection(HERE, port)
        writer.write(first + then * (60_000 // max(len(then), 1)))
        answer = await asyncio.wait_for(_read_until_reset(reader), 60)
        writer.close()

    assert (answer.split(b" ", 2)[1], answer.count(b"HTTP/1.1 ")) == (status, 1)
    assert len(answer) < 400
    assert not any(text in answer for text in (b"\\x80", b"AAAA", b"%41%41", b"A: b", b"x01"))


async def _read_until_reset(reader: asyncio.StreamReader) -> bytes:
    found = b""
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            found += data
    return found


@pytest.mark.parametrize(("first", "then", "status"), GARBAGE)
async def test_data_that_is_not_http_uses_little_memory(first: bytes, then: bytes, status: bytes) -> None:
    """Of all connections together, however much each of them sends at once."""
    del status
    text = first + then * (300_000 // max(len(then), 1))
    async with (
        served(most=100, strangers=100, per_peer=100, patience=30.0) as port,
        aiohttp.ClientSession(headers={TOKEN_HEADER: TOKEN}) as session,
    ):
        url = f"http://{HERE}:{port}/echo"
        async with session.post(url, data=b"what is imported and kept") as response:
            assert response.status == 200
        socks = [socket.create_connection((HERE, port)) for _ in range(30)]
        tracemalloc.start()
        try:
            for _ in range(50):
                _send_more(socks, text)
                await asyncio.sleep(0)
            async with session.post(url, data=b"hello") as response:
                assert await response.text() == "hello"
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
            for sock in socks:
                sock.close()
    assert peak < 4 << 20


def _send_more(socks: list[socket.socket], text: bytes) -> None:
    for sock in socks:
        sock.setblocking(False)
        with contextlib.suppress(OSError):
            sock.send(text)


async def test_incomplete_heads_of_all_connections_are_limited() -> None:
    """In bytes: those that began first are ended, and an agent comes in."""
    async with (
        served(most=100, strangers=100, per_peer=100, patience=30.0, held=40_000) as port,
        aiohttp.ClientSession(headers={TOKEN_HEADER: TOKEN}) as session,
    ):
        strangers = await idle(port, 20)
        for _, writer in strangers:
            writer.write(b"GET / HTTP/1.1\r\nA: " + b"x" * 4000)
        await eventually_async(lambda: sum(reader.at_eof() or reader.exception() is not None for reader, _ in strangers) >= 11)
        async with session.post(f"http://{HERE}:{port}/echo", data=b"x" * 100_000) as response:
            assert len(await response.read()) == 100_000
        assert await ended(strangers) == 11


async def test_a_request_without_the_token_is_the_last() -> None:
    """What is sent after it is not read as a request, also not with the token."""
    second = f"POST /echo HTTP/1.1\r\nHost: x\r\n{TOKEN_HEADER}: {TOKEN}\r\nContent-Length: 5\r\n\r\nhello".encode()
    async with served(patience=30.0) as port:
        reader, writer = await asyncio.open_connection(HERE, port)
        writer.write(f"GET {HEALTH_PATH} HTTP/1.1\r\nHost: x\r\n\r\n".encode() + second)
        answer = await asyncio.wait_for(_read_until_reset(reader), 60)
        writer.close()

    assert (answer.count(b"200 OK"), b"hello" in answer) == (1, False)


async def test_a_long_body_without_the_token_is_cut_off() -> None:
    """The connection ends before all of it is read."""
    async with served(patience=30.0) as port:
        reader, writer = await asyncio.open_connection(HERE, port)
        writer.write(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\n")
        sent = 0
        with contextlib.suppress(OSError):
            while sent < 1 << 28:
                writer.write(b"x" * 65536)
                await writer.drain()
                sent += 65536
        writer.close()
        assert (await _read_until_reset(reader)).split(b" ", 2)[1:2] in ([], [b"401"])
    assert sent < 1 << 26


async def test_the_health_answers_and_closes() -> None:
    """It needs no token, so its connection is a stranger's."""
    async with served() as port, aiohttp.ClientSession() as session:
        for _ in range(20):
            async with session.get(f"http://{HERE}:{port}{HEALTH_PATH}") as response:
                assert (await response.text(), response.headers["Connection"]) == ("here", "close")


@pytest.mark.parametrize(
    ("request_line", "status", "body"),
    [
        pytest.param(f"GET {HEALTH_PATH}?a=b", b"200", b"here", id="a page with a query"),
        pytest.param(f"HEAD {HEALTH_PATH}", b"200", b"", id="the head of a page"),
        pytest.param(f"POST {HEALTH_PATH}", b"405", b"405: Method Not Allowed", id="another method"),
        pytest.param("GET /now", b"200", b"now", id="a page that is known"),
        pytest.param("HEAD /now", b"200", b"", id="the head of a page that is known"),
        pytest.param("POST /now", b"405", b"405: Method Not Allowed", id="another method for a page that is known"),
        pytest.param("GET /later", b"200", b"here", id="a page that is not known yet"),
        pytest.param("GET /broken", b"500", b"500: Internal Server Error", id="a page that fails"),
        pytest.param("POST /echo", b"401", f"{TOKEN_HEADER}: does not match the secret of this job".encode(), id="no page"),
        pytest.param("GET /%68ealthz", b"401", f"{TOKEN_HEADER}: does not match the secret of this job".encode(), id="encoded"),
    ],
)
async def test_without_the_token_there_are_pages_alone(request_line: str, status: bytes, body: bytes) -> None:
    """The HTTP server does not see such a request, however large it is."""
    lines = b"".join(b"%d: %b\r\n" % (number, b"\xf0\x9f\x98\x80" * 30) for number in range(90))
    seen: list[str] = []
    async with served(patience=30.0, seen=seen) as port:
        reader, writer = await asyncio.open_connection(HERE, port)
        writer.write(f"{request_line} HTTP/1.1\r\nHost: x\r\n".encode() + lines + b"\r\n")
        answer = await asyncio.wait_for(_read_until_reset(reader), 60)
        writer.close()

    assert (answer.split(b" ", 2)[1], answer.partition(b"\r\n\r\n")[2]) == (status, body)
    assert seen == []


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


REQUESTS = [
    pytest.param(b"GET /x HTTP/1.1\r\nHost: x\r\n\r\n", id="a fixed response"),
    pytest.param(b"GET /x HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n", id="with a body that never comes"),
    pytest.param(f"GET {HEALTH_PATH} HTTP/1.1\r\nHost: x\r\n\r\n".encode(), id="a page"),
]


@pytest.mark.parametrize("request_text", REQUESTS)
async def test_answered_connections_take_no_place(request_text: bytes) -> None:
    """They stay open for a moment; a slow agent keeps its connection meanwhile, and each stranger gets its response."""
    head = f"POST /echo HTTP/1.1\r\nHost: x\r\n{TOKEN_HEADER}: {TOKEN}\r\nContent-Length: 5\r\n".encode()
    async with served(strangers=8, per_peer=4, patience=30.0) as port:
        ((reader, writer),) = await idle(port, 1)
        writer.write(head)
        await writer.drain()
        strangers, answers = [], []
        for _ in range(40):
            strangers += await idle(port, 1)
            strangers[-1][1].write(request_text)
            answers.append(await asyncio.wait_for(strangers[-1][0].readuntil(b"\r\n\r\n"), 60))
        writer.write(b"\r\nhello")

        assert (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)).startswith(b"HTTP/1.1 200")
        assert {answer[9:12] for answer in answers} <= {b"200", b"401"}
        for _, one in (*strangers, (reader, writer)):
            one.close()


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
            await eventually_async(lambda: "unauthenticated connections to free file descriptors" in caplog.text)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(agent, (HERE, port))
            await loop.sock_sendall(agent, f"GET {HEALTH_PATH} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            assert (await asyncio.wait_for(loop.sock_recv(agent, 100), 60)).startswith(b"HTTP/1.1 200")
        for sock in (*strangers, agent):
            sock.close()
    assert len(caplog.records) < 20
    assert "Too many open files" in caplog.text
