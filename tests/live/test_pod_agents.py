"""Agents and coordinators as pods run them: no common folder, a fake API server, and a test that is their supervisor."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from rallypoint.agent.coordinator.configmap import STATUS_KEY
from rallypoint.wire import codec
from rallypoint.wire.env import API_SERVER
from rallypoint.wire.messages import TOKEN_HEADER
from rallypoint.wire.paths import ROSTER_PATH, STATUS_PATH
from rallypoint.wire.podlog import PodLine, parse_line
from rallypoint.wire.roster import AgentAddress, Roster
from rallypoint.wire.status import JobState, JobStatus
from tests.agent.fake_api import FakeApi, serving
from tests.live.agent_processes import Agents, agents, alive, free_port, said
from tests.waiting import eventually_async

HOST = "127.0.0.1"
STATUS_MAP = "/api/v1/namespaces/lab/configmaps/job-status"
RECORD_MAP = "/api/v1/namespaces/lab/configmaps/rallypoint-job"


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """What stands in for a cluster: folders for pods, an API server, and the eyes and hands of a supervisor."""

    job: Agents
    api: FakeApi
    port: int
    session: aiohttp.ClientSession

    def coordinator(self, term: int) -> subprocess.Popen[str]:
        """Start the coordinator's pod of a term; it knows what this supervisor knew."""
        folder = self.job.folder / f"c{term}"
        folder.mkdir()
        names = ["--status-configmap", "lab/job-status", "--record-configmap", "lab/rallypoint-job"]
        files = ["--status-dir", folder, "--known-status", self.job.folder / "known.json"]
        return self.spawn("coordinator", "--uid", "u1", "--term", term, *names, *files)

    def node(self, node: int, port: int) -> subprocess.Popen[str]:
        """Start a node's pod."""
        folder = self.job.folder / f"n{node}"
        place = ["--node", node, "--incarnation", 1, "--dir", folder, "--shm", folder / "shm"]
        return self.spawn("node", *place, "--listen", port, "--output", "pod")

    def spawn(self, what: str, *args: object) -> subprocess.Popen[str]:
        """Start one part of attempt 1."""
        known = ["--plan", self.job.folder / "plan.json", "--secret-file", self.job.folder / "secret", "--attempt", 1]
        return self.job.spawn(what, *known, "--host", HOST, *args)

    async def push(self, term: int, ports: list[int]) -> None:
        """Tell the coordinator of a term where the agents are, as soon as it listens."""
        addresses = tuple(AgentAddress(node=n, incarnation=1, host=HOST, port=port) for n, port in enumerate(ports))
        body = codec.dumps(Roster(attempt=1, term=term, agents=addresses))

        async def pushed() -> Any:
            try:
                async with self.session.post(f"http://{HOST}:{self.port}{ROSTER_PATH}", data=body) as response:
                    return response.status == 200
            except aiohttp.ClientError:
                return False

        await eventually_async(pushed, why=f"the coordinator of term {term} listens")

    async def asked(self) -> JobStatus:
        """Return what the coordinator says itself."""
        async with self.session.get(f"http://{HOST}:{self.port}{STATUS_PATH}") as response:
            return codec.loads(JobStatus, await response.read())

    def written(self) -> JobStatus | None:
        """Return what stands in the ConfigMap."""
        text = (self.api.objects[STATUS_MAP].get("data") or {}).get(STATUS_KEY)
        return codec.loads(JobStatus, text) if text else None


async def end(process: subprocess.Popen[str]) -> tuple[int, list[str]]:
    code, output = await asyncio.to_thread(said, process)
    return code, output.splitlines()


def worker_lines(output: list[str]) -> list[PodLine]:
    return [line for line in map(parse_line, output) if line is not None]


@pytest.mark.may_block("processes are started by the test itself")
@pytest.mark.parametrize(
    "permitted",
    [pytest.param(True, id="with its permissions"), pytest.param(False, id="without any", marks=pytest.mark.extended)],
)
async def test_a_job_of_pods_outlives_its_coordinator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, permitted: bool) -> None:
    """A second coordinator finds agents and status, no worker notices; all is in the pods' logs, and setup ran once a node."""
    ports, port = [free_port(), free_port()], free_port()
    with agents(tmp_path) as job:
        once = tmp_path / "once"
        setup = (f"echo $RANK of $WORLD_SIZE >> {once}", f"cd {tmp_path}")
        job.write_plan(min_nodes=2, max_nodes=2, nproc_per_node=1, coordinator_port=port, setup=setup)
        async with serving(tmp_path) as (api, _, url), aiohttp.ClientSession(headers={TOKEN_HEADER: "a secret"}) as session:
            monkeypatch.setenv(API_SERVER, url)
            api.put(STATUS_MAP, data={})
            api.put(RECORD_MAP, data={})
            if not permitted:
                api.forbidden = {(method, path) for method in ("GET", "PATCH") for path in (STATUS_MAP, RECORD_MAP)}
            cluster = Cluster(job=job, api=api, port=port, session=session)
            first = cluster.coordinator(1)
            nodes = [cluster.node(number, listen) for number, listen in enumerate(ports)]
            await cluster.push(1, ports)
            pids = await asyncio.to_thread(job.running, 1, 2)
            status = await cluster.asked()
            assert (status.state, status.durable) == (JobState.RUNNING, permitted)
            assert any(event.kind == "status-undurable" for event in status.events) is not permitted
            (tmp_path / "known.json").write_text(codec.dumps(status))

            os.kill(first.pid, signal.SIGKILL)
            await end(first)
            second = cluster.coordinator(2)
            await cluster.push(2, ports)
            await eventually_async(partial(_heard, cluster, 2), why="both agents report to the second coordinator")
            assert all(map(alive, pids.values()))
            job.finish()
            codes = [await end(process) for process in (*nodes, second)]
            written = cluster.written()

    assert [code for code, _ in codes] == [0, 0, 0]
    for rank in (0, 1):
        assert PodLine(round=1, rank=rank, stream="out", text=f"round 1 rank {rank} of 2") in worker_lines(codes[rank][1])
        assert PodLine(round=1, rank=rank, stream="out", text=f"rank {rank} is done") in worker_lines(codes[rank][1])
    assert sorted(once.read_text().splitlines()) == ["0 of 2", "1 of 2"]
    if permitted:
        assert written is not None
        assert (written.state, written.fence.term, written.fence.round) == (JobState.SUCCEEDED, 2, 1)
    else:
        assert written is None


async def _heard(cluster: Cluster, term: int) -> Any:
    status = await cluster.asked()
    return status.fence.term == term and len(status.ranks) == 2 and all(rank.pid > 0 for rank in status.ranks)


def test_a_setup_command_that_fails_ends_the_node(tmp_path: Path) -> None:
    """With its own exit code, and one line that says which it was; no worker was ever started."""
    with agents(tmp_path) as job:
        job.write_plan(setup=("true", "sh -c 'exit 42'"))
        code, output = said(job.node())

        assert code == 42
        assert "setup command 2 of 2 exited with code 42: sh -c 'exit 42'" in output
        assert not (job.work / "started").exists()
