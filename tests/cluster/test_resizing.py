"""A job that grows and shrinks while it trains, wherever it runs."""

from __future__ import annotations

import pytest

from rallypoint.backends.requests import request_resize
from rallypoint.supervision.record import Phase
from rallypoint.wire.incident import FREE
from rallypoint.wire.node_range import Size
from tests.cluster.jobs import submitted
from tests.cluster.sites import Site

pytestmark = pytest.mark.may_block("the hands of a test read files and kubeconfigs")


@pytest.mark.sample("emulator")
async def test_a_job_grows_and_shrinks_while_it_trains(site: Site) -> None:
    """The node that stays is the one that it was; not charged to a budget; the bounds are those that were asked for last."""
    async with submitted(site, site.job(nodes=1)) as job:
        await job.trains(ranks=1)
        first = (await site.nodes(job.name))[0]

        assert await request_resize(job.eyes, job.name, Size(min_nodes=1, max_nodes=3))
        assert not await request_resize(job.eyes, job.name, Size(min_nodes=1, max_nodes=3))
        await job.trains(ranks=3, round_=2)

        assert await request_resize(job.eyes, job.name, Size(min_nodes=2, max_nodes=2))
        status = await job.trains(ranks=2, round_=3)
        assert (await site.nodes(job.name))[0] == first
        record = await job.ends()

    assert [member.node for member in status.world] == [0, 1]
    assert (record.phase, record.retries, record.size) == (Phase.SUCCEEDED, 0, Size(min_nodes=2, max_nodes=2))
    assert {incident.cause for incident in record.incidents} <= FREE
