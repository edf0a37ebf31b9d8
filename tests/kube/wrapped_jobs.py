"""Jobs in AppWrappers and PyTorchJobs whose pods are processes that end as a test says, and what is asked of them."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from rallypoint.backends.contract import Blueprint
from rallypoint.backends.kubernetes.backend import KubernetesBackend
from rallypoint.backends.requests import delete, submit_or_adopt
from rallypoint.backends.supervise import supervise
from rallypoint.job.annotations import PREFIX
from rallypoint.supervision.record import JobRecord
from rallypoint.wire.plan import Kind
from tests.waiting import eventually_async

__all__ = ["Job", "manifest", "submitted"]

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

    def end(self, rank: int | str, code: int) -> None:
        """Tell a rank, or an instance by its name, how to end, in this attempt and in every other."""
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
    backend: KubernetesBackend,
    name: str,
    folder: Path,
    *,
    kind: Kind | None = None,
    blueprint: Blueprint | None = None,
    **more: Any,
) -> AsyncIterator[Job]:
    """Submit a job and supervise it while the context lasts; it is deleted in the end. It is `blueprint`, or as `more` say."""
    folder.mkdir(exist_ok=True)  # noqa: ASYNC240  a folder of this machine, in no time
    if blueprint is None:
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
