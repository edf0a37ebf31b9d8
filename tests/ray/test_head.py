"""The whole cluster is lost with its head; another cluster has the jobs again, by the folder or the URL of the ledger."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from rallypoint.backends.requests import submit_or_adopt
from rallypoint.supervision.record import Phase
from rallypoint.wire.incident import Cause
from tests.cluster.jobs import Job
from tests.live.light import without_torch
from tests.ray.clusters import RayCluster, ray_cluster
from tests.ray.sites import RaySite, marked

pytestmark = [pytest.mark.extended, pytest.mark.live, pytest.mark.may_block("the hands of a test read /proc")]


@pytest.mark.parametrize("kind", ["folder", "url"])
async def test_a_job_is_found_again_after_a_head_restart(kind: str, tmp_path: Path) -> None:
    """The record, its history and its incidents are there; its nodes are replaced, and it ends well without a retry."""
    pytest.importorskip("ray", reason="ray is not installed")
    pytest.importorskip("fsspec")
    shared = tmp_path / "shared"
    storage = str(shared) if kind == "folder" else f"file://{shared}"
    variables = {"PYTHONPATH": without_torch(tmp_path)}
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    with ray_cluster(first, variables=variables) as cluster, connected(cluster):
        before = await trained(RaySite(tmp_path, cluster, "head", storage=storage))
    if kind == "url":  # the processes of the machine that was the head
        for process in await asyncio.to_thread(marked, before):
            os.kill(process.pid, signal.SIGKILL)
    with ray_cluster(second, variables=variables) as cluster, connected(cluster):
        site = RaySite(tmp_path, cluster, "head", storage=storage)
        job = Job(site, "counter", site.open())
        try:
            job.supervise()
            await job.trains(ranks=2, round_=2)
            record = await job.ends()
        finally:
            await job.close()

    assert (record.phase, record.retries, record.attempt, record.uid) == (Phase.SUCCEEDED, 0, 1, before)
    assert {incident.id.node for incident in record.incidents if incident.cause is Cause.NODE} == {0, 1}


@contextlib.contextmanager
def connected(cluster: RayCluster) -> Iterator[None]:
    """Have this process connected to a cluster, for the hands of the test."""
    import ray

    ray.init(address=cluster.inner.address, namespace="test", log_to_driver=False, logging_level="warning")
    try:
        yield
    finally:
        ray.shutdown()


async def trained(site: RaySite) -> str:
    """Submit a job, and return its uid once it trains; the job has no supervisor then."""
    eyes = site.open()
    # None of the lost nodes is known to have ended, so the next round waits for this time.
    spec = site.job(nodes=2, rendezvous={"fence_timeout": "5s"})
    await submit_or_adopt(eyes, eyes.plan(spec), owner="test")
    job = Job(site, spec.name, eyes)
    async with job.supervised_by_a_process():
        await job.trains(ranks=2)
    uid = (await job.record()).uid
    await eyes.close()
    return uid
