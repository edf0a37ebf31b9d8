"""What the supervision of many jobs on one Ray cluster costs: CPU time of the ledger, and of the process that supervises them.

Each job is one node whose worker is a shell without torch: it notes the time of its start, and then only sleeps. Its agent and
its coordinator have their own CPU time, as on every backend, and are not counted. Four jobs at a time are submitted; the next
one follows when one of them runs.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from rallypoint.backends.ray.access import Access
from rallypoint.backends.ray.backend import RayBackend
from rallypoint.backends.ray.dashboard import Cluster
from rallypoint.backends.requests import delete, submit_or_adopt
from rallypoint.backends.supervise import supervise
from rallypoint.job import load_job
from rallypoint.supervision.record import Phase
from tests.live.light import without_torch
from tests.ray.clusters import ray_cluster

__all__ = ["crowd"]

#: Seconds of the measurement, and until all jobs must run.
_SPAN, _READY = 30.0, 2400.0

#: Submissions at once.
_AT_ONCE = 4

#: The worker of each job.
_WORKER = ("sh", "-c", 'date +%s.%N > "$MARK"; exec sleep 100000')


def crowd(jobs: int) -> int:
    """Print the cost for so many jobs."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with ray_cluster(folder, nodes=1, variables={"PYTHONPATH": without_torch(folder)}, num_cpus=jobs) as cluster:
            asyncio.run(_measure(cluster.url, folder, jobs))
    return 0


def _show_waits(waited: list[float]) -> None:
    middle, least, most = statistics.median(waited), min(waited), max(waited)
    sys.stdout.write(f"submission {middle:.2f} s [{least:.2f}..{most:.2f}] until the worker starts, n={len(waited)}\n")
    sys.stdout.flush()


def _show(jobs: int, ledger: float, supervisor: float, span: float) -> None:
    for what, used in (("ledger", ledger), ("supervisor", supervisor)):
        sys.stdout.write(
            f"{what:10} {1000 * used / span / jobs:.2f} ms of CPU per job and second ({jobs} jobs, {span:.0f} s)\n"
        )
    sys.stdout.flush()


async def _measure(url: str, folder: Path, jobs: int) -> None:
    access = Access(address=url, storage=str(folder / "ledger"))
    cluster = Cluster(access)
    backend = RayBackend(access, cluster=cluster)
    names = [f"job-{number}" for number in range(jobs)]
    gate = asyncio.Semaphore(_AT_ONCE)
    tasks: list[asyncio.Task[object]] = []

    marks = {name: folder / f"{name}.mark" for name in names}
    waited: list[float] = []

    async def begin(name: str) -> None:
        fields = {"entrypoint": {"command": list(_WORKER)}, "env": {"MARK": str(marks[name])}, "resources": {"cpu": "1"}}
        job = load_job({"name": name, **fields}, based=False)
        async with gate:
            began = time.time()
            await submit_or_adopt(backend, backend.plan(job), owner="benchmark")
            tasks.append(asyncio.create_task(supervise(backend, name, holder="benchmark")))
            await _until_running(backend, name)
            waited.append(await _mark(marks[name]) - began)

    try:
        await asyncio.wait_for(asyncio.gather(*map(begin, names)), _READY)
        _show_waits(waited)
        pid = int((await cluster.call("ping"))["pid"])
        before = _used(pid), time.process_time(), time.monotonic()
        await asyncio.sleep(_SPAN)
        after = _used(pid), time.process_time(), time.monotonic()
        _show(jobs, after[0] - before[0], after[1] - before[1], after[2] - before[2])
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        deletions = [delete(backend, name, holder="benchmark", timeout=60) for name in names]
        await asyncio.gather(*deletions, return_exceptions=True)
        await backend.close()


async def _until_running(backend: RayBackend, name: str) -> None:
    while True:
        stored = await backend.load(name)
        status = await backend.status(name)
        if stored is not None and stored.record.phase is Phase.RUNNING and status is not None and status.world_size:
            return
        await asyncio.sleep(0.5)


async def _mark(path: Path) -> float:
    """Return the time that a worker has noted, once it has."""
    while True:
        text = await asyncio.to_thread(lambda: path.read_text() if path.exists() else "")
        if text.endswith("\n"):
            return float(text)
        await asyncio.sleep(0.1)


def _used(pid: int) -> float:
    """Return the CPU seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
