"""Ray's GCS, the process of the head that knows all nodes and actors, is away for a while: jobs go on, and find it again."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rallypoint.supervision.record import Phase
from rallypoint.wire.incident import Cause
from rallypoint.wire.status import JobStatus
from tests.cluster.jobs import submitted
from tests.live.light import without_torch
from tests.ray.clusters import RayCluster, ray_cluster
from tests.ray.sites import RaySite, states
from tests.ray.test_kills import farthest, pids
from tests.waiting import eventually_async

pytestmark = [pytest.mark.extended, pytest.mark.live, pytest.mark.may_block("the hands of a test read /proc")]

#: Seconds without GCS.
AWAY = 10.0


def offers_persistence() -> bool:
    """Return whether this version of Ray can store the state of its GCS in a local folder."""
    binary = Path(pytest.importorskip("ray").__file__).parent / "core" / "src" / "ray" / "gcs" / "gcs_server"
    return b"RocksDbStoreClient" in binary.read_bytes()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    """A cluster whose GCS stores its state in a folder."""
    ray = pytest.importorskip("ray", reason="ray is not installed")
    if not offers_persistence():
        pytest.skip("this version of Ray stores the state of its GCS in memory or in Redis alone")
    folder = tmp_path_factory.mktemp("gcs")
    (folder / "state").mkdir()
    variables = {"RAY_gcs_storage": "rocksdb", "RAY_gcs_storage_path": str(folder / "state")}
    with ray_cluster(folder, variables={"PYTHONPATH": without_torch(folder), **variables}) as made:
        ray.init(address=made.inner.address, namespace="test", log_to_driver=False, logging_level="warning")
        try:
            yield made
        finally:
            ray.shutdown()


@pytest.fixture
def site(cluster: RayCluster, tmp_path: Path) -> RaySite:
    """A namespace of the cluster."""
    return RaySite(tmp_path, cluster, f"test-{secrets.token_hex(4)}")


async def test_training_goes_on_without_gcs(site: RaySite, cluster: RayCluster) -> None:
    """The same workers train while it is away; afterwards a lost node is replaced as before, and nothing was charged."""
    head = cluster.inner.head_node
    async with submitted(site, site.job(nodes="1:2")) as job:
        before = await job.trains(ranks=2)
        await asyncio.to_thread(head.kill_gcs_server)
        lost = time.monotonic()

        alone: list[JobStatus] = []

        async def trained_without() -> Any:
            status = await job.eyes.status(job.name)
            moved = status is not None and pids(status) == pids(before) and farthest(status) > farthest(before) + 20
            if moved and status is not None and time.monotonic() - lost >= AWAY:
                alone.append(status)
            return alone

        try:
            await eventually_async(trained_without, timeout=60.0, why="training should go on without GCS")
        finally:
            await asyncio.to_thread(head.start_gcs_server)
        after = await job.trains(ranks=2, beyond=farthest(alone[0]) + 20)
        assert (pids(after), after.fence.round, after.fence.term) == (pids(before), 1, 1)
        await eventually_async(lambda: _knows(site), timeout=60.0, why="GCS should know the actors again")
        await site.lose_node(job.name, 1)
        await job.trains(ranks=2, round_=2)
        record = await job.ends()

    assert (record.phase, record.retries) == (Phase.SUCCEEDED, 0)
    assert [incident.id.node for incident in record.incidents if incident.cause is Cause.NODE] == [1]


async def _knows(site: RaySite) -> Any:
    try:
        return len(await asyncio.to_thread(states, site.namespace)) >= 3
    except Exception:  # noqa: BLE001  the dashboard is not there yet, whatever it says
        return False
