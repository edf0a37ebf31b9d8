"""Which sizes a job in a queue may be given: Kueue has admitted its smallest world as one group."""

from __future__ import annotations

import pytest

from rallypoint.backends.contract import ResizeError
from rallypoint.backends.requests import request_resize, submit_or_adopt
from rallypoint.wire.node_range import Size
from tests.emulator.options import Options
from tests.emulator.running import running
from tests.kube.stage import KubernetesStage

pytestmark = [pytest.mark.live, pytest.mark.may_block("what happens on the cluster is brought about in the test's own loop")]


@pytest.fixture
async def stage(tmp_path, home):
    """A cluster with nobody who would admit, create or end a pod: sizes are a matter of the record."""
    with running(Options(nodes=())) as cluster:
        place = KubernetesStage(tmp_path, cluster)
        yield place
        await place.close()


async def submitted(stage, **fields):
    blueprint = stage.backend.plan(stage.job(nodes="2:4", **fields))
    return (await submit_or_adopt(stage.backend, blueprint, owner="try-1")).stored.record


async def test_a_group_of_a_queue_is_never_made_smaller_than_it_was_admitted(stage):
    """It would never be whole again; the refusal says why, and the record keeps the size that holds."""
    record = await submitted(stage, queue="team")

    with pytest.raises(ResizeError) as refused:
        await request_resize(stage.backend, record.name, Size(min_nodes=1, max_nodes=1))

    assert str(refused.value) == (
        "nodes: '1' is not allowed for job digits; the maximum must be 2 or more, because Kueue admitted 2 nodes together"
    )
    stored = await stage.backend.load(record.name)
    assert stored is not None
    assert stored.record.size is None


async def test_a_group_of_a_queue_may_grow(stage):
    """Further nodes are not part of the group."""
    record = await submitted(stage, queue="team")

    assert await request_resize(stage.backend, record.name, Size(min_nodes=1, max_nodes=3))


async def test_without_a_queue_a_job_may_be_as_small_as_it_likes(stage):
    """Nobody has admitted anything."""
    record = await submitted(stage)

    assert await request_resize(stage.backend, record.name, Size(min_nodes=1, max_nodes=1))
