"""How many descriptors the processes of local jobs take in a process that follows them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from rallypoint.backends.local import proc
from rallypoint.backends.local.changes import LocalChanges
from rallypoint.backends.local.descriptors import Descriptors
from rallypoint.backends.local.layout import JobFolder
from rallypoint.backends.local.node import Shim
from rallypoint.backends.local.shim import SHIM_FILE
from rallypoint.wire import codec


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def shim_of(pid: int) -> Shim:
    return Shim(
        boot_id=proc.boot_id(),
        pid=pid,
        start_ticks=proc.start_ticks(pid) or 0,
        attempt=1,
        mark="u/1/0/1",
        cgroup="",
        host="h",
        started_at=1.0,
        command=(),
    )


def test_a_script_that_names_its_process_in_many_nodes_takes_few_descriptors(tmp_path):
    """Its supervisor may be a triggerer, whose other triggers need descriptors, too."""
    job = JobFolder(path=tmp_path / "jobs" / "job")
    shim = shim_of(os.getpid())
    for number in range(600):
        node = job.node(number, 1, 1)
        node.path.mkdir(parents=True)
        (node.path / SHIM_FILE).write_text(codec.dumps(shim))
    job.record.write_text("{}")
    following, before = LocalChanges(job), descriptors()

    following.open()
    try:
        assert descriptors() - before == 1
    finally:
        following.close()
    assert descriptors() == before


def test_the_processes_of_all_jobs_take_a_part_of_the_descriptors(tmp_path):
    """Of 64 open files, 16 are for all jobs, and 4 for one job; a job whose processes are not followed is looked at often."""
    processes = [subprocess.Popen(["sleep", "1000"]) for _ in range(6)]
    every, jobs, before = Descriptors(64), [], descriptors()
    try:
        for number in range(6):
            job = JobFolder(path=tmp_path / "jobs" / f"job-{number}")
            for place, process in enumerate(processes):
                node = job.node(place, 1, 1)
                node.path.mkdir(parents=True)
                (node.path / SHIM_FILE).write_text(codec.dumps(shim_of(process.pid)))
            job.record.write_text("{}")
            jobs.append(LocalChanges(job, descriptors=every))
            jobs[-1].open()
        assert [following._pause(soon=False) for following in jobs] == [1.0] * 6
        assert descriptors() - before == 16
        jobs[0].close()
        jobs[5]._find_shims()
        assert descriptors() - before == 16
    finally:
        for following in jobs:
            following.close()
        for process in processes:
            process.kill()
            process.wait()
    assert descriptors() == before
    assert every.take(has=3)
    assert not every.take(has=4)
