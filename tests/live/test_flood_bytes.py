"""Strangers send data that is not HTTP to a coordinator: its memory stays small, and it answers agents."""

from __future__ import annotations

import json
import ssl
import statistics
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from rallypoint.wire import codec
from rallypoint.wire.messages import TOKEN_HEADER
from rallypoint.wire.paths import REPORT_PATH
from tests.agent.fakes import report
from tests.certificates import left
from tests.live.agent_processes import OBEY, Agents, agents, free_port
from tests.live.flood import Torrent, descendants, listening_ports, peak_memory
from tests.waiting import PATIENCE, eventually

#: Connections at a time, bytes that each sends, and seconds for which they do.
NUMBER, SIZE, SECONDS = 3000, 260_000, 5.0

#: Bytes by which the memory of a process may grow meanwhile, and seconds in which an agent gets its answer.
GROWTH, ANSWER = 150 << 20, 2.0

BINARY = b"A\x80\xff"
POST = b"POST /v1/report HTTP/1.1\r\nHost: x\r\n"

KINDS = [
    pytest.param(b"", BINARY, id="binary"),
    pytest.param(b"", b"A", id="letters", marks=pytest.mark.extended),
    pytest.param(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", BINARY, id="after a request", marks=pytest.mark.extended),
    pytest.param(POST + b"Transfer-Encoding: chunked\r\n\r\n", BINARY, id="no chunks", marks=pytest.mark.extended),
    pytest.param(POST + b"Content-Length: 1000000000\r\n\r\n", b"A", id="a long body", marks=pytest.mark.extended),
    pytest.param(POST, b"A: b\r\n", id="headers", marks=pytest.mark.extended),
    pytest.param(b"", b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", id="many requests", marks=pytest.mark.extended),
]


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Agents]:
    with agents(tmp_path) as job:
        yield job


def answered(job: Agents, port: int) -> float:
    """Send a report over a new connection, and return the seconds until the reply."""
    status = eventually(job.status)
    context = None
    if job.tls is not None:
        context = ssl.create_default_context(cafile=str(job.tls / "ca.crt"))
        context.check_hostname = False
        context.load_cert_chain(job.tls / "tls.crt", job.tls / "tls.key")
    url = f"http{'' if context is None else 's'}://127.0.0.1:{port}{REPORT_PATH}"
    body = codec.dumps(report(0, job=status.job, fence=status.fence, agent="another", incarnation=0, hold=0.0)).encode()
    began = time.monotonic()
    request = urllib.request.Request(url, data=body, headers={TOKEN_HEADER: "a secret"})
    with urllib.request.urlopen(request, timeout=30, context=context) as response:
        assert json.loads(response.read())["kind"]
    return time.monotonic() - began


@pytest.mark.parametrize(("first", "then"), KINDS)
@pytest.mark.parametrize("tls", [False, pytest.param(True, marks=pytest.mark.extended)])
def test_the_memory_of_a_coordinator_stays_small(job: Agents, first: bytes, then: bytes, tls: bool) -> None:
    """At its own port and at that of its metrics; over TLS the strangers have shaken hands, without a certificate."""
    metrics = free_port()
    job.tls = left(job.folder / "tls", "job") if tls else None
    job.write_plan(service_type="http", metrics_port=metrics, tls="auto" if tls else "", max_restarts=9)
    coordinator = job.coordinator()
    port = json.loads(eventually(lambda: _read(job.folder / "endpoint.json")))["port"]
    job.node()
    job.drain()
    job.running(1, 2)
    assert {port, metrics} <= listening_ports({coordinator.pid})
    answered(job, port)
    before = peak_memory(coordinator.pid)
    with Torrent([port] * 3 + [metrics], number=NUMBER, first=first, then=then, size=SIZE, tls=tls) as torrent:
        seconds = _answers(job, port)
        grown = peak_memory(coordinator.pid) - before
    print(
        f"{torrent.opened} connections, {torrent.sent >> 20} MiB: grown by {grown >> 20} MiB, answers in {max(seconds):.2f} s"
    )

    assert torrent.opened >= NUMBER
    assert grown <= GROWTH
    assert statistics.median(seconds) <= ANSWER
    assert max(seconds) <= ANSWER * PATIENCE
    assert coordinator.poll() is None
    job.finish()
    assert {process.wait(60 * PATIENCE) for process in job.started} == {0}


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def _answers(job: Agents, port: int) -> list[float]:
    until, seconds = time.monotonic() + SECONDS, []
    while time.monotonic() < until:
        seconds.append(answered(job, port))
        time.sleep(0.1)
    return seconds


@pytest.mark.extended
def test_the_memory_of_an_agent_at_the_port_of_its_store(job: Agents) -> None:
    """Before the first round, in which nothing can be forwarded, strangers send data that waits for the store."""
    port = free_port()
    agent = job.run("--nnodes", 2, "--nproc-per-node", 1, "--rdzv-endpoint", f"127.0.0.1:{port}", OBEY, job.work)
    eventually(lambda: port in listening_ports(descendants(agent.pid)))
    job.drain()
    before = peak_memory(agent.pid)
    with Torrent([port], number=NUMBER, first=b"\x00", then=b"\x00", size=SIZE) as torrent:
        time.sleep(SECONDS)
        grown = peak_memory(agent.pid) - before
    print(f"{torrent.opened} connections, {torrent.sent >> 20} MiB: grown by {grown >> 20} MiB")

    assert torrent.opened >= NUMBER
    assert grown <= GROWTH
    assert agent.poll() is None
