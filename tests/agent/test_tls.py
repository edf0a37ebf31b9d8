"""Mutual TLS between agents, coordinator and replicas: who is let in, who is not, and what each of them is told."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import socket
import ssl
import tempfile
import time
import tracemalloc
from asyncio.sslproto import SSLProtocol
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from rallypoint.agent.clock import monotone_clock
from rallypoint.agent.coordinator.announcing import Announcer
from rallypoint.agent.coordinator.shell import Coordinator
from rallypoint.agent.descriptors import Shares
from rallypoint.agent.errors import UnreachableError
from rallypoint.agent.tls import Tls, read_tls
from rallypoint.agent.transport.announced import AnnouncedEndpoint, Listener
from rallypoint.agent.transport.choosing import GRPC, HTTP, Exchanges, Servers
from rallypoint.agent.transport.http_listen import listen
from rallypoint.agent.transport.tls_port import Secured
from rallypoint.backends.certificates import new_files, renewed
from rallypoint.capabilities.snapshots.replica_frames import ReplicaError
from rallypoint.capabilities.snapshots.replica_server import ReplicaServer, ReplicaShelf
from rallypoint.capabilities.snapshots.replicas import send
from rallypoint.wire.connections import Limits
from rallypoint.wire.endpoint import Endpoint
from rallypoint.wire.messages import TOKEN_HEADER, Assignment, Continue
from rallypoint.wire.paths import REPORT_PATH, STATUS_PATH
from rallypoint.wire.roster import AgentAddress, Roster
from rallypoint.wire.tls import AUTHORITY, CERTIFICATE, KEY, peer_name
from tests.agent.fakes import TOKEN, TWO, MemorySink, new_state, report
from tests.capabilities.snapshots.test_replicas import SECRET, SIZE, head_of, kept, leave
from tests.certificates import left, other_job, write
from tests.waiting import eventually_async

JOB = "digits"

pytestmark = pytest.mark.may_block("certificates are files, which the tests write and read")


@pytest.fixture(params=[GRPC, HTTP])
def service(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def ours(tmp_path: Path) -> Tls:
    return read_tls(left(tmp_path / "ours", JOB), JOB)


@contextlib.asynccontextmanager
async def listening(service: str, tls: Tls | None) -> AsyncIterator[Endpoint]:
    clock = monotone_clock()
    shell = Coordinator(new_state(TWO, now=clock()), sink=MemorySink(), clock=clock)
    server = Servers(shell, token=TOKEN, service_type=service, agents=2, tls=tls)
    port, grpc = await server.start("127.0.0.1", 0)
    serve = asyncio.create_task(shell.serve())
    try:
        yield Endpoint(attempt=1, term=1, host="127.0.0.1", port=port, grpc=grpc)
    finally:
        shell.stop()
        await serve
        await server.close()


@contextlib.asynccontextmanager
async def exchanging(service: str, tls: Tls | None) -> AsyncIterator[Exchanges]:
    exchange = Exchanges(TOKEN, service_type=service, tls=tls)
    try:
        yield exchange
    finally:
        await exchange.close()


async def test_agents_with_certificates_meet(service: str, ours: Tls) -> None:
    """Over both transports; the certificate names the job and not the address that they are reached at."""
    async with listening(service, ours) as at, exchanging(service, ours) as one, exchanging(service, ours) as other:
        assert isinstance(await one.exchange(at, report(0, hold=0.0), timeout=60), Continue)
        first = asyncio.create_task(one.exchange(at, report(0, sequence=1), timeout=60))
        second = await other.exchange(at, report(1), timeout=60)

        assert [type(await first), type(second)] == [Assignment, Assignment]


def strangers(tmp_path: Path) -> dict[str, Tls | None]:
    """Return who is refused, by what is wrong with them."""
    return {
        "no TLS": None,
        "another authority": read_tls(left(tmp_path / "foreign", JOB), JOB),
        "another job of the same authority": named(other_job(tmp_path / "other", tmp_path / "ours", "letters"), "letters"),
        "expired": expired(tmp_path),
    }


def expired(tmp_path: Path) -> Tls:
    """Return a certificate of the right authority that is over."""
    files = {name: (tmp_path / "ours" / name).read_text() for name in (AUTHORITY, CERTIFICATE, KEY, "ca.key")}

    now = time.time() - 7200
    return read_tls(write(tmp_path / "expired", renewed(files, JOB, now, lifetime=3600)), JOB)


def named(folder: Path, job: str) -> Tls:
    """Return certificates of another job whose holder looks for ours."""
    made = read_tls(folder, job)
    made.name = peer_name(JOB)
    return made


@pytest.mark.parametrize("who", ["no TLS", "another authority", "another job of the same authority", "expired"])
async def test_strangers_are_refused_at_once(service: str, ours: Tls, tmp_path: Path, who: str) -> None:
    """Within a second, whatever they come with."""
    stranger, began = strangers(tmp_path)[who], time.monotonic()
    async with listening(service, ours) as at, exchanging(service, stranger) as exchange:
        with pytest.raises(UnreachableError) as refused:
            await exchange.exchange(at, report(0), timeout=60)

    assert time.monotonic() - began < 30
    if service == HTTP:
        told = {
            "no TLS": "this port uses TLS",
            "another authority": "the certificate of the peer is not valid",
            "another job of the same authority": f"the client needs a TLS certificate with the DNS name {peer_name(JOB)}",
            "expired": "expired/tls.crt has expired",
        }
        assert told[who] in str(refused.value)


async def test_a_server_without_tls_is_refused(service: str, ours: Tls) -> None:
    """An agent that wants TLS speaks with nobody else, and says why."""
    async with listening(service, None) as at, exchanging(service, ours) as exchange:
        with pytest.raises(UnreachableError) as refused:
            await exchange.exchange(at, report(0), timeout=60)

    if service == HTTP:
        assert "the peer does not use TLS" in str(refused.value)


async def test_refusals_are_lines_of_the_log(ours: Tls, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One for the first, and a count for those that follow at once; no key is in them."""
    caplog.set_level(logging.DEBUG)
    foreign = strangers(tmp_path)["expired"]
    async with listening(HTTP, ours) as at, exchanging(HTTP, foreign) as exchange:
        for _ in range(3):
            with pytest.raises(UnreachableError):
                await exchange.exchange(at, report(0), timeout=60)

    lines = [record.getMessage() for record in caplog.records if record.name == "rallypoint.tls"]
    refusals = [line for line in lines if line.startswith("rejected a TLS connection: ")]
    assert len(refusals) == 1
    assert "certificate has expired" in refusals[0]
    assert "PRIVATE KEY" not in caplog.text


async def test_a_server_name_of_a_stranger_is_no_line_of_the_log(ours: Tls, capfd: pytest.CaptureFixture[str]) -> None:
    """Fails if grpcio writes the name from the first message of a handshake to standard error."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    async with listening(GRPC, ours) as there:
        with contextlib.suppress(OSError):
            reader, _ = await asyncio.open_connection(there.host, there.grpc, ssl=context, server_hostname="stranger.example")
            await reader.read()

    assert "stranger.example" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        pytest.param(b"A\x80\xff" * 20_000, b"400", id="binary"),
        pytest.param(b"A" * 60_000, b"400", id="letters"),
        pytest.param(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" + b"A\x80\xff" * 20_000, b"200", id="after a request"),
        pytest.param(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + b"z" * 9000, b"401", id="no chunks"),
    ],
)
async def test_data_that_is_not_http_gets_a_short_answer(ours: Tls, sent: bytes, status: bytes) -> None:
    """Over TLS, too, for which a stranger needs no certificate at the coordinator's port."""
    context = ssl.create_default_context(cafile=str(ours.folder / AUTHORITY))
    async with listening(HTTP, ours) as at:
        reader, writer = await asyncio.open_connection(at.host, at.port, ssl=context, server_hostname=ours.name)
        writer.write(sent)
        answer = b""
        with contextlib.suppress(OSError):
            while data := await asyncio.wait_for(reader.read(1 << 16), 60):
                answer += data
        writer.close()

    assert (answer.split(b" ", 2)[1], answer.count(b"HTTP/1.1 "), len(answer) < 400) == (status, 1, True)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        pytest.param(STATUS_PATH, 200, id="a supervisor comes through an API server, with the token alone"),
        pytest.param(REPORT_PATH, 403, id="an agent has a certificate"),
    ],
)
async def test_only_supervisors_come_without_a_certificate(ours: Tls, path: str, status: int) -> None:
    """Over TLS all the same."""
    context = ssl.create_default_context(cafile=str(ours.folder / AUTHORITY))
    async with listening(HTTP, ours) as at, aiohttp.ClientSession(headers={TOKEN_HEADER: TOKEN}) as session:
        method = "GET" if path == STATUS_PATH else "POST"
        url = f"https://{at.address}{path}"
        async with session.request(method, url, ssl=context, server_hostname=ours.name) as response:
            assert response.status == status


async def test_a_coordinator_announces_itself_over_tls(ours: Tls) -> None:
    """To an agent's own port, which nobody else can speak with."""
    source = AnnouncedEndpoint(attempt=1, where="here")
    listener = Listener(source, token=TOKEN, tls=ours)
    port = await listener.start("127.0.0.1", 0)
    told = Endpoint(attempt=1, term=2, host="127.0.0.1", port=29600)
    announcer = Announcer(told, token=TOKEN, tls=ours)
    try:
        announcer.take(Roster(attempt=1, term=2, agents=(AgentAddress(node=0, incarnation=1, host="127.0.0.1", port=port),)))
        await eventually_async(lambda: source.endpoint == told)
        async with aiohttp.ClientSession() as session:
            context = ssl.create_default_context(cafile=str(ours.folder / AUTHORITY))
            with pytest.raises(aiohttp.ClientError):
                async with session.get(f"https://127.0.0.1:{port}/healthz", ssl=context, server_hostname=ours.name) as answer:
                    await answer.read()
    finally:
        await announcer.close()
        await listener.close()


@pytest.fixture
def replicas(ours: Tls, tmp_path: Path) -> Iterator[str]:
    folder = tmp_path / "neighbour"
    folder.mkdir()
    server = ReplicaServer(ReplicaShelf(folder, limit=4 * SIZE, attempt=1), secret=SECRET, tls=ours)
    yield f"127.0.0.1:{server.start('127.0.0.1')}"
    server.close()


def test_snapshots_travel_over_tls(ours: Tls, replicas: str, tmp_path: Path) -> None:
    """And arrive as they were."""
    one = leave(tmp_path / "here", 2)
    send(one, head_of(one), replicas, SECRET, ours)

    assert kept(tmp_path) == [2]


@pytest.mark.parametrize("who", ["no TLS", "another authority", "another job of the same authority", "expired"])
def test_snapshots_of_strangers_are_refused(ours: Tls, replicas: str, tmp_path: Path, who: str) -> None:
    """Before a byte of them is read, although they know the job's secret."""
    one = leave(tmp_path / "here", 2)
    with pytest.raises((ReplicaError, OSError)):
        send(one, head_of(one), replicas, SECRET, strangers(tmp_path)[who])

    assert kept(tmp_path) == []


async def test_a_renewed_certificate_is_used_for_new_connections(service: str, tmp_path: Path) -> None:
    """The old one expires; what is connected goes on, and who comes later is let in."""
    folder = left(tmp_path / "ours", JOB, seconds=3.0)
    ours = read_tls(folder, JOB)
    files = {name: (folder / name).read_text() for name in (AUTHORITY, CERTIFICATE, KEY, "ca.key")}
    async with listening(service, ours) as at, exchanging(service, ours) as early, exchanging(service, ours) as late:
        assert isinstance(await early.exchange(at, report(0, hold=0.0), timeout=60), Continue)
        await eventually_async(lambda: time.time() > ssl.cert_time_to_seconds(not_after(folder)) + 1, every=0.2)
        # Nobody has renewed it yet: only those who come now are refused.
        assert isinstance(await early.exchange(at, report(0, hold=0.0, sequence=1), timeout=60), Continue)
        with pytest.raises(UnreachableError):
            await late.exchange(at, report(1, hold=0.0), timeout=60)

        from rallypoint.backends.certificates import renewed

        write(folder, renewed(files, JOB, time.time()))
        assert ours.refresh()
        assert isinstance(await early.exchange(at, report(0, hold=0.0, sequence=2), timeout=60), Continue)
        assert isinstance(await late.exchange(at, report(1, hold=0.0, sequence=1), timeout=60), Continue | Assignment)


def not_after(folder: Path) -> str:
    """Return when the certificate in a folder ends."""
    found: str = ssl._ssl._test_decode_cert(str(folder / CERTIFICATE))["notAfter"]  # type: ignore[attr-defined]
    return found


def test_a_run_id_that_is_no_name_has_one_all_the_same() -> None:
    """Different ids have different names, of at most 63 characters before the first dot."""
    names = [peer_name(job) for job in ("train", "My Run/1", "my_run", "x" * 64, "")]

    assert names[0] == "train.rallypoint.internal"
    assert len(set(names)) == len(names)
    assert all(len(name.partition(".")[0]) <= 63 for name in names)


def hello(size: int) -> bytes:
    """Return the beginning of a first message that announces so many bytes."""
    body = b"\x01" + size.to_bytes(3, "big") + b"\x03\x03" + bytes(1000)
    return b"\x16\x03\x01" + len(body).to_bytes(2, "big") + body


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(hello(100_000), id="large"),
        pytest.param(b"\x16\x03\x01\x00\x01\x01" + hello(100_000), id="in a record without its size"),
    ],
)
async def test_a_large_first_message_is_refused(ours: Tls, first: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """OpenSSL would allocate all of it, for as long as the client does not send the rest."""
    async with listening(HTTP, ours) as at:
        reader, writer = await asyncio.open_connection(at.host, at.port)
        for part in (first[:7], first[7:]):
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0.01)
        answer = b""
        with contextlib.suppress(OSError):
            answer = await asyncio.wait_for(reader.read(), 60)
        writer.close()

    assert answer in (b"", b"\x15\x03\x03\x00\x02\x02\x2f")
    assert "rejected a TLS connection: the first message of the client is too large" in caplog.text


async def test_an_unfinished_handshake_counts_its_memory(ours: Tls, caplog: pytest.LogCaptureFixture) -> None:
    """After the first message, OpenSSL accepts messages of 128 KiB; those of all strangers together are limited."""
    app, limits = web.Application(), Limits(most=9, strangers=9, per_peer=9, patience=60.0, held=300 << 10)
    runner, port = await listen(
        app, "127.0.0.1", 0, whose="test", token=TOKEN, limits=limits, secured=Secured(lambda: ours.open_server)
    )
    try:
        strangers = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        for number, (_, writer) in enumerate(strangers):
            for part in (hello(16_000), b"\x16\x03\x01\x00\x01\x00"):
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(0.05)
            if number:
                with contextlib.suppress(OSError):
                    await asyncio.wait_for(strangers[number - 1][0].read(), 60)
        assert [reader.at_eof() or reader.exception() is not None for reader, _ in strangers] == [True, True, False]
        assert "SSL handshake is taking longer" not in caplog.text
        for _, writer in strangers:
            writer.close()
    finally:
        await runner.cleanup()


class Counting(Secured):
    """Counts the connections whose first message has arrived, and those that have sent more."""

    begun = more = 0

    def protocol(self, http: Callable[[], asyncio.Protocol], unfinished: Callable[[], None]) -> asyncio.BaseProtocol:
        def counted() -> None:
            self.more += 1
            unfinished()

        self.begun += 1
        return super().protocol(http, counted)


@pytest.mark.parametrize(("clients", "closed"), [(400, 0), (1, 59)])
async def test_all_agents_of_a_job_may_connect_at_once(ours: Tls, clients: int, closed: int) -> None:
    """The memory of all unfinished handshakes is limited to 64 MiB, which is 341 of them, or to those of the job's agents."""
    secured = Counting(lambda: ours.open_server, clients=clients)
    shares = Shares(requests=2000, strangers=1000, grpc=0, forwarded=0)
    runner, port = await listen(web.Application(), "127.0.0.1", 0, whose="test", token=TOKEN, shares=shares, secured=secured)
    try:
        agents = [await asyncio.open_connection("127.0.0.1", port) for _ in range(400)]
        for _, writer in agents:
            writer.write(hello(16_000))
        await eventually_async(lambda: secured.begun == 400)
        for _, writer in agents:
            writer.write(b"\x16\x03\x01\x00\x01\x00")

        def ended() -> int:
            return sum(reader.at_eof() or reader.exception() is not None for reader, _ in agents)

        await eventually_async(lambda: secured.more + ended() >= 400)
        await eventually_async(lambda: ended() >= closed)
        assert ended() == closed
        for _, writer in agents:
            writer.close()
    finally:
        await runner.cleanup()


async def test_a_failed_handshake_leaves_no_garbage(ours: Tls) -> None:
    """Thousands of them in a second would fill the memory before the next garbage collection."""

    def left() -> int:
        return sum(issubclass(type(one), SSLProtocol) for one in gc.get_objects())

    async with listening(HTTP, ours) as at:
        gc.collect()
        gc.disable()
        try:
            before = left()
            for ends in (True, False) * 3:
                _, writer = await asyncio.open_connection(at.host, at.port)
                writer.write(hello(500 if ends else 5000))  # a wrong message, or the beginning of one
                await writer.drain()
                await asyncio.sleep(0.05)
                writer.close()
                await writer.wait_closed()
            await eventually_async(lambda: left() == before)
            assert left() == before
        finally:
            gc.enable()


async def test_a_connection_costs_little_memory(ours: Tls) -> None:
    """2,000 agents with a buffer of 256 KiB each, as asyncio has them, would be half a gigabyte."""
    count = 20
    async with listening(HTTP, ours) as at:
        tracemalloc.start()
        try:
            with contextlib.ExitStack() as stack:
                for _ in range(count):
                    stack.enter_context(await asyncio.to_thread(connected, at, ours))
                known = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, "*/asyncio/*")])
        finally:
            tracemalloc.stop()

    assert sum(one.size for one in known.statistics("filename")) < count * 64_000


def connected(at: Endpoint, tls: Tls) -> ssl.SSLSocket:
    """Return a connection over which a request was answered."""
    sock = tls.client.wrap_socket(socket.create_connection((at.host, at.port), timeout=60), server_hostname=tls.name)
    sock.sendall(f"GET {STATUS_PATH} HTTP/1.1\r\nHost: x\r\n{TOKEN_HEADER}: {TOKEN}\r\n\r\n".encode())
    assert sock.recv(1 << 16).startswith(b"HTTP/1.1 200")
    return sock


@pytest.mark.parametrize("more", [AUTHORITY, CERTIFICATE])
async def test_files_may_hold_several_certificates(service: str, ours: Tls, tmp_path: Path, more: str) -> None:
    """Authorities of which one is being replaced, or intermediate ones behind the job's certificate."""
    foreign = left(tmp_path / "foreign", JOB)
    path = ours.folder / more
    path.write_bytes(path.read_bytes() + (foreign / AUTHORITY).read_bytes())
    assert ours.refresh()
    async with listening(service, ours) as at, exchanging(service, ours) as agent:
        assert isinstance(await agent.exchange(at, report(0, hold=0.0), timeout=60), Continue)


async def test_no_file_can_be_written(ours: Tls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container may have neither a writable root nor a folder for temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "not there"))
    write(ours.folder, new_files(JOB, time.time()))
    assert ours.refresh()
    async with listening(HTTP, ours) as at, exchanging(HTTP, ours) as agent:
        assert isinstance(await agent.exchange(at, report(0, hold=0.0), timeout=60), Continue)
