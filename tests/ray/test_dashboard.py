"""Requests to the dashboard of a Ray cluster, against a small server in its place."""

from __future__ import annotations

import asyncio
import datetime as dt
import gzip
import ipaddress
import json
import ssl
import sys
import time
import types
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from rallypoint.backends import registry
from rallypoint.backends.contract import BackendError, JobNotFoundError
from rallypoint.backends.credentials import NO_CREDENTIALS, Credentials
from rallypoint.backends.ray.access import Access
from rallypoint.backends.ray.backend import RayBackend
from rallypoint.backends.ray.dashboard import Cluster
from rallypoint.backends.site import Site
from rallypoint.plugin.jobs import Looker
from rallypoint.plugin.live_access import LiveAccess, open_live
from rallypoint.plugin.task import TaskKey, TaskSeen
from rallypoint.provider.connections.connection import ConnectionFieldError, read_settings
from rallypoint.provider.connections.hook import RallypointHook
from rallypoint.provider.connections.locating import Located, locate
from rallypoint.provider.place import Place
from rallypoint.provider.sensing.watching import JobConditionTrigger
from rallypoint.wire.paths import HEALTH_PATH
from tests.live.test_trigger_blocks import LONGEST, Beats, no_collections
from tests.ray.proving import prove
from tests.ray.test_ledger_lines import KEY, line
from tests.waiting import eventually_async

Serve = Callable[..., Awaitable[str]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Give a function that serves handlers by method and path, with TLS if a context is given; returns the URL."""
    runners: list[web.AppRunner] = []

    async def begin(handlers: dict[tuple[str, str], Any], tls: ssl.SSLContext | None = None) -> str:
        application = web.Application()
        for (method, path), handler in handlers.items():
            application.router.add_route(method, path, handler)
        runner = web.AppRunner(application)
        runners.append(runner)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
        return f"{'https' if tls else 'http'}://127.0.0.1:{runner.addresses[0][1]}"

    yield begin
    for runner in runners:
        await runner.cleanup()


async def version(_: web.Request) -> web.Response:
    return web.json_response({"ray_version": "2.60.0"})


def own(folder: Path) -> tuple[str, ssl.SSLContext]:
    """Return a certificate of 127.0.0.1 that nobody else has signed, and what its server needs."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "head")])
    now = dt.datetime.now(dt.timezone.utc)
    built = x509.CertificateBuilder(issuer_name=name, subject_name=name, public_key=key.public_key())
    built = built.serial_number(x509.random_serial_number()).not_valid_before(now).not_valid_after(now + dt.timedelta(days=1))
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    built = built.add_extension(address, critical=False).add_extension(
        x509.BasicConstraints(ca=True, path_length=0), critical=True
    )
    text = built.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)
    (folder / "tls.crt").write_bytes(text)
    (folder / "tls.key").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    return text.decode(), context


async def test_a_dashboard_is_verified_with_the_own_authority(serve: Serve, tmp_path: Path) -> None:
    """Without it, or with another one, the connection is refused, and nothing is sent."""
    ca_cert, context = own(tmp_path)
    other, _ = own(tmp_path)
    url = await serve({("GET", "/api/version"): version}, context)

    with pytest.raises(BackendError, match="certificate verify failed"):
        await asked(Access(address=url))
    with pytest.raises(BackendError, match="certificate verify failed"):
        await asked(Access(address=url, ca_cert=other))
    assert (await asked(Access(address=url, ca_cert=ca_cert)))["ray_version"] == "2.60.0"
    assert (await asked(Access(address=url, verify_ssl=False)))["ray_version"] == "2.60.0"


async def asked(access: Access) -> dict[str, Any]:
    cluster = Cluster(access)
    try:
        return await cluster.version()
    finally:
        await cluster.close()


@pytest.mark.parametrize("text", ["no certificate", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
def test_certificates_that_are_none_are_an_error(text: str) -> None:
    """Before anything is sent, and without the text."""
    with pytest.raises(BackendError, match="ca_cert: the value is not allowed; expected CA certificates") as raised:
        Access(address="https://head:8265", ca_cert=text)
    assert text not in str(raised.value)


async def test_a_head_whose_nodes_have_just_started_is_asked_again(serve: Serve) -> None:
    """Ray refuses a submission until an agent of a node has joined; another refusal is an error at once."""
    asked: list[str] = []

    async def submit(request: web.Request) -> web.Response:
        asked.append((await request.json())["submission_id"])
        if len(asked) == 1:
            return web.Response(status=500, text="No available agent to submit job, please try again later.")
        if len(asked) == 2:
            return web.json_response({"submission_id": "a1"})
        return web.Response(status=500, text="out of disk")

    async def unknown(_: web.Request) -> web.Response:
        return web.Response(status=404, text="not found")

    url = await serve({("POST", "/api/jobs/"): submit, ("GET", "/api/jobs/{uid}"): unknown})
    cluster = Cluster(Access(address=url))
    try:
        await cluster.submit("a1")
        assert asked == ["a1", "a1"]
        with pytest.raises(BackendError, match="out of disk"):
            await cluster.submit("a2")
    finally:
        await cluster.close()


def test_the_authority_of_a_connection(tmp_path: Path) -> None:
    """It is read from the extra; a text that is no certificate is an error that does not show it."""
    ca_cert, _ = own(tmp_path)
    extra = {"platform": "ray", "address": "https://head:8265", "ca_cert": ca_cert}

    assert read_settings("ray", own={}, extra=extra).ca_cert == ca_cert
    with pytest.raises(ConnectionFieldError, match=r"ca_cert: the value \(.*\) is not allowed; expected CA") as raised:
        read_settings("ray", own={}, extra={**extra, "ca_cert": "secret words"})
    assert "secret words" not in str(raised.value)


# --- A dashboard or a ledger that another program on the cluster has replaced ----------------------------------------------


class Forged:
    """A dashboard and a ledger of a program that answers as it likes."""

    def __init__(self) -> None:
        self.jobs: Any = [{"submission_id": "evil", "metadata": {"rallypoint": "rallypoint"}, "status": "SUCCEEDED"}]
        self.line = ""
        self.answer: Any = {"value": None}
        self.encoded: bytes | None = None
        self.asked: list[tuple[str, str]] = []
        self.posts: list[str] = []
        self.logs: Any = None
        self.seen: int | None = None
        self.calls: list[float] = []
        self.delay = 0.0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.asked.append((request.raw_path, request.headers.get("Authorization", "")))
        if request.method == "POST" and not request.path.startswith("/v1/"):
            self.posts.append(request.path)
        if request.path == "/api/jobs/" and request.method == "GET":
            return self._told(self.jobs)
        if request.path.endswith("/logs"):
            await asyncio.sleep(self.delay)
            return web.json_response(self.logs or {"logs": self.line})
        if request.path == HEALTH_PATH:
            return prove(request, KEY)
        if request.path == "/v1/changes":
            self.calls.append(time.monotonic())
            return web.json_response({"value": {"seen": len(self.calls) if self.seen is None else self.seen}})
        if request.path.startswith("/v1/"):
            return self._told(self.answer)
        return web.json_response({"status": "FAILED", "message": "no ledger"})

    def _told(self, told: Any) -> web.Response:
        if self.encoded is not None:
            return web.Response(body=self.encoded, headers={"Content-Encoding": "gzip"})
        return web.Response(body=told) if isinstance(told, bytes) else web.json_response(told)


@pytest.fixture
async def forged(serve: Serve) -> AsyncIterator[tuple[Forged, RayBackend]]:
    program = Forged()
    url = await serve({("*", "/{path:.*}"): program.handle})
    program.line = line(url)
    backend = RayBackend(Access(address=url, token="of the dashboard"))
    yield program, backend
    await backend.close()


DEEP = b"[" * 200_000

SHAPES = [{"a": 1}, [1, 2, None], [{"metadata": "x", "status": "SUCCEEDED"}], DEEP, b"[" + b"1," * (1 << 20) + b"1]"]


@pytest.mark.parametrize("told", SHAPES, ids=["object", "numbers", "no id", "deep", "many"])
async def test_jobs_of_any_form_are_an_error_in_words(forged: tuple[Forged, RayBackend], told: Any) -> None:
    """Not an `AttributeError` in the API server, and no endless memory."""
    program, backend = forged
    program.jobs, program.line = told, ""

    with pytest.raises(BackendError):
        await backend.tail("job", lines=1)


@pytest.mark.parametrize(
    "told",
    [
        *([1], {"error": "x"}, {"value": {"record": {}}}, {"value": [1]}, {"value": "x"}, DEEP),
        b'{"value": [' + b"{}," * (1 << 19) + b"1]}",
        b'{"value": "' + b"x" * (32 << 20) + b'"}',
    ],
    ids=["list", "error", "no record", "record list", "text", "deep", "many", "large"],
)
async def test_answers_of_a_ledger_of_any_form_are_an_error_in_words(forged: tuple[Forged, RayBackend], told: Any) -> None:
    """Whatever is asked for."""
    program, backend = forged
    program.answer = told

    for asking in (backend.load("job"), backend.status("job"), backend.tail("job", lines=1)):
        with pytest.raises(BackendError):
            await asking


async def test_a_ledger_that_answers_at_once_is_asked_five_times_a_second(
    forged: tuple[Forged, RayBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has news at all times, or none; either way a sensor sent a thousand requests a second."""
    program, backend = forged
    connect(monkeypatch, backend.access.url)
    where: dict[str, Any] = {"condition": {"kind": "state", "phase": "Succeeded"}, "job_name": "job", "conn_id": "ray"}
    for told in ("none", "news"):
        program.calls.clear()
        program.seen = -1 if told == "none" else None
        watching = asyncio.ensure_future(anext(JobConditionTrigger(**where).run()))
        await eventually_async(lambda: len(program.calls) >= 6)
        watching.cancel()
        await asyncio.wait([watching])
        assert program.calls[5] - program.calls[0] > 0.7, told


async def test_the_tab_does_not_search_for_a_ledger_at_each_look(forged: tuple[Forged, RayBackend], tmp_path: Path) -> None:
    """An author can write a DAG with a thousand tasks, whose jobs are all on a cluster that answers with 32 MiB."""
    program, backend = forged
    program.line = ""
    program.delay = 0.5
    cluster = RayBackend(Access(address=backend.access.url, read_only=True))
    looker = Looker(lambda place: cluster, access=LiveAccess(connections=frozenset({"ray"}), home=tmp_path))
    key, advice = TaskKey(dag_id="d", run_id="r", task_id="t"), set()
    try:
        for number in range(20):
            handle = {"name": f"job{number}", "backend": "ray", "conn_id": "ray"}
            advice.add((await looker.look(TaskSeen(key=key, tries={"x": 1}, handle=handle))).advice)
    finally:
        await looker.close()

    assert len(advice) == 1
    assert "no ledger with job records runs" in advice.pop()
    assert [path for path, _ in program.asked].count("/api/jobs/") == 1


async def test_a_log_that_is_no_text_announces_no_ledger(forged: tuple[Forged, RayBackend]) -> None:
    """As text, a list of a million numbers stopped the event loop of Airflow's API server for 0.6 s."""
    program, backend = forged
    program.logs = {"logs": [line(backend.access.url)]}

    with pytest.raises(BackendError, match=r"could not start the ledger \(FAILED\): no ledger"):
        await backend.load("job")


async def test_no_compressed_answer_is_read(forged: tuple[Forged, RayBackend]) -> None:
    """Of 0.3 MB of it came 300 MB of JSON: 20 s in which the event loop of a triggerer stood still."""
    program, backend = forged
    program.encoded = gzip.compress(b"[" + b"1," * (1 << 20) + b"1]")

    with pytest.raises(BackendError, match=r"the HTTP response is compressed \('gzip'\)"):
        await backend.load("job")


async def test_a_large_answer_does_not_stop_the_event_loop(forged: tuple[Forged, RayBackend]) -> None:
    """It is parsed in a thread, a part at a time."""
    program, backend = forged
    program.jobs = b"[" + b'{"a": "b"},' * 200_000 + b"1]"
    beats = Beats()
    beating = asyncio.create_task(beats.beat())

    with no_collections():
        assert await backend.load("job") is None

    beating.cancel()
    assert max(beats.blocks) <= LONGEST


async def test_a_broken_line_of_another_job_is_skipped(forged: tuple[Forged, RayBackend]) -> None:
    """It stopped all submissions to the cluster, and the supervision of all jobs on it."""
    program, backend = forged
    good, bad = program.line, "RALLYPOINT_LEDGER {"
    program.jobs = [
        {**program.jobs[0], "submission_id": name, "start_time": at} for name, at in (("bad", 10**400), ("good", 1))
    ]
    program.line = bad
    with pytest.raises(BackendError, match="could not start the ledger"):
        await backend.load("job")

    program.line = f"{bad[:5]}\n{good}"
    assert await backend.load("job") is None


@pytest.fixture
def api_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this process pass for Airflow's API server, which has a token of Ray for programs of its own."""
    monkeypatch.setitem(sys.modules, "airflow.api_fastapi.main", types.ModuleType("airflow.api_fastapi.main"))
    monkeypatch.setenv("RAY_AUTH_TOKEN", "of the environment")


def connect(monkeypatch: pytest.MonkeyPatch, address: str, **own: str) -> None:
    extra = {"platform": "ray", "address": address}
    monkeypatch.setenv("AIRFLOW_CONN_RAY", json.dumps({"conn_type": "rallypoint", "extra": extra, **own}))


@pytest.mark.parametrize(("own", "sent"), [({}, ""), ({"password": "of-the-connection"}, "Bearer of-the-connection")])
@pytest.mark.usefixtures("api_server")
async def test_a_connection_gets_no_token_of_the_api_server(
    forged: tuple[Forged, RayBackend], monkeypatch: pytest.MonkeyPatch, own: dict[str, str], sent: str
) -> None:
    """Its editor chooses the address, presses Test, and looks at the tab."""
    program, backend = forged
    connect(monkeypatch, backend.access.url, **own)

    await asyncio.to_thread(RallypointHook("ray").test_connection)
    program.line = ""
    opened = await asyncio.to_thread(open_live, Place(conn_id="ray"))
    try:
        with pytest.raises(BackendError):
            await opened.load("job")
    finally:
        await opened.close()

    assert [given for path, given in program.asked if path == "/api/version"] == [sent]
    assert {given for path, given in program.asked if path.startswith("/api/jobs/")} == {sent}


def opened(site: Site, credentials: Credentials = NO_CREDENTIALS) -> Access:
    backend = registry.open_site(site, credentials)
    assert isinstance(backend, RayBackend)
    return backend.access


def test_a_token_of_the_environment_is_for_the_address_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """An editor of a connection can name any address, for a triggerer too; a user of the command names it for that token."""
    monkeypatch.setenv("RAY_AUTH_TOKEN", "of the environment")
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "http://ours:8265")

    def token(located: Located) -> tuple[str, str]:
        access = opened(located.site, located.credentials)
        return access.address, access.token

    settings = read_settings("ray", own={}, extra={"platform": "ray", "address": "http://theirs:8265"})
    assert token(locate(Place(conn_id="ray"), settings)) == ("http://theirs:8265", "")
    assert token(locate(Place(backend="ray"))) == ("http://ours:8265", "of the environment")
    assert opened(Site(kind="ray", address="http://theirs:8265")).token == "of the environment"


@pytest.mark.usefixtures("api_server")
async def test_looking_at_the_tab_submits_no_ray_job(
    forged: tuple[Forged, RayBackend], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No ledger answers, as 15 s after the end of the last job: each look of a viewer started one, in a Ray job of its own."""
    program, backend = forged
    program.line = ""
    connect(monkeypatch, backend.access.url)
    looker = Looker(access=LiveAccess(connections=frozenset({"ray"}), home=tmp_path))
    handle = {"name": "job1", "backend": "ray", "conn_id": "ray"}
    try:
        page = await looker.look(TaskSeen(key=TaskKey(dag_id="d", run_id="r", task_id="t"), tries={"x": 1}, handle=handle))
    finally:
        await looker.close()

    assert "no ledger with job records runs in namespace 'rallypoint'" in page.advice
    assert program.posts == []


async def test_reading_starts_no_ledger_where_no_job_was_submitted(forged: tuple[Forged, RayBackend]) -> None:
    """A sensor can wait for days for a job, and `rallypoint status` is a question: neither submits a Ray job."""
    program, backend = forged
    program.jobs = [{"submission_id": "theirs", "metadata": {}, "status": "SUCCEEDED"}]
    program.line = ""

    assert (await backend.load("job"), await backend.names(), await backend.status("job")) == (None, (), None)
    with pytest.raises(JobNotFoundError, match="no job was submitted to namespace 'rallypoint' of the Ray cluster"):
        [line async for line in backend.logs("job", follow=True)]
    async with backend.changes("job") as changes:
        await changes.wait(0.2)
    assert program.posts == []

    with pytest.raises(BackendError, match="could not start the ledger"):
        async with backend.heartbeat("test"):  # a supervisor may come after a restart of the head
            raise AssertionError("it needs a ledger")
    assert program.posts != []


async def test_a_process_that_knew_the_ledger_starts_it_again(forged: tuple[Forged, RayBackend]) -> None:
    """The head was restarted, and its Jobs API knows no submission any more: the job is not taken for deleted."""
    program, backend = forged
    assert await backend.load("job") is None
    program.jobs, program.answer = [], b"this is no ledger"

    with pytest.raises(BackendError, match="cannot reach the ledger"):
        await backend.load("job")
    assert program.posts == ["/api/jobs/"]
