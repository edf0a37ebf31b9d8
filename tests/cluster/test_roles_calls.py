"""Calls between the roles of a job, wherever it runs."""

from __future__ import annotations

import asyncio
import textwrap
import time

import pytest

from rallypoint.backends.kubernetes.attempt_secrets import AttemptSecrets
from rallypoint.backends.kubernetes.names import JobRef, roles_secret
from rallypoint.backends.kubernetes.watching.cluster import joined
from rallypoint.cli.logs import Wanted, role_lines
from rallypoint.supervision.record import Phase
from rallypoint.wire.tls import AUTHORITY_KEY, PEER_FILES
from tests.cluster.roles_jobs import SIMPLE, RolesJob, roles_job
from tests.cluster.sites import ClusterSite, Site
from tests.waiting import eventually_async

pytestmark = pytest.mark.may_block("the hands of a test read files and kubeconfigs")

JUDGE = textwrap.dedent("""
    from rallypoint.training.roles import current, rpc, serve

    @rpc
    def double(number):
        return [current().rank, 2 * number]

    serve().wait()
""")

ASKER = textwrap.dedent("""
    from rallypoint.training.roles import RoleGroup, wait_for

    wait_for("judge", timeout=60)
    print("asked:", RoleGroup("judge", timeout=30).call("double", 21), flush=True)
""")


@pytest.mark.sample("emulator")
async def test_roles_in_different_pods_call_each_other(site: Site) -> None:
    """They find each other through the directory of the job, and only with its token."""
    command = [site.python, "-u", "-c"]
    asker = {**SIMPLE, "entrypoint": {"command": [*command, ASKER]}}
    judge = {**SIMPLE, "entrypoint": {"command": [*command, JUDGE]}, "total": 2, "driver": False}
    async with roles_job(site, {"asker": asker, "judge": judge}) as job:
        record = await job.job.over()
        assert "asked: [[0, 42], [1, 42]]" in await job.output("asker")

    assert record.phase is Phase.SUCCEEDED


@pytest.mark.sample("emulator")
async def test_calls_are_under_tls(site: Site) -> None:
    """With `tls: auto`, an elastic role calls a simple one under the job's own certificates; no pod has the authority's key."""
    command = [site.python, "-u", "-c"]
    lines = "import os\nfrom pathlib import Path\nprint('files:', sorted(os.listdir(os.environ['RALLYPOINT_ROLES_TLS'])))\n"
    asker = {"launch": "elastic", "nodes": 1, "entrypoint": {"command": [*command, ASKER + lines]}}
    judge = {**SIMPLE, "entrypoint": {"command": [*command, JUDGE]}, "total": 2, "driver": False}
    async with roles_job(site, {"asker": asker, "judge": judge, "driver": SIMPLE}, tls="auto") as job:
        record = await job.job.until(lambda record: record.phase is Phase.RUNNING)
        told: list[str] = []
        following = asyncio.create_task(_follow(job, told))
        await eventually_async(lambda: any("files:" in line for line in told), timeout=60.0, why=lambda: f"asker: {told}")
        following.cancel()
        if isinstance(site, ClusterSite):
            await _is_renewed(site, JobRef(name=job.job.name, uid=record.uid, namespace=site.namespace))
        await job.tell("driver-0", "end")
        record = await job.job.over()

    assert record.phase is Phase.SUCCEEDED
    assert any("asked: [[0, 42], [1, 42]]" in line for line in told), told
    files = next(line for line in told if "files:" in line)
    assert all(name in files for name in PEER_FILES), files
    # On one machine, all processes belong to the user whose folder has the key.
    assert (AUTHORITY_KEY in files) != isinstance(site, ClusterSite)


async def _is_renewed(site: ClusterSite, found: JobRef) -> None:
    """Only the Secret has the authority's key, with which certificates that end soon are renewed."""
    secret = await site.ask("GET", site.path("secrets", roles_secret(found)))
    assert AUTHORITY_KEY in secret["data"]
    async with joined(site.administrator) as cluster:
        renewed = [await AttemptSecrets(cluster, clock=clock).renew_roles(found) for clock in (time.time, in_eleven_days)]
    assert renewed == [False, True]


async def _follow(job: RolesJob, told: list[str]) -> None:
    """Add the lines of the asker, as they come."""
    stored = await job.job.eyes.load(job.job.name)
    assert stored is not None
    async for _, line in role_lines(job.job.eyes, stored, Wanted(role="asker", rank=None, tail=None, follow=True)):
        told.append(line.text)


def in_eleven_days() -> float:
    return time.time() + 11 * 86400.0


@pytest.mark.extended
async def test_a_job_of_elastic_roles_alone_runs(site: Site) -> None:
    """Each is a job of its own, and the whole succeeds with both."""
    elastic = {"launch": "elastic", "nodes": 1, "entrypoint": {"command": ["sh", "-c", "exit 0"]}}
    async with roles_job(site, {"one": elastic, "two": elastic}) as job:
        record = await job.job.over()

    assert (record.phase, record.released) == (Phase.SUCCEEDED, True)
