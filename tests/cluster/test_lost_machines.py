"""The machine of the coordinator is lost: the supervisor's own evidence brings a successor, and no other machine is blamed."""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from rallypoint.backends.kubernetes.rbac import rbac
from rallypoint.wire.incident import Cause
from tests.cluster.jobs import Job, submitted
from tests.cluster.sites import ClusterSite, emulated
from tests.emulator.options import NodeOptions, Options
from tests.emulator.running import Running, running
from tests.live.light import without_torch
from tests.waiting import PATIENCE, eventually_async

pytestmark = pytest.mark.may_block("the hands of a test read files and kubeconfigs")

#: Seconds after which an agent that reaches no coordinator stops its workers, and those that the workers have for it.
FENCE, STOP = 20.0, 2.0

MACHINES = tuple(NodeOptions(name=f"node-{letter}") for letter in "abc")


@pytest.fixture(params=[pytest.param("leases", marks=pytest.mark.extended), "nodes"])
def evidence(request: pytest.FixtureRequest) -> str:
    """By what a supervisor knows that a machine is lost: also by the Lease of its kubelet, or by its condition alone."""
    return str(request.param)


@pytest.fixture
def cluster(evidence: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Three machines. Where their condition alone tells, the cluster's controllers are twenty times faster than real ones."""
    image = {"PYTHONPATH": without_torch(tmp_path_factory.mktemp("image"))}
    speed = 1.0 if evidence == "leases" else 20.0
    with running(Options(rbac=True, nodes=MACHINES, image_env=image, speed=speed)) as emulator:
        yield emulator


@pytest.fixture
async def place(cluster: Running, evidence: str, tmp_path: Path) -> AsyncIterator[ClusterSite]:
    """A namespace whose supervisor may look at machines in one of the two ways."""
    async with emulated(cluster, tmp_path).opened() as made:
        for manifest in rbac(made.namespace, nodes=True):
            metadata = manifest["metadata"]
            if metadata.get("namespace") != made.namespace and (evidence == "leases" or "Cluster" in manifest["kind"]):
                where = f"/namespaces/{metadata['namespace']}" if "namespace" in metadata else ""
                path = f"/apis/rbac.authorization.k8s.io/v1{where}/{manifest['kind'].lower()}s"
                await made.ask("POST", path, manifest)
        yield made


async def explained(place: ClusterSite, job: Job, words: str) -> str:
    """Wait until `explain` says these words, and return what it says."""
    command = ("rallypoint.cli.main", "explain", job.name, *place.where.options())
    told = [""]

    async def look() -> Any:
        process = await asyncio.create_subprocess_exec(sys.executable, "-m", *command, stdout=asyncio.subprocess.PIPE)
        told[0] = (await process.communicate())[0].decode()
        return re.search(words, told[0])

    await eventually_async(look, timeout=40.0, why=lambda: told[0])
    return told[0]


async def test_the_machine_of_the_coordinator_is_lost(place: ClusterSite, cluster: Running, evidence: str) -> None:
    """The coordinator is replaced before any agent gives up, those of other machines live on, and no machine is excluded."""
    spec = place.job(nodes="1:2", rendezvous={"fence_timeout": "60s"}, fault_tolerance={"retry_limit": 0})
    async with submitted(place, spec) as job:
        before = await job.trains(ranks=2)
        (coordinator,) = await place.living(job.name, "coordinator")
        machine = coordinator["spec"]["nodeName"]
        nodes = {int(p["metadata"]["labels"]["rallypoint.dev/node"]): p for p in await place.living(job.name, "node")}
        healthy = {n for n, pod in nodes.items() if pod["spec"]["nodeName"] != machine}
        step = max(rank.step or 0 for rank in before.ranks)

        cluster.lose_node(name=machine)

        if evidence == "leases":
            await explained(place, job, rf"in \S+ s, .* \(lost-machine\): the coordinator is lost .* machine {machine} renews")
        record = await job.until(lambda r: r.term == 2, timeout=90.0)
        (lost,) = (incident for incident in record.incidents if incident.cause is Cause.COORDINATOR)
        assert machine in lost.reason
        await job.trains(ranks=len(healthy), round_=before.fence.round, beyond=step)
        record = await job.record()
        assert {slot.node: slot.incarnation for slot in record.slots if slot.node in healthy} == dict.fromkeys(healthy, 1)
        successors = [pod["spec"]["nodeName"] for pod in await place.living(job.name, "coordinator")]
        assert len(set(successors) - {machine}) == 1
        cluster.restore_node(name=machine)
        after: dict[str, Any] = {"attempt": record.attempt, "retries": record.retries}
    assert after == {"attempt": 1, "retries": 0}


@pytest.mark.extended
@pytest.mark.parametrize("evidence", ["leases"], indirect=True)
async def test_a_job_of_one_node_waits_for_its_fence(place: ClusterSite, cluster: Running) -> None:
    """Nobody survives who proves the end of the lost world, so the fence of its agent must be over; `explain` says so."""
    spec = place.job(nodes=1, rendezvous={"fence_timeout": f"{FENCE:g}s"}, fault_tolerance={"retry_limit": 0})
    async with submitted(place, spec) as job:
        before = await job.trains(ranks=1)
        (pod,) = await place.living(job.name, "node")
        machine, lost_at = pod["spec"]["nodeName"], time.monotonic()
        cluster.lose_node(name=machine, silent=True)

        told = await explained(place, job, r"\(fence-timeout\): a new round may start")

        (seconds,) = re.findall(r"in (\S+) s, at .* \(fence-timeout\)", told)
        assert 0.0 < float(seconds) <= FENCE + STOP
        await job.trains(ranks=1, round_=before.fence.round + 1)
        waited = time.monotonic() - lost_at
        cluster.restore_node(name=machine)
        record = await job.record()
    assert (record.attempt, record.retries) == (1, 0)
    # Beside the fence it takes until the loss is noticed, and until the coordinator on the same machine is replaced.
    assert FENCE + STOP <= waited <= FENCE + STOP + 40.0 * PATIENCE
