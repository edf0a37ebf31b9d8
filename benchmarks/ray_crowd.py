"""What many jobs on one Ray cluster cost: CPU time of each kind of process while the jobs wait, and of each submission.

Each job is one node whose worker is a shell without torch: it notes the time of its start, and then only sleeps. Agents and
coordinators use HTTP, whose connections cost less while nothing happens than those of gRPC. One job after another is submitted:
the next one follows when the worker of the last one has started.

The cluster has no log monitor, keeps no events of its tasks, collects no metrics, and looks at its processes once a minute. The
CPU time of submissions and of the whole machine contains that of all other processes of the machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from rallypoint.backends.local.node import SHIM
from rallypoint.backends.ray.access import Access
from rallypoint.backends.ray.backend import RayBackend
from rallypoint.backends.requests import delete, submit_or_adopt
from rallypoint.backends.supervise import supervise
from rallypoint.job import load_job
from rallypoint.supervision.record import Phase
from tests.live.light import without_torch
from tests.ray.clusters import ray_cluster

__all__ = ["crowd"]

#: Seconds of the measurement, and until all jobs must run.
_SPAN, _READY = 60.0, 2400.0

#: Units of CPU time in a second.
_TICKS = os.sysconf("SC_CLK_TCK")

#: Jobs between two lines about the progress.
_TELL = 10

#: What Ray does beside placing actors costs a part of a core that grows with the number of its processes.
_LEAN = {
    "RAY_task_events_report_interval_ms": "0",
    "RAY_enable_metrics_collection": "0",
    "REPORTER_UPDATE_INTERVAL_MS": "60000",
}

#: Kinds of processes of a job, and of those that all jobs share, by a part of their command lines.
_OF_JOB = {
    "actor": "ray::NodeHost",
    "coordinator": "rallypoint.agent coordinator",
    "agent": "rallypoint.agent node",
    "parent processes": SHIM,
    "worker": "sleep 100000",
}
_SHARED = {"ledger": "ray::_Ledger"}

#: The worker of each job.
_WORKER = ("sh", "-c", 'date +%s.%N > "$MARK"; exec sleep 100000')


def crowd(jobs: int) -> int:
    """Print the cost for so many jobs."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        variables = {"PYTHONPATH": without_torch(folder), **_LEAN}
        head = {"include_log_monitor": False}
        with ray_cluster(folder, nodes=1, variables=variables, head=head, num_cpus=jobs) as cluster:
            asyncio.run(_measure(cluster.url, folder, jobs))
    return 0


def _busy() -> float:
    """Return the seconds of CPU time that all has used that has run on this machine."""
    user, nice, system, _, _, interrupts, *_ = map(int, Path("/proc/stat").read_text(encoding="ascii").split()[1:9])
    return (user + nice + system + interrupts) / _TICKS


def _processes() -> dict[int, float]:
    """Return the seconds of CPU time of each process."""
    found = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (path / "stat").read_text(errors="replace").rpartition(")")[2].split()
                found[int(path.name)] = (int(fields[11]) + int(fields[12])) / _TICKS
    return found


def _kind(pid: int) -> str:
    if pid == os.getpid():
        return "supervisor"
    command = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ")
    # The command line of a parent process contains that of its child.
    parts = {**({"parent processes": SHIM} if SHIM in command else _OF_JOB), **_SHARED}
    return next((kind for kind, part in parts.items() if part in command), "ray" if "ray" in command else "")


def _memory(pid: int) -> int:
    """Return the bytes of a process, of which those that others share count in part."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def _show_submissions(waited: list[float], used: list[float]) -> None:
    for what, unit, found in (("submission", "s until the worker starts", waited), ("", "s of CPU time", used)):
        middle, least, most = statistics.median(found), min(found), max(found)
        sys.stdout.write(f"{what:16} {middle:.2f} {unit} [{least:.2f}..{most:.2f}], n={len(found)}\n")
    sys.stdout.flush()


def _show(jobs: int, before: dict[int, float], after: dict[int, float], busy: float) -> None:
    used, memory = defaultdict[str, float](float), defaultdict[str, int](int)
    for pid in before.keys() & after.keys():
        with contextlib.suppress(OSError):
            kind = _kind(pid)
            used[kind] += after[pid] - before[pid]
            memory[kind] += _memory(pid) if kind in _OF_JOB else 0
    for kind in (*_OF_JOB, *_SHARED, "supervisor", "ray"):
        held = f", {memory[kind] / jobs / 2**20:.0f} MiB per job" if memory[kind] else ""
        sys.stdout.write(f"{kind:16} {1000 * used[kind] / _SPAN / jobs:.2f} ms of CPU per job and second{held}\n")
    sys.stdout.write(f"{'whole machine':16} {100 * busy / _SPAN:.0f} % of a core ({jobs} jobs, {_SPAN:.0f} s)\n")
    sys.stdout.flush()


async def _measure(url: str, folder: Path, jobs: int) -> None:
    access = Access(address=url, storage=str(folder / "ledger"))
    backend = RayBackend(access)
    names = [f"job-{number}" for number in range(jobs)]
    tasks: list[asyncio.Task[object]] = []
    waited, used = list[float](), list[float]()

    async def begin(name: str) -> None:
        mark = folder / f"{name}.mark"
        fields = {
            "entrypoint": {"command": list(_WORKER)},
            "env": {"MARK": str(mark)},
            "resources": {"cpu": "1"},
            "rendezvous": {"service_type": "http"},
        }
        job = load_job({"name": name, **fields}, based=False)
        began, before = time.time(), _busy()
        await submit_or_adopt(backend, backend.plan(job), owner="benchmark")
        tasks.append(asyncio.create_task(supervise(backend, name, holder="benchmark")))
        await _until_running(backend, name)
        waited.append(await _mark(mark) - began)
        used.append(_busy() - before)

    async def begin_all() -> None:
        for number, name in enumerate(names, 1):
            await begin(name)
            if number % _TELL == 0:
                sys.stdout.write(f"{number} jobs run after {time.monotonic() - began:.0f} s\n")
                sys.stdout.flush()

    began = time.monotonic()
    try:
        await asyncio.wait_for(begin_all(), _READY)
        _show_submissions(waited, used)
        before, busy = await asyncio.to_thread(_processes), _busy()
        await asyncio.sleep(_SPAN)
        busy = _busy() - busy
        await asyncio.to_thread(_show, jobs, before, await asyncio.to_thread(_processes), busy)
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
