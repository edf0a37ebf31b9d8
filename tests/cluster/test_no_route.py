"""A coordinator whose pod has no route to the API server: the job trains, and its status says so."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from rallypoint.cli.lookup import look
from rallypoint.cli.view import view_of
from rallypoint.supervision.record import Phase
from tests.cluster.jobs import submitted
from tests.cluster.sites import ClusterSite, emulated
from tests.emulator.options import Options
from tests.emulator.running import Running, running
from tests.live.light import without_torch

pytestmark = pytest.mark.may_block("the hands of a test read files and kubeconfigs")

#: A port of the pod's own machine on which nothing listens.
NOWHERE = "http://127.0.0.1:9"


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    image = {"PYTHONPATH": without_torch(tmp_path_factory.mktemp("image")), "RALLYPOINT_API_SERVER": NOWHERE}
    with running(Options(rbac=True, image_env=image)) as emulator:
        yield emulator


@pytest.fixture
async def place(cluster: Running, tmp_path: Path) -> AsyncIterator[ClusterSite]:
    async with emulated(cluster, tmp_path).opened() as made:
        yield made


@pytest.mark.extended
async def test_a_coordinator_without_a_route_to_the_api_server_blocks_nobody(place: ClusterSite) -> None:
    """Its supervisor reads its status through the API server, and whoever looks at the job is told why."""
    async with submitted(place, place.job(nodes=2)) as job:
        await job.trains(ranks=2, beyond=3)
        document = await look(job.eyes, job.name)
        details = {fact.label: fact.text for fact in view_of(document, time.time()).details}
        record = await job.ends()

    assert "the API server has never answered this pod" in details["note"], details
    assert NOWHERE.partition("//")[2].partition(":")[0] in details["note"]
    assert (record.phase, record.retries) == (Phase.SUCCEEDED, 0)
