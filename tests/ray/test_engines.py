"""RL engines on Ray make their own placement groups and actors: they run as one driver."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from rallypoint.backends.ray.placement import FILE, Placement, draw
from rallypoint.job import load_job
from rallypoint.job.document import read_document
from rallypoint.supervision.record import Phase
from rallypoint.wire import codec
from tests.cluster.jobs import submitted
from tests.ray.sites import RaySite
from tests.waiting import eventually_async

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"

#: Makes a placement group and an actor in it, as the engines do; the first of its lives ends by SIGKILL.
DRIVER = """\
import os, pathlib, signal, ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from rallypoint.training import report_progress, report_result

ray.init(log_to_driver=False)
group = placement_group([{"CPU": 1}] * 2, strategy="PACK")
ray.get(group.ready())

@ray.remote(num_cpus=1)
class Rollout:
    def step(self, number):
        return number + 1

actors = [
    Rollout.options(scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=n)).remote()
    for n in range(2)
]
found = ray.get([actor.step.remote(1) for actor in actors])
report_progress(1)
mark = pathlib.Path(os.environ["GATE"], "killed")
if not mark.exists():
    mark.touch()
    os.kill(os.getpid(), signal.SIGKILL)
report_result({"found": found, "nodes": len([node for node in ray.nodes() if node["Alive"]])})
"""


@pytest.mark.parametrize("name", ["openrlhf", "verl"])
def test_the_example_document(name: str) -> None:
    """It is a job that Ray can run: one node with one worker, which is the driver, without devices of its own."""
    job = load_job(read_document(EXAMPLES / f"{name}.yaml"), based=False)
    blueprint = draw(job, namespace="team", runtime_env={})
    placement = codec.loads(Placement, blueprint.attached[FILE])

    assert (blueprint.plan.max_nodes, blueprint.plan.nproc_per_node) == (1, 1)
    assert dict(placement.bundle) == {"CPU": 2.0}
    assert blueprint.plan.env["RAY_ADDRESS"] == "auto"
    assert blueprint.warnings == ()


@pytest.mark.extended
@pytest.mark.live
@pytest.mark.may_block("the hands of a test read /proc")
async def test_a_driver_with_actors_of_its_own(site: RaySite) -> None:
    """It finds the cluster that it runs in. Killed, it is started again, and what it had made is gone with it."""
    import ray

    command = [site.python, "-c", DRIVER]
    spec = load_job(
        {
            "name": "engine",
            "entrypoint": {"command": command},
            "env": {**site.env(), "RAY_ADDRESS": site.cluster.inner.address},
            "resources": {"cpu": "1"},
        },
        based=False,
    )
    free = ray.available_resources()["CPU"]
    async with submitted(site, spec) as job:
        record = await job.over()
        status = await job.eyes.status(job.name)

    assert (record.phase, record.retries) == (Phase.SUCCEEDED, 0)
    assert status is not None
    assert status.result == {"found": [2, 2], "nodes": 3}
    assert (site.gate / "killed").exists()

    async def freed() -> Any:
        return (await asyncio.to_thread(ray.available_resources)).get("CPU") == free

    await eventually_async(freed, timeout=60.0, why="the actors of the driver should be gone")
