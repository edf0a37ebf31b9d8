"""What a job gets of a Ray cluster: all of its smallest world or nothing, and what is said while it waits."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from rallypoint.backends.ray.access import LEDGER, Access
from rallypoint.backends.ray.backend import RayBackend
from rallypoint.backends.requests import delete, submit_or_adopt
from rallypoint.backends.supervise import supervise
from rallypoint.job import load_job
from rallypoint.supervision.record import Phase
from tests.cluster.jobs import submitted
from tests.ray.clusters import can_lower_niceness
from tests.ray.sites import RaySite, states

pytestmark = [pytest.mark.extended, pytest.mark.may_block("the hands of a test read /proc")]


async def test_a_job_that_cannot_be_placed_says_what_is_missing(site: RaySite) -> None:
    """It costs no retry, names the resource and both numbers, and ends after `master.create_timeout`."""
    spec = site.job(nodes=2, resources={"cpu": "1", "gpus": 4}, master={"create_timeout": "6s"})
    async with submitted(site, spec) as job:
        waiting = await job.until(lambda record: bool(record.attempts))
        assert waiting.phase in (Phase.RESUMING, Phase.RUNNING)
        record = await job.over()

    assert (record.phase, record.retries, record.incidents) == (Phase.FAILED, 0, ())
    told = " ".join(event.detail for event in record.history)
    assert "was not ready within 6 s (master.create_timeout)" in told
    assert "a node needs GPU 4, but the largest node of the cluster has GPU 0" in told


async def test_two_jobs_never_hold_half_of_each_others_resources(site: RaySite, tmp_path: Path) -> None:
    """Each needs more than half of the cluster: the second waits without any of it, and begins when the first has ended."""
    each: dict[str, Any] = {"resources": {"cpu": "5"}, "nodes": 2}
    (tmp_path / "second").mkdir()  # with a gate of its own: the last words to the first job may come after its end
    beside = RaySite(tmp_path / "second", site.cluster, site.namespace, storage=str(site.storage))
    async with submitted(site, site.job("first", **each)) as first:
        await first.trains(ranks=2)
        async with submitted(beside, beside.job("second", **each)) as second:
            waiting = await second.until(lambda record: "2 nodes need CPU 10, but CPU 6 is free" in record.waits_for)
            assert await beside.nodes("second") == {}
            assert (await first.ends()).phase is Phase.SUCCEEDED
            await second.trains(ranks=2)
            record = await second.ends()

    assert (waiting.retries, waiting.incidents) == (0, ())
    assert (record.phase, record.retries, record.attempt) == (Phase.SUCCEEDED, 0, 1)


async def test_excluded_nodes_and_bytes(site: RaySite) -> None:
    """A node is placed beside the excluded Ray node; memory is counted in bytes."""
    import ray

    excluded, other = (node.node_id for node in site.cluster.nodes[:2])
    spec = site.job(nodes=1, resources={"cpu": "1", "memory": "64Mi"}, host_ignore_list=[excluded])
    async with submitted(site, spec) as job:
        await job.trains(ranks=1)
        hosts = await job.hosts()
        memory = ray.cluster_resources()["memory"] - ray.available_resources()["memory"]
        record = await job.ends()

    assert hosts == {0: other}
    assert memory == 64 * 2**20
    assert record.phase is Phase.SUCCEEDED


async def test_the_processes_of_a_job_have_the_priority_of_the_raylet(site: RaySite) -> None:
    """Not the lower one that Ray gives its workers: agent, worker and coordinator, and the actors that start them."""
    async with submitted(site, site.job(nodes=1)) as job:
        await job.trains(ranks=1)
        actors = await asyncio.to_thread(states, site.namespace)
        processes = {process.pid: process.command for process in await site.processes(job.name)}
        found = {name: os.getpriority(os.PRIO_PROCESS, pid) for pid, name in processes.items()}
        found |= {name: os.getpriority(os.PRIO_PROCESS, pid) for name, pid in actors.items()}
        record = await job.ends()

    own = os.getpriority(os.PRIO_PROCESS, 0)  # this process started the raylet
    expected = own if can_lower_niceness() else own + 15
    assert len(processes) >= 4  # an agent, a worker, a coordinator, and the parent processes of two
    assert LEDGER in actors
    assert found == dict.fromkeys(found, expected)
    assert record.phase is Phase.SUCCEEDED


async def test_a_local_folder_is_uploaded(site: RaySite, tmp_path: Path) -> None:
    """Its script runs on the nodes, in a copy of the folder, with a path relative to it."""
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "part.py").write_text("VALUE = 7\n")
    (folder / "train.py").write_text(
        "import os, part\nfrom rallypoint.training import report_result\n"
        "report_result({'value': part.VALUE, 'at': os.getcwd()})\n"
    )
    runtime_env = json.dumps({"working_dir": str(folder)})
    backend = RayBackend(
        Access(address=site.cluster.url, namespace=site.namespace, storage=str(site.storage), runtime_env=runtime_env)
    )
    try:
        job = load_job({"name": "code", "entrypoint": "train.py", "resources": {"cpu": "1"}}, based=False)
        await submit_or_adopt(backend, backend.plan(job), owner="test")
        record = await asyncio.wait_for(supervise(backend, "code", holder="test"), 60)
        status = await backend.status("code")
        await delete(backend, "code", holder="test", timeout=60)
    finally:
        await backend.close()

    assert record is not None
    assert record.phase is Phase.SUCCEEDED
    assert status is not None
    result = status.result if isinstance(status.result, dict) else json.loads(str(status.result))
    assert result["value"] == 7
    assert result["at"] != str(folder)
