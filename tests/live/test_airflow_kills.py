"""The process of an Airflow task is killed in mid-training."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rallypoint.provider.naming import default_name
from rallypoint.wire.status import JobStatus
from tests.live.jobs import Job, cli
from tests.waiting import PATIENCE, eventually

ROOT = Path(__file__).parents[2]


@pytest.fixture
def job(tmp_path: Path, home: Path) -> Iterator[Job]:
    """The job of the task, wherever it stands."""
    name = default_name(dag_id="nightly", run_id="manual__1", task_id="train", map_index=-1)
    job = Job(folder=tmp_path, home=home, name=name)
    yield job
    cli("delete", job.name, check=False)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """An Airflow home of its own."""
    return {**os.environ, "AIRFLOW_HOME": str(tmp_path / "airflow"), "PYTHONPATH": str(ROOT)}


def start(owner: str, job: Job, environment: dict[str, str], state: str = "running") -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.live.airflow_task", owner, str(job.folder / "checkpoints"), state]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def pids(status: JobStatus) -> set[int]:
    return {rank.pid for rank in status.ranks}


def test_a_retry_goes_on_with_the_job_of_the_try_that_was_killed(job: Job, environment: dict[str, str]) -> None:
    """`kill -9` of a synchronous task's process: its retry adopts the same job, whose workers never noticed."""
    first = start("try-1", job, environment)
    eventually(job.place.exists, timeout=60)
    before = job.trains(ranks=2, beyond=20, timeout=60)
    uid = job.record.uid
    first.send_signal(signal.SIGKILL)
    first.communicate()

    second = start("try-2", job, environment)
    eventually(lambda: job.record.owner == "try-2", timeout=60)
    after = job.trains(ranks=2, beyond=before.progress.step or 0)
    output, _ = second.communicate(timeout=60 * PATIENCE)

    assert pids(after) == pids(before)
    summary = json.loads(output.splitlines()[-1])
    assert (summary["uid"], summary["attempts"], summary["incidents"], summary["phase"]) == (uid, 1, 0, "Succeeded")
    assert job.record.collected_by == "try-2"
    assert [path.name for path in (job.home / "jobs").iterdir()] == [job.name]


def test_a_worker_that_is_redeployed_does_not_end_its_job(job: Job, environment: dict[str, str]) -> None:
    """SIGTERM to the process of a task that nobody ended: the job goes on, and the task with it while it may."""
    task = start("try-1", job, environment, "running")
    eventually(job.place.exists, timeout=60)
    before = job.trains(ranks=2, beyond=5, timeout=60)

    task.send_signal(signal.SIGTERM)

    after = job.trains(ranks=2, beyond=(before.progress.step or 0) + 20)
    output, _ = task.communicate(timeout=60 * PATIENCE)
    assert pids(after) == pids(before)
    assert "its task is 'running'" in output
    assert json.loads(output.splitlines()[-1])["phase"] == "Succeeded"


def test_a_task_that_was_ended_takes_its_job_with_it(job: Job, environment: dict[str, str]) -> None:
    """Marked failed while it runs: SIGTERM, and SIGKILL right after. A supervisor of its own sees the deletion through."""
    task = start("try-1", job, environment, "failed")
    eventually(job.place.exists, timeout=60)
    job.trains(ranks=2, beyond=5, timeout=60)

    task.send_signal(signal.SIGTERM)
    eventually(lambda: not job.place.exists() or [p for p in job.processes("supervise") if str(task.pid) != str(p.pid)])
    task.send_signal(signal.SIGKILL)
    task.communicate()

    eventually(lambda: not job.place.exists())
    eventually(lambda: not job.processes())
