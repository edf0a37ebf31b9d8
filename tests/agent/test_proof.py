"""A program that has the address of a coordinator or an agent, but not the secret of the job, gets no token."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest
from aiohttp import web

from rallypoint.agent.clock import monotone_clock
from rallypoint.agent.coordinator.announcing import Announcer
from rallypoint.agent.coordinator.shell import Coordinator
from rallypoint.agent.errors import UnreachableError
from rallypoint.agent.transport.announced import AGENT_SERVICE, AnnouncedEndpoint, Listener
from rallypoint.agent.transport.choosing import GRPC, HTTP, Exchanges, Servers
from rallypoint.agent.transport.http_client import speaks_rallypoint
from rallypoint.agent.transport.http_server import SERVICE_NAME
from rallypoint.wire.endpoint import Endpoint
from rallypoint.wire.messages import TOKEN_HEADER
from rallypoint.wire.proof import PROOF_HEADER, is_proven, new_nonce, proof_of
from rallypoint.wire.roster import AgentAddress, Roster
from tests.agent.fakes import TOKEN, TWO, MemorySink, new_state, report
from tests.waiting import eventually_async


@dataclass
class Impostor:
    """Answers health checks as a part of a job does; `tokens` are those that it was sent."""

    service: str
    proof: str = ""
    tokens: list[str] = field(default_factory=list)
    asked: int = 0

    async def answer(self, request: web.Request) -> web.Response:
        self.asked += 1
        self.tokens += request.headers.getall(TOKEN_HEADER, [])
        headers = {PROOF_HEADER: self.proof} if self.proof else {}
        return web.json_response({"service": self.service}, headers=headers)


@contextlib.asynccontextmanager
async def listening(impostor: Impostor) -> AsyncIterator[Endpoint]:
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", impostor.answer)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield Endpoint(attempt=1, term=1, host="127.0.0.1", port=runner.addresses[0][1])
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("service_type", [HTTP, GRPC])
@pytest.mark.parametrize("proof", ["", "f" * 64])
async def test_an_impostor_at_the_address_of_the_coordinator_gets_no_token(service_type: str, proof: str) -> None:
    """The agent tries again, as if no program listened there."""
    impostor = Impostor(SERVICE_NAME, proof)
    exchange = Exchanges(TOKEN, service_type=service_type, look=True)
    async with listening(impostor) as endpoint:
        for _ in range(2):
            with pytest.raises(UnreachableError, match="no coordinator with the secret of this job responds at 127"):
                await exchange.exchange(endpoint, report(0), timeout=5)
        await exchange.close()

    assert (impostor.asked, impostor.tokens) == (2, [])


@pytest.mark.parametrize("service_type", [HTTP, GRPC])
async def test_an_impostor_that_takes_the_place_of_the_coordinator_gets_no_token(service_type: str) -> None:
    """An agent that has lost its connection asks for the proof again."""
    clock = monotone_clock()
    shell = Coordinator(new_state(TWO, now=clock()), sink=MemorySink(), clock=clock)
    server = Servers(shell, token=TOKEN, service_type=service_type, agents=2)
    port, _ = await server.start("127.0.0.1", 0)
    serve = asyncio.create_task(shell.serve())
    exchange = Exchanges(TOKEN, service_type=service_type, look=True)
    endpoint = Endpoint(attempt=1, term=1, host="127.0.0.1", port=port)
    await exchange.exchange(endpoint, report(0, hold=0.1), timeout=5)
    shell.stop()
    await serve
    await server.close()
    with pytest.raises(UnreachableError):
        await exchange.exchange(endpoint, report(0, hold=0.1), timeout=5)

    impostor = Impostor(SERVICE_NAME)
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", impostor.answer)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, reuse_address=True).start()
    with pytest.raises(UnreachableError):
        await exchange.exchange(endpoint, report(0, hold=0.1), timeout=5)
    await runner.cleanup()
    await exchange.close()

    assert (impostor.asked, impostor.tokens) == (1, [])


async def test_a_coordinator_sends_no_token_to_an_impostor_at_the_address_of_an_agent(caplog: pytest.LogCaptureFixture) -> None:
    """The agent never started, its pod has ended, and another pod has the address."""
    caplog.set_level(logging.DEBUG)
    impostor = Impostor(AGENT_SERVICE)
    async with listening(impostor) as endpoint:
        announcer = Announcer(Endpoint(attempt=1, term=1, host="127.0.0.1", port=1), token=TOKEN)
        agent = AgentAddress(node=0, incarnation=1, host="127.0.0.1", port=endpoint.port)
        announcer.take(Roster(attempt=1, term=1, agents=(agent,)))
        await eventually_async(lambda: impostor.asked >= 2, timeout=20)
        await announcer.close()

    assert impostor.tokens == []
    assert "the server is no agent with the secret of this job" in caplog.text


async def test_a_coordinator_announces_itself_to_an_agent_with_the_secret() -> None:
    """And to no agent with another one."""
    source = AnnouncedEndpoint(attempt=1, where="here")
    listener = Listener(source, token=TOKEN)
    port = await listener.start("127.0.0.1", 0)
    ours = Endpoint(attempt=1, term=1, host="127.0.0.1", port=7)
    agent = AgentAddress(node=0, incarnation=1, host="127.0.0.1", port=port)
    for token, heard in (("another", False), (TOKEN, True)):
        announcer = Announcer(ours, token=token)
        announcer.take(Roster(attempt=1, term=1, agents=(agent,)))
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(source.news(), 20 if heard else 0.5)
        await announcer.close()
        assert (await source.read() == ours) is heard
    await listener.close()


async def test_a_coordinator_of_another_run_is_none_of_this_run() -> None:
    """Its port is taken, whatever it answers."""
    clock = monotone_clock()
    shell = Coordinator(new_state(TWO, now=clock()), sink=MemorySink(), clock=clock)
    server = Servers(shell, token=TOKEN, service_type=HTTP)
    port, _ = await server.start("127.0.0.1", 0)
    endpoint = Endpoint(attempt=1, term=1, host="127.0.0.1", port=port)

    found = [await speaks_rallypoint(endpoint, token=token) for token in (TOKEN, "another", "")]

    assert found == [True, False, True]
    await server.close()


def test_a_proof_is_one_of_a_nonce_and_a_page() -> None:
    """Each of the three changes it; what is no nonce has none."""
    nonce = new_nonce()
    proof = proof_of("secret", nonce.encode(), b"page")

    assert is_proven("secret", nonce, b"page", proof)
    assert not is_proven("other", nonce, b"page", proof)
    assert not is_proven("secret", new_nonce(), b"page", proof)
    assert not is_proven("secret", nonce, b"another page", proof)
    assert not is_proven("secret", nonce, b"page", "")
    assert not is_proven("secret", nonce, b"page", "\u00e9")
    assert not is_proven("secret", nonce, b"page", "\udcff")
    assert [proof_of("secret", text, b"page") for text in (b"", b"\xff" * 32, nonce.encode()[:-1], b"A" * 32)] == [""] * 4
