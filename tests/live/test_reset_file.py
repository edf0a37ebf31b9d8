"""MindCluster's reset file and a real job: an entry of graceful fault tolerance leads a worker's fault to job level."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rallypoint.supervision.record import Phase
from rallypoint.wire.incident import Cause
from rallypoint.wire.status import JobStatus
from tests.live.jobs import Job
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("light")


def put(path: Path, policy: str) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps({"RankList": [{"RankId": 0, "Status": "unrecovered", "Policy": policy}]}))
    fresh.replace(path)


def kill(job: Job, status: JobStatus, rank: int) -> None:
    pid = next(worker.pid for worker in status.ranks if worker.rank == rank)
    next(process for process in job.processes() if process.pid == pid).kill()


def test_an_entry_of_graceful_tolerance_reschedules_the_job(tmp_path: Path, home: Path) -> None:
    """V12: with it a killed worker costs all nodes, and one of fault-retry-times; without it the workers alone."""
    reset_file = tmp_path / "reset.json"
    job = Job.write(
        tmp_path,
        home,
        1,
        0.05,
        endless=True,
        nodes=1,
        nproc_per_node=2,
        labels={"fault-scheduling": "grace", "fault-retry-times": "3"},
        annotations={"recover-strategy": "retry,recover-in-place,recover"},
        mindcluster={"reset_file": str(reset_file)},
    ).submit()
    kill(job, job.trains(ranks=2), 1)
    status = job.trains(ranks=2, round_=2)
    assert (status.fence.attempt, status.tolerance) == (1, "")

    put(reset_file, "reset")
    told = eventually(lambda: (job.status or status).tolerance, why=job.tell)
    assert told == "rank 0 has the policy reset"
    kill(job, job.trains(ranks=2, round_=2), 1)
    record = eventually(lambda: job.record if job.record.attempt == 2 else None, why=job.tell)
    job.trains(ranks=2)
    job.may_end()

    assert len(record.charges) == 1
    assert job.ends().phase is Phase.SUCCEEDED
    found = {incident.cause: incident for incident in job.record.incidents if incident.id.attempt == 1}
    assert set(found) == {Cause.PROCESS, Cause.NODE, Cause.JOB}, "restarted, then sent away, and so reset"
    assert "reset file: rank 0 has the policy reset" in found[Cause.NODE].rule
