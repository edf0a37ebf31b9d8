"""A script that names its own process in many folders of its job takes few descriptors of the triggerer."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

from rallypoint.backends.local.backend import LocalBackend
from rallypoint.backends.supervise import supervise
from rallypoint.job import ElasticJob
from rallypoint.supervision.record import JobRecord
from rallypoint.wire import env
from tests.waiting import eventually_async

SCRIPT = """
import json, os, pathlib, sys, time
job = pathlib.Path(sys.argv[1])
(shim,) = job.glob("nodes/0/*/shim.json")
start = int(pathlib.Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
forged = {**json.loads(shim.read_text()), "pid": os.getpid(), "start_ticks": start}
for number in range(300):
    folder = job / f"hosts/a-0/host-{number}"
    folder.mkdir(parents=True)
    (folder / "shim.json").write_text(json.dumps(forged))
(job / "forged").write_text("")
while not (job / "over").exists():
    time.sleep(0.02)
"""


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


async def followed(home: Path) -> tuple[int, JobRecord | None]:
    """Follow the job as a trigger does; return how many descriptors that takes, and how the job ended."""
    folder = home / "jobs" / "forging"
    job = {"name": "forging", "entrypoint": [sys.executable, "-c", SCRIPT], "args": [str(folder)]}
    backend = LocalBackend(home)
    await backend.submit(backend.plan(ElasticJob.model_validate(job)), owner="try-1")
    supervising = asyncio.create_task(supervise(backend, "forging", holder="try-1"))
    await eventually_async((folder / "forged").exists, timeout=60.0)
    before = descriptors()
    async with backend.changes("forging"):
        took = descriptors() - before
    (folder / "over").write_text("")
    return took, await supervising


def test_forged_processes_take_few_descriptors(light: Any, home: Path) -> None:
    """Other triggers of the triggerer need descriptors, too; the job is supervised to its end."""
    took, record = asyncio.run(followed(Path(os.environ[env.HOME])))

    assert 0 < took < 10
    assert record is not None
    assert record.phase.value == "Succeeded", json.dumps(str(record.verdict))
