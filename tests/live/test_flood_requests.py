"""Strangers flood each HTTP port of a job with requests without the token, and with garbage: the memory stays small."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from rallypoint.wire.messages import TOKEN_HEADER
from rallypoint.wire.paths import COORDINATOR_PATH, ENTRIES_PATH, HEALTH_PATH, METRICS_PATH, REPORT_PATH, STATUS_PATH
from rallypoint.wire.roles import directory_token
from tests.live.agent_processes import Agents, agents, free_port
from tests.live.flood import Flood, Torrent, listening_ports, peak_memory
from tests.live.test_flood_bytes import ANSWER, NUMBER, SECONDS, SIZE, answered
from tests.waiting import PATIENCE, eventually

#: Seconds of a flood of requests, connections per second of each of two processes, and seconds in which a new client gets the
#: status meanwhile, on average. An agent waits 3 s for its coordinator.
FLOOD, RATE, STATUS = 6.0, 2000, 0.4

#: Bytes by which the memory of a process may grow.
GROWTH = 100 << 20


def head(size: int, request: str = f"POST {REPORT_PATH}") -> bytes:
    """Return a valid request of about `size` bytes whose body never comes; Python needs 4 bytes for a character of it."""
    lines = b"".join(b"%d:%b\r\n" % (number, "\U0001f600".encode() + b"a" * (size // 97 - 10)) for number in range(97))
    return f"{request} HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n".encode() + lines + b"\r\n"


@dataclass
class Port:
    """One port of a job, the process that serves it, and how long a client of the job waits for its answer there."""

    port: int
    pid: int
    answered: Callable[[], float]


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Agents]:
    with agents(tmp_path) as job:
        yield job


def coordinator_port(job: Agents) -> Port:
    process = job.coordinator()
    port = json.loads(eventually(lambda: _read(job.folder / "endpoint.json")))["port"]
    return Port(port, process.pid, lambda: answered(job, port))


def metrics_port(job: Agents) -> Port:
    port = free_port()
    job.write_plan(service_type="http", metrics_port=port)
    return Port(port, coordinator_port(job).pid, lambda: _asked(port, METRICS_PATH, ""))


def agent_port(job: Agents) -> Port:
    """The port at which the agent of a pod receives the address of its coordinator."""
    port = free_port()
    coordinator_port(job)
    place = ("--node", 0, "--incarnation", 0, "--dir", job.folder / "node", "--listen", port)
    known = ("--plan", job.folder / "plan.json", "--attempt", 1, "--secret-file", job.folder / "secret")
    process = job.spawn("node", *known, *place)
    body = (job.folder / "endpoint.json").read_bytes()
    return Port(port, process.pid, lambda: _asked(port, COORDINATOR_PATH, "a secret", body))


def directory_port(job: Agents) -> Port:
    """The port where the roles of a job find each other."""
    port = free_port()
    process = job.spawn("roles-directory", "--job", "job", "--port", port, "--secret-file", job.folder / "secret")
    return Port(port, process.pid, lambda: _asked(port, ENTRIES_PATH, directory_token(b"a secret")))


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def _asked(port: int, path: str, token: str, body: bytes | None = None) -> float:
    """Send a request over a new connection, and return the seconds until the answer."""
    began = time.monotonic()
    headers = {TOKEN_HEADER: token} if token else {}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data=body, headers=headers)
    with urllib.request.urlopen(request, timeout=30) as response:
        assert response.status == 200
        response.read()
    return time.monotonic() - began


PORTS = [
    pytest.param(coordinator_port, id="coordinator"),
    pytest.param(metrics_port, id="metrics", marks=pytest.mark.extended),
    pytest.param(agent_port, id="agent", marks=pytest.mark.extended),
    pytest.param(directory_port, id="directory", marks=pytest.mark.extended),
]


def started(job: Agents, opened: Callable[[Agents], Port]) -> tuple[Port, int]:
    """Start the process with the port; return the port, and the memory of the process."""
    job.write_plan(service_type="http")
    port = opened(job)
    job.drain()
    eventually(lambda: port.port in listening_ports({port.pid}))
    port.answered()
    return port, peak_memory(port.pid)


def answers(port: Port, *, strict: bool = True) -> list[float]:
    """Let a client of the job ask again and again; return the seconds of each answer. Not `strict`: some may be refused."""
    until, seconds = time.monotonic() + SECONDS, []
    while time.monotonic() < until:
        try:
            seconds.append(port.answered())
        except OSError:
            if strict:
                raise
        time.sleep(0.1)
    return seconds


def answers_again(port: Port) -> bool:
    """Return whether a client of the job gets an answer."""
    try:
        return port.answered() < ANSWER * PATIENCE
    except OSError:
        return False


@pytest.mark.parametrize("opened", PORTS)
@pytest.mark.parametrize(
    "first",
    [
        pytest.param(head(15_000), id="many headers"),
        pytest.param(head(31_000), id="too many bytes", marks=pytest.mark.extended),
        pytest.param(head(15_000, f"GET {HEALTH_PATH}"), id="the health", marks=pytest.mark.extended),
        pytest.param(head(15_000, f"GET {METRICS_PATH}"), id="the metrics", marks=pytest.mark.extended),
    ],
)
def test_requests_without_the_token_use_little_memory(job: Agents, opened: Callable[[Agents], Port], first: bytes) -> None:
    """Valid ones, of thousands of connections, which are opened again as soon as they are ended."""
    port, before = started(job, opened)
    # Where the metrics are, every client is a stranger, and one of the job competes with all others.
    strict = opened is not metrics_port
    with Flood(lambda: {port.port}, number=NUMBER, first=first, again=True) as flood:
        seconds = answers(port, strict=strict)
    eventually(lambda: answers_again(port))
    grown = peak_memory(port.pid) - before
    print(f"{flood.opened} connections of {len(first)} bytes: grown by {grown >> 20} MiB, answers in {seconds} s")

    assert flood.opened > NUMBER
    assert grown <= GROWTH
    assert seconds or not strict


@pytest.mark.extended
@pytest.mark.parametrize("opened", PORTS[2:])
@pytest.mark.parametrize(
    ("first", "then"),
    [
        pytest.param(b"", b"A\x80\xff", id="binary"),
        pytest.param(b"", b"\x00", id="zeros"),
        pytest.param(b"", b"A", id="letters"),
        pytest.param(f"POST {REPORT_PATH} HTTP/1.1\r\n".encode(), b"A: b\r\n", id="headers that never end"),
        pytest.param(head(15_000), b"A\x80\xff", id="a body"),
        pytest.param(b"", b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", id="many requests"),
    ],
)
def test_garbage_uses_little_memory(job: Agents, opened: Callable[[Agents], Port], first: bytes, then: bytes) -> None:
    """At the ports for which there is no other test: of an agent, and of a role directory."""
    port, before = started(job, opened)
    with Torrent([port.port], number=NUMBER, first=first, then=then, size=SIZE) as torrent:
        seconds = answers(port)
    grown = peak_memory(port.pid) - before
    print(f"{torrent.opened} connections, {torrent.sent >> 20} MiB: grown by {grown >> 20} MiB, {max(seconds):.2f} s")

    assert torrent.opened >= NUMBER
    assert grown <= GROWTH
    assert statistics.median(seconds) <= ANSWER * PATIENCE


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("get", id="without the token"),
        pytest.param("post", id="with a body", marks=pytest.mark.extended),
        pytest.param("health", id="the health", marks=pytest.mark.extended),
        pytest.param("idle", id="nothing", marks=pytest.mark.extended),
    ],
)
def test_a_new_client_does_not_wait_for_answered_connections(job: Agents, kind: str) -> None:
    """Two processes send requests over thousands of new connections a second; a supervisor asks over a new one, too."""
    job.descriptors = (1024, 1024)
    job.write_plan(service_type="http")
    port = coordinator_port(job).port
    job.drain()
    seconds = []
    with ExitStack() as stack:
        command = [sys.executable, "-m", "tests.live.request_flood", str(port), str(FLOOD), kind, str(RATE)]
        floods = [stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True)) for _ in range(2)]
        while any(flood.poll() is None for flood in floods):
            seconds.append(_asked(port, STATUS_PATH, "a secret"))
            time.sleep(0.1)
        opened, answered = map(sum, zip(*(map(int, flood.communicate()[0].split()) for flood in floods), strict=True))
    print(f"{opened} connections, {answered} answered: the status in at most {max(seconds):.2f} s of {sorted(seconds)}")

    assert answered > NUMBER or kind == "idle"
    assert statistics.fmean(seconds) <= STATUS
