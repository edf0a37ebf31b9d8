"""The Secret of jobs in AppWrappers and PyTorchJobs, for real: who has it, when there is one, and what is left of it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rallypoint.backends.kubernetes.backend import KubernetesBackend
from rallypoint.backends.kubernetes.names import JobRef
from rallypoint.backends.kubernetes.wrapped.manifest import marked
from rallypoint.compat.pytorchjob_generator import appwrapper, read_settings, secret_object
from rallypoint.job import load_job
from rallypoint.supervision.record import Phase
from rallypoint.wire.plan import Kind
from tests.emulator.options import Options
from tests.emulator.running import Running, running
from tests.kube.wrapped_jobs import manifest, submitted
from tests.kube.wrappers import pytorchjob
from tests.waiting import eventually_async

pytestmark = pytest.mark.live

KINDS = pytest.mark.parametrize("kind", [Kind.APPWRAPPER, Kind.PYTORCHJOB])

#: Each pod leaves what it knows, and ends as the others do.
SCRIPT = """\
printf %s "$RALLYPOINT_SECRET" > {folder}/partial.$RANK && mv {folder}/partial.$RANK {folder}/secret.$RANK
until test -e {folder}/end.$RANK; do sleep 0.05; done
exit "$(cat {folder}/end.$RANK)"
"""

SETTINGS: dict[str, Any] = {
    "jobName": "applied",
    "containerImage": "any:1",
    "elastic": True,
    "numPods": 2,
    "minPods": 2,
    "numCpusPerPod": 1,
    "totalMemoryPerPod": "1Gi",
    "queueName": None,
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Running]:
    with running(Options(controllers=("appwrapper", "pytorchjob"), speed=100.0)) as emulator:
        yield emulator


def secrets_of(cluster: Running, job: str) -> list[dict[str, Any]]:
    """Return the Secrets of a job."""
    path = "/api/v1/namespaces/default/secrets"
    return [item for item in cluster.request("GET", path)[1]["items"] if item["metadata"]["name"].startswith(job)]


def telling(name: str, folder: Path) -> dict[str, Any]:
    """Return a wrapper whose pods leave their secret in the folder."""
    made = manifest(name, folder)
    for role in made["spec"]["components"][0]["template"]["spec"]["pytorchReplicaSpecs"].values():
        role["template"]["spec"]["containers"][0]["command"] = ["sh", "-c", SCRIPT.format(folder=folder)]
    return made


async def told(folder: Path, rank: int) -> str:
    """Return the secret of a rank, once it has left it."""
    path = folder / f"secret.{rank}"
    await eventually_async(path.exists)
    return path.read_text()


@KINDS
async def test_pods_of_a_controller_have_a_secret(
    backend: KubernetesBackend, cluster: Running, tmp_path: Path, kind: Kind
) -> None:
    """The same in all of them, drawn and not derived, owned by the job's ConfigMap; nothing is left after the deletion."""
    name, folder = f"kept-{kind.value}", tmp_path / "f"
    folder.mkdir()
    blueprint = backend.plan_manifest(telling(name, folder), kind=kind)
    async with submitted(backend, name, folder, blueprint=blueprint):
        known = [await told(folder, rank) for rank in range(2)]
        (secret,) = secrets_of(cluster, name)

    assert len(known[0]) == 64
    assert known[0] == known[1] != hashlib.sha256(f"rallypoint run {name}".encode()).hexdigest()
    (owner,) = secret["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"]) == ("ConfigMap", f"rallypoint-{name}")
    await eventually_async(lambda: not secrets_of(cluster, name))


async def test_each_attempt_that_we_create_has_its_own(backend: KubernetesBackend, cluster: Running, tmp_path: Path) -> None:
    """What is left of the last attempt knows nothing of this one."""
    name, folder = "renewed", tmp_path / "f"
    folder.mkdir()
    blueprint = backend.plan_manifest(telling(name, folder), kind=Kind.PYTORCHJOB)
    async with submitted(backend, name, folder, blueprint=blueprint) as job:
        first = await told(folder, 0)
        (folder / "secret.0").unlink()
        job.end(1, 3)
        await job.until(lambda r: r.retries == 1)
        job.spare(1)
        second = await told(folder, 0)
        names = [secret["metadata"]["name"].rpartition("-")[2] for secret in secrets_of(cluster, name)]

    assert first != second
    assert names == ["a2"]


async def test_a_job_file_may_do_without(backend: KubernetesBackend, cluster: Running) -> None:
    """With `insecure_token: true` there is no Secret, the agents are told so, and the plan says what that means."""
    spec = {"name": "open", "entrypoint": "train.py", "image": "any:1", "nodes": 2}
    closed = backend.plan_as(load_job(spec, based=False), Kind.PYTORCHJOB)
    opened = backend.plan_as(load_job({**spec, "insecure_token": True}, based=False), Kind.PYTORCHJOB)

    assert [item["kind"] for item in closed.objects] == ["ConfigMap", "Secret", "PyTorchJob"]
    assert [item["kind"] for item in opened.objects] == ["ConfigMap", "PyTorchJob"]
    assert "insecure_token=true" in str(opened.objects[1])
    assert "RALLYPOINT_SECRET" not in str(opened.objects[1])
    assert any(note.startswith("insecure_token: ") for note in opened.notes)


@pytest.mark.parametrize("kind", [Kind.APPWRAPPER, pytest.param(Kind.PYTORCHJOB, marks=pytest.mark.extended)])
async def test_a_job_file_with_tls_runs_to_its_end(backend: KubernetesBackend, tmp_path: Path, kind: Kind) -> None:
    """The agents meet at the master over TLS, with certificates from the Secret of their attempt."""
    (tmp_path / "worker.py").write_text("import os; print('worker', os.environ['RANK'], flush=True)\n")
    name, script = f"safe-{kind.value}", str(tmp_path / "worker.py")
    job = load_job({"name": name, "entrypoint": script, "image": "any:1", "nodes": 2, "tls": "auto"}, based=False)
    async with submitted(backend, name, tmp_path / "f", blueprint=backend.plan_as(job, kind)) as running_job:
        record = await running_job.over()

    assert record is not None
    assert (record.phase, record.retries) == (Phase.SUCCEEDED, 0), record.history


async def test_rendered_pods_wait_for_their_secret(cluster: Running, tmp_path: Path) -> None:
    """Applied by hand: no pod starts before its Secret exists, and the Secret goes with the AppWrapper that owns it."""
    went = tmp_path / "went"
    settings = read_settings({**SETTINGS, "mainProgram": "/nowhere.py", "setupCommands": [f"touch {went}", "exit 0"]})
    status, made = cluster.request(
        "POST", "/apis/workload.codeflare.dev/v1beta2/namespaces/default/appwrappers", wrapper(settings)
    )
    assert status == 201, made
    await eventually_async(lambda: reasons(cluster) == {"CreateContainerConfigError"}, every=0.1)
    assert not went.exists()

    secret = secret_object(settings, owner=made["metadata"]["uid"])
    assert cluster.request("POST", "/api/v1/namespaces/default/secrets", secret)[0] == 201
    await eventually_async(went.exists)
    path = "/apis/workload.codeflare.dev/v1beta2/namespaces/default/appwrappers/applied"
    assert cluster.request("DELETE", path)[0] == 200
    await eventually_async(lambda: not secrets_of(cluster, "applied"))


def wrapper(settings: Any) -> dict[str, Any]:
    """Return the AppWrapper as kubectl would create it, not suspended."""
    made = appwrapper(settings)
    return {**made, "metadata": {**made["metadata"], "namespace": "default"}}


def reasons(cluster: Running) -> set[str]:
    """Return for what the containers of the applied pods wait."""
    items = cluster.request("GET", "/api/v1/namespaces/default/pods")[1]["items"]
    states = (
        status.get("state") or {}
        for pod in items
        if pod["metadata"]["name"].startswith("applied-master")
        for status in (pod.get("status") or {}).get("containerStatuses") or ()
    )
    return {(state.get("waiting") or {}).get("reason", "") for state in states}


def test_a_secret_that_a_manifest_names_stays() -> None:
    """And the reference that `rallypoint render` leaves to its user is replaced by the Secret of the attempt."""
    own = {"name": "RALLYPOINT_SECRET", "valueFrom": {"secretKeyRef": {"name": "mine", "key": "token"}}}
    rendered = {"name": "RALLYPOINT_SECRET", "valueFrom": {"secretKeyRef": {"name": "x-rallypoint-run", "key": "secret"}}}
    manifest = pytorchjob(2)
    roles = manifest["spec"]["pytorchReplicaSpecs"]
    roles["Master"]["template"] = {"spec": {"containers": [{"name": "a", "env": [own]}, {"name": "b"}]}}
    roles["Worker"]["template"] = {"spec": {"containers": [{"name": "a", "env": [rendered]}]}}

    made = marked(manifest, JobRef(name="train", uid="u1", namespace="team"), attempt=3)

    specs = [role["template"]["spec"]["containers"] for role in made["spec"]["pytorchReplicaSpecs"].values()]
    names = [[each["env"][0]["valueFrom"]["secretKeyRef"]["name"] for each in containers] for containers in specs]
    assert names == [["mine", "train-u1-a3"], ["train-u1-a3"]]
