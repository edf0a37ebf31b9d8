"""Jobs in AppWrappers and PyTorchJobs, for real: the emulated cluster runs their controllers, and their pods are processes."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rallypoint.backends.contract import SubmitError
from rallypoint.backends.kubernetes.access import Access
from rallypoint.backends.kubernetes.backend import KubernetesBackend
from rallypoint.backends.requests import delete, request_resumption, request_suspension, submit_or_adopt
from rallypoint.backends.supervise import supervise
from rallypoint.job.annotations import PREFIX
from rallypoint.supervision.record import JobRecord, Phase
from rallypoint.wire.plan import Kind
from rallypoint.wire.status import Outcome
from tests.emulator.controllers.api import Api
from tests.emulator.controllers.kueue import Queues
from tests.emulator.options import Options
from tests.emulator.running import Running, running
from tests.waiting import eventually_async

pytestmark = pytest.mark.live

#: Periods that no test waits for are long; those that one does are over at once.
POLICIES = {
    "admissionGracePeriodDuration": "24h",
    "warmupGracePeriodDuration": "24h",
    "failureGracePeriodDuration": "0s",
    "retryPausePeriodDuration": "0s",
    "retryLimit": "1",
}

#: Each pod says who it is and goes on until a file tells it how to end.
SCRIPT = """\
echo "rank $RANK of $WORLD_SIZE begins"
until test -e {folder}/end.$RANK; do sleep 0.05; done
echo "rank $RANK ends with $(cat {folder}/end.$RANK)"
exit "$(cat {folder}/end.$RANK)"
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Running]:
    """A cluster with all controllers, whose waits pass a hundred times faster."""
    with running(Options(controllers=("appwrapper", "kueue", "pytorchjob"), speed=100.0)) as emulator:
        yield emulator


@pytest.fixture
async def backend(cluster: Running) -> AsyncIterator[KubernetesBackend]:
    made = KubernetesBackend(Access(namespace="default", server=cluster.url))
    yield made
    await made.close()


def manifest(name: str, folder: Path, pods: int = 2, queue: str = "", **policies: str) -> dict[str, Any]:
    """Return an AppWrapper of a PyTorchJob whose pods look into `folder` for their ends."""
    container = {
        "name": "pytorch",
        "image": "any:1",
        "command": ["sh", "-c", SCRIPT.format(folder=folder)],
        "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}},
    }
    template = {"spec": {"terminationGracePeriodSeconds": 1, "containers": [container]}}
    roles = {"Master": {"replicas": 1, "restartPolicy": "Never", "template": template}}
    if pods > 1:
        roles["Worker"] = {"replicas": pods - 1, "restartPolicy": "Never", "template": template}
    job = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name},
        "spec": {"pytorchReplicaSpecs": roles},
    }
    return {
        "apiVersion": "workload.codeflare.dev/v1beta2",
        "kind": "AppWrapper",
        "metadata": {
            "name": name,
            "annotations": {PREFIX + key: text for key, text in {**POLICIES, **policies}.items()},
            **({"labels": {"kueue.x-k8s.io/queue-name": queue}} if queue else {}),
        },
        "spec": {"components": [{"template": job}]},
    }


@dataclasses.dataclass
class Job:
    """A job that is supervised, and its pods' fate."""

    backend: KubernetesBackend
    name: str
    folder: Path
    supervisor: asyncio.Task[JobRecord | None]

    async def record(self) -> JobRecord:
        stored = await self.backend.load(self.name)
        assert stored is not None
        return stored.record

    async def until(self, so: Callable[[JobRecord], bool]) -> JobRecord:
        """Return the record once it is so."""
        told: list[JobRecord] = []

        async def look() -> JobRecord | None:
            told[:] = [await self.record()]
            return told[0] if so(told[0]) else None

        def why() -> str:
            lines = "\n".join(f"  {line.kind}: {line.detail}" for line in told[0].history)
            return f"job {self.name} is {told[0].phase.value}:\n{lines}"

        return await eventually_async(look, timeout=60, why=why)

    async def runs(self, attempt: int = 1) -> JobRecord:
        """Return the record once all pods of an attempt run."""
        return await self.until(lambda r: r.attempt == attempt and r.attempts[-1].ready_at is not None)

    def end(self, rank: int, code: int) -> None:
        """Tell a rank how to end, in this attempt and in every other."""
        partial = self.folder / f"{rank}.partial"
        partial.write_text(str(code))
        partial.rename(self.folder / f"end.{rank}")

    def spare(self, rank: int) -> None:
        """Let it go on for ever again."""
        (self.folder / f"end.{rank}").unlink()

    async def over(self) -> JobRecord | None:
        """Return the final record, once the supervisor is done."""
        return await asyncio.wait_for(self.supervisor, 300)


@contextlib.asynccontextmanager
async def submitted(
    backend: KubernetesBackend, name: str, folder: Path, *, kind: Kind | None = None, **more: Any
) -> AsyncIterator[Job]:
    """Submit a job and supervise it while the context lasts; it is deleted in the end."""
    folder.mkdir(exist_ok=True)  # noqa: ASYNC240  a folder of this machine, in no time
    blueprint = backend.plan_manifest(manifest(name, folder, **more), kind=kind)
    await submit_or_adopt(backend, blueprint, owner="cli")
    task = asyncio.create_task(supervise(backend, name, holder="test"))
    try:
        yield Job(backend, name, folder, task)
    finally:
        task.cancel()
        await asyncio.wait([task])
        if await backend.load(name) is not None:
            await delete(backend, name, holder="test", timeout=120)


@pytest.mark.parametrize("kind", [Kind.APPWRAPPER, Kind.PYTORCHJOB])
async def test_it_succeeds(backend: KubernetesBackend, tmp_path: Path, kind: Kind) -> None:
    """Its pods run, end well, and the job has succeeded with one attempt that was ready."""
    async with submitted(backend, f"well-{kind.value}", tmp_path / "f", kind=kind, pods=3) as job:
        await job.runs()
        for rank in range(3):
            job.end(rank, 0)
        record = await job.over()

    assert record is not None
    assert record.verdict is not None
    assert (record.phase, record.verdict.outcome) == (Phase.SUCCEEDED, Outcome.SUCCEEDED)
    assert ([a.number for a in record.attempts], record.retries) == ([1], 0)
    assert record.attempts[0].ready_at is not None


@pytest.mark.parametrize("kind", [Kind.APPWRAPPER, Kind.PYTORCHJOB])
async def test_it_is_retried_until_its_budget_is_spent(backend: KubernetesBackend, tmp_path: Path, kind: Kind) -> None:
    """A failed pod resets the job as often as its budget says; the record tells each time who failed, with its last words."""
    async with submitted(backend, f"bad-{kind.value}", tmp_path / "f", kind=kind) as job:
        await job.runs()
        job.end(1, 3)
        await job.until(lambda r: r.retries == 1)
        job.spare(1)
        await job.runs(2)
        job.end(1, 4)
        record = await job.over()

    assert record is not None
    assert record.verdict is not None
    assert (record.phase, record.verdict.outcome, record.retries) == (Phase.FAILED, Outcome.FAILED, 1)
    culprits = [(i.id.attempt, i.id.node, i.culprit.exit_code, i.culprit.log_tail[-1:]) for i in record.incidents if i.culprit]
    assert (1, 1, 3, ("rank 1 ends with 3",)) in culprits
    assert (2, 1, 4, ("rank 1 ends with 4",)) in culprits
    assert all(i.culprit.host.startswith("node-") for i in record.incidents if i.culprit)


async def test_it_is_suspended_and_goes_on(backend: KubernetesBackend, cluster: Running, tmp_path: Path) -> None:
    """A suspension takes the pods away and costs nothing; the next attempt begins when it is taken back."""
    async with submitted(backend, "pausing", tmp_path / "f") as job:
        await job.runs()
        await request_suspension(backend, "pausing")
        await job.until(lambda r: r.phase is Phase.SUSPENDED)
        assert pods_of(cluster, "pausing") == []
        await request_resumption(backend, "pausing")
        record = await job.runs(2)

    assert (record.retries, record.attempts[0].reason) == (0, "Suspended")


async def test_a_queue_decides_when_it_runs(backend: KubernetesBackend, cluster: Running, tmp_path: Path) -> None:
    """It waits until its queue has room, is preempted for free, and goes on when it is let."""
    async with Api(cluster.url) as api:
        queues = Queues(api)
        await queues.ready()
        await queues.quota("narrow", pods=1)
        async with submitted(backend, "queued", tmp_path / "f", queue="narrow") as job:
            await job.until(lambda r: r.phase is Phase.SUSPENDED)
            await queues.quota("narrow", pods=2)
            await job.runs()
            await queues.preempt("queued")
            record = await job.until(lambda r: r.phase is Phase.SUSPENDED and r.attempt == 1)
            assert (record.retries, record.attempts[0].message) == (0, "its queue suspended it")
            await queues.allow("queued")
            await job.runs(2)


async def test_it_is_deleted_from_outside(backend: KubernetesBackend, cluster: Running, tmp_path: Path) -> None:
    """An AppWrapper that somebody deletes is not made again: the job has failed, and says why."""
    async with submitted(backend, "vanishing", tmp_path / "f") as job:
        await job.runs()
        path = "/apis/workload.codeflare.dev/v1beta2/namespaces/default/appwrappers/vanishing"
        assert cluster.request("DELETE", path)[0] == 200
        record = await job.over()

        assert record is not None
        assert record.verdict is not None
        assert (record.phase, record.verdict.reason) == (Phase.FAILED, "MissingComponent")
        assert pods_of(cluster, "vanishing") == []


@pytest.mark.parametrize("kind", [Kind.APPWRAPPER, Kind.PYTORCHJOB])
async def test_a_deletion_leaves_nothing(backend: KubernetesBackend, cluster: Running, tmp_path: Path, kind: Kind) -> None:
    """The wrapper, its components, their pods and our record are gone."""
    name = f"leaving-{kind.value}"
    async with submitted(backend, name, tmp_path / "f", kind=kind) as job:
        await job.runs()
        assert await delete(backend, name, holder="test", timeout=120)

    assert await backend.load(name) is None
    assert pods_of(cluster, name) == []
    for plural in (
        "workload.codeflare.dev/v1beta2/namespaces/default/appwrappers",
        "kubeflow.org/v1/namespaces/default/pytorchjobs",
    ):
        assert cluster.request("GET", f"/apis/{plural}/{name}")[0] == 404


async def test_another_run_begins_after_the_last(backend: KubernetesBackend, tmp_path: Path) -> None:
    """A job that is submitted again makes a new AppWrapper, and its record goes on counting attempts."""
    async with submitted(backend, "again", tmp_path / "f", pods=1) as job:
        await job.runs()
        job.end(0, 0)
        first = await job.over()
        assert first is not None
        assert first.phase is Phase.SUCCEEDED
        job.spare(0)
        await backend.save(dataclasses.replace(first, collected_by="cli"), version=(await stored(backend, "again")))
        async with submitted(backend, "again", tmp_path / "f", pods=1) as second:
            record = await second.runs(2)

    assert [attempt.number for attempt in record.attempts] == [1, 2]


async def stored(backend: KubernetesBackend, name: str) -> str:
    found = await backend.load(name)
    assert found is not None
    return found.version


def pods_of(cluster: Running, name: str) -> list[str]:
    """Return the names of a job's pods."""
    code, found = cluster.request("GET", f"/api/v1/namespaces/default/pods?labelSelector=rallypoint.dev/job={name}")
    assert code == 200
    return [pod["metadata"]["name"] for pod in found["items"]]


@pytest.mark.parametrize(
    ("trouble", "message"),
    [
        pytest.param(
            {"kind": "deny", "resources": ["appwrappers"], "message": "not on Sundays"}, "not on Sundays", id="webhook"
        ),
        pytest.param({"kind": "forbid", "resources": ["appwrappers"], "verbs": ["create"]}, "not allowed", id="forbidden"),
        pytest.param({"kind": "deny", "resources": ["pods"], "message": "no such pods"}, "no such pods", id="a pod of it"),
    ],
)
async def test_what_is_refused_is_told_before_anything_is_created(
    backend: KubernetesBackend, cluster: Running, tmp_path: Path, trouble: dict[str, Any], message: str
) -> None:
    """A webhook's no, a missing permission: the submission says it, and nothing is there."""
    blueprint = backend.plan_manifest(manifest("refused", tmp_path))
    cluster.fault(**trouble)
    try:
        with pytest.raises(SubmitError, match=message):
            await backend.submit(blueprint, owner="cli")
    finally:
        cluster.heal()

    assert await backend.load("refused") is None
