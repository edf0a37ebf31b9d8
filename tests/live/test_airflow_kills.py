"""The process of an Airflow task is killed in mid-training."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rallypoint.provider.naming import default_name
from rallypoint.wire.status import JobStatus
from tests.live.jobs import Job
from tests.live.light import without_torch
from tests.waiting import PATIENCE, eventually


@pytest.fixture
def job(tmp_path: Path, home: Path) -> Iterator[Job]:
    """The job of the task, wherever it stands."""
    name = default_name(dag_id="nightly", run_id="manual__1", task_id="train", map_index=-1)
    job = Job(folder=tmp_path, home=home, name=name)
    yield job
    job.discard()


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """An Airflow home of its own."""
    return {**os.environ, "AIRFLOW_HOME": str(tmp_path / "airflow"), "PYTHONPATH": without_torch(tmp_path)}


@dataclass(frozen=True)
class Try:
    """One try of the task; `told` is what it has printed."""

    process: subprocess.Popen[bytes]
    output: Path

    @property
    def told(self) -> str:
        return self.output.read_text()

    def ended(self) -> bool:
        return self.process.poll() is not None

    def returned(self) -> dict[str, Any]:
        """Wait for its end, and return what the task returned."""
        self.process.wait(timeout=60 * PATIENCE)
        assert self.process.returncode == 0, self.told
        found: dict[str, Any] = json.loads(self.told.splitlines()[-1])
        return found

    def does(self, what: Callable[[], bool]) -> None:
        """Wait for something that it does; an end before that is told at once."""
        eventually(lambda: what() or self.ended(), timeout=60, why=lambda: self.told)
        assert what(), self.told


def start(owner: str, job: Job, environment: dict[str, str], state: str = "running") -> Try:
    command = [sys.executable, "-m", "tests.live.airflow_task", owner, str(job.folder / "checkpoints"), state]
    output = job.folder / f"{owner}.txt"
    with output.open("wb") as file:
        return Try(subprocess.Popen(command, env=environment, stdout=file, stderr=subprocess.STDOUT), output)


def pids(status: JobStatus) -> set[int]:
    return {rank.pid for rank in status.ranks}


@pytest.mark.extended
def test_a_retry_goes_on_with_the_job_of_the_try_that_was_killed(job: Job, environment: dict[str, str]) -> None:
    """`kill -9` of a synchronous task's process: its retry adopts the same job, whose workers never noticed."""
    first = start("try-1", job, environment)
    first.does(job.place.exists)
    before = job.trains(ranks=2, beyond=5)
    uid = job.record.uid
    first.process.kill()
    first.process.wait()

    second = start("try-2", job, environment)
    second.does(lambda: job.record.owner == "try-2")
    after = job.trains(ranks=2, beyond=before.progress.step or 0)
    job.may_end()
    summary = second.returned()

    assert pids(after) == pids(before)
    assert (summary["uid"], summary["attempts"], summary["faults"], summary["phase"]) == (uid, 1, 0, "Succeeded")
    assert job.record.collected_by == "try-2"
    assert [path.name for path in (job.home / "jobs").iterdir()] == [job.name]


@pytest.mark.extended
def test_a_worker_that_is_redeployed_does_not_end_its_job(job: Job, environment: dict[str, str]) -> None:
    """SIGTERM to the process of a task that nobody ended: the job goes on, and the task with it while it may."""
    task = start("try-1", job, environment, "running")
    task.does(job.place.exists)
    before = job.trains(ranks=2, beyond=5)

    task.process.send_signal(signal.SIGTERM)

    after = job.trains(ranks=2, beyond=(before.progress.step or 0) + 20)
    job.may_end()
    assert task.returned()["phase"] == "Succeeded"
    assert pids(after) == pids(before)
    assert "received a stop request, but the task state is 'running'" in task.told


def test_a_task_that_was_ended_takes_its_job_with_it(job: Job, environment: dict[str, str]) -> None:
    """Marked failed while it runs: SIGTERM, and SIGKILL right after. A supervisor of its own sees the deletion through."""
    task = start("try-1", job, environment, "failed")
    task.does(job.place.exists)
    job.trains(ranks=2, beyond=5)

    task.process.send_signal(signal.SIGTERM)
    eventually(lambda: not job.place.exists() or job.processes("supervise"), why=lambda: task.told)
    task.process.kill()
    task.process.wait()

    assert eventually(lambda: not job.place.exists())
    assert eventually(lambda: not job.processes())
