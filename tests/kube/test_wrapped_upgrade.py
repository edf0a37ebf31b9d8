"""A supervisor or an agent image of this version meets a PyTorchJob that a version without Secrets has created."""

from __future__ import annotations

import asyncio
import copy
import hashlib
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rallypoint.backends.kubernetes.backend import KubernetesBackend
from rallypoint.backends.supervise import supervise
from rallypoint.job import load_job
from rallypoint.supervision.record import Phase
from rallypoint.wire import env
from rallypoint.wire.plan import Kind
from tests.emulator.options import Options
from tests.emulator.running import Running, running
from tests.kube.wrapped_jobs import manifest, submitted
from tests.waiting import eventually_async

pytestmark = pytest.mark.live

PODS = "/api/v1/namespaces/default/pods"
SECRETS = "/api/v1/namespaces/default/secrets"
JOBS = "/apis/kubeflow.org/v1/namespaces/default/pytorchjobs"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Running]:
    with running(Options(controllers=("appwrapper", "pytorchjob"), speed=100.0)) as emulator:
        yield emulator


def of_job(cluster: Running, path: str, job: str) -> dict[str, dict[str, Any]]:
    """Return a job's objects at a path, by name."""
    found = {item["metadata"]["name"]: item for item in cluster.request("GET", path)[1]["items"]}
    return {name: item for name, item in found.items() if name.startswith(job)}


def log_of(cluster: Running, pod: str) -> str:
    """Return what a pod has written."""
    with urllib.request.urlopen(f"{cluster.url}{PODS}/{pod}/log", timeout=60) as response:
        text: bytes = response.read()
        return text.decode()


async def test_an_agent_without_a_secret_says_what_to_set(backend: KubernetesBackend, cluster: Running, tmp_path: Path) -> None:
    """The older supervisor names no Secret: the agents of the new image refuse to meet, and name the setting."""
    trained = tmp_path / "trained"
    (tmp_path / "worker.py").write_text(f"open({str(trained)!r}, 'w')\n")
    spec = {"name": "older", "entrypoint": str(tmp_path / "worker.py"), "image": "any:1", "nodes": 2}
    *_, made = backend.plan_as(load_job(spec, based=False), Kind.PYTORCHJOB).objects
    made = copy.deepcopy(made)
    for role in made["spec"]["pytorchReplicaSpecs"].values():
        for container in role["template"]["spec"]["containers"]:
            container["env"] = [each for each in container.get("env") or () if each["name"] != env.SECRET]
            # The emulator tells each pod that its master is at localhost, where agents could know one secret.
            container["command"] = [word.replace("$(MASTER_ADDR)", socket.gethostname()) for word in container["command"]]
    assert env.SECRET not in str(made)
    made["metadata"]["namespace"] = "default"
    status, told = cluster.request("POST", JOBS, made)
    assert status == 201, told

    def failed() -> list[dict[str, Any]]:
        return [pod for pod in of_job(cluster, PODS, "older").values() if pod.get("status", {}).get("phase") == "Failed"]

    (pod, *_) = await eventually_async(failed, timeout=120)
    (state,) = (one["state"]["terminated"] for one in pod["status"]["containerStatuses"])
    assert state["exitCode"] != 0
    said = await asyncio.to_thread(log_of, cluster, pod["metadata"]["name"])
    assert f"{env.SECRET}: is not set" in said
    assert "--insecure-token" in said
    assert not trained.exists()
    assert cluster.request("DELETE", f"{JOBS}/older")[0] == 200


async def test_a_running_job_of_an_older_version_is_taken_over(
    backend: KubernetesBackend, cluster: Running, tmp_path: Path
) -> None:
    """Its pods have the token of the run id, and there is no Secret: none of them ends. Its next attempt has a Secret."""
    name, folder = "running", tmp_path / "f"
    wrapper = manifest(name, folder)
    token = hashlib.sha256(f"rallypoint run {name}".encode()).hexdigest()
    for role in wrapper["spec"]["components"][0]["template"]["spec"]["pytorchReplicaSpecs"].values():
        role["template"]["spec"]["containers"][0]["env"] = [{"name": env.SECRET, "value": token}]
    blueprint = backend.plan_manifest(wrapper, kind=Kind.PYTORCHJOB)
    async with submitted(backend, name, folder, blueprint=blueprint) as job:
        await job.runs()
        job.supervisor.cancel()
        await asyncio.wait([job.supervisor])
        for secret in of_job(cluster, SECRETS, name):
            assert cluster.request("DELETE", f"{SECRETS}/{secret}")[0] == 200
        before = {pod: item["metadata"]["uid"] for pod, item in of_job(cluster, PODS, name).items()}
        assert "secretKeyRef" not in str(of_job(cluster, PODS, name))

        turns: list[object] = []
        job.supervisor = asyncio.create_task(supervise(backend, name, holder="newer", on_turn=turns.append, poll=0.2))
        await eventually_async(lambda: len(turns) > 5, why="the new supervisor has looked at the job")
        assert {pod: item["metadata"]["uid"] for pod, item in of_job(cluster, PODS, name).items()} == before
        assert not of_job(cluster, SECRETS, name)
        job.end(1, 3)
        await job.until(lambda r: r.retries == 1)
        job.spare(1)
        await job.runs(2)
        assert [secret.rpartition("-")[2] for secret in of_job(cluster, SECRETS, name)] == ["a2"]
        for rank in range(2):
            job.end(rank, 0)
        record = await job.over()

    assert record is not None
    assert record.phase is Phase.SUCCEEDED
