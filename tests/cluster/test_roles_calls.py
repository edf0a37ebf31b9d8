"""Calls between the roles of a job on the emulated cluster."""

from __future__ import annotations

import textwrap

import pytest

from rallypoint.supervision.record import Phase
from tests.cluster.roles_jobs import SIMPLE, roles_job
from tests.cluster.sites import ClusterSite

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


async def test_roles_in_different_pods_call_each_other(place: ClusterSite) -> None:
    """They find each other through the directory of the job, and only with its token."""
    command = [place.python, "-u", "-c"]
    asker = {**SIMPLE, "entrypoint": {"command": [*command, ASKER]}}
    judge = {**SIMPLE, "entrypoint": {"command": [*command, JUDGE]}, "total": 2, "driver": False}
    async with roles_job(place, {"asker": asker, "judge": judge}) as job:
        record = await job.job.over()
        (pod,) = (
            one for one in await place.listed("pods", "rallypoint.dev/place=asker") if one["status"].get("phase") == "Succeeded"
        )
        assert "asked: [[0, 42], [1, 42]]" in await place.logs_of(pod["metadata"]["name"])

    assert record.phase is Phase.SUCCEEDED


async def test_a_job_of_elastic_roles_alone_runs(place: ClusterSite) -> None:
    """Each is a job of its own, and the whole succeeds with both."""
    elastic = {"launch": "elastic", "nodes": 1, "entrypoint": {"command": ["sh", "-c", "exit 0"]}}
    async with roles_job(place, {"one": elastic, "two": elastic}) as job:
        record = await job.job.over()

    assert (record.phase, record.released) == (Phase.SUCCEEDED, True)
