"""What holds of every transport between agents and coordinator, both sides of each, on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rallypoint.agent.clock import monotone_clock
from rallypoint.agent.coordinator.shell import Coordinator
from rallypoint.agent.errors import ConfigError, UnreachableError
from rallypoint.agent.rendezvous.core import Settings
from rallypoint.agent.transport import choosing
from rallypoint.agent.transport.choosing import GRPC, HTTP, Exchanges, Servers
from rallypoint.agent.transport.grpc_words import SESSION, TOKEN_KEY
from rallypoint.agent.transport.service import BODY_LIMIT
from rallypoint.wire.endpoint import Endpoint
from rallypoint.wire.messages import MESSAGES_VERSION, AgentReport, Assignment, Continue, Reply, Stop
from rallypoint.wire.status import JobStatus
from tests.agent.fakes import TOKEN, TWO, MemorySink, new_state, report
from tests.waiting import eventually_async


@pytest.fixture(params=[GRPC, HTTP])
def service(request) -> str:
    if request.param == GRPC:
        pytest.importorskip("grpc", reason="needs the extra `agent`")
    return request.param


@contextlib.asynccontextmanager
async def listening(service: str, settings: Settings = TWO, *, agents: int = 2) -> AsyncIterator[tuple[Coordinator, Endpoint]]:
    clock = monotone_clock()
    shell = Coordinator(new_state(settings, now=clock()), sink=MemorySink(), clock=clock)
    server = Servers(shell, token=TOKEN, service_type=service, agents=agents)
    port, grpc = await server.start("127.0.0.1", 0)
    serve = asyncio.create_task(shell.serve())
    try:
        yield shell, Endpoint(attempt=1, term=1, host="127.0.0.1", port=port, grpc=grpc)
    finally:
        shell.stop()
        await serve
        await server.close()


@contextlib.asynccontextmanager
async def exchanging(service: str, token: str = TOKEN, *, look: bool = False) -> AsyncIterator[Exchanges]:
    exchange = Exchanges(token, service_type=service, look=look)
    try:
        yield exchange
    finally:
        await exchange.close()


async def test_reports_and_answers_travel(service: str) -> None:
    """The answer to one agent waits for the other; a kept connection serves many reports."""
    async with listening(service) as (_, endpoint), exchanging(service) as one, exchanging(service) as other:
        assert isinstance(await one.exchange(endpoint, report(0, hold=0.0), timeout=60), Continue)
        first = asyncio.create_task(one.exchange(endpoint, report(0, sequence=1), timeout=60))
        second = await other.exchange(endpoint, report(1), timeout=60)

        assert [type(await first), type(second)] == [Assignment, Assignment]


async def test_a_newer_report_overtakes_one_that_waits(service: str) -> None:
    """Both are answered, and the agent is there all the time."""
    async with listening(service) as (shell, endpoint), exchanging(service) as exchange:
        older = asyncio.create_task(exchange.exchange(endpoint, report(0, hold=60.0, sequence=1), timeout=600))
        await eventually_async(lambda: shell.status().waiting)
        newer = await exchange.exchange(endpoint, report(0, hold=0.0, sequence=2), timeout=60)

        assert [type(await older), type(newer)] == [Continue, Continue]
        assert not [event for event in shell.status().events if "lost" in event.kind]


async def test_the_end_of_a_parked_client_is_noticed(service: str) -> None:
    """A killed agent closes its connection; a lease would take far longer to expire."""
    async with listening(service) as (shell, endpoint):
        async with exchanging(service) as exchange:
            parked = asyncio.create_task(exchange.exchange(endpoint, report(0), timeout=60))
            await eventually_async(lambda: shell.status().waiting)
            parked.cancel()
        assert await eventually_async(lambda: not shell.status().waiting, timeout=10.0)


async def test_the_end_of_a_client_between_two_reports_is_noticed(service: str) -> None:
    """It has its answer and has not asked again: nothing is parked, and still its end is seen at once."""
    async with listening(service) as (shell, endpoint):
        async with exchanging(service) as exchange:
            assert isinstance(await exchange.exchange(endpoint, report(0, hold=0.0), timeout=60), Continue)
            assert shell.status().waiting
        await eventually_async(lambda: not shell.status().waiting, timeout=10.0)


async def test_another_connection_takes_the_place_of_the_first(service: str) -> None:
    """An agent that was heard over a new connection is there, whatever becomes of the old one."""
    async with listening(service) as (shell, endpoint), exchanging(service) as new:
        async with exchanging(service) as old:
            await old.exchange(endpoint, report(0, hold=0.0), timeout=60)
            await new.exchange(endpoint, report(0, hold=0.0, sequence=1), timeout=60)
        # Whoever were gone would be lost by the time that an agent which hangs up later is.
        async with exchanging(service) as other:
            await other.exchange(endpoint, report(1, hold=0.0), timeout=60)
        assert await eventually_async(lambda: [member.node for member in shell.status().waiting] == [0], timeout=10.0)


async def test_what_is_said_again_goes_over_another_connection(service: str) -> None:
    """An answer that does not come may be the connection's fault, whose end would be that of the agent: it stays until then."""
    async with listening(service) as (shell, endpoint), exchanging(service) as exchange:
        late = asyncio.create_task(exchange.exchange(endpoint, report(0, hold=60.0, sequence=1), timeout=600))
        await eventually_async(lambda: shell.status().waiting)
        again = asyncio.create_task(exchange.exchange(endpoint, report(0, hold=60.0, sequence=1), timeout=600))
        # The first is answered because the same agent asks again.
        assert isinstance(await late, Continue)
        async with exchanging(service) as other:
            replies = await asyncio.gather(again, other.exchange(endpoint, report(1), timeout=600))

        assert {type(reply) for reply in replies} == {Assignment}
        assert not [event for event in shell.status().events if "lost" in event.kind]


async def test_the_last_word_arrives_before_the_connection_closes(service: str) -> None:
    """The verdict is told to everybody although the coordinator ends with it."""
    settings = Settings(min_nodes=2, max_nodes=2, join_timeout=0.1, node_lease=1000.0)
    async with listening(service, settings) as (_, endpoint), exchanging(service) as exchange:
        assert isinstance(await exchange.exchange(endpoint, report(0, hold=60.0), timeout=600), Stop)


async def test_a_coordinator_that_ends_is_unreachable_at_once(service: str) -> None:
    """Nobody waits for the time-out of an answer that cannot come."""
    async with exchanging(service) as exchange:
        async with listening(service) as (shell, endpoint):
            asked = asyncio.create_task(exchange.exchange(endpoint, report(0, hold=60.0), timeout=6000))
            await eventually_async(lambda: shell.status().waiting)
        assert isinstance(await asked, Continue)
        with pytest.raises(UnreachableError):
            await exchange.exchange(endpoint, report(0, hold=60.0, sequence=1), timeout=6000)


async def test_the_next_coordinator_is_heard_after_the_first(service: str) -> None:
    """At another address: the old connection is of no use, and no obstacle."""
    async with exchanging(service) as exchange:
        for sequence in range(2):
            async with listening(service) as (_, endpoint):
                assert isinstance(
                    await exchange.exchange(endpoint, report(0, hold=0.0, sequence=sequence), timeout=60), Continue
                )


@pytest.mark.parametrize(
    ("token", "there", "message"),
    [
        pytest.param("guess", True, "does not match the secret of this job", id="wrong token"),
        pytest.param(TOKEN, False, "onnect", id="nobody listens"),
    ],
)
async def test_what_does_not_answer_is_unreachable(service: str, token: str, there: bool, message: str) -> None:
    """One error for all that may be over at the next try, with what was seen in its text."""
    async with contextlib.AsyncExitStack() as stack:
        async with listening(service) as (_, endpoint):
            pass
        if there:
            _, endpoint = await stack.enter_async_context(listening(service))
        exchange = await stack.enter_async_context(exchanging(service, token))
        with pytest.raises(UnreachableError, match=message):
            await exchange.exchange(endpoint, report(), timeout=60)


async def test_an_answer_that_does_not_come_is_unreachable(service: str) -> None:
    """A host that swallows everything is given up after the time that was asked for, and its connection closed."""

    class Swallow(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            there.add(self)
            if service == GRPC:
                assert isinstance(transport, asyncio.Transport)
                transport.write(b"\0\0\0\4\0\0\0\0\0")  # the first frame of every server of HTTP/2, an empty SETTINGS

        def connection_lost(self, exc: Exception | None) -> None:
            there.discard(self)

    there: set[Swallow] = set()
    server = await asyncio.get_running_loop().create_server(Swallow, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    endpoint = Endpoint(attempt=1, term=1, host="127.0.0.1", port=port, grpc=port if service == GRPC else 0)
    async with exchanging(service) as exchange:
        with pytest.raises(UnreachableError, match="no answer within"):
            await exchange.exchange(endpoint, report(), timeout=0.1)
    await eventually_async(lambda: not there)
    server.close()


async def test_a_crowd_is_served_by_several_servers_behind_one_port() -> None:
    """Fails if a server behind the port does not serve its connections, or if the port stays open."""
    pytest.importorskip("grpc")
    many = dataclasses.replace(TWO, min_nodes=32, max_nodes=32)
    async with contextlib.AsyncExitStack() as stack:
        _, endpoint = await stack.enter_async_context(listening(GRPC, many, agents=1000))
        exchanges = [await stack.enter_async_context(exchanging(GRPC)) for _ in range(32)]
        asking = (
            exchange.exchange(endpoint, report(number, hold=60.0), timeout=60) for number, exchange in enumerate(exchanges)
        )
        assert {type(reply) for reply in await asyncio.gather(*asking)} == {Assignment}
        assert _listeners(endpoint.grpc) == 1
    assert _listeners(endpoint.grpc) == 0


def _listeners(port: int) -> int:
    """Return how many sockets of this machine listen on a port (`proc(5)`, /proc/net/tcp: 0A is LISTEN)."""
    tables = (Path(f"/proc/net/{name}") for name in ("tcp", "tcp6"))
    rows = (row.split() for table in tables if table.exists() for row in table.read_text().splitlines()[1:])
    return sum(row[1].endswith(f":{port:04X}") and row[3] == "0A" for row in rows)


async def test_a_message_that_is_too_large_is_not_read() -> None:
    """Its sender is told so; the coordinator goes on with everybody else. For HTTP see `test_http.py`."""
    pytest.importorskip("grpc")
    async with listening(GRPC) as (_, endpoint), exchanging(GRPC) as exchange, exchanging(GRPC) as other:
        with pytest.raises(UnreachableError, match="RESOURCE_EXHAUSTED"):
            await exchange.exchange(endpoint, report(result=["x" * 1000] * (BODY_LIMIT // 1000)), timeout=60)
        assert isinstance(await other.exchange(endpoint, report(1, hold=0.0), timeout=60), Continue)


async def test_a_port_in_use_is_named(service: str) -> None:
    """The error names the port and the host."""
    async with listening(service) as (shell, endpoint):
        other = Servers(shell, token=TOKEN, service_type=service)
        with pytest.raises(ConfigError, match=f"port {endpoint.port} on 127.0.0.1 for the coordinator"):
            await other.start("127.0.0.1", endpoint.port)


async def test_an_agent_of_a_far_version_is_told_so_at_once(service: str) -> None:
    """One clear error, and no try after it: it would only be refused again."""
    async with listening(service) as (_, endpoint), exchanging(service) as exchange:
        with pytest.raises(
            ConfigError,
            match=r"rejected the request: version: \d+ is not allowed; expected \d+ to \d+",
        ):
            await exchange.exchange(endpoint, report(version=MESSAGES_VERSION + 2), timeout=60)


async def test_an_agent_of_a_neighbouring_version_takes_part(service: str) -> None:
    """As any other."""
    async with listening(service) as (_, endpoint), exchanging(service) as exchange:
        reply = await exchange.exchange(endpoint, report(version=MESSAGES_VERSION + 1, hold=0.0), timeout=60)

    assert isinstance(reply, Continue)


class Deaf:
    """A coordinator that answers nothing, and knows whose end it was told of."""

    def __init__(self) -> None:
        self.gone: list[str] = []
        self.asked = asyncio.Event()

    async def report(self, report: AgentReport) -> Reply:
        self.asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    def hung_up(self, agent: str) -> None:
        self.gone.append(agent)

    def status(self) -> JobStatus:
        raise NotImplementedError


async def test_closing_does_not_wait_for_ever() -> None:
    """An answer that never comes gets a moment, then the connection goes and with it the agent. HTTP leaves that to aiohttp."""
    pytest.importorskip("grpc")
    from rallypoint.agent.transport.grpc_server import GrpcServer

    deaf = Deaf()
    server = GrpcServer(deaf, token=TOKEN, patience=0.05)
    endpoint = Endpoint(attempt=1, term=1, host="127.0.0.1", port=1, grpc=await server.start("127.0.0.1", 0))
    async with exchanging(GRPC) as exchange:
        asked = asyncio.create_task(exchange.exchange(endpoint, report(0), timeout=600))
        await deaf.asked.wait()
        await server.close()
        with pytest.raises(UnreachableError):
            await asked
    assert deaf.gone == ["agent-0"]


async def test_a_connection_with_another_token_is_rejected() -> None:
    """Its client receives the reason; the connection of an agent of the job stays open."""
    grpc = pytest.importorskip("grpc")
    async with listening(GRPC) as (_, endpoint), exchanging(GRPC) as ours:
        assert isinstance(await ours.exchange(endpoint, report(0, hold=0.0), timeout=60), Continue)
        async with grpc.aio.insecure_channel(f"{endpoint.host}:{endpoint.grpc}") as other:
            call = other.stream_stream(SESSION)(metadata=((TOKEN_KEY, "another"),))
            assert await call.code() is grpc.StatusCode.UNAUTHENTICATED
            assert await call.details() == "X-Rallypoint-Token: does not match the secret of this job"
        assert isinstance(await ours.exchange(endpoint, report(0, hold=0.0, sequence=2), timeout=60), Continue)


# --- Which of them ---------------------------------------------------------------------------------------------------------


async def test_the_kind_that_the_plan_names_is_the_one_that_is_served(service: str) -> None:
    """HTTP is always there, for people and supervisors; gRPC where it was not refused."""
    async with listening(service) as (_, endpoint):
        assert bool(endpoint.grpc) is (service == GRPC)
        assert endpoint.port


async def test_an_address_alone_is_enough() -> None:
    """Whoever was told nothing but host and port asks the coordinator what it speaks."""
    pytest.importorskip("grpc")
    async with listening(GRPC) as (_, endpoint), exchanging(GRPC, look=True) as exchange:
        bare = dataclasses.replace(endpoint, grpc=0)
        assert isinstance(await exchange.exchange(bare, report(0, hold=0.0), timeout=60), Continue)


async def test_who_asked_for_grpc_by_name_gets_nothing_else() -> None:
    """The two ends were given different plans: an error, and no other transport behind one's back."""
    pytest.importorskip("grpc")
    async with listening(HTTP) as (_, endpoint), exchanging(GRPC, look=True) as exchange:
        with pytest.raises(ConfigError, match=r"service_type grpc: the coordinator at .* does not support gRPC"):
            await exchange.exchange(endpoint, report(0, hold=0.0), timeout=60)


async def test_who_asked_for_nothing_by_name_takes_what_there_is(caplog) -> None:
    """HTTP, with one line that says why."""
    pytest.importorskip("grpc")
    async with listening(HTTP) as (_, endpoint), exchanging("") as exchange:
        for sequence in range(2):
            reply = await exchange.exchange(endpoint, report(0, hold=0.0, sequence=sequence), timeout=60)
            assert isinstance(reply, Continue)
    assert [record.getMessage() for record in caplog.records if record.name == "rallypoint.transport"] == [
        f"this agent uses HTTP instead of gRPC, because the coordinator at {endpoint.address} does not support gRPC"
    ]


def test_without_grpcio_only_who_asked_for_it_by_name_fails(monkeypatch, caplog) -> None:
    """An unset type goes on over HTTP and says so."""
    monkeypatch.setattr(choosing, "why_not", lambda: "cannot import grpcio: No module named 'grpc'")

    with pytest.raises(
        ConfigError, match=r"service_type grpc: cannot import grpcio: .*; install .*\[agent\] or set service_type to http"
    ):
        choosing.speaks_grpc(GRPC)
    assert choosing.speaks_grpc("") is False
    assert "gRPC is not available in this process (cannot import grpcio" in caplog.text
    assert choosing.speaks_grpc(HTTP) is False


def test_another_type_is_refused() -> None:
    """The error names the value and what is allowed."""
    with pytest.raises(ConfigError, match="service_type 'thrift': not allowed; expected grpc or http"):
        choosing.speaks_grpc("thrift")


@pytest.mark.parametrize("theirs", [2, 1000])
@pytest.mark.parametrize("ours", [2, 1000])
async def test_a_wanted_port_for_grpc_may_be_taken(ours: int, theirs: int) -> None:
    """Where gRPC listens is told and not agreed on: any free port will do. None is shared, not even by two crowds."""
    pytest.importorskip("grpc")
    async with listening(GRPC, agents=theirs) as (shell, taken):
        other = Servers(shell, token=TOKEN, service_type=GRPC, agents=ours)
        _, port = await other.start("127.0.0.1", 0, grpc=taken.grpc)
        await other.close()
    assert port not in (0, taken.grpc)
