"""Jobs in AppWrappers and PyTorchJobs, for real: the emulated cluster runs their controllers, and their pods are processes."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.log import mask_secret

from rallypoint.backends.contract import SubmitError
from rallypoint.backends.kubernetes.backend import KubernetesBackend
from rallypoint.backends.requests import delete, request_resumption, request_suspension
from rallypoint.compat.pytorchjob_generator import appwrapper, read_settings
from rallypoint.job import load_job
from rallypoint.operators import AppWrapperOperator
from rallypoint.provider.errors import TrainingFailed
from rallypoint.supervision.record import ConditionType, Phase
from rallypoint.wire.plan import Kind
from rallypoint.wire.status import Outcome
from tests.emulator.controllers.api import Api
from tests.emulator.controllers.kueue import Queues
from tests.emulator.options import Options
from tests.emulator.running import Running, running
from tests.kube.operator_tasks import on_emulator, shown
from tests.kube.wrapped_jobs import manifest, submitted
from tests.provider.tasks import FakeTask, context
from tests.waiting import eventually_async

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def cluster() -> Iterator[Running]:
    """A cluster with all controllers, whose waits pass a hundred times faster."""
    with running(Options(controllers=("appwrapper", "kueue", "pytorchjob"), speed=100.0)) as emulator:
        yield emulator


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
    # One failure is one incident: what the controller ended with it, and its reset, are no others.
    assert culprits == [(1, 1, 3, ("rank 1 ends with 3",)), (2, 1, 4, ("rank 1 ends with 4",))]
    assert len(record.incidents) == len(culprits)
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


async def test_a_wrapper_in_a_queue_is_suspended_by_its_workload(
    backend: KubernetesBackend, cluster: Running, tmp_path: Path
) -> None:
    """Kueue would take back what is written into the wrapper; its Workload is set inactive, and active again."""
    workloads = "/apis/kueue.x-k8s.io/v1beta1/namespaces/default/workloads"
    async with Api(cluster.url) as api:
        queues = Queues(api)
        await queues.ready()
        await queues.quota("wide", pods=8)
        async with submitted(backend, "held", tmp_path / "f", queue="wide") as job:
            await job.runs()
            await request_suspension(backend, "held")
            record = await job.until(lambda r: r.phase is Phase.SUSPENDED)
            assert pods_of(cluster, "held") == []
            # Kueue looks at everything again, and lets the job be all the same.
            await queues.quota("other", pods=1)
            async with submitted(backend, "beside", tmp_path / "g", queue="wide") as other:
                await other.runs()
                assert (await job.record()).phase is Phase.SUSPENDED
            known = {w["metadata"]["name"]: w["spec"]["active"] for w in cluster.request("GET", workloads)[1]["items"]}
            assert [active for name, active in known.items() if name.startswith("appwrapper-held")] == [False]
            await request_resumption(backend, "held")
            again = await job.runs(2)

    assert (record.attempts[0].message, again.retries) == ("the AppWrapper was suspended", 0)


async def test_a_suspended_pytorchjob_waits_for_free(backend: KubernetesBackend, cluster: Running, tmp_path: Path) -> None:
    """No clock is running before it has pods, also when a queue suspends it: graces that are over at once cost nothing."""
    path = "/apis/kubeflow.org/v1/namespaces/default/pytorchjobs/resting"
    folder = tmp_path / "f"
    folder.mkdir()
    wrapper = manifest("resting", folder, admissionGracePeriodDuration="1s", warmupGracePeriodDuration="1s")
    resting = backend.plan_manifest(suspended(wrapper), kind=Kind.PYTORCHJOB)
    async with submitted(backend, "resting", folder, blueprint=resting) as job:
        await job.until(lambda r: r.phase in {Phase.RESUMING, Phase.RUNNING})
        began = time.monotonic()
        await eventually_async(lambda: time.monotonic() - began > 3.0)
        waiting = await job.record()
        assert pods_of(cluster, "resting") == []
        change = {"spec": {"runPolicy": {"suspend": False}}}
        assert cluster.request("PATCH", path, change, content="application/merge-patch+json")[0] == 200
        record = await job.runs()

    assert not waiting.condition(ConditionType.UNHEALTHY)
    assert [(each.retries, each.attempt) for each in (waiting, record)] == [(0, 1), (0, 1)]


def suspended(wrapper: dict[str, Any]) -> dict[str, Any]:
    """Return a wrapper whose PyTorchJob is made suspended."""
    wrapper["spec"]["components"][0]["template"]["spec"]["runPolicy"] = {"suspend": True}
    return wrapper


#: Each worker says who it is, and ends when the test has read that: a controller deletes a pod, with its log, at once.
WORKER = """\
import os, pathlib, time
print("worker", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], "round", os.environ["RALLYPOINT_ROUND"], flush=True)
while not pathlib.Path(__file__).with_name("end").exists():
    time.sleep(0.05)
"""


async def until_said(backend: KubernetesBackend, name: str, *expected: str) -> None:
    """Return when the job's output has these lines."""
    said: list[str] = []

    async def look() -> Any:
        said[:] = [line.text async for line in backend.logs(name)]
        return all(any(words in line for line in said) for words in expected)

    await eventually_async(look, timeout=60, every=0.2, why=lambda: f"{expected} expected: {said}")


async def test_an_elastic_wrapper_runs_to_its_end(backend: KubernetesBackend, tmp_path: Path) -> None:
    """Settings with `elastic: true`: the agents in the pods meet at the master, and the controller says that all ended well."""
    folder = tmp_path / "f"
    folder.mkdir()
    (folder / "worker.py").write_text(WORKER)
    settings = {
        "jobName": "stretching",
        "containerImage": "any:1",
        "elastic": True,
        "numPods": 2,
        "minPods": 1,
        "numCpusPerPod": 1,
        "totalMemoryPerPod": "1Gi",
        "queueName": None,
        "mainProgram": str(folder / "worker.py"),
    }
    blueprint = backend.plan_manifest(appwrapper(read_settings(settings)))
    async with submitted(backend, "stretching", folder, blueprint=blueprint) as job:
        await until_said(backend, "stretching", "worker 0 of 2 round", "worker 1 of 2 round")
        (folder / "end").touch()
        record = await job.over()

    assert record is not None
    assert (record.phase, record.retries, len(record.attempts)) == (Phase.SUCCEEDED, 0, 1)


@pytest.mark.parametrize("kind", [Kind.APPWRAPPER, pytest.param(Kind.PYTORCHJOB, marks=pytest.mark.extended)])
async def test_a_job_file_runs_to_its_end(backend: KubernetesBackend, tmp_path: Path, kind: Kind) -> None:
    """The operator accepts the pods of a job file, its init container starts in them, and the agents meet at the master."""
    folder = tmp_path / "f"
    folder.mkdir()
    (folder / "worker.py").write_text(WORKER)
    name = f"file-{kind.value}"
    job = load_job({"name": name, "entrypoint": str(folder / "worker.py"), "image": "any:1", "nodes": 2}, based=False)
    async with submitted(backend, name, folder, blueprint=backend.plan_as(job, kind)) as running_job:
        await until_said(backend, name, "worker 0 of 2 round 1", "worker 1 of 2 round 1")
        (folder / "end").touch()
        record = await running_job.over()

    assert record is not None
    assert (record.phase, record.retries) == (Phase.SUCCEEDED, 0), record.history


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


def test_a_secret_in_a_manifest_is_masked_wherever_the_job_is_shown(cluster: Running, tmp_path: Path) -> None:
    """What Airflow masks in the manifest of an operator is masked in the error, the XComs, the record and the page."""
    secret, token = "hunter2-of-the-registry", "tok3n-of-$$the-registry"
    mask_secret(secret)
    mask_secret(token)
    made = manifest("leaks", tmp_path, pods=1, retryLimit="0")
    (component,) = made["spec"]["components"]
    (container,) = component["template"]["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"]
    # Kubernetes turns `$$` into `$`: the manifest of a user stays as it is.
    container["env"] = [{"name": "REGISTRY", "value": f"https://me:{secret}@host"}, {"name": "KEY", "value": token}]
    container["command"] = ["sh", "-c", 'echo "cannot log in at $REGISTRY with $KEY" >&2; exit 3']
    ti = FakeTask()

    with pytest.raises(TrainingFailed) as failed:
        on_emulator(AppWrapperOperator, cluster.url, manifest=made).execute(context(ti))

    record, page = asyncio.run(shown(cluster.url, "leaks"))
    for text in (str(failed.value), json.dumps(ti.pushed), record, page):
        assert secret not in text
        assert "tok3n" not in text
    assert "cannot log in at https://me:***@host with ***" in record
