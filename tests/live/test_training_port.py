"""Two agents over gRPC, for devices whose workers need ports: where one is taken, all begin behind it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from rallypoint.wire.exits import Exit
from tests.live.agent_processes import Agents, agents, free_port, said

#: One write for a whole line: the agent writes its log to the same pipe.
SCRIPT = """
import os
os.write(1, f"port {os.environ['HCCL_IF_BASE_PORT']} of rank {os.environ['RANK']}\\n".encode())
"""


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Agents]:
    with agents(tmp_path) as job:
        yield job


def test_all_workers_are_told_ports_that_are_free_on_every_node(job: Agents) -> None:
    """Both nodes are this machine, so both see the same port taken; what the coordinator makes of different ones is pure."""
    pytest.importorskip("grpc")
    script = job.folder / "tell.py"
    script.write_text(SCRIPT)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        begin = min(port - 3, 65_500)
        meet = (
            "--nnodes",
            2,
            "--rdzv-backend",
            "c10d",
            "--rdzv-endpoint",
            f"127.0.0.1:{free_port()}",
            "--service-type",
            "grpc",
        )
        kind = ("--accelerator", "ascend-npu", "--training-port", begin)
        runs = [job.run(*meet, *kind, script) for _ in range(2)]
        told = [said(run) for run in runs]

    assert [code for code, _ in told] == [Exit.OK, Exit.OK], told
    lines = [line.split() for _, output in told for line in output.splitlines() if line.startswith("port ")]
    assert sorted(line[-1] for line in lines) == ["0", "1"]
    (first,) = {int(line[1]) for line in lines}
    assert first > port or first + 15 < port
    assert first >= begin
