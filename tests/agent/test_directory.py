"""The directory of roles over HTTP, with the client that scripts use."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from rallypoint.agent.directory import DirectoryServer, RoleDirectory, TooManyError
from rallypoint.agent.tls import read_tls
from rallypoint.training.roles.context import Settings
from rallypoint.training.roles.directory import HttpDirectory, open_directory
from rallypoint.wire import codec
from rallypoint.wire.messages import TOKEN_HEADER
from rallypoint.wire.proof import PROOF_HEADER
from rallypoint.wire.roles import RoleEntry, directory_token
from tests.certificates import left

SECRET = "5" * 64
ENTRY = RoleEntry(
    role="rollout", rank=1, size=2, host="10.0.0.7", port=4000, attempt=1, reset=0, round=0, incarnation=1, pid=7, id="a" * 32
)
OLDER = dataclasses.replace(ENTRY, incarnation=0, id="b" * 32)


def client(port: int, secret: str = SECRET, tls: Path | None = None) -> HttpDirectory:
    """Return the client of a job's process."""
    url = f"http://127.0.0.1:{port}"
    made = open_directory(Settings(url=url, host="127.0.0.1", job="rl", secret=secret.encode(), tls=tls, pickles=False))
    assert isinstance(made, HttpDirectory)
    return made


@pytest.fixture
async def server():
    """A directory and its port."""
    directory = RoleDirectory()
    served = DirectoryServer(directory, secret=SECRET)
    port = await served.start("127.0.0.1", 0)
    yield directory, port
    await served.close()


async def test_entries_are_announced_and_found(server):
    """The newest life wins; an older one that comes late is refused."""
    _, port = server
    one = client(port)

    assert await asyncio.to_thread(one.find, ENTRY.name) is None
    assert await asyncio.to_thread(one.announce, OLDER)
    assert await asyncio.to_thread(one.announce, ENTRY)
    assert not await asyncio.to_thread(one.announce, OLDER)
    assert await asyncio.to_thread(one.find, ENTRY.name) == ENTRY
    assert await asyncio.to_thread(one.entries) == {ENTRY.name: ENTRY}


async def test_a_process_without_the_secret_is_refused(server):
    """It neither reads nor writes; the secret itself is not the token."""
    directory, port = server
    headers = {TOKEN_HEADER: SECRET}

    with pytest.raises(OSError, match="has not proven that it is the role directory of this job"):
        await asyncio.to_thread(client(port, "6" * 64).announce, ENTRY)
    async with aiohttp.ClientSession(headers=headers) as session:
        url = f"http://127.0.0.1:{port}/v1/entries"
        async with session.put(f"{url}/{ENTRY.name}", data=codec.dumps(ENTRY)) as written, session.get(url) as read:
            assert (written.status, read.status) == (401, 401)
    assert directory.entries == {}


@dataclass
class Impostor:
    """A program of another user at the address of a directory, with the tokens that it was sent."""

    forwards_to: int = 0
    requests: int = 0
    tokens: list[str] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.Response:
        """Forward health checks to the directory, if there is one, and return no entries."""
        self.requests += 1
        self.tokens += request.headers.getall(TOKEN_HEADER, [])
        if not self.forwards_to:
            return web.json_response({"service": "rallypoint-directory", "port": request.url.port, "entries": []})
        url = f"http://127.0.0.1:{self.forwards_to}{request.path}"
        async with aiohttp.ClientSession() as session, session.get(url, headers=request.headers) as answer:
            proof = answer.headers.get(PROOF_HEADER, "")
            return web.Response(body=await answer.read(), headers={PROOF_HEADER: proof})


@contextlib.asynccontextmanager
async def listening(impostor: Impostor, port: int = 0) -> AsyncIterator[HttpDirectory]:
    """Return the client of an impostor."""
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", impostor.answer)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, reuse_address=True).start()
    try:
        yield client(runner.addresses[0][1])
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("forwards", [False, True], ids=["answers", "forwards"])
async def test_an_impostor_at_the_address_of_the_directory_gets_no_token(server, forwards):
    """Fails if an instance sends its token without a proof, or accepts the proof of a directory at another port."""
    _, port = server
    impostor = Impostor(forwards_to=port if forwards else 0)
    async with listening(impostor) as taken:
        for act in (taken.entries, lambda: taken.find(ENTRY.name), lambda: taken.announce(ENTRY)):
            with pytest.raises(OSError, match="has not proven that it is the role directory of this job"):
                await asyncio.to_thread(act)

    assert (impostor.requests, impostor.tokens) == (3, [])


async def test_an_impostor_that_takes_the_place_of_the_directory_gets_no_token():
    """Fails if an instance that has reached the directory once asks for no further proof."""
    served = DirectoryServer(RoleDirectory(), secret=SECRET)
    port = await served.start("127.0.0.1", 0)
    known = client(port)
    assert await asyncio.to_thread(known.announce, ENTRY)
    await served.close()
    impostor = Impostor()
    async with listening(impostor, port):
        with pytest.raises(OSError, match="has not proven"):
            await asyncio.to_thread(known.announce, ENTRY)

    assert impostor.tokens == []


@pytest.mark.parametrize(
    ("name", "body", "status"),
    [
        (ENTRY.name, b"{", 400),
        (ENTRY.name, b"", 400),
        (ENTRY.name, b"x" * 100_000, 413),
        ("rollout.0", codec.dumps(ENTRY).encode(), 400),
        (ENTRY.name, codec.dumps(dataclasses.replace(ENTRY, role="../x")).encode(), 400),
    ],
    ids=["cut", "empty", "huge", "another name", "no role"],
)
async def test_invalid_entries_are_refused(server, name, body, status):
    """With the secret, too."""
    directory, port = server
    headers = {TOKEN_HEADER: directory_token(SECRET.encode())}

    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.put(f"http://127.0.0.1:{port}/v1/entries/{name}", data=body) as answer,
    ):
        assert answer.status == status
    assert directory.entries == {}


@pytest.mark.may_block("certificates are read before the server starts")
async def test_a_job_with_tls_needs_certificates(tmp_path):
    """A client without TLS gets no answer; one with a certificate of the job does."""
    folder = left(tmp_path / "tls", "rl")
    served = DirectoryServer(RoleDirectory(), secret=SECRET, tls=read_tls(folder, "rl"))
    port = await served.start("127.0.0.1", 0)
    try:
        assert await asyncio.to_thread(client(port, tls=folder).announce, ENTRY)
        with pytest.raises(OSError, match="do all processes have the same secret and TLS setting"):
            await asyncio.to_thread(client(port).announce, ENTRY)
    finally:
        await served.close()


def test_the_number_of_entries_is_limited():
    """A known instance may still announce its next life."""
    directory = RoleDirectory(most=1)

    assert directory.announce(OLDER)
    assert directory.announce(ENTRY)
    with pytest.raises(TooManyError):
        directory.announce(dataclasses.replace(ENTRY, rank=0))
