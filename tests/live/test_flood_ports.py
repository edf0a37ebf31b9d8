"""Floods of jobs with TLS, of an agent's ports for snapshots and announcements, of the metrics, and of submitted jobs."""

from __future__ import annotations

import os
import signal
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from rallypoint.wire.exits import Exit
from rallypoint.wire.messages import TOKEN_HEADER
from rallypoint.wire.paths import COORDINATOR_PATH, METRICS_PATH
from tests.certificates import left
from tests.live.agent_processes import Agents, agents, free_port
from tests.live.flood import Flood, listening_ports
from tests.live.jobs import Job
from tests.live.test_flood import GROWTH, NUMBER, RECOVERY, ports_of, recovered
from tests.waiting import PATIENCE, eventually

DESCRIPTORS = (1024, 1024)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Agents]:
    with agents(tmp_path) as job:
        job.descriptors = DESCRIPTORS
        yield job


def hello() -> bytes:
    """Return what a client without a certificate sends first."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    sent = ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), sent).do_handshake()
    return sent.read()


def ends_well(job: Agents) -> None:
    """Let the job end, and check its exit codes and how much its processes have said."""
    job.finish()
    assert {process.wait(60 * PATIENCE) for process in job.started} == {Exit.OK}
    assert job.drained() <= GROWTH


def with_tls(job: Agents, kind: str, nodes: int = 1) -> list[subprocess.Popen[str]]:
    """Start a job whose parts have certificates; return its nodes."""
    job.tls = left(job.folder / "tls", "job")
    job.write_plan(service_type=kind, tls="auto", max_restarts=9, min_nodes=nodes, max_nodes=nodes, nproc_per_node=2 // nodes)
    job.coordinator()
    eventually((job.folder / "endpoint.json").exists)
    return [job.node(number) for number in range(nodes)]


@pytest.mark.parametrize(
    ("first", "drip", "again"),
    [
        pytest.param(b"", b"", False, id="idle", marks=pytest.mark.extended),
        pytest.param(hello()[:40], b"\x00", False, id="slow hellos"),
        pytest.param(hello(), b"", True, id="hellos of which nothing follows", marks=pytest.mark.extended),
        pytest.param(b"\x16\x03\x01\x00\x05hello", b"", True, id="no TLS behind the first byte", marks=pytest.mark.extended),
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", b"", True, id="without TLS", marks=pytest.mark.extended),
    ],
)
@pytest.mark.parametrize("kind", [pytest.param("http", marks=pytest.mark.extended), "grpc"])
def test_a_killed_worker_of_a_job_with_tls_trains_again(job: Agents, kind: str, first: bytes, drip: bytes, again: bool) -> None:
    """Two thousand strangers at every port, twice; and the coordinator's log stays small."""
    with_tls(job, kind)
    job.drain()
    pids = job.running(1, 2)
    with Flood(lambda: ports_of(job), number=NUMBER, first=first, drip=drip, again=again):
        seconds = [recovered(job, pids, 2), recovered(job, job.running(2, 2), 3)]
    print(f"{kind} with TLS: {seconds}")

    assert max(seconds) <= RECOVERY * PATIENCE
    ends_well(job)


@pytest.mark.extended
@pytest.mark.parametrize("kind", ["http", "grpc"])
def test_a_new_agent_with_a_certificate_comes_in(job: Agents, kind: str) -> None:
    """It shakes hands among strangers who begin handshakes and end none: a replaced node joins."""
    nodes = with_tls(job, kind, nodes=2)
    job.drain()
    job.running(1, 2)
    with Flood(lambda: ports_of(job), number=1200, first=hello(), again=True):
        began = time.monotonic()
        nodes[1].kill()
        job.node(1, incarnation=1)
        job.drain()
        job.running(2, 2)
        print(f"{kind} with TLS: a replaced node trains after {time.monotonic() - began:.2f} s")
    job.finish()
    assert [process.wait(60 * PATIENCE) for process in job.started if process is not nodes[1]] == [Exit.OK] * 3
    assert job.drained() <= GROWTH


@pytest.mark.parametrize(
    "tls", [pytest.param(False, id="without TLS", marks=pytest.mark.extended), pytest.param(True, id="with TLS")]
)
@pytest.mark.parametrize(
    ("first", "again"),
    [
        pytest.param(b"", False, id="idle"),
        pytest.param(b"", True, id="again as soon as it is ended", marks=pytest.mark.extended),
        pytest.param(b"\x00" * 64, True, id="bytes that prove nothing", marks=pytest.mark.extended),
        pytest.param(b"GET /metrics HTTP/1.1\r\n", False, id="heads that never end", marks=pytest.mark.extended),
    ],
)
def test_every_port_of_a_pods_agent_is_flooded(job: Agents, tls: bool, first: bytes, again: bool) -> None:
    """The one for other nodes' snapshots, the one where it is told of its coordinator, and the metrics' one."""
    listen, metrics = free_port(), free_port()
    job.tls = left(job.folder / "tls", "job") if tls else None
    fields = {"replica_every": 3, "replica_limit": 1 << 20, "metrics_port": metrics, "tls": "auto" if tls else ""}
    job.write_plan(max_restarts=9, **fields)
    job.coordinator()
    eventually((job.folder / "endpoint.json").exists)
    place = ("--node", 0, "--incarnation", 0, "--dir", job.folder / "node", "--shm", job.folder / "shm")
    known = ("--plan", job.folder / "plan.json", "--attempt", 1, "--secret-file", job.folder / "secret")
    node = job.spawn("node", *known, *place, "--listen", listen, *(("--tls", job.tls) if tls else ()))
    job.drain()
    announce(job, listen)
    pids = job.running(1, 2)
    ports = ports_of(job)
    assert {listen, metrics} <= ports
    with Flood(lambda: ports_of(job), number=NUMBER, first=first, again=again):
        seconds = [recovered(job, pids, 2), recovered(job, job.running(2, 2), 3)]
        announce(job, listen)  # a coordinator comes in
        assert b"rallypoint_" in eventually(lambda: scraped(metrics), why="the metrics are told")
    print(f"{len(ports)} ports: {seconds}")

    assert max(seconds) <= RECOVERY * PATIENCE
    assert node.poll() is None
    ends_well(job)


def announce(job: Agents, port: int) -> None:
    """Tell an agent where its coordinator is, as the coordinator does, until it has taken it."""
    body = (job.folder / "endpoint.json").read_bytes()
    context = None
    if job.tls is not None:
        context = ssl.create_default_context(cafile=str(job.tls / "ca.crt"))
        context.check_hostname = False
        context.load_cert_chain(job.tls / "tls.crt", job.tls / "tls.key")
    url = f"http{'' if context is None else 's'}://127.0.0.1:{port}{COORDINATOR_PATH}"

    def told() -> bool:
        request = urllib.request.Request(url, data=body, headers={TOKEN_HEADER: "a secret"})
        try:
            with urllib.request.urlopen(request, timeout=5, context=context) as response:
                return bool(response.status == 200)
        except OSError:
            return False

    eventually(told, why="the agent takes the announcement")


def scraped(port: int) -> bytes:
    """Return the metrics, nothing where they are not told now."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{METRICS_PATH}", timeout=5) as response:
            told: bytes = response.read()
            return told
    except OSError:
        return b""


@pytest.mark.live
@pytest.mark.usefixtures("light")
@pytest.mark.parametrize("tls", [pytest.param("off", marks=pytest.mark.extended), "auto"])
def test_a_submitted_job_is_flooded(tmp_path: Path, home: Path, tls: str) -> None:
    """With its supervisor: all ports of all its processes; each limit is that of the shell that has submitted it."""
    made = Job.write(tmp_path, home, 3, 0.01, endless=True, nodes=2, tls=tls, fault_tolerance={"retry_limit": 9})
    limited = ("sh", "-c", f'ulimit -n {DESCRIPTORS[1]} && exec "$0" "$@"', sys.executable)
    subprocess.run([*limited, "-m", "rallypoint.cli.main", "submit", tmp_path / "job.json"], check=True, capture_output=True)
    status = made.trains(ranks=2)

    def ports() -> set[int]:
        return listening_ports({process.pid for process in made.processes()})

    assert ports()
    with Flood(ports, number=NUMBER, again=True):
        pid = next(rank.pid for rank in status.ranks if rank.rank == 0)
        began = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        made.trains(ranks=2, round_=2)
        seconds = time.monotonic() - began
        grown = sum(path.stat().st_size for path in made.place.rglob("*.log"))
    print(f"tls {tls}: {len(ports())} ports, trains again after {seconds:.2f} s, logs of {grown} bytes")
    made.may_end()
    made.ends()

    assert seconds <= RECOVERY * PATIENCE
    assert grown <= GROWTH
