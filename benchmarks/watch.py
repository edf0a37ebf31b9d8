"""What it costs to watch jobs on Kubernetes while they run, and how soon the end of a pod is decided on.

All jobs are supervised in one process, as an Airflow triggerer or `rallypoint supervise` does it, against the emulated API
server in a process of its own, without a kubelet: pods are objects that this program changes. First nothing happens for long,
then one pod after another fails, and the time is taken from just before the API server is told of it to the turn whose record
says so.

Cases:
    idle-cpu           CPU of the supervising process, in ms per job and minute, while all jobs run
    idle-requests      requests to the API server, per job and minute, at the same time
    memory             resident memory that the jobs added, in KiB per job
    reaction           from a pod's failure to the decision (aim: p99 under 1 s)
    peer-poll          CPU of one poll as KubernetesPodTrigger makes it, in ms (a client, a connection and a TLS context each);
                       at its default interval of 2 s that is 30 times as much per job and minute

The peer is built from the official client as the trigger does it: the provider itself asks for an older client than ours.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.cluster_jobs import each, emulator, fail_pod, running_job
from benchmarks.report import Case, arguments, deliver, versions
from rallypoint.backends.contract import Stored
from rallypoint.backends.kubernetes import names
from rallypoint.backends.kubernetes.access import Access
from rallypoint.backends.kubernetes.backend import KubernetesBackend
from rallypoint.backends.kubernetes.watching.cluster import Cluster
from rallypoint.backends.supervise import supervise
from rallypoint.backends.turns import Snapshot
from rallypoint.supervision.record import Phase

__all__ = ["main"]

COMMAND = "python -m benchmarks.watch"


def main() -> None:
    """Measure all cases and print them."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--jobs", type=int, default=1000, metavar="N", help="running jobs (1000)")
    parser.add_argument("--pods", type=int, default=8, metavar="N", help="pods of each (8)")
    parser.add_argument("--idle", type=float, default=60.0, metavar="S", help="seconds in which nothing happens (60)")
    parser.add_argument("--failures", type=int, default=200, metavar="N", help="pods that fail, one after another (200)")
    parser.add_argument("--polls", type=int, default=50, metavar="N", help="polls of the peer (50)")
    args = parser.parse_args()
    with emulator() as url:
        cases = asyncio.run(_measure(url, args))
    deliver("watch", cases, versions("aiohttp", "kubernetes"), args.json)


async def _measure(url: str, args: argparse.Namespace) -> list[Case]:
    peer = await _peer(url, args.polls)
    backend = KubernetesBackend(Access(namespace="default", server=url))
    stage = Cluster(Access(namespace="default", server=url, context="stage"))
    try:
        before = _memory()
        jobs = await each([running_job(backend, stage, f"job-{n}", args.pods) for n in range(args.jobs)])
        told: dict[str, asyncio.Event] = {job.record.name: asyncio.Event() for job in jobs}
        supervisors = await _supervised(backend, jobs, told)
        _say(f"{len(jobs)} jobs of {args.pods} pods are supervised")
        cases = [*await _idle(backend, len(jobs), args.idle), _of_memory(before, len(jobs))]
        cases.append(await _reactions(stage, jobs, told, args.failures))
        for task in supervisors:
            task.cancel()
        await asyncio.wait(supervisors)
    finally:
        await stage.close()
        await backend.close()
    return [*cases, peer]


async def _supervised(
    backend: KubernetesBackend, jobs: Sequence[Stored], told: dict[str, asyncio.Event]
) -> list[asyncio.Task[Any]]:
    running = asyncio.Event()
    ready: set[str] = set()

    def on_turn(snapshot: Snapshot) -> None:
        if snapshot.record.phase is Phase.RUNNING:
            ready.add(snapshot.record.name)
        if snapshot.record.incidents:
            told[snapshot.record.name].set()
        if len(ready) == len(jobs):
            running.set()

    def supervisor(name: str) -> asyncio.Task[Any]:
        return asyncio.create_task(supervise(backend, name, holder="benchmark", on_turn=on_turn))

    tasks = [supervisor(job.record.name) for job in jobs]
    await running.wait()
    return tasks


# --- Measuring -------------------------------------------------------------------------------------------------------------


async def _idle(backend: KubernetesBackend, jobs: int, seconds: float) -> list[Case]:
    # What was begun by the jobs' first turns comes to rest.
    await asyncio.sleep(min(seconds, 20.0))
    api: Any = (await backend._its()).cluster.api  # noqa: SLF001  its counter of requests is what is asked for
    asked, cpu, begun = api.asked.copy(), time.process_time(), time.monotonic()
    await asyncio.sleep(seconds)
    minutes = (time.monotonic() - begun) / 60
    spent = time.process_time() - cpu
    requests = sum((api.asked - asked).values())
    share = {"percent of a core": round(100 * spent / (60 * minutes))}
    return [
        Case(name="idle-cpu", command=COMMAND, samples=(1000 * spent / jobs / minutes,), unit="ms", counts=share),
        Case(name="idle-requests", command=COMMAND, samples=(requests / jobs / minutes,), unit="", counts={"jobs": jobs}),
    ]


async def _reactions(stage: Cluster, jobs: Sequence[Stored], told: dict[str, asyncio.Event], failures: int) -> Case:
    samples = []
    for job in list(jobs)[:failures]:
        record = job.record
        pod = names.node_pod(names.JobRef(name=record.name, uid=record.uid, namespace="default"), 1, 0, 1)
        begun = time.monotonic()
        await fail_pod(stage, pod, "trainer")
        await asyncio.wait_for(told[record.name].wait(), 60)
        samples.append(1000 * (time.monotonic() - begun))
    ordered = sorted(samples)
    parts = {"p50": ordered[len(ordered) // 2], "p99": ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]}
    return Case(name="reaction", command=COMMAND, samples=tuple(samples), unit="ms", parts=parts)


async def _peer(url: str, polls: int) -> Case:
    """Poll a pod as the trigger does: each poll opens a client, asks, reads the pod into the client's models, and closes it."""
    from kubernetes.aio import client  # noqa: PLC0415  measured as it is used there

    stage = Cluster(Access(namespace="default", server=url, context="peer"))
    pod = {"metadata": {"name": "peer"}, "spec": {"containers": [{"name": "base", "image": "py"}]}}
    await stage.create("pods", pod)
    await stage.close()
    configuration = client.Configuration()
    configuration.host = url
    samples = []
    for _ in range(polls):
        before = time.process_time()
        async with client.ApiClient(configuration) as connection:
            await client.CoreV1Api(connection).read_namespaced_pod(name="peer", namespace="default")
        samples.append(1000 * (time.process_time() - before))
    return Case(name="peer-poll", command="KubernetesPodTrigger's poll", samples=tuple(samples), unit="ms")


def _of_memory(before: int, jobs: int) -> Case:
    return Case(name="memory", command=COMMAND, samples=((_memory() - before) / 1024 / jobs,), unit="KiB")


def _memory() -> int:
    """Return the resident memory of this process in bytes."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize()


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
