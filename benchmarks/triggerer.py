"""What a triggerer pays for deferred jobs, and how soon one of them reacts; `KubernetesPodTrigger` beside it.

Three processes: the emulated API server without a kubelet, one with nothing in it but triggers
(benchmarks/triggerer_process.py), and this one, which makes jobs that run and has their pods fail. Of ours each job has two
triggers, that of its task and that of a sensor. First nothing happens, then one pod after another fails, and the time is
taken from just before the API server is told of it to the moment at which this process hears of a record that has the
incident, by its own watch. The peer's runs afterwards in a process of its own, for the same pods; its reaction is from a
pod's failure to the trigger's event.

Cases:
    ours-cpu         CPU of the process while nothing happens, in percent of a core (aim: 100 at the most for 1,000 jobs)
    ours-memory      resident memory that the triggers added, in MB per job (aim: 1 at the most)
    ours-reaction    from a pod's failure to the decision, in seconds (aim: p99 under 2)
    peer-...         the same of as many KubernetesPodTriggers as `--peers` says, one for a pod, without sensors
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.cluster_jobs import each, emulator, fail_pod, running_job
from benchmarks.peers import peer_environment
from benchmarks.report import Case, arguments, deliver, versions
from rallypoint.backends.contract import Stored
from rallypoint.backends.kubernetes import names
from rallypoint.backends.kubernetes.access import Access
from rallypoint.backends.kubernetes.backend import KubernetesBackend
from rallypoint.backends.kubernetes.watching.cluster import Cluster
from rallypoint.supervision.record import Phase
from rallypoint.wire.env import API_SERVER

__all__ = ["main"]

COMMAND = "python -m benchmarks.triggerer"

#: Seconds in which what was begun comes to rest before anything is measured.
_REST = 20.0

#: Seconds after which a job that does not run, or does not react, breaks the measurement.
_PATIENCE = 900.0


def main() -> None:
    """Measure both and print them."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--jobs", type=int, default=1000, metavar="N", help="running jobs (1000)")
    parser.add_argument("--pods", type=int, default=4, metavar="N", help="pods of each (4)")
    parser.add_argument("--peers", type=int, default=100, metavar="N", help="triggers of the peer (100), 0 for none")
    parser.add_argument("--idle", type=float, default=60.0, metavar="S", help="seconds in which nothing happens (60)")
    parser.add_argument("--failures", type=int, default=100, metavar="N", help="pods that fail, one after another (100)")
    args = parser.parse_args()
    with emulator() as url:
        cases = asyncio.run(_measure(url, args))
    deliver("triggerer", cases, versions("aiohttp", "apache-airflow", "kubernetes"), args.json)


async def _measure(url: str, args: argparse.Namespace) -> list[Case]:
    backend = KubernetesBackend(Access(namespace="default", server=url))
    stage = Cluster(Access(namespace="default", server=url, context="stage"))
    try:
        jobs = await each([running_job(backend, stage, f"job-{n}", args.pods) for n in range(args.jobs)])
        _say(f"{len(jobs)} jobs of {args.pods} pods are there")
        cases = await _ours(url, backend, stage, jobs, args)
        peer = peer_environment() if args.peers else None
        if peer is not None:
            cases += await _peer(url, stage, jobs[-args.peers :], peer, args)
    finally:
        await stage.close()
        await backend.close()
    return cases


class _Process:
    """The process with the triggers."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, environment: Mapping[str, str]) -> _Process:
        pipe = asyncio.subprocess.PIPE
        command = (sys.executable, "-m", "benchmarks.triggerer_process")
        limit = 1 << 24
        return cls(await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, env=environment, limit=limit))

    async def ask(self, **what: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(what).encode() + b"\n")
        answer: dict[str, Any] = json.loads(await self._process.stdout.readline())
        if answer["broken"]:
            raise RuntimeError(f"{len(answer['broken'])} triggers broke: {answer['broken'][0]}")
        return answer

    async def end(self) -> None:
        self._process.terminate()
        await self._process.wait()


async def _ours(
    url: str, backend: KubernetesBackend, stage: Cluster, jobs: Sequence[Stored], args: argparse.Namespace
) -> list[Case]:
    process = await _Process.start({**os.environ, API_SERVER: url})
    try:
        before = await process.ask(**{"import": "ours"})
        await process.ask(begin="ours", names=[job.record.name for job in jobs])
        async with backend.changes(jobs[0].record.name):  # one watch for all that follows
            for job in jobs:
                await _until(backend, job.record.name, lambda stored: stored.record.phase is Phase.RUNNING)
            _say("all are supervised")
            cases = await _idle(process, "ours", before, len(jobs), args.idle)
            samples = [await _reaction(backend, stage, job) for job in list(jobs)[: args.failures]]
    finally:
        await process.end()
    return [*cases, _reactions("ours", samples)]


async def _reaction(backend: KubernetesBackend, stage: Cluster, job: Stored) -> float:
    begun = time.monotonic()
    await fail_pod(stage, _pod(job), "trainer")
    await _until(backend, job.record.name, lambda stored: bool(stored.record.incidents))
    return time.monotonic() - begun


async def _until(backend: KubernetesBackend, name: str, so: Callable[[Stored], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE
    async with backend.changes(name) as changes:
        while (stored := await backend.load(name)) is None or not so(stored):
            if time.monotonic() > deadline:
                raise TimeoutError(f"job {name} is not where it should be: {stored and stored.record.phase}")
            await changes.wait(_PATIENCE)


async def _peer(
    url: str, stage: Cluster, jobs: Sequence[Stored], environment: Mapping[str, str], args: argparse.Namespace
) -> list[Case]:
    kubeconfig = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "here", "cluster": {"server": url}}],
        "users": [{"name": "me", "user": {}}],
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me", "namespace": "default"}}],
        "current-context": "here",
    }
    process = await _Process.start({**environment, "PEER_KUBECONFIG": json.dumps(kubeconfig)})
    pods = {_pod(job): job for job in jobs}
    try:
        before = await process.ask(**{"import": "peer"})
        await process.ask(begin="peer", names=list(pods))
        cases = await _idle(process, "peer", before, len(jobs), args.idle)
        samples = []
        for pod in list(pods)[: args.failures]:
            begun = time.monotonic()
            await fail_pod(stage, pod, "trainer")
            answer = await process.ask(until=pod)
            samples.append(answer["ended"][pod] - begun)
    finally:
        await process.end()
    return [*cases, _reactions("peer", samples)]


async def _idle(process: _Process, who: str, before: Mapping[str, Any], jobs: int, seconds: float) -> list[Case]:
    await asyncio.sleep(_REST)
    first, begun = await process.ask(figures=True), time.monotonic()
    await asyncio.sleep(seconds)
    last = await process.ask(figures=True)
    if last["ended"]:
        raise RuntimeError(f"{len(last['ended'])} triggers ended before anything happened")
    share = 100 * (last["cpu"] - first["cpu"]) / (time.monotonic() - begun)
    memory = (last["memory"] - before["memory"]) / 1e6 / jobs
    counts = {"jobs": jobs}
    return [
        Case(name=f"{who}-cpu", command=COMMAND, samples=(share,), unit="%", counts=counts),
        Case(name=f"{who}-memory", command=COMMAND, samples=(memory,), unit="MB", counts=counts),
    ]


def _reactions(who: str, samples: Sequence[float]) -> Case:
    ordered = sorted(samples)
    parts = {"p50": ordered[len(ordered) // 2], "p99": ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]}
    return Case(name=f"{who}-reaction", command=COMMAND, samples=tuple(samples), unit="s", parts=parts)


def _pod(job: Stored) -> str:
    return names.node_pod(names.JobRef(name=job.record.name, uid=job.record.uid, namespace="default"), 1, 0, 1)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
