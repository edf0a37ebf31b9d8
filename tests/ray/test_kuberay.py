"""Jobs of the kinds `rayjob` and `raycluster`: an emulated cluster plays KubeRay, with a real Ray cluster in the head pod."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from rallypoint.backends.kubernetes.access import Access
from rallypoint.backends.kubernetes.backend import KubernetesBackend
from rallypoint.backends.ray.access import Access as RayAccess
from rallypoint.backends.ray.backend import RayBackend
from rallypoint.backends.requests import request_resumption, request_suspension
from rallypoint.cli.logs import Wanted, role_lines
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


def began(folder: Path, rank: int | str) -> list[str]:
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


# --- several roles ---------------------------------------------------------------------------------------------------------

#: Each process notes its id, and ends when it is told how; an exit code other than 0 counts once.
ROLES_SCRIPT = """\
import os, pathlib, time
folder, me = pathlib.Path({folder!r}), os.environ["RALLYPOINT_ROLE"] + "-" + os.environ["RANK"]
with (folder / f"began.{{me}}").open("a") as file:
    file.write(str(os.getpid()) + "\\n")
print(me, "of", os.environ["WORLD_SIZE"], "begins with", os.environ["KNOWN"], flush=True)
end = folder / f"end.{{me}}"
while not end.exists():
    time.sleep(0.05)
code = int(end.read_text())
if code:
    end.unlink()
raise SystemExit(code)
"""

EVERY = ("trainer-0", "trainer-1", "rollout-0", "rollout-1", "server-0")


def several(
    backend: KubernetesBackend, name: str, folder: Path, kind: Kind, *, on_failure: str = "instance", **tolerance: Any
) -> Any:
    """A trainer, two rollouts in one pod, and a server, each with an environment and resources of its own."""
    script = folder.parent / "role.py"
    script.write_text(ROLES_SCRIPT.format(folder=str(folder)))
    shared = {"entrypoint": str(script), "image": "any:1"}
    simple = {**shared, "launch": "simple", "instance_resources": {"cpu": "500m", "memory": "256Mi"}}
    job = load_job(
        {
            "name": name,
            "roles": {
                "trainer": {**shared, "nproc_per_node": 2, "env": {"KNOWN": "t"}, "resources": {"cpu": "1", "memory": "1Gi"}},
                "rollout": {**simple, "total": 2, "per_group": 2, "env": {"KNOWN": "r"}, "on_failure": on_failure},
                "server": {**simple, "driver": False, "env": {"KNOWN": "s"}},
            },
            "fault_tolerance": {"retry_pause_period": "0s", "failure_grace_period": "0s", **tolerance},
            "recovery": {"max_restarts": 1, "node_replacements": 1, "stop_grace_period": "2s"},
        },
        based=False,
    )
    return backend.plan_as(job, kind)


def processes(folder: Path, who: str) -> list[int]:
    return [int(line) for line in began(folder, who)]


def runs(process: int) -> bool:
    return Path(f"/proc/{process}").exists()


async def all_begin(job: Job, lives: dict[str, int]) -> dict[str, list[int]]:
    """Return the processes of all ranks and instances once each has begun exactly so often."""

    def found() -> dict[str, list[int]]:
        return {who: processes(job.folder, who) for who in lives}

    async def there() -> Any:
        known = await asyncio.to_thread(found)
        return known if {who: len(pids) for who, pids in known.items()} == lives else None

    return await eventually_async(there, timeout=180, why=lambda: f"{lives} should begin: {found()}")


def objects(cluster: Running) -> list[str]:
    """Return what KubeRay's kinds, and pods, there are."""
    paths = [f"/apis/ray.io/v1/namespaces/default/{kind}" for kind in ("rayjobs", "rayclusters")]
    found = [cluster.request("GET", path)[1] for path in (*paths, "/api/v1/namespaces/default/pods")]
    return [item["metadata"]["name"] for items in found for item in items["items"]]


async def test_several_roles_run_in_a_ray_cluster(backend: KubernetesBackend, cluster: Running, tmp_path: Path) -> None:
    """A killed rank and a killed instance are restarted within their roles; after the drivers' success, nothing is left."""
    folder = tmp_path / "f"
    folder.mkdir()
    async with submitted(backend, "rl", folder, blueprint=several(backend, "rl", folder, Kind.RAYCLUSTER)) as job:
        before = await all_begin(job, dict.fromkeys(EVERY, 1))
        os.kill(before["rollout-1"][0], signal.SIGKILL)
        await all_begin(job, {**dict.fromkeys(EVERY, 1), "rollout-1": 2})
        os.kill(before["trainer-1"][0], signal.SIGKILL)
        after = await all_begin(job, {**dict.fromkeys(EVERY, 2), "rollout-0": 1, "server-0": 1})
        await _until_printed(backend, "rl", {"[trainer 1] trainer-1 of 2 begins with t": 2})
        await _until_printed(backend, "rl", {"[rollout 1] rollout-1 of 2 begins with r": 2})
        await _until_printed(backend, "rl", {"[server 0] server-0 of 1 begins with s": 1})
        assert await _output(cluster, "rl", "rollout") == [
            "[0] rollout-0 of 2 begins with r",
            *["[1] rollout-1 of 2 begins with r"] * 2,
        ]
        for who in ("trainer-0", "trainer-1", "rollout-0", "rollout-1"):
            job.end(who, 0)
        record = await job.over()
        running = running_pods(cluster)

    assert record is not None
    assert (record.phase, record.retries, [a.number for a in record.attempts]) == (Phase.SUCCEEDED, 0, [1])
    assert (running, record.incidents) == ([], ())
    assert not runs(after["server-0"][0])
    assert [name for name in objects(cluster) if name.startswith("rl")] == []


async def _output(cluster: Running, name: str, role: str) -> list[str]:
    """Return what `rallypoint logs --role` prints with `--backend ray` and the address of the head."""
    _, found = cluster.request("GET", "/api/v1/namespaces/default/pods")
    (head,) = (pod for pod in found["items"] if pod["metadata"]["name"] == f"{name}-head")
    ray = RayBackend(RayAccess(address=f"http://127.0.0.1:{head['metadata']['annotations']['emulator/dashboard-port']}"))
    try:
        stored = await ray.load(name)
        assert stored is not None
        wanted = Wanted(role=role, rank=None, tail=None, follow=False)
        return [f"{label}{line.text}" async for label, line in role_lines(ray, stored, wanted)]
    finally:
        await ray.close()


async def _until_printed(backend: KubernetesBackend, name: str, wanted: dict[str, int]) -> None:
    """Wait until the driver has printed each line so often."""
    found: list[str] = []

    async def look() -> Any:
        found[:] = [line.text async for line in backend.logs(name)]
        return all(found.count(line) == number for line, number in wanted.items())

    await eventually_async(look, timeout=30, why=lambda: f"{wanted} should be printed: {found}")


async def test_roles_that_fail_have_another_cluster_until_the_policy_ends_the_job(
    backend: KubernetesBackend, cluster: Running, tmp_path: Path
) -> None:
    """The exit code of the instance reaches the policy outside: 7 begins another attempt, and 9 is final."""
    folder = tmp_path / "f"
    folder.mkdir()
    fields = {"retry_limit": 3, "terminal_exit_codes": [9]}
    planned = several(backend, "stern", folder, Kind.RAYJOB, on_failure="job", **fields)
    async with submitted(backend, "stern", folder, blueprint=planned) as job:
        for attempt, code in ((1, 7), (2, 9)):
            await all_begin(job, dict.fromkeys(EVERY, attempt))
            job.end("rollout-0", code)
        record = await job.over()
        running = running_pods(cluster)

    assert record is not None
    assert (record.phase, record.retries, running) == (Phase.FAILED, 1, [])
    culprits = [(one.id.attempt, one.culprit) for one in record.incidents if one.culprit]
    assert [(attempt, one.exit_code, one.error.partition(";")[0]) for attempt, one in culprits] == [
        (1, 7, "AppFailed: rollout 0 exited with code 7"),
        (2, 9, "AppFailed: rollout 0 exited with code 9"),
    ]
    assert [name for name in objects(cluster) if name.startswith("stern")] == []
