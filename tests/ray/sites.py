"""A Ray cluster as a place where the behaviours suite runs, with the hands that a test needs there."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path
from typing import Any

from rallypoint.backends.contract import Backend
from rallypoint.backends.ray.access import Access
from rallypoint.backends.ray.backend import RayBackend
from rallypoint.backends.site import RAY
from rallypoint.backends.site import Site as Where
from rallypoint.wire.status import RankStatus
from tests.cluster.sites import Site
from tests.live.jobs import without_children
from tests.ray.clusters import RayCluster

__all__ = ["Found", "RaySite", "host_of", "marked", "states"]


class Found:
    """A process of a job."""

    def __init__(self, pid: int, command: str, mark: str) -> None:
        self.pid, self.command, self.mark = pid, command, mark


class RaySite(Site):
    """One namespace of a cluster of this machine; its ledger has the folder `storage`, or another folder or URL."""

    def __init__(self, folder: Path, cluster: RayCluster, namespace: str, *, storage: str = "") -> None:
        super().__init__(folder)
        self.cluster, self.namespace = cluster, namespace
        self.storage = Path(storage) if storage and "://" not in storage else folder / "ledger"
        self.where = Where(kind=RAY, address=cluster.url, namespace=namespace, storage=storage or str(self.storage))
        self.gate = folder / "gate"
        self.gate.mkdir(exist_ok=True)
        self._uids: dict[str, str] = {}

    def env(self) -> dict[str, str]:
        return {"GATE": str(self.gate)}

    def fields(self) -> dict[str, Any]:
        return {"resources": {"cpu": "1"}}

    def open(self) -> Backend:
        return RayBackend(Access(address=self.cluster.url, namespace=self.namespace, storage=self.where.storage))

    async def uid(self, job: str) -> str:
        """Return the uid of a job, also after its deletion."""
        backend = self.open()
        try:
            stored = await backend.load(job)
            for parent in () if stored is not None else await backend.names():
                stored = stored or await backend.units(parent).jobs.load(job)
        finally:
            await backend.close()
        if stored is not None:
            self._uids[job] = stored.record.uid
        return self._uids.get(job, "")

    async def tell(self, job: str, worker: RankStatus, word: str) -> None:
        partial = self.gate / f".{worker.rank}"
        partial.write_text(word)
        partial.replace(self.gate / str(worker.rank))

    async def processes(self, job: str, *words: str) -> list[Found]:
        """Return the job's processes whose command lines have all `words`."""
        uid = await self.uid(job)
        found = await asyncio.to_thread(marked, uid) if uid else []
        return [process for process in found if all(word in process.command for word in words)]

    async def nodes(self, job: str) -> dict[int, str]:
        agents = {p.pid: p for p in await self.processes(job, "rallypoint.agent node") if "shim" not in p.command}
        return {int(agents[pid].mark.split("/")[-2]): str(pid) for pid in await asyncio.to_thread(without_children, agents)}

    async def lose_node(self, job: str, node: int) -> None:
        uid = await self.uid(job)
        for name, pid in (await asyncio.to_thread(states, self.namespace)).items():
            if name.startswith(f"{uid}-") and name.split("-")[-2] == str(node):
                os.kill(pid, signal.SIGKILL)

    async def lose_host(self, job: str, instance: str) -> None:
        uid = await self.uid(job)
        group, number = await asyncio.to_thread(host_of, uid, instance)
        named = await asyncio.to_thread(states, self.namespace)
        os.kill(named[f"{uid}-0-{group}-{number}"], signal.SIGKILL)

    async def machines(self, job: str, role: str) -> dict[str, str]:
        own, child = await self.uid(job), await self.uid(f"{job}-{role}")
        found = [p for p in await asyncio.to_thread(marked, own) if _variables(p.pid).get("RALLYPOINT_ROLE") == role]
        if child:
            found += [p for p in await asyncio.to_thread(marked, child) if "rallypoint.agent node" in p.command]
        numbers = {p.pid: p.mark.split("/")[-2].rpartition("-")[2] for p in found}
        return {numbers[p.pid]: _variables(p.pid)["RALLYPOINT_MACHINE"] for p in found}

    async def lose_coordinator(self, job: str) -> None:
        for process in await self.processes(job, "rallypoint.agent coordinator"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)

    async def left(self, job: str) -> list[str]:
        uid = self._uids.get(job, "")
        if not uid:
            return []
        found = [p.command for p in await asyncio.to_thread(marked, uid)]
        found += [name for name in await asyncio.to_thread(states, self.namespace) if name.startswith(uid)]
        found += [name for name in await asyncio.to_thread(groups) if name.startswith(uid)]
        folder = self.storage / "jobs" / job
        return found + ([str(folder)] if folder.exists() else [])


def marked(uid: str) -> list[Found]:
    """Return every live process of the job with this uid."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            environment = (entry / "environ").read_bytes().decode(errors="replace").split("\0")
            command = (entry / "cmdline").read_bytes().decode(errors="replace").replace("\0", " ").strip()
        except OSError:
            continue
        mark = next((v.partition("=")[2] for v in environment if v.startswith(f"RALLYPOINT_JOB_MARK={uid}/")), "")
        if mark and command:
            found.append(Found(int(entry.name), command, mark))
    return found


def host_of(uid: str, instance: str) -> tuple[str, str]:
    """Return the group and the number of the host that runs an instance of a simple role (`role-index`)."""
    role, _, index = instance.rpartition("-")
    for process in marked(uid):
        variables = _variables(process.pid)
        if (variables.get("RALLYPOINT_ROLE"), variables.get("RANK")) == (role, index):
            _, _, group, number = process.mark.split("/")
            return group, number
    raise AssertionError(f"{instance} does not run")


def _variables(pid: int) -> dict[str, str]:
    """Return the environment of a process; {} for one that has ended."""
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
        return {name: value for name, _, value in (line.partition("=") for line in lines)}
    return {}


def states(namespace: str) -> dict[str, int]:
    """Return the process of each living named actor of a namespace, by its name."""
    import ray
    from ray.util.state import list_actors

    # Without an address, it would be the newest cluster of this machine.
    address = ray.get_runtime_context().gcs_address
    filters = [("state", "=", "ALIVE"), ("ray_namespace", "=", namespace)]
    found = list_actors(address=address, filters=filters, detail=True, limit=1000)
    return {actor.name: int(actor.pid) for actor in found if actor.name}


def groups() -> list[str]:
    """Return the names of the placement groups that are not removed."""
    from ray.util.placement_group import placement_group_table

    return [str(group["name"]) for group in placement_group_table().values() if group["state"] != "REMOVED"]
