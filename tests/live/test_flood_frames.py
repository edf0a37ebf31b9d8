"""Clients without the token send HTTP/2 frames that belong to no request: the coordinator's memory does not grow."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.agent_processes import Agents, agents
from tests.live.flood import Background, peak_memory
from tests.live.test_flood import RECOVERY, recovered
from tests.live.test_flood_streams import BASE, HEADERS, PREFACE, SETTINGS, frame
from tests.waiting import PATIENCE, eventually

#: Connections at a time, seconds, and bytes by which the memory of the coordinator may grow.
NUMBER, SECONDS, GROWTH = 16, 1.0, 64 << 20

PING, GOAWAY, CONTINUATION, UNKNOWN = 6, 7, 9, 77


class Frames(Background):
    """Connections that send the same frames again and again, and are opened again when they are ended."""

    def __init__(self, port: int, first: bytes, then: bytes) -> None:
        super().__init__()
        self._port, self._first, self._then = port, PREFACE + first, then * (60_000 // len(then))
        self.opened = 0

    def _run(self) -> None:
        threads = [threading.Thread(target=self._flood) for _ in range(NUMBER)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _flood(self) -> None:
        while not self._stopping.is_set():
            self.opened += 1
            try:
                with socket.create_connection(("127.0.0.1", self._port), timeout=1) as sock:
                    sock.sendall(self._first)
                    while not self._stopping.is_set():
                        sock.sendall(self._then)
            except OSError:
                self._stopping.wait(0.01)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Agents]:
    with agents(tmp_path) as job:
        yield job


@pytest.mark.parametrize(
    ("first", "then"),
    [
        pytest.param(b"", frame(UNKNOWN, 0, 0, b"x" * 16_000), id="unknown"),
        pytest.param(b"", frame(PING, 0, 0, bytes(8)), id="PING", marks=pytest.mark.extended),
        pytest.param(b"", frame(GOAWAY, 0, 0, bytes(16_000)), id="GOAWAY", marks=pytest.mark.extended),
        pytest.param(
            b"", frame(SETTINGS, 0, 0, bytes([0, 4, 0, 0, 255, 255]) * 2700), id="SETTINGS", marks=pytest.mark.extended
        ),
        pytest.param(
            frame(HEADERS, 0, 1, BASE),
            frame(CONTINUATION, 0, 1, b"\xbe" * 16_000),
            id="unfinished headers",
            marks=pytest.mark.extended,
        ),
    ],
)
def test_frames_without_a_request_use_no_memory(job: Agents, first: bytes, then: bytes) -> None:
    """Fails if grpcio receives data from clients without the token, and if a killed worker does not train again meanwhile."""
    job.write_plan(service_type="grpc", max_restarts=9)
    coordinator = job.coordinator()
    eventually((job.folder / "endpoint.json").exists)
    port = json.loads((job.folder / "endpoint.json").read_text())["grpc"]
    job.node()
    job.drain()
    pids = job.running(1, 2)
    before = peak_memory(coordinator.pid)
    with Frames(port, first, then) as frames:
        trains = recovered(job, pids, 2)
        time.sleep(SECONDS)
        grown = peak_memory(coordinator.pid) - before
    print(f"{frames.opened} connections: grown by {grown >> 20} MiB, trains again after {trains:.2f} s")

    assert grown <= GROWTH
    assert trains <= RECOVERY * PATIENCE
    job.finish()
    assert {process.wait(60 * PATIENCE) for process in job.started} == {0}
