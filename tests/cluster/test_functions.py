"""A Python function as the training, wherever it runs: out of the folder or Secret of its job, its result into the record."""

from __future__ import annotations

import dataclasses
import os
import stat
from typing import Any

import pytest

from rallypoint.backends.requests import submit_or_adopt
from rallypoint.provider.function import FunctionJob, pack
from rallypoint.supervision.record import Phase
from rallypoint.wire.function import FUNCTION_MODULE, function_args
from tests.cluster.jobs import Job, submitted
from tests.cluster.sites import ClusterSite, LocalSite, Site

pytest.importorskip("cloudpickle", reason="sending functions needs cloudpickle")

pytestmark = pytest.mark.may_block("the hands of a test read files and kubeconfigs")


def train(steps: int) -> dict[str, Any]:
    """What each rank calls; a module of the tests is nowhere in an image."""
    from rallypoint.training import current_job, report_progress

    for step in range(steps):
        report_progress(step + 1)
    job = current_job()
    return {"rank": job and job.rank, "world": job and job.world_size, "file": os.environ["RALLYPOINT_FUNCTION_FILE"]}


async def stored(job: Job) -> list[str]:
    """Where the function is, as far as people can see; each with whose it is."""
    site = job.site
    if isinstance(site, LocalSite):
        return [stat.filemode((site.home / "jobs" / job.name / "function.json").stat().st_mode)]
    assert isinstance(site, ClusterSite)
    secrets = await site.listed("secrets", f"rallypoint.dev/job={job.name},rallypoint.dev/part=function")
    return [owner["kind"] for secret in secrets for owner in secret["metadata"]["ownerReferences"]]


@pytest.mark.sample("local")
async def test_a_function_runs_on_every_rank_and_rank_0_returns(site: Site) -> None:
    """The record holds what rank 0 returned; the function lies where its owner alone may read it, and goes with the job."""
    sent = pack(train, [3], {})
    spec = site.job("function", nodes=2, entrypoint=f"-m {FUNCTION_MODULE}", args=list(function_args(sent)))
    work = FunctionJob(job=spec, function=sent)
    eyes = site.open()
    await submit_or_adopt(eyes, dataclasses.replace(eyes.plan(work.job), function=work.text), owner="test")
    await eyes.close()

    async with submitted(site, spec) as job:
        record = await job.over()
        where = await stored(job)

    assert record.phase is Phase.SUCCEEDED, record.verdict
    assert {**record.result, "file": ""} == {"rank": 0, "world": 2, "file": ""}
    assert where == (["-rw-------"] if isinstance(site, LocalSite) else ["ConfigMap"])
    assert sent.pickled not in record.to_json()
