"""Another program at the address of a ledger gets neither the key of the ledger nor a job."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import pytest
from aiohttp import web

from rallypoint.backends.contract import BackendError
from rallypoint.backends.ray.access import LEDGER, Access
from rallypoint.backends.ray.backend import RayBackend
from rallypoint.backends.ray.dashboard import Cluster
from rallypoint.backends.ray.ledger_client import LedgerClient, LedgerLostError
from rallypoint.backends.ray.line import health_page
from rallypoint.backends.requests import delete, submit_or_adopt
from rallypoint.job import load_job
from rallypoint.wire.paths import HEALTH_PATH
from rallypoint.wire.proof import NONCE_HEADER, PROOF_HEADER, new_nonce, proof_of
from tests.ray.proving import prove
from tests.ray.sites import RaySite, states
from tests.ray.test_ledger_lines import KEY, line
from tests.waiting import eventually_async

Answer = Callable[[web.Request], web.Response]

JOB = {"name": "digits", "entrypoint": "train.py", "env": {"DB_PASSWORD": "hunter2-secret"}}


@dataclass
class Program:
    """A server that answers health checks with `answer`, and calls as a ledger without jobs."""

    answer: Answer
    asked: list[str] = field(default_factory=list)
    received: list[str] = field(default_factory=list)

    async def handle(self, request: web.Request) -> web.Response:
        self.asked.append(f"{request.method} {request.path}")
        self.received += [*request.headers.getall("Authorization", []), (await request.read()).decode()]
        return self.answer(request) if request.path == HEALTH_PATH else web.json_response({"value": None})


@contextlib.asynccontextmanager
async def serving(handle: Any, port: int = 0, *, host: str = "127.0.0.1") -> AsyncIterator[str]:
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, host, port, reuse_address=True).start()
    try:
        yield f"http://{host}:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def ledger(request: web.Request) -> web.Response:
    return prove(request, KEY)


def page(proof: Callable[[web.Request], str]) -> Answer:
    """Return an answer that has the health page of the ledger, and a proof."""

    def answer(request: web.Request) -> web.Response:
        return web.Response(body=health_page(f"http://{request.host}"), headers={PROOF_HEADER: proof(request)})

    return answer


def replayed() -> Answer:
    """Return an answer with the proof that the ledger has sent to another client."""
    known: dict[str, str] = {}

    def proof(request: web.Request) -> str:
        url = f"http://{request.host}"
        return known.setdefault(url, proof_of(KEY, new_nonce().encode(), health_page(url)))

    return page(proof)


def forwarded(request: web.Request) -> str:
    """Return the proof of the ledger at another address for the nonce of a request."""
    return proof_of(KEY, request.headers.get(NONCE_HEADER, "").encode(), health_page("http://127.0.0.1:1"))


IMPOSTORS: dict[str, Answer] = {
    "a ledger of an earlier version": lambda _: web.Response(status=404),
    "refusing": lambda _: web.json_response({"error": {}}, status=401),
    "without proof": page(lambda _: ""),
    "wrong proof": page(lambda _: "f" * 64),
    "no ASCII": page(lambda _: "\u00e9" * 64),
    "replayed proof": replayed(),
    "forwarded proof": page(forwarded),
    "redirecting": lambda _: web.Response(status=307, headers={"Location": "/v1/names"}),
    "long page": lambda _: web.Response(body=b"x" * 100_000),
    "compressed": lambda _: web.Response(body=b"x", headers={"Content-Encoding": "gzip"}),
}


def dashboard(urls: Callable[[], Iterator[str]]) -> Any:
    """Return the handler of a dashboard whose Ray jobs announce ledgers at these URLs, and that starts no other ledger."""

    async def handle(request: web.Request) -> web.Response:
        if request.path == "/api/jobs/" and request.method == "GET":
            mark = {"metadata": {"rallypoint": "rallypoint"}, "status": "SUCCEEDED"}
            return web.json_response([{"submission_id": f"job{i}", "start_time": 9 - i} | mark for i, _ in enumerate(urls())])
        if request.path.endswith("/logs"):
            announced = {f"job{i}": line(url) for i, url in enumerate(urls())}
            return web.json_response({"logs": announced.get(request.path.split("/")[3], "")})
        return web.json_response({"status": "FAILED", "message": "no ledger"})

    return handle


@pytest.mark.parametrize("answer", IMPOSTORS.values(), ids=IMPOSTORS)
async def test_an_impostor_at_the_last_address_gets_no_job(answer: Answer) -> None:
    """Fails if a command sends the key or the job to a program that has not proven that it has the key."""
    impostor = Program(answer)
    async with serving(impostor.handle) as url, serving(dashboard(lambda: iter([url]))) as address:
        backend = RayBackend(Access(address=address))
        try:
            with pytest.raises(BackendError, match=r"could not start the ledger \(FAILED\): no ledger"):
                await backend.submit(backend.plan(load_job(JOB, based=False)), owner="test")
        finally:
            await backend.close()

    assert set(impostor.asked) == {f"GET {HEALTH_PATH}"}
    assert "".join(impostor.received) == ""


async def test_an_impostor_that_takes_the_place_of_the_ledger_gets_no_call() -> None:
    """Fails if a process that knows the ledger sends a call on a new connection without a proof; it finds the next ledger."""
    first, impostor, second = Program(ledger), Program(page(lambda _: "f" * 64)), Program(ledger)
    urls: list[str] = []
    async with serving(dashboard(lambda: iter(urls))) as address:
        backend = RayBackend(Access(address=address))
        try:
            async with serving(first.handle) as url:
                urls.append(url)
                assert await backend.load("job") is None
            async with serving(impostor.handle, int(url.rpartition(":")[2])), serving(second.handle) as other:
                urls.append(other)
                assert await asyncio.gather(*(backend.load("job") for _ in range(20))) == [None] * 20
        finally:
            await backend.close()

    assert set(impostor.asked) == {f"GET {HEALTH_PATH}"}
    assert "".join(impostor.received) == ""
    assert second.asked.count("POST /v1/load") == 20


async def test_a_connection_is_proven_once() -> None:
    """Fails if each call needs a proof, or if calls at the same time share an unproven connection."""
    program = Program(ledger)
    async with serving(program.handle) as url:
        client = LedgerClient(url, KEY)
        for _ in range(3):
            assert await client.post("names", b"{}", timeout=20) == b'{"value": null}'
        await asyncio.gather(*(client.post("names", b"{}", timeout=20) for _ in range(5)))
        await client.close()

    assert program.asked.count(f"GET {HEALTH_PATH}") <= 5
    assert program.asked[:4] == [f"GET {HEALTH_PATH}", *["POST /v1/names"] * 3]
    assert program.asked.count("POST /v1/names") == 8


async def test_a_ledger_that_closes_each_connection_gets_no_call() -> None:
    """Fails if a call follows the proof on another connection, whose other end may be another program."""

    def closing(request: web.Request) -> web.Response:
        answer = prove(request, KEY)
        answer.force_close()
        return answer

    program = Program(closing)
    async with serving(program.handle) as url:
        client = LedgerClient(url, KEY)
        with pytest.raises(LedgerLostError, match="closed a new connection"):
            await client.post("names", b"{}", timeout=20)
        await client.close()

    assert program.asked == [f"GET {HEALTH_PATH}"]


async def test_a_call_that_was_cancelled_leaves_no_connection() -> None:
    """Fails if a later call gets the response of a call that was cancelled, or waits for it."""
    waiting, may_end = asyncio.Event(), asyncio.Event()

    async def handle(request: web.Request) -> web.Response:
        if request.path == "/v1/changes":
            waiting.set()
            await may_end.wait()
        return ledger(request) if request.path == HEALTH_PATH else web.json_response({"value": request.path})

    async with serving(handle) as url:
        client = LedgerClient(url, KEY)
        call = asyncio.create_task(client.post("changes", b"{}", timeout=20))
        await waiting.wait()
        call.cancel()
        await asyncio.wait([call])
        assert await client.post("names", b"{}", timeout=20) == b'{"value": "/v1/names"}'
        with pytest.raises(LedgerLostError, match=r"cannot reach the ledger at .*: TimeoutError"):
            await client.post("changes", b"{}", timeout=0.05)
        may_end.set()
        await client.close()


@pytest.mark.extended
@pytest.mark.may_block("the hands of a test read /proc")
async def test_an_impostor_at_the_address_of_a_killed_ledger_gets_nothing(site: RaySite) -> None:
    """Fails if a client of a real cluster sends the key to the next program at the port, or does not find the next ledger."""
    impostor = Program(lambda _: web.json_response({}, status=401))
    dashboard = Cluster(Access(address=site.cluster.url, namespace=site.namespace))
    backend = site.open()
    try:
        await submit_or_adopt(backend, backend.plan(site.job(name="job")), owner="test")
        await dashboard.call("names")
        assert dashboard._ledger is not None
        url = dashboard._ledger.url
        os.kill((await asyncio.to_thread(states, site.namespace))[LEDGER], signal.SIGKILL)
        await eventually_async(lambda: not answers(url), timeout=60.0)
        port = int(url.rpartition(":")[2])
        async with serving(impostor.handle, port, host=urlsplit(url).hostname or ""):
            names = await asyncio.gather(backend.names(), dashboard.call("names"))
        await delete(backend, "job", holder="test", timeout=60.0)
    finally:
        await backend.close()
        await dashboard.close()

    assert list(names) == [("job",), ["job"]]
    assert set(impostor.asked) == {f"GET {HEALTH_PATH}"}
    assert "".join(impostor.received) == ""


def answers(url: str) -> bool:
    """Return whether a program listens at the address of a URL."""
    parts = urlsplit(url)
    with contextlib.suppress(OSError), socket.create_connection((parts.hostname, parts.port or 0), timeout=5):
        return True
    return False
