"""What a job with several roles promises wherever it runs."""

from __future__ import annotations

import pytest

from rallypoint.supervision.conductor import Level
from rallypoint.supervision.record import Phase
from tests.cluster.roles_jobs import SERVER, SIMPLE, TRAINER, roles_job
from tests.cluster.sites import ClusterSite

pytestmark = pytest.mark.may_block("the hands of a test read files and kubeconfigs")


async def test_a_driver_ends_while_servers_loop(place: ClusterSite) -> None:
    """Servers are ended once all drivers have succeeded, and the job has succeeded."""
    async with roles_job(place, {"driver": SIMPLE, "server": {**SERVER, "total": 2}}) as job:
        await job.run("driver-0", "server-0", "server-1")
        await job.tell("driver-0", "end")
        record = await job.job.over()

    assert (record.phase, record.released) == (Phase.SUCCEEDED, True)
    assert record.conductor is not None
    assert record.conductor.history == ()


async def test_a_killed_instance_is_started_again_alone(place: ClusterSite) -> None:
    """All others keep their processes."""
    async with roles_job(place, {"trainer": TRAINER, "driver": {**SIMPLE, "total": 2}}) as job:
        before = await job.run("driver-0", "driver-1", nodes=2)
        nodes = await job.nodes()
        await job.tell("driver-1", "die")
        after = await job.run("driver-0", "driver-1", nodes=2, but=(before["driver-1"],))
        assert (after["driver-0"], await job.nodes()) == (before["driver-0"], nodes)
        assert await job.steps() == [(Level.INSTANCE, "driver", 1)]
        [step] = (await job.conductor()).history
        assert step.reason == "driver 1 was killed by signal 9"
