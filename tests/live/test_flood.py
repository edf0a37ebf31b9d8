"""Strangers open thousands of connections to a job with a thousand descriptors: it goes on, and its log stays small."""

from __future__ import annotations

import json
import os
import re
import signal
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from rallypoint.wire.messages import TOKEN_HEADER
from tests.live.agent_processes import GROUP, OBEY, Agents, agents, free_port
from tests.live.flood import Flood, descendants, listening_ports
from tests.waiting import PATIENCE, eventually

NUMBER = 2000

#: Seconds in which a killed worker trains again, and bytes of all that agent and coordinator say.
RECOVERY, GROWTH = 2.0, 1_000_000

POST = b"POST /v1/report HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n{"


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Agents]:
    """A job whose processes cannot raise their limit: what is kept free for agents has to do."""
    with agents(tmp_path) as job:
        job.descriptors = (1024, 1024)
        yield job


@pytest.fixture
def torch_job(tmp_path: Path) -> Iterator[Agents]:
    with agents(tmp_path, torch=True) as job:
        job.descriptors = (1024, 1024)
        yield job


def start(job: Agents, kind: str) -> None:
    """Start one node of two workers: by hand, or supervised with a coordinator that speaks HTTP or gRPC."""
    if kind == "run":
        port = free_port()
        job.run(
            "--nnodes", 1, "--nproc-per-node", 2, "--max-restarts", 9, "--rdzv-endpoint", f"127.0.0.1:{port}", OBEY, job.work
        )
        return
    job.write_plan(service_type=kind, max_restarts=9)
    job.coordinator()
    eventually((job.folder / "endpoint.json").exists)
    job.node()


def ports_of(job: Agents) -> set[int]:
    """The ports of all processes of a job."""
    return listening_ports({pid for process in job.started for pid in descendants(process.pid)})


def recovered(job: Agents, pids: dict[int, int], round_: int) -> float:
    """Kill a worker and return the seconds until all ranks of the next round have started."""
    began = time.monotonic()
    os.kill(pids[0], signal.SIGKILL)
    job.running(round_, len(pids))
    return time.monotonic() - began


@pytest.mark.parametrize("kind", ["run", pytest.param("http", marks=pytest.mark.extended), "grpc"])
def test_a_killed_worker_trains_again_during_a_flood(job: Agents, kind: str) -> None:
    """Two thousand idle connections to every port of the job; and the status is answered."""
    start(job, kind)
    job.drain()
    pids = job.running(1, 2)
    ports = ports_of(job)
    with Flood(lambda: ports, number=NUMBER) as flood:
        seconds = recovered(job, pids, 2)
        if kind != "run":
            told = status(json.loads((job.folder / "endpoint.json").read_text())["port"])
            assert told["fence"]["round"] == 2
        # Those at the port of the next round's store wait in the kernel, and take no descriptor.
        eventually(lambda: flood.ended >= NUMBER // 3, why="strangers are ended")
    print(f"{kind}: {len(ports)} ports, trains again after {seconds:.2f} s")

    assert seconds <= RECOVERY * PATIENCE
    job.finish()
    assert {process.wait(60 * PATIENCE) for process in job.started} == {0}
    assert job.drained() <= GROWTH


def status(port: int) -> dict[str, dict[str, int]]:
    """Ask a coordinator for the job's status, as a supervisor does."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/status", headers={TOKEN_HEADER: "a secret"})
    with urllib.request.urlopen(request, timeout=60) as response:
        told: dict[str, dict[str, int]] = json.loads(response.read())
        return told


@pytest.mark.parametrize(
    ("first", "drip", "again"),
    [
        pytest.param(b"", b"", True, id="again as soon as it is ended", marks=pytest.mark.extended),
        pytest.param(b"GET /v1/status HTTP/1.1\r\n", b"X: y\r\n", False, id="heads that never end"),
        pytest.param(POST, b"x", False, id="bodies that never end", marks=pytest.mark.extended),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00", b"", True, id="TLS", marks=pytest.mark.extended),
        pytest.param(b"\x00\xce\xf7\x85\x3c", b"", True, id="a store's client", marks=pytest.mark.extended),
        pytest.param(
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00",
            b"",
            True,
            id="HTTP/2",
            marks=pytest.mark.extended,
        ),
    ],
)
@pytest.mark.parametrize("kind", [pytest.param("run", marks=pytest.mark.extended), "grpc"])
def test_every_kind_of_stranger_is_outlived(job: Agents, kind: str, first: bytes, drip: bytes, again: bool) -> None:
    """Whatever they send, and if they come again for ever: two kills in a row cost seconds."""
    start(job, kind)
    job.drain()
    pids = job.running(1, 2)
    with Flood(lambda: ports_of(job), number=1200, first=first, drip=drip, again=again):
        seconds = [recovered(job, pids, 2), recovered(job, job.running(2, 2), 3)]
    print(f"{kind}: {seconds}")

    assert max(seconds) <= RECOVERY * PATIENCE
    job.finish()
    assert {process.wait(60 * PATIENCE) for process in job.started} == {0}
    assert job.drained() <= GROWTH


def test_a_new_agent_comes_in_during_a_flood(job: Agents) -> None:
    """Also while strangers take each place at once that one of them leaves: a replaced node joins."""
    job.write_plan(min_nodes=2, max_nodes=2, nproc_per_node=1, service_type="grpc", max_restarts=9)
    job.coordinator()
    eventually((job.folder / "endpoint.json").exists)
    lost = job.node(0), job.node(1)
    job.drain()
    job.running(1, 2)
    with Flood(lambda: ports_of(job), number=1200, again=True):
        began = time.monotonic()
        lost[1].kill()
        job.node(1, incarnation=1)
        job.drain()
        job.running(2, 2)
        print(f"a replaced node trains after {time.monotonic() - began:.2f} s")
    job.finish()
    assert [process.wait(60 * PATIENCE) for process in job.started if process is not lost[1]] == [0] * 3


@pytest.mark.extended
def test_ranks_reach_the_store_during_a_flood(torch_job: Agents) -> None:
    """Torch's own store has no limit of its own: those that say nothing are ended, and each round's group is built."""
    kills = 1
    torch_job.write_plan(kills, entrypoint=str(GROUP), max_restarts=9)
    torch_job.coordinator()
    eventually((torch_job.folder / "endpoint.json").exists)
    torch_job.node()
    torch_job.drain()
    eventually(lambda: len(ports_of(torch_job)) > 1)
    with Flood(lambda: ports_of(torch_job), number=NUMBER, again=True):
        codes = {process.wait(60 * PATIENCE) for process in torch_job.started}

    assert codes == {0}
    assert {path.read_text() for path in torch_job.work.glob(f"{kills + 1}.*")} == {"2"}
    assert torch_job.drained() <= GROWTH


def test_only_who_serves_has_more_descriptors(job: Agents) -> None:
    """Agent and coordinator raise their soft limit; a worker has the one with which all of it was started."""
    job.descriptors = (1024, 4096)
    start(job, "http")
    pids = job.running(1, 2)

    assert [soft(pid) for pid in pids.values()] == [1024, 1024]
    assert [soft(process.pid) for process in job.started] == [4096, 4096]
    os.kill(pids[0], signal.SIGKILL)
    assert [soft(pid) for pid in job.running(2, 2).values()] == [1024, 1024]


def soft(pid: int) -> int:
    """The soft limit on open files of a process."""
    found = re.search(r"^Max open files +(\d+)", Path(f"/proc/{pid}/limits").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1])
