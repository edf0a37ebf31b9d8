"""Jobs that run on an emulated API server without a kubelet: their pods are objects, which a benchmark changes."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from rallypoint.backends.contract import Stored
from rallypoint.backends.kubernetes import names
from rallypoint.backends.kubernetes.backend import KubernetesBackend
from rallypoint.backends.kubernetes.client import MERGE_PATCH
from rallypoint.backends.kubernetes.manifests.objects import STATUS_KEY, status_configmap
from rallypoint.backends.kubernetes.watching.cluster import Cluster
from rallypoint.job import load_job
from rallypoint.supervision.actions import CreateCoordinator, CreateNode
from rallypoint.supervision.record import JobRecord, Phase
from rallypoint.wire import codec
from rallypoint.wire.fence import Fence
from rallypoint.wire.status import JobState, JobStatus, Member

__all__ = ["each", "emulator", "fail_pod", "run_pod", "running_job"]

#: Jobs that are made at the same time.
_AT_ONCE = 16


@contextlib.contextmanager
def emulator() -> Iterator[str]:
    """Have an API server in a process of its own while the context lasts; gives its address."""
    command = [sys.executable, "-m", "tests.emulator", "--no-kubelet", "--history", "200000", "--crds", "/dev/null"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        yield server.stdout.readline().strip()
    finally:
        server.terminate()
        server.wait()


async def running_job(backend: KubernetesBackend, stage: Cluster, name: str, pods: int) -> Stored:
    """Make a job that runs: its record says so, and its pods do."""
    policies = {"recovery": {"node_replacements": 100}, "fault_tolerance": {"pending_timeout": 0}}
    spec = load_job({"name": name, "image": "py", "entrypoint": "train.py", "nodes": f"1:{pods}", **policies}, based=False)
    blueprint = backend.plan(spec)
    its = await backend._its()  # noqa: SLF001  a dry run of each of a thousand jobs is not what is measured
    stored = await its.store.create(blueprint, owner="benchmark", now=time.time())
    record = dataclasses.replace(stored.record, attempt=1, term=1, phase=Phase.RESUMING)
    stored = await backend.save(record, version=stored.version)
    await backend.act(record, stored.plan, CreateCoordinator(attempt=1, term=1))
    for node in range(pods):
        await backend.act(record, stored.plan, CreateNode(attempt=1, node=node, incarnation=1))
    ref = its.store.ref(record)
    await run_pod(stage, names.coordinator_pod(ref, 1), "coordinator", ip="")
    for node in range(pods):
        await run_pod(stage, names.node_pod(ref, 1, node, 1), "trainer", ip="10.0.0.1")
    manifest = status_configmap(ref)
    change = {"data": {STATUS_KEY: codec.dumps(_status(record, pods))}}
    await stage.patch("configmaps", manifest["metadata"]["name"], change, MERGE_PATCH)
    # The phase before the first: the supervisor's own turns lead from here to Running.
    return await backend.save(dataclasses.replace(record, phase=Phase.EMPTY, attempt=0, term=0), version=stored.version)


def _status(record: JobRecord, pods: int) -> JobStatus:
    world = tuple(
        Member(node=n, incarnation=1, agent=f"a{n}", host=f"h{n}", local_world_size=1, group_rank=n, first_rank=n)
        for n in range(pods)
    )
    fence = Fence(attempt=1, term=1, round=1)
    return JobStatus(job=record.name, uid=record.uid, fence=fence, state=JobState.RUNNING, world=world)


async def run_pod(stage: Cluster, pod: str, container: str, *, ip: str) -> None:
    """Have a pod run. A coordinator without an address is one that was told of its agents before."""
    state = {"name": container, "state": {"running": {}}, "ready": True, "restartCount": 0, "image": "py", "imageID": ""}
    await _set_status(stage, pod, {"phase": "Running", **({"podIP": ip} if ip else {}), "containerStatuses": [state]})


async def _set_status(stage: Cluster, pod: str, status: dict[str, Any]) -> None:
    path = stage.path("pods", pod, "status")
    await stage.api.request("PATCH", path, body={"status": status}, kind=MERGE_PATCH)


async def fail_pod(stage: Cluster, pod: str, container: str) -> None:
    """Have a pod end with exit code 1."""
    ended = {"name": container, "state": {"terminated": {"exitCode": 1, "reason": "Error"}}, "restartCount": 0}
    await _set_status(stage, pod, {"phase": "Failed", "containerStatuses": [{**ended, "image": "py", "imageID": ""}]})


async def each(jobs: Sequence[Any]) -> list[Stored]:
    """Await all, a few at once, in order."""
    gate = asyncio.Semaphore(_AT_ONCE)

    async def one(job: Any) -> Stored:
        async with gate:
            stored: Stored = await job
            return stored

    return list(await asyncio.gather(*(one(job) for job in jobs)))
