"""Servers (`driver: false`) of jobs in AppWrappers, for real: they end within their pods once all drivers have succeeded."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from rallypoint.backends.kubernetes.backend import KubernetesBackend
from rallypoint.backends.requests import request_resumption, request_suspension
from rallypoint.backends.supervise import supervise
from rallypoint.job import load_job
from rallypoint.job.annotations import PREFIX
from rallypoint.supervision.record import JobRecord, Phase
from rallypoint.wire.plan import Kind
from tests.emulator.options import Options
from tests.emulator.running import Running, running
from tests.kube.wrapped_jobs import Job, submitted
from tests.waiting import eventually_async

pytestmark = pytest.mark.live

#: Runs until a file says how it ends.
DRIVER = """\
echo "driver $RANK begins"
cd {folder}
until test -e end.$NAME; do sleep 0.05; done
exit "$(cat end.$NAME)"
"""

#: Runs until SIGTERM, which it takes as the end of its work.
SERVER = "trap 'echo saved; exit 0' TERM; echo server $RANK begins; while :; do sleep 0.05; done"
DEAF = "trap '' TERM; echo server $RANK begins; while :; do sleep 0.05; done"

POLICIES = {
    "admission_grace_period": "24h",
    "warmup_grace_period": "24h",
    "failure_grace_period": "0s",
    "retry_pause_period": "0s",
    "retry_limit": 1,
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Running]:
    """A cluster whose AppWrappers run JobSets; what controllers wait for passes a hundred times faster."""
    with running(Options(controllers=("appwrapper", "jobset"), speed=100.0)) as emulator:
        yield emulator


class Roles:
    """A job of roles in an AppWrapper, and what a test does to its pods."""

    def __init__(self, job: Job, cluster: Running, backend: KubernetesBackend) -> None:
        self.job, self.cluster, self.backend = job, cluster, backend

    def pods(self, role: str = "") -> list[dict[str, Any]]:
        path = f"/api/v1/namespaces/default/pods?labelSelector=rallypoint.dev/job={self.job.name}"
        code, found = self.cluster.request("GET", path)
        assert code == 200
        name = "jobset.sigs.k8s.io/replicatedjob-name"
        return [pod for pod in found["items"] if role in ("", pod["metadata"]["labels"].get(name))]

    def phases(self, role: str) -> list[str]:
        return [pod["status"]["phase"] for pod in self.pods(role)]

    def log(self, pod: dict[str, Any], container: str = "") -> str:
        path = f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}/log"
        code, text = self.cluster.request("GET", path + (f"?container={container}" if container else ""))
        return str(text) if code == 200 else ""

    def end(self, name: str, code: int = 0) -> None:
        partial = self.job.folder / f"{name}.partial"
        partial.write_text(str(code))
        partial.rename(self.job.folder / f"end.{name}")

    def lose(self, pod: dict[str, Any]) -> None:
        path = f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}"
        assert self.cluster.request("DELETE", path, {"gracePeriodSeconds": 0})[0] == 200

    def warm_up(self, period: str) -> None:
        """Change the period within which the controller waits for pods; it reads it whenever it looks."""
        path = f"/apis/workload.codeflare.dev/v1beta2/namespaces/default/appwrappers/{self.job.name}"
        keys = ("warmupGracePeriodDuration", "admissionGracePeriodDuration")
        change = {"metadata": {"annotations": {PREFIX + key: period for key in keys}}}
        assert self.cluster.request("PATCH", path, change, content="application/merge-patch+json")[0] == 200

    async def begun(self, number: int, text: str = "begins") -> list[dict[str, Any]]:
        """Return the pods once so many of them have said this."""
        found: list[dict[str, Any]] = []

        def look() -> bool:
            found[:] = [pod for pod in self.pods() if text in self.log(pod, pod["spec"]["containers"][0]["name"])]
            return len(found) == number

        await eventually_async(look, timeout=60, every=0.1, why=lambda: f"{number} pods expected: {len(found)}")
        return list(found)

    async def stop_supervisor(self) -> None:
        """End the supervisor without a word."""
        self.job.supervisor.cancel()
        await asyncio.wait([self.job.supervisor])

    def start_supervisor(self) -> None:
        self.job.supervisor = asyncio.create_task(supervise(self.backend, self.job.name, holder="another"))

    async def over(self) -> JobRecord:
        record = await self.job.over()
        assert record is not None
        return record


@contextlib.asynccontextmanager
async def roles_job(
    backend: KubernetesBackend,
    cluster: Running,
    folder: Path,
    name: str,
    roles: Mapping[str, Any],
    *,
    policies: dict[str, Any] | None = None,
    **fields: Any,
) -> AsyncIterator[Roles]:
    """Submit a job of simple roles, each with its shell script, as an AppWrapper, and supervise it."""
    folder.mkdir()  # noqa: ASYNC240  a folder of this machine, in no time
    written = {
        role: {
            "launch": "simple",
            "image": "any:1",
            "instance_resources": {"gpus": 0},
            **{key: value for key, value in given.items() if key != "script"},
            "entrypoint": {"command": ["sh", "-c", given["script"].format(folder=folder)]},
        }
        for role, given in roles.items()
    }
    document = {
        "name": name,
        "roles": written,
        "recovery": {"stop_grace_period": "1s", "node_replacements": 5},
        "fault_tolerance": {**POLICIES, **(policies or {})},
        **fields,
    }
    blueprint = backend.plan_as(load_job(document, based=False), Kind.APPWRAPPER)
    async with submitted(backend, name, folder, blueprint=blueprint) as job:
        yield Roles(job, cluster, backend)


ONE_OF_EACH = {"driver": {"script": DRIVER}, "server": {"script": SERVER, "driver": False}}


def succeeded(record: JobRecord, *, retries: int = 0) -> bool:
    """Whether the job has succeeded after so many resets; the record tells what ended its servers."""
    told = [event for event in record.history if event.kind == "servers-ended"]
    return (record.phase, record.retries, bool(told)) == (Phase.SUCCEEDED, retries, True)


async def test_servers_end_once_all_drivers_have_succeeded(
    backend: KubernetesBackend, cluster: Running, tmp_path: Path
) -> None:
    """Not before; each gets SIGTERM, its pod has succeeded, and the controller counts nothing as failed."""
    roles = {"driver": {"script": DRIVER, "total": 2}, "server": {"script": SERVER, "driver": False, "total": 2}}
    async with roles_job(backend, cluster, tmp_path / "f", "serving", roles) as job:
        await job.begun(4)
        job.end("driver-0")
        await eventually_async(lambda: sorted(job.phases("driver")) == ["Running", "Succeeded"], timeout=30)
        await job.job.until(lambda r: r.attempts[-1].ready_at is not None)
        assert job.phases("server") == ["Running", "Running"]
        job.end("driver-1")
        record = await job.over()
        logs = [job.log(pod) for pod in job.pods("server")]
        assert job.phases("server") == ["Succeeded", "Succeeded"]

    assert succeeded(record)
    assert all("saved" in log and "the server exited with code 0" in log for log in logs), logs
    assert (len(record.attempts), record.incidents) == (1, ())


@pytest.mark.extended
async def test_a_server_that_ignores_sigterm(backend: KubernetesBackend, cluster: Running, tmp_path: Path) -> None:
    """It is killed after its grace period, and its pod has succeeded all the same."""
    roles = {"driver": {"script": DRIVER}, "server": {"script": DEAF, "driver": False}}
    async with roles_job(backend, cluster, tmp_path / "f", "deaf", roles) as job:
        await job.begun(2)
        job.end("driver-0")
        record = await job.over()
        [log] = [job.log(pod) for pod in job.pods("server")]

    assert succeeded(record)
    assert "the server is still running 1s after SIGTERM; sending SIGKILL" in log
    assert "the server was killed by SIGKILL" in log


@pytest.mark.extended
async def test_a_server_beside_a_driver_in_one_pod(backend: KubernetesBackend, cluster: Running, tmp_path: Path) -> None:
    """Of a pod with both, only the container of the server is ended."""
    together = [{"name": "pair", "roles": ["driver", "server"]}]
    async with roles_job(backend, cluster, tmp_path / "f", "pair", ONE_OF_EACH, groups=together) as job:
        await job.begun(1)
        [pod] = job.pods()
        assert [one["name"] for one in pod["spec"]["containers"]] == ["driver-0", "server-0"]
        await eventually_async(lambda: "begins" in job.log(pod, "server-0"), timeout=30)
        job.end("driver-0")
        record = await job.over()
        assert "saved" in job.log(pod, "server-0")

    assert succeeded(record)


async def test_a_server_that_is_lost_when_the_drivers_have_succeeded(
    backend: KubernetesBackend, cluster: Running, tmp_path: Path
) -> None:
    """Its supervisor is gone at that moment, too; the next one ends the successor of the pod before its server starts."""
    async with roles_job(backend, cluster, tmp_path / "f", "lost", ONE_OF_EACH) as job:
        await job.begun(2)
        await job.stop_supervisor()
        job.end("driver-0")
        await eventually_async(lambda: job.phases("driver") == ["Succeeded"], timeout=30)
        [before] = job.pods("server")
        job.lose(before)
        job.start_supervisor()
        record = await job.over()
        [after] = job.pods("server")
        log = job.log(after)

    assert before["metadata"]["uid"] != after["metadata"]["uid"]
    assert succeeded(record)
    assert "all driver roles of the job have succeeded" in log


@pytest.mark.extended
async def test_the_supervisor_ends_while_it_ends_servers(backend: KubernetesBackend, cluster: Running, tmp_path: Path) -> None:
    """One server was asked and the other was not: the next supervisor asks the other."""
    roles = {"driver": {"script": DRIVER}, "server": {"script": SERVER, "driver": False, "total": 2}}
    async with roles_job(backend, cluster, tmp_path / "f", "between", roles) as job:
        await job.begun(3)
        await job.stop_supervisor()
        job.end("driver-0")
        await eventually_async(lambda: job.phases("driver") == ["Succeeded"], timeout=30)
        first = job.pods("server")[0]["metadata"]["name"]
        change = {"metadata": {"annotations": {"rallypoint.dev/end": "drivers-succeeded"}}}
        path = f"/api/v1/namespaces/default/pods/{first}"
        assert cluster.request("PATCH", path, change, content="application/merge-patch+json")[0] == 200
        await eventually_async(lambda: sorted(job.phases("server")) == ["Running", "Succeeded"], timeout=30)
        job.start_supervisor()
        record = await job.over()

    assert succeeded(record)


@pytest.mark.extended
async def test_a_reset_while_servers_run(backend: KubernetesBackend, cluster: Running, tmp_path: Path) -> None:
    """One driver has succeeded and another fails: the next attempt ends its servers when all of its drivers are done."""
    roles = {"driver": {"script": DRIVER, "total": 2, "on_failure": "job"}, "server": {"script": SERVER, "driver": False}}
    async with roles_job(backend, cluster, tmp_path / "f", "again", roles) as job:
        await job.begun(3)
        job.end("driver-0")
        await eventually_async(lambda: "Succeeded" in job.phases("driver"), timeout=30)
        job.end("driver-1", 3)
        await job.job.until(lambda r: r.retries == 1)
        (job.job.folder / "end.driver-1").unlink()
        await job.job.runs(2)
        [server] = job.pods("server")
        assert (server["status"]["phase"], server["metadata"]["annotations"].get("rallypoint.dev/end")) == ("Running", None)
        job.end("driver-1")
        record = await job.over()

    assert succeeded(record, retries=1)
    assert [event.detail for event in record.history if event.kind == "servers-ended"] == [
        "attempt 2: all drivers have succeeded; the servers receive SIGTERM"
    ]


@pytest.mark.extended
async def test_a_server_that_is_lost_for_good_while_servers_end(
    backend: KubernetesBackend, cluster: Running, tmp_path: Path
) -> None:
    """After the warm-up, and replaced no more by its Job: the controller resets the job, which runs again and succeeds."""
    server = {"script": DEAF, "driver": False, "total": 2, "termination_grace_period": "5s"}
    recovery = {"stop_grace_period": "1s", "node_replacements": 0}
    roles = {"driver": {"script": DRIVER}, "server": server}
    async with roles_job(backend, cluster, tmp_path / "f", "late", roles, recovery=recovery) as job:
        await job.begun(3)
        job.end("driver-0")
        await job.job.until(lambda r: any(event.kind == "servers-ended" for event in r.history))
        job.warm_up("1s")
        job.lose(job.pods("server")[0])
        await job.job.until(lambda r: r.retries == 1)
        job.warm_up("24h")
        record = await job.over()

    assert succeeded(record, retries=1)
    assert [attempt.number for attempt in record.attempts] == [1, 2]


@pytest.mark.extended
async def test_a_suspension_ends_servers_and_costs_nothing(
    backend: KubernetesBackend, cluster: Running, tmp_path: Path
) -> None:
    """SIGTERM from the kubelet is no success of a server."""
    async with roles_job(backend, cluster, tmp_path / "f", "resting", ONE_OF_EACH) as job:
        await job.begun(2)
        await request_suspension(backend, "resting")
        await job.job.until(lambda r: r.phase is Phase.SUSPENDED)
        assert job.pods() == []
        await request_resumption(backend, "resting")
        await job.job.runs(2)
        job.end("driver-0")
        record = await job.over()

    assert succeeded(record)


@pytest.mark.extended
async def test_a_server_whose_node_is_drained_is_replaced(backend: KubernetesBackend, cluster: Running, tmp_path: Path) -> None:
    """Its exit code 0 on SIGTERM is no success while drivers still need it."""
    async with roles_job(backend, cluster, tmp_path / "f", "drained", ONE_OF_EACH) as job:
        await job.begun(2)
        [before] = job.pods("server")
        assert cluster.request("DELETE", f"/api/v1/namespaces/default/pods/{before['metadata']['name']}")[0] == 200

        def replaced() -> bool:
            return any(
                pod["metadata"]["uid"] != before["metadata"]["uid"] and "begins" in job.log(pod) for pod in job.pods("server")
            )

        await eventually_async(replaced, timeout=30)
        job.end("driver-0")
        record = await job.over()

    assert succeeded(record)


@pytest.mark.extended
async def test_an_elastic_server(backend: KubernetesBackend, cluster: Running, tmp_path: Path) -> None:
    """The agents of a role that serves end their workers, and their pods have succeeded."""
    folder = tmp_path / "f"
    script = tmp_path / "serve.py"
    script.write_text(ELASTIC)
    elastic = {"image": "any:1", "entrypoint": str(script), "nodes": 2, "driver": False}
    driver = {
        "launch": "simple",
        "image": "any:1",
        "instance_resources": {"gpus": 0},
        "entrypoint": {"command": ["sh", "-c", DRIVER.format(folder=folder)]},
    }
    document = {
        "name": "elastic-server",
        "roles": {"driver": driver, "server": elastic},
        "recovery": {"stop_grace_period": "2s"},
        "fault_tolerance": POLICIES,
    }
    blueprint = backend.plan_as(load_job(document, based=False), Kind.APPWRAPPER)
    async with submitted(backend, "elastic-server", folder, blueprint=blueprint) as running_job:
        job = Roles(running_job, cluster, backend)
        await job.begun(2, "worker begins")
        job.end("driver-0")
        record = await job.over()
        logs = [job.log(pod) for pod in job.pods("server")]

    assert succeeded(record)
    assert all("all driver roles of the job have succeeded; sending SIGTERM to the server" in log for log in logs), logs


ELASTIC = """\
import time
print("worker begins", flush=True)
while True:
    time.sleep(0.05)
"""
