"""All nodes on machines of one rack are replaced together, once a replacement finds no room in that rack."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from rallypoint.backends.kubernetes.rbac import rbac
from rallypoint.wire.incident import Cause
from tests.cluster.roles_jobs import SIMPLE, TRAINER, roles_job
from tests.cluster.sites import ClusterSite, emulated
from tests.emulator.options import NodeOptions, Options
from tests.emulator.running import Running, running
from tests.live.light import without_torch
from tests.waiting import eventually_async

pytestmark = [pytest.mark.extended, pytest.mark.may_block("the hands of a test read files and kubeconfigs")]

#: Two racks, whose machines have room for one node of the trainer each, and a machine for everything else.
MACHINES = (
    *(NodeOptions(name=f"node-{rack}{n}", cpu="4", labels={"rack": rack}) for rack in "ab" for n in (1, 2)),
    NodeOptions(name="node-c", cpu="64"),
)

#: The nodes of the trainer must be in one rack.
TOGETHER = {
    "podAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {
                "topologyKey": "rack",
                "labelSelector": {"matchLabels": {"rallypoint.dev/job": "rl-trainer", "rallypoint.dev/part": "node"}},
            }
        ]
    }
}


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A cluster with two racks."""
    image = {"PYTHONPATH": without_torch(tmp_path_factory.mktemp("image"))}
    with running(Options(rbac=True, nodes=MACHINES, image_env=image)) as emulator:
        yield emulator


@pytest.fixture
async def place(cluster: Running, tmp_path: Path) -> AsyncIterator[ClusterSite]:
    """A namespace whose supervisor may read the machines and their labels."""
    async with emulated(cluster, tmp_path).opened() as made:
        for manifest in rbac(made.namespace, nodes=True):
            if "Cluster" in manifest["kind"]:
                await made.ask("POST", f"/apis/rbac.authorization.k8s.io/v1/{manifest['kind'].lower()}s", manifest)
        yield made


async def explained(place: ClusterSite) -> str:
    """Return what `rallypoint explain` prints of the job."""
    command = ("-m", "rallypoint.cli.main", "explain", "rl", *place.where.options())
    process = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=asyncio.subprocess.PIPE)
    return (await process.communicate())[0].decode()


async def test_a_rack_is_left(place: ClusterSite, cluster: Running) -> None:
    """The nodes of the trainer move to the other rack, and train there; the other role keeps its process."""
    failover = {"label": "rack", "timeout": "30s"}
    trainer = {**TRAINER, "affinity": TOGETHER, "resources": {"cpu": "3"}, "node_group_failover": failover}
    driver = {**SIMPLE, "node_selector": {"kubernetes.io/hostname": "node-c"}}
    async with roles_job(place, {"trainer": trainer, "driver": driver}) as job:
        before = await job.run("driver-0", nodes=2)
        await job.round(1)
        machines = await job.machines("trainer")
        (rack,) = {name[:-1] for name in machines.values()}
        cluster.cordon(name=machines["1"])
        [pod] = [
            pod["metadata"]["name"]
            for pod in await place.living("rl-trainer", "node")
            if pod["metadata"]["labels"]["rallypoint.dev/node"] == "1"
        ]
        await place.ask("DELETE", place.path("pods", pod), {"gracePeriodSeconds": 0})

        group, told = rack.removeprefix("node-"), list[Any]([None])
        waits = f"all nodes on machines with rack={group} are replaced, because node 1 is pending"

        async def announced() -> Any:
            told[0] = await explained(place)
            return waits in told[0]

        await eventually_async(announced, timeout=25.0, every=2.0, why=lambda: told[0])

        async def moved() -> Any:
            told[0] = await job.machines("trainer")
            return len(told[0]) == 2 and not any(name.startswith(rack) for name in told[0].values())

        await eventually_async(moved, timeout=90.0, every=0.5, why=lambda: f"the trainer should leave {rack}: {told[0]}")
        await job.round(2)
        assert await job.run("driver-0", nodes=2) == before
        assert await job.steps() == []
        shown = await explained(place)
        stored = await job.job.eyes.units("rl").jobs.load("rl-trainer")
        assert stored is not None
        causes = [incident.cause for incident in stored.record.incidents]

    assert stored.record.left_groups == (group,)
    assert causes.count(Cause.EVACUATION) == 2
    assert f"node 0 leaves the machines with rack={group}, because the replacement of node 1 was pending for 30 s" in shown
