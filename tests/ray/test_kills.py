"""Training goes on whatever part of a job on Ray is killed, and no rank is there twice.

| Killed | Test of a job with one role | Test of a job with several roles |
|---|---|---|
| worker process, instance | test_sample: killed_worker | test_roles: killed_rank, killed_instance, two_instances, two_roles |
| actor of a node or a group | test_behaviours: lost_node | test_roles: machine_of_its_group, takes_its_whole_group |
| raylet, ungracefully | killed_ray_node | test_role_kills: lost_ray_node |
| coordinator | test_behaviours: lost_coordinator | test_role_kills: lost_coordinator |
| ledger | killed_ledger | test_role_kills: killed_ledger, calls_between_roles |
| supervisor | test_behaviours: another_supervisor | test_roles: another_supervisor |
| driver of the submission | driver_that_is_killed, not_need_its_ray_job | the same driver |
| GCS, for 10 s | test_gcs: without_gcs | the same agents |
| head with all its nodes | test_head: head_restart | the same ledger |
| nothing; stopped and continued | node_that_was_stopped | the same agents |
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from rallypoint.backends.contract import BackendError
from rallypoint.backends.ray.access import LEDGER, Access
from rallypoint.backends.ray.dashboard import Cluster
from rallypoint.backends.requests import submit_or_adopt
from rallypoint.supervision.record import Phase
from rallypoint.wire.incident import Cause
from rallypoint.wire.status import JobStatus
from tests.cluster.jobs import submitted
from tests.ray.clusters import RayCluster
from tests.ray.sites import RaySite, states
from tests.waiting import eventually_async

pytestmark = [pytest.mark.extended, pytest.mark.may_block("the hands of a test read /proc")]


def pids(status: JobStatus) -> dict[int, int]:
    return {rank.rank: rank.pid for rank in status.ranks}


def farthest(status: JobStatus) -> int:
    return max(rank.step or 0 for rank in status.ranks)


async def test_a_killed_ledger_is_found_again(site: RaySite) -> None:
    """The same workers go on in the same round; another ledger has the record, the nodes and their output."""
    async with submitted(site, site.job(nodes=2)) as job:
        before = await job.trains(ranks=2)
        first = (await asyncio.to_thread(states, site.namespace))[LEDGER]
        os.kill(first, signal.SIGKILL)
        after = await job.trains(ranks=2, beyond=farthest(before) + 20)
        assert (pids(after), after.fence.round, after.fence.term) == (pids(before), 1, 1)
        assert (await asyncio.to_thread(states, site.namespace))[LEDGER] != first
        record = await job.ends()
        lines = [line.text async for line in job.eyes.logs(job.name)]

    assert (record.phase, record.retries, record.incidents) == (Phase.SUCCEEDED, 0, ())
    assert [f"rank {rank} is done" in lines for rank in range(2)] == [True, True]
    assert len([line for line in lines if line.startswith("round 1: rank 0")]) == 1


async def test_a_killed_ray_node_is_replaced(site: RaySite, cluster: RayCluster) -> None:
    """Its node starts again on another Ray node, within the same placement group; the other node trains on."""
    third = cluster.add()
    try:
        async with submitted(site, site.job(nodes="1:2")) as job:
            await job.trains(ranks=2)
            hosts = await job.hosts()
            lost = next(node for node in cluster.nodes if node.node_id == hosts[1])
            cluster.lose(lost)
            if lost is third:
                third = None
            await job.trains(ranks=2, round_=2)
            after = await job.hosts()
            record = await job.ends()
    finally:
        while len(cluster.nodes) > 2:
            cluster.lose(cluster.nodes[-1])
        while len(cluster.nodes) < 2:
            cluster.add()

    assert hosts[0] != hosts[1]
    assert after[1] != hosts[1]
    assert (record.phase, record.retries) == (Phase.SUCCEEDED, 0)
    assert [incident.id.node for incident in record.incidents if incident.cause is Cause.NODE] == [1]


async def test_the_job_does_not_need_its_ray_job(site: RaySite) -> None:
    """The Ray job of the submission has the job's uid and has ended. Stopped and deleted, it takes nothing with it."""
    async with submitted(site, site.job(nodes=2)) as job:
        before = await job.trains(ranks=2)
        uid = await site.uid(job.name)
        dashboard = Cluster(Access(address=site.cluster.url, namespace=site.namespace))
        try:
            known: dict[str, str] = {}

            async def ended() -> Any:
                known.update({str(entry["submission_id"]): entry["status"] for entry in await dashboard.jobs()})
                return known.get(uid) in ("SUCCEEDED", "FAILED")

            await eventually_async(ended, timeout=60.0, why=lambda: f"the Ray job {uid} should end: {known}")
            await dashboard.submit(uid)  # refused by Ray, which is fine
            again = [entry["submission_id"] for entry in await dashboard.jobs()]
            await delete_ray_jobs(site)
            assert [entry for entry in await dashboard.jobs() if entry["metadata"].get("rallypoint") == site.namespace] == []
        finally:
            await dashboard.close()
        after = await job.trains(ranks=2, beyond=farthest(before))
        assert await site.uid(job.name) == uid  # another process finds the ledger without these Ray jobs
        record = await job.ends()

    assert known[uid] == "SUCCEEDED"
    assert again.count(uid) == 1
    assert pids(after) == pids(before)
    assert record.phase is Phase.SUCCEEDED


async def delete_ray_jobs(site: RaySite) -> None:
    """Stop and delete all Ray jobs of a namespace, as `ray job stop` and `ray job delete` do."""
    async with aiohttp.ClientSession(base_url=site.cluster.url) as session:
        async with session.get("/api/jobs/") as answer:
            every = await answer.json()
        for entry in every:
            if entry["metadata"].get("rallypoint") == site.namespace:
                where = f"/api/jobs/{entry['submission_id']}"
                async with session.post(f"{where}/stop") as stopped, session.delete(where) as deleted:
                    assert (stopped.status, deleted.status) == (200, 200), await deleted.text()


async def test_a_node_that_was_stopped_does_not_come_back_as_a_second_rank(site: RaySite) -> None:
    """A node that stood still is left behind by the next round; when it runs again it ends its worker of the old round."""
    async with submitted(site, site.job(nodes="1:2")) as job:
        before = await job.trains(ranks=2)
        stopped = [p.pid for p in await site.processes(job.name) if p.mark.split("/")[-2] == "1"]
        stopped += [
            pid for name, pid in (await asyncio.to_thread(states, site.namespace)).items() if name.split("-")[-2:] == ["1", "1"]
        ]
        assert len(stopped) >= 4  # actor, shim, agent, worker
        _send(stopped, signal.SIGSTOP)
        try:
            alone = await job.trains(ranks=1, round_=2)
            assert [member.node for member in alone.world] == [0]
        finally:
            _send(stopped, signal.SIGCONT)
        old = pids(before)[1]
        await eventually_async(lambda: _gone(old), why=f"the worker {old} of the old round should end")
        after = await job.trains(ranks=2, round_=3)
        assert pids(after)[1] != old
        record = await job.ends()

    assert len({(member.node, rank.rank) for member in after.world for rank in after.ranks if rank.node == member.node}) == 2
    assert (record.phase, record.retries) == (Phase.SUCCEEDED, 0)


def _send(processes: list[int], number: signal.Signals) -> None:
    for pid in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


async def _gone(pid: int) -> Any:
    return not await asyncio.to_thread(Path(f"/proc/{pid}").exists)


async def test_a_driver_that_is_killed_while_it_starts_the_ledger(site: RaySite) -> None:
    """The submission fails or finds the ledger, and leaves no job; the next one finds or creates the one ledger."""
    spec = site.job(nodes=1)
    backend = site.open()
    try:
        submission = asyncio.create_task(submit_or_adopt(backend, backend.plan(spec), owner="test"))
        drivers: set[int] = set()

        async def killed() -> Any:
            drivers.update(await asyncio.to_thread(_drivers, site.namespace))
            _send(list(drivers), signal.SIGKILL)
            return drivers

        await eventually_async(killed, every=0.01, timeout=60.0, why="the driver of the submission should start")
        failed = (await asyncio.gather(submission, return_exceptions=True))[0]
        assert isinstance(failed, BackendError), failed
        assert "could not start the ledger (FAILED)" in str(failed)
    finally:
        await backend.close()
    async with submitted(site, spec) as job:
        await job.trains(ranks=1)
        named = await asyncio.to_thread(states, site.namespace)
        record = await job.ends()

    assert (record.phase, record.retries, record.incidents) == (Phase.SUCCEEDED, 0, ())
    assert LEDGER in named


def _drivers(namespace: str) -> list[int]:
    """Return the processes of Ray jobs that look for the ledger of a namespace."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
                if words[3:6] == ["rallypoint.backends.ray.cluster", "--namespace", namespace]:
                    found.append(int(entry.name))
    return found
