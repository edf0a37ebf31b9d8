"""A job of four pods through everything that a cluster can do to it: nothing twice, nothing left, nobody restarted in vain."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from rallypoint.supervision.record import Phase
from rallypoint.wire.incident import Cause
from rallypoint.wire.status import JobStatus
from tests.cluster.audit import Audit, two_worlds
from tests.cluster.jobs import Job, submitted
from tests.cluster.sites import ClusterSite
from tests.emulator.running import Running

pytestmark = pytest.mark.may_block("the hands of a test read files and kubeconfigs")

#: How long an outage lasts, and the trouble with watches and writes, in seconds.
MINUTE = 60.0

#: Who may look at machines knows within a minute that one is lost; others wait for its pods to be evicted.
WATCH_NODES: tuple[dict[str, Any], ...] = (
    {"kind": "ClusterRole", "metadata": {"name": "see-nodes"}, "rules": [
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list", "watch"]}
    ]},
    {"kind": "ClusterRoleBinding", "metadata": {"name": "see-nodes"},
     "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "see-nodes"},
     "subjects": [{"kind": "Group", "name": "system:serviceaccounts"}]},
)  # fmt: skip


async def pods_of(site: ClusterSite, job: str) -> dict[int, dict[str, Any]]:
    """Return the living pod of each slot."""
    return {int(pod["metadata"]["labels"]["rallypoint.dev/node"]): pod for pod in await site.living(job, "node")}


def untouched(before: dict[int, dict[str, Any]], after: dict[int, dict[str, Any]]) -> set[int]:
    """Return the slots whose pod is the same, and no container of it was started again."""

    def who(pod: dict[str, Any]) -> tuple[str, list[int]]:
        return pod["metadata"]["uid"], [one["restartCount"] for one in pod["status"]["containerStatuses"]]

    return {node for node, pod in before.items() if node in after and who(after[node]) == who(pod)}


def workers(status: JobStatus) -> dict[int, int]:
    return {rank.rank: rank.pid for rank in status.ranks}


@pytest.mark.extended
async def test_a_job_lives_through_all_of_it(place: ClusterSite, emulator: Running, tmp_path: Path) -> None:
    """Coordinator, pod and machine are lost while watches are cut and writes collide; then, while the API server is away for a
    minute, the supervisor and one more pod. One attempt, no pod twice, no two worlds, and the healthy pods are those of before.
    """
    for manifest in WATCH_NODES:
        await place.ask("POST", f"/apis/rbac.authorization.k8s.io/v1/{manifest['kind'].lower()}s", manifest)
    audit = Audit(place.namespace)
    emulator.emulator.api.store.listeners.append(audit)
    spec = place.job(
        nodes="3:4",
        recovery={"node_replacements": 3},
        rendezvous={"fence_timeout": "20s"},
        fault_tolerance={"retry_limit": 0, "failure_grace_period": "10m"},
    )
    try:
        async with submitted(place, spec, supervised=False) as job:
            async with job.supervised_by_a_process():
                await job.trains(ranks=4)
                began = time.monotonic()
                emulator.fault(kind="cut", seconds=1.0)
                emulator.fault(kind="conflict", share=0.5)
                await _the_coordinator(job, place)
                await _a_pod(job, place, emulator, node=1)
                await _a_machine(job, place, emulator, audit, node=2)
                await asyncio.sleep(max(0.0, began + MINUTE - time.monotonic()))
                emulator.heal()
                await job.trains(ranks=4)
                emulator.fault(kind="outage", lasts=MINUTE)
            await _an_outage(job, place, emulator, node=3)
            record = await job.ends()
    finally:
        emulator.emulator.api.store.listeners.remove(audit)

    assert (record.phase, record.released, record.attempt, record.retries) == (Phase.SUCCEEDED, True, 1, 0)
    assert sorted(i.id.node for i in record.incidents if i.cause is Cause.NODE) == [1, 2, 3]
    assert [i.cause for i in record.incidents if i.cause not in (Cause.NODE, Cause.SCALE)] == [Cause.COORDINATOR]
    assert (audit.wrong, audit.attempts, audit.incarnations()) == ([], {1}, {0: 1, 1: 2, 2: 2, 3: 2})
    rounds = {file.name.partition("-")[0] for file in (tmp_path / "trail").iterdir()}
    assert len(rounds) >= 4, "one for each node that came"
    assert two_worlds(tmp_path / "trail") == []


async def _the_coordinator(job: Job, site: ClusterSite) -> None:
    """Nobody notices: the same pods, the same workers, the same round."""
    before, pods = await job.trains(ranks=4), await pods_of(site, job.name)
    await site.lose_coordinator(job.name)
    await job.until(lambda record: record.term == 2)
    after = await job.trains(ranks=4, beyond=max(rank.step or 0 for rank in before.ranks))
    assert (workers(after), after.fence.round, after.fence.term) == (workers(before), before.fence.round, 2)
    assert untouched(pods, await pods_of(site, job.name)) == {0, 1, 2, 3}


async def _a_pod(job: Job, site: ClusterSite, emulator: Running, *, node: int) -> None:
    """Its slot is filled again; the others are as they were."""
    pods = await pods_of(site, job.name)
    emulator.kill_pod(name=pods[node]["metadata"]["name"], namespace=site.namespace)
    await _replaced(job, site, pods, node)


async def _a_machine(job: Job, site: ClusterSite, emulator: Running, audit: Audit, *, node: int) -> None:
    """Its pod is replaced elsewhere once it must have stopped; the machine comes back, and its pod does not."""
    pods = await pods_of(site, job.name)
    machine = pods[node]["spec"]["nodeName"]
    assert [n for n, pod in pods.items() if pod["spec"]["nodeName"] == machine] == [node], "one pod on each machine"
    audit.lost.add(node)
    emulator.lose_node(name=machine)
    await _replaced(job, site, pods, node)
    emulator.restore_node(name=machine)


async def _an_outage(job: Job, site: ClusterSite, emulator: Running, *, node: int) -> None:
    """The supervisor was killed as it began, a pod is lost in its course; the next supervisor makes good for it."""
    job.supervise()
    [pod] = [run for run in _runs(emulator, site, node) if run.status()["phase"] == "Running"]
    others = {n: run for n in range(4) if n != node for run in _runs(emulator, site, n)}
    emulator.kill_pod(name=pod.pod["metadata"]["name"], namespace=site.namespace)
    pods = {n: run.pod for n, run in others.items()}
    await _replaced(job, site, pods, node)


def _runs(emulator: Running, site: ClusterSite, node: int) -> list[Any]:
    """Return the pods of a slot, of which the API tells nobody just now."""
    every = [run for machine in emulator.emulator.cluster.nodes.values() for run in list(machine.runs.values())]
    mine = [run for run in every if run.pod["metadata"]["namespace"] == site.namespace]
    return [run for run in mine if run.pod["metadata"]["labels"].get("rallypoint.dev/node") == str(node)]


async def _replaced(job: Job, site: ClusterSite, pods: dict[int, dict[str, Any]], node: int) -> None:
    await job.until(lambda record: any(s.node == node and s.incarnation == 2 for s in record.slots), timeout=180.0)
    await job.joined(node, incarnation=2)
    await job.trains(ranks=4)
    healthy = set(pods) - {node}
    assert untouched({n: pods[n] for n in healthy}, await pods_of(site, job.name)) == healthy
