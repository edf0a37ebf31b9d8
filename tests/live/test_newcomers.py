"""A node joins a running DDP job: it prepares while the others train, and only then do they regroup."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path

import pytest

from rallypoint.wire.exits import Exit
from tests.live.agent_processes import SCRIPTS, agents, free_port, said
from tests.waiting import eventually

JOINING = SCRIPTS / "joining.py"


@pytest.mark.extended
def test_a_newcomer_has_imported_everything_before_the_others_regroup(tmp_path: Path) -> None:
    """Its first worker finds torch and what the script imports imported; the first workers of a job find nothing."""
    with agents(tmp_path, torch=True) as job:
        port = free_port()
        where = ("--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=join")
        line = ("--nnodes=1:2", "--nproc-per-node=1", *where, "--rdzv-conf=last_call_timeout=1", JOINING, job.work)
        host = job.run(*line)
        eventually(lambda: _listens(port))
        eventually((job.work / "start.1.0").exists, timeout=60.0, why="one node trains")
        second = job.run(*line)
        for rank in (0, 1):
            eventually((job.work / f"start.2.{rank}").exists, timeout=60.0, why="two nodes train")
        job.finish()
        said_by = [said(agent) for agent in (host, second)]

    assert [code for code, _ in said_by] == [Exit.OK] * 2, said_by
    found = {path.name: json.loads(path.read_text()) for path in job.work.glob("start.*")}
    assert found["start.2.1"] == ["torch", "xmlrpc.client"], found
    story = said_by[0][1]
    assert re.search(r"prepares to join; the other nodes continue training[\s\S]*node 1 joins", story), story
    assert "another zygote is started" not in said_by[1][1], said_by[1][1]


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
