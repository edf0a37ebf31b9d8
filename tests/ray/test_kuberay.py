"""Jobs of the kinds `rayjob` and `raycluster`: an emulated cluster plays KubeRay, with a real Ray cluster in the head pod."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from rallypoint.backends.kubernetes.access import Access
from rallypoint.backends.kubernetes.backend import KubernetesBackend
from rallypoint.backends.requests import request_resumption, request_suspension
from rallypoint.job import load_job
from rallypoint.supervision.record import Phase
from rallypoint.wire.plan import Kind
from tests.emulator.options import Options
from tests.emulator.running import Running, running
from tests.kube.wrapped_jobs import Job, submitted
from tests.live.light import without_torch
from tests.waiting import eventually_async

pytestmark = [pytest.mark.live, pytest.mark.extended]

#: Each worker notes that it began, and ends when its rank is told how; an exit code other than 0 counts once.
SCRIPT = """\
import os, pathlib, time, signal
folder, rank = pathlib.Path({folder!r}), os.environ["RANK"]
with (folder / f"began.{{rank}}").open("a") as file:
    file.write(os.environ["RALLYPOINT_ROUND"] + " " + str(os.getpid()) + "\\n")
print(f"rank {{rank}} of {{os.environ['WORLD_SIZE']}} begins", flush=True)
end = folder / f"end.{{rank}}"
while not end.exists():
    time.sleep(0.05)
code = int(end.read_text())
if code:
    end.unlink()
raise SystemExit(code)
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A cluster with KubeRay's controllers; its images hold no torch."""
    pytest.importorskip("ray", reason="ray is not installed")
    image = {"PYTHONPATH": without_torch(tmp_path_factory.mktemp("image"))}
    with running(Options(controllers=("rayjob", "raycluster"), image_env=image)) as emulator:
        yield emulator


@pytest.fixture
async def backend(cluster: Running) -> AsyncIterator[KubernetesBackend]:
    made = KubernetesBackend(Access(namespace="default", server=cluster.url))
    yield made
    await made.close()


def blueprint(backend: KubernetesBackend, name: str, folder: Path, kind: Kind) -> Any:
    script = folder.parent / "train.py"
    script.write_text(SCRIPT.format(folder=str(folder)))
    job = load_job(
        {
            "name": name,
            "entrypoint": str(script),
            "nodes": 2,
            "image": "any:1",
            "resources": {"cpu": "1", "memory": "1Gi"},
            "fault_tolerance": {"retry_limit": 1, "retry_pause_period": "0s", "failure_grace_period": "0s"},
            "recovery": {"max_restarts": 1},
        },
        based=False,
    )
    return backend.plan_as(job, kind)


def began(folder: Path, rank: int) -> list[str]:
    path = folder / f"began.{rank}"
    return path.read_text().splitlines() if path.exists() else []


def running_pods(cluster: Running) -> list[str]:
    _, found = cluster.request("GET", "/api/v1/namespaces/default/pods")
    return [pod["metadata"]["name"] for pod in found["items"] if pod["status"].get("phase") == "Running"]


async def begins(job: Job, rank: int, lives: int) -> None:
    async def there() -> Any:
        return len(await asyncio.to_thread(began, job.folder, rank)) >= lives

    await eventually_async(
        there,
        timeout=120,
        why=lambda: f"rank {rank} should begin for the {lives}th time: {began(job.folder, rank)}",
    )


@pytest.mark.parametrize("kind", [Kind.RAYJOB, Kind.RAYCLUSTER])
async def test_a_job_trains_in_a_ray_cluster_of_its_own(
    backend: KubernetesBackend, cluster: Running, tmp_path: Path, kind: Kind
) -> None:
    """A killed worker is restarted inside of the cluster at no cost outside; after the success nothing runs any more."""
    folder = tmp_path / "f"
    name = f"well-{kind.value}"
    folder.mkdir()
    async with submitted(backend, name, folder, blueprint=blueprint(backend, name, folder, kind)) as job:
        await job.runs()
        await begins(job, 0, 1)
        await begins(job, 1, 1)
        job.end(1, 7)
        await begins(job, 0, 2)
        job.end(0, 0)
        job.end(1, 0)
        record = await job.over()
        left = running_pods(cluster)

    assert record is not None
    assert (record.phase, record.retries, [a.number for a in record.attempts]) == (Phase.SUCCEEDED, 0, [1])
    assert left == []


async def test_a_failed_attempt_has_another_cluster(backend: KubernetesBackend, tmp_path: Path) -> None:
    """The driver ends with the exit code of the script; the next attempt is a RayJob of its own, until the budget is spent."""
    folder = tmp_path / "f"
    folder.mkdir()
    async with submitted(backend, "bad", folder, blueprint=blueprint(backend, "bad", folder, Kind.RAYJOB)) as job:
        for attempt in (1, 2):
            await job.runs(attempt)
            for life in (1, 2):  # the first is restarted in place
                await begins(job, 1, 2 * attempt - 2 + life)
                job.end(1, 7)
        record = await job.over()

    assert record is not None
    assert (record.phase, record.retries) == (Phase.FAILED, 1)
    culprits = [(one.id.attempt, one.culprit.exit_code) for one in record.incidents if one.culprit]
    assert culprits == [(1, 7), (2, 7)]


async def test_a_suspended_job_leaves_no_cluster(backend: KubernetesBackend, cluster: Running, tmp_path: Path) -> None:
    """A suspension costs nothing; the next attempt trains in a cluster of its own."""
    folder = tmp_path / "f"
    folder.mkdir()
    async with submitted(backend, "pausing", folder, blueprint=blueprint(backend, "pausing", folder, Kind.RAYJOB)) as job:
        await begins(job, 0, 1)
        await request_suspension(backend, "pausing")
        await job.until(lambda record: record.phase is Phase.SUSPENDED)
        assert running_pods(cluster) == []
        await request_resumption(backend, "pausing")
        await begins(job, 0, 2)
        job.end(0, 0)
        job.end(1, 0)
        record = await job.over()

    assert record is not None
    assert (record.phase, record.retries, record.attempt) == (Phase.SUCCEEDED, 0, 2)
