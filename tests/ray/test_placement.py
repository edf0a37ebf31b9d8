"""What a job gets of a Ray cluster: all of its smallest world or nothing, and what is said while it waits."""

from __future__ import annotations

import asyncio

import pytest

from rallypoint.supervision.record import Phase
from tests.cluster.jobs import submitted
from tests.ray.sites import RaySite

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


async def test_two_jobs_never_hold_half_of_each_others_resources(site: RaySite) -> None:
    """Each needs more than half of the cluster: the second waits without any of it, and begins when the first has ended."""
    each = {"resources": {"cpu": "5"}, "nodes": 2}
    async with submitted(site, site.job("first", **each)) as first:
        await first.trains(ranks=2)
        async with submitted(site, site.job("second", **each)) as second:
            await second.until(lambda record: record.phase is Phase.RUNNING)
            await asyncio.sleep(3)  # long enough for a half to be taken
            assert await site.nodes("second") == {}
            waiting = await second.record()
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
