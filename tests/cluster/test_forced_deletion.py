"""`kubectl delete pod --force --grace-period=0` during training: one pod is one incident, whoever of the world it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from rallypoint.report.incidents import incidents_of
from rallypoint.supervision.record import Phase
from rallypoint.wire.incident import Cause, Incident, Rung
from tests.cluster.jobs import Job, submitted
from tests.cluster.sites import ClusterSite

pytestmark = pytest.mark.may_block("the hands of a test read files and kubeconfigs")

#: Its ranks wait for each other as in a collective, and each fails when its peer is gone.
COUPLED = (Path(__file__).with_name("loss_script.py")).read_text()


async def incidents(job: Job) -> tuple[Incident, ...]:
    """Return what `rallypoint explain` lists."""
    return incidents_of(await job.record(), await job.eyes.status(job.name))


@pytest.mark.parametrize("node", [pytest.param(0, id="rank 0"), pytest.param(1, id="rank 1", marks=pytest.mark.extended)])
async def test_a_pod_that_is_deleted_by_force_is_one_incident(place: ClusterSite, node: int, tmp_path: Path) -> None:
    """Its worker ends with it and the worker of the other node fails because of that; nothing else is told or charged."""
    spec = place.job(nodes=2, entrypoint={"command": [place.python, "-c", COUPLED]}, recovery={"max_restarts": 0})
    async with submitted(place, spec) as job:
        before = await job.trains(ranks=2, beyond=5)
        await place.lose_node(job.name, node)
        await job.joined(node, incarnation=2)
        await job.trains(ranks=2, round_=before.fence.round + 1, beyond=max(rank.step or 0 for rank in before.ranks))
        during = await incidents(job)
        (tmp_path / "trail" / "finish").write_text("1")
        record = await job.over()

    assert (record.phase, record.attempt, record.retries) == (Phase.SUCCEEDED, 1, 0)
    told = [(i.cause, i.rung, i.id.node, i.reason) for i in during]
    assert told == [(Cause.NODE, Rung.RECOVER, node, record.incidents[0].reason)]
    assert len(record.incidents) == 1, [i.reason for i in record.incidents]
    assert record.incidents[0].healed_at is not None
