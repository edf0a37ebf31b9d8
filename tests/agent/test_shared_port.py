"""One port for the coordinator's HTTP and the store of the running round."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import tracemalloc
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import ClientSession, web

from rallypoint.agent.transport.first_request import Text
from rallypoint.agent.transport.http_listen import listen
from rallypoint.agent.transport.shared_port import SharedPort
from tests.waiting import eventually_async

#: How messages of `TCPStore` begin.
ASK = b"\x00"

HERE = "127.0.0.1"


class Store:
    """Answers each message with its own name before it, as a store that remembers who was asked."""

    def __init__(self, name: bytes) -> None:
        self.name, self.address, self.closed, self.silent = name, "", 0, False
        self.server: asyncio.Server | None = None
        self.writers: list[asyncio.StreamWriter] = []

    async def start(self) -> Store:
        self.server = await asyncio.start_server(self._serve, HERE, 0)
        self.address = f"{HERE}:{self.server.sockets[0].getsockname()[1]}"
        return self

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        while said := await reader.read(1 << 16):
            if self.silent:
                continue
            writer.write(self.name + said)
            await writer.drain()
        self.closed += 1
        writer.close()

    def stop(self) -> None:
        """Stop listening, and end every connection."""
        assert self.server is not None
        self.server.close()
        for writer in self.writers:
            writer.close()


class Round:
    """The round that is current; it has no store before the first."""

    store = ""


@contextlib.asynccontextmanager
async def shared(current: Round, **more: Any) -> AsyncIterator[int]:
    port = SharedPort(lambda: current.store, **more)
    yield await port.start(HERE, 0)
    await port.close()


async def asked(port: int, text: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(HERE, port)
    writer.write(ASK + text)
    return reader, writer


async def ended(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


async def answer(reader: asyncio.StreamReader, size: int) -> bytes:
    return await asyncio.wait_for(reader.readexactly(size), 60)


async def test_a_connection_waits_for_the_first_round() -> None:
    """A script may connect before any store is there; what it sent is not lost."""
    current, store = Round(), await Store(b"1").start()
    async with shared(current) as port:
        reader, writer = await asked(port, b"early")
        current.store = store.address

        assert await answer(reader, 7) == b"1" + ASK + b"early"
        await ended(writer)
    store.stop()


@pytest.mark.parametrize("early", [pytest.param(True, id="before the first round"), pytest.param(False, id="with a store")])
async def test_a_connection_that_gets_no_answer_has_a_deadline(early: bool) -> None:
    """The store answers a client of torch at once; and one that it has answered may be idle."""
    current, store = Round(), await Store(b"1").start()
    current.store = "" if early else store.address
    async with shared(current, patience=0.5) as port:
        answered, answered_writer = await asked(port, b"a")
        if not early:
            assert await answer(answered, 3) == b"1" + ASK + b"a"
        silent, silent_writer = await asyncio.open_connection(HERE, port)
        if early:
            silent_writer.write(ASK)
        else:
            store.silent = True
            silent_writer.write(ASK + b"b")

        assert await asyncio.wait_for(silent.read(), 60) == b""
        store.silent = False
        if not early:
            answered_writer.write(ASK)
            assert await answer(answered, 2) == b"1" + ASK
        for one in (answered_writer, silent_writer):
            await ended(one)
    store.stop()


async def test_data_that_waits_for_the_store_is_limited() -> None:
    """In bytes, for each connection and for all of them; what is not read yet stays with its sender and is not lost."""
    current, store = Round(), await Store(b"").start()
    async with shared(current, most=100) as port:
        reader, writer = await asked(port, b"")
        await asyncio.sleep(0)
        socks = [socket.create_connection((HERE, port)) for _ in range(40)]
        tracemalloc.start()
        try:
            for _ in range(50):
                for sock in socks:
                    sock.setblocking(False)
                    with contextlib.suppress(OSError):
                        sock.send(ASK * 200_000)
                await asyncio.sleep(0)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
            for sock in socks:
                sock.close()
        sending = asyncio.create_task(_send(writer, b"x" * (1 << 20)))
        await asyncio.sleep(0.05)
        current.store = store.address

        assert await answer(reader, 1 + (1 << 20)) == ASK + b"x" * (1 << 20)
        await sending
        await ended(writer)
    store.stop()
    assert peak < 2 << 20


async def test_the_oldest_of_many_that_wait_are_ended() -> None:
    """Where they hold more than all of them may: those that came first."""
    async with shared(Round(), most=100, waiting=50_000) as port:
        waiting = [await asked(port, b"x" * 5000) for _ in range(20)]
        await eventually_async(lambda: sum(reader.at_eof() or reader.exception() is not None for reader, _ in waiting) >= 11)

        assert [reader.at_eof() or reader.exception() is not None for reader, _ in waiting] == [True] * 11 + [False] * 9
        for _, writer in waiting:
            await ended(writer)


async def test_each_round_has_its_own_store() -> None:
    """A new connection reaches the new one; a store that is gone is waited past."""
    current, first, second = Round(), await Store(b"1").start(), await Store(b"2").start()
    current.store = first.address
    async with shared(current) as port:
        reader, writer = await asked(port, b"a")
        assert await answer(reader, 3) == b"1" + ASK + b"a"
        first.stop()
        late, late_writer = await asked(port, b"b")
        current.store = second.address

        assert await answer(late, 3) == b"2" + ASK + b"b"
        for one in (writer, late_writer):
            await ended(one)
    second.stop()


async def test_much_goes_through_in_both_directions() -> None:
    """More than any buffer holds, to a reader that takes its time."""
    current, store = Round(), await Store(b"").start()
    current.store = store.address
    async with shared(current) as port:
        reader, writer = await asked(port, b"")
        assert await answer(reader, 1) == ASK
        sending = asyncio.create_task(_send(writer, b"x" * (8 << 20)))

        assert await answer(reader, 8 << 20) == b"x" * (8 << 20)
        await sending
        await ended(writer)
    store.stop()


async def _send(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    await writer.drain()


@pytest.mark.parametrize("whose", [pytest.param("client", id="the client's"), pytest.param("store", id="the store's")])
async def test_one_end_is_the_end_of_both(whose: str) -> None:
    """A worker that is killed leaves the store, and a store that ends is seen by the worker."""
    current, store = Round(), await Store(b"1").start()
    current.store = store.address
    async with shared(current) as port:
        reader, writer = await asked(port, b"a")
        await answer(reader, 3)
        if whose == "client":
            await ended(writer)
            await eventually_async(lambda: store.closed, why="the store sees the end")
            store.stop()
        else:
            current.store = ""
            store.stop()
            assert await asyncio.wait_for(reader.read(), 60) == b""
            await ended(writer)


async def test_http_is_served_beside_it() -> None:
    """The first byte tells them apart, and closing ends both."""
    current, store = Round(), await Store(b"1").start()
    current.store = store.address
    pages = {"/healthz": _well}
    runner, port = await listen(web.Application(), HERE, 0, whose="test", token="t", store=lambda: current.store, pages=pages)
    async with ClientSession() as session, session.get(f"http://{HERE}:{port}/healthz") as response:
        assert await response.text() == "well"
    reader, writer = await asked(port, b"a")
    assert await answer(reader, 3) == b"1" + ASK + b"a"

    await runner.cleanup()

    assert await asyncio.wait_for(reader.read(), 60) == b""
    with pytest.raises(OSError, match=r"."):
        await asyncio.open_connection(HERE, port)
    await ended(writer)
    store.stop()


async def _well() -> Text:
    return Text(body=b"well", kind="text/plain")


async def test_a_port_that_is_taken_is_an_error() -> None:
    """Also without HTTP, where an address of elsewhere stands for all of this machine."""
    store = await Store(b"1").start()
    port = int(store.address.rpartition(":")[2])

    with pytest.raises(OSError, match="in use"):
        await SharedPort(str).start(HERE, port)
    elsewhere = SharedPort(str)
    assert await elsewhere.start("192.0.2.1", 0)
    await elsewhere.close()
    store.stop()
