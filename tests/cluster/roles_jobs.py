"""A job with several roles on a site, with the hands that a test of the behaviours needs."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from rallypoint.backends.contract import BackendError
from rallypoint.backends.kubernetes.labels import PARENT
from rallypoint.cli.logs import Wanted, role_lines
from rallypoint.job import ElasticJob, load_job
from rallypoint.supervision.role_records import ConductorRecord, Level
from rallypoint.wire.status import JobState, JobStatus
from tests.cluster.jobs import Job, submitted
from tests.cluster.sites import ClusterSite, LocalSite, Site
from tests.waiting import eventually_async

__all__ = ["SERVER", "SIMPLE", "TRAINER", "RolesJob", "roles_job"]

SCRIPT = Path(__file__).with_name("roles_script.py").read_text()

TRAINER: dict[str, Any] = {"launch": "elastic", "nodes": 2}
SIMPLE: dict[str, Any] = {"launch": "simple", "instance_resources": {"gpus": 0}}
SERVER: dict[str, Any] = {**SIMPLE, "driver": False, "env": {"SERVER": "1"}}

#: Ports of the first role, and between two roles: roles that share a pod have one address.
_PORT, _PORTS = 8700, 20


def _document(site: Site, roles: dict[str, dict[str, Any]], **fields: Any) -> dict[str, Any]:
    its = site.fields()
    written = {}
    for number, (name, role) in enumerate(roles.items()):
        simple = role["launch"] == "simple"
        written[name] = {
            "entrypoint": {"command": [site.python, "-c", SCRIPT]},
            **{key: value for key, value in its.items() if not (simple and key == "resources")},
            **role,
            "env": {**site.env(), "WORD_PORT": _PORT + _PORTS * number, **role.get("env", {})},
        }
    return {
        "name": "rl",
        "recovery": {"stop_grace_period": "2s"},
        "rendezvous": {"last_call_timeout": "10m"},
        "fault_tolerance": {"retry_limit": 1, "retry_pause_period": 0, "failure_grace_period": "1s"},
        "health": {"report_interval": "100ms"},
        "roles": written,
        **fields,
    }


class RolesJob:
    """A job with roles, and the hands of a test."""

    def __init__(self, job: Job, ports: dict[str, int], simple: frozenset[str]) -> None:
        self.job, self.site, self._ports, self._simple = job, job.site, ports, simple

    async def conductor(self) -> ConductorRecord:
        record = (await self.job.record()).conductor
        assert record is not None
        return record

    async def steps(self) -> list[tuple[Level, str, int]]:
        """Return what was started again so far: how much, of which role, and which instance."""
        return [(step.level, step.role, step.index) for step in (await self.conductor()).history]

    async def lives(self) -> dict[str, str]:
        """Return each process of simple roles that runs, by `role-index`: another word for another process."""
        site = self.site
        if not isinstance(site, ClusterSite):
            found = await asyncio.to_thread(_instances, site.env()["GATE"])
            return {name: pid for name, pid in found.items() if name.rpartition("-")[0] in self._simple}
        return {
            status["name"]: f"{pod['metadata']['uid']} {status['name']} {status['restartCount']}"
            for pod in await site.living(self.job.name, "unit")
            for status in pod["status"].get("containerStatuses") or []
            if "running" in status["state"]
        }

    async def output(self, role: str, *, rank: int | None = None, tail: int | None = None, follow: bool = False) -> list[str]:
        """Return what `rallypoint logs --role` prints."""
        stored = await self.job.eyes.load(self.job.name)
        assert stored is not None
        lines = role_lines(self.job.eyes, stored, Wanted(role=role, rank=rank, tail=tail, follow=follow))
        return [f"{label}{line.text}" async for label, line in lines]

    async def until_begun(self, often: dict[str, int], role: str, **wanted: Any) -> None:
        """Wait until the output of a role says so often that it begins, by what stands before that in each line."""
        found: list[str] = []

        async def look() -> Any:
            found[:] = await self.output(role, **wanted)
            return Counter(line.partition(" begins, ")[0] for line in found) == often

        await eventually_async(look, timeout=30.0, every=0.1, why=lambda: f"{often} expected: {found}")

    async def nodes(self, role: str = "trainer") -> dict[int, str]:
        """Return each node of an elastic role that runs."""
        return await self.site.nodes(f"{self.job.name}-{role}")

    async def run(self, *wanted: str, nodes: int = 0, but: tuple[str, ...] = ()) -> dict[str, str]:
        """Return the processes of simple roles once exactly these run, none of them one of `but`, and so many nodes."""
        found: dict[str, str] = {}

        async def look() -> Any:
            found.clear()
            with contextlib.suppress(BackendError):
                found.update(await self.lives())
                here = len(await self.nodes()) if nodes else 0
                return set(found) == set(wanted) and not set(found.values()) & set(but) and here == nodes
            return False

        await eventually_async(look, timeout=60.0, every=0.1, why=lambda: f"{wanted} and {nodes} nodes should run: {found}")
        return dict(found)

    async def tell(self, instance: str, word: str) -> None:
        """Say a word to an instance of a simple role, once it listens."""
        role, _, index = instance.rpartition("-")
        site = self.site
        if not isinstance(site, ClusterSite):
            _write(Path(site.env()["GATE"]), instance, word)
            return

        async def said() -> Any:
            for pod in await site.living(self.job.name, "unit"):
                for container in pod["spec"]["containers"]:
                    if container["name"] == instance:
                        local = next(one["value"] for one in container["env"] if one["name"] == "LOCAL_RANK")
                        port = self._ports[role] + int(local)
                        path = site.path("pods", f"{pod['metadata']['name']}:{port}", f"proxy/{word}")
                        with contextlib.suppress(BackendError):
                            await site.ask_text(path)
                            return True
            return False

        await eventually_async(said, timeout=30.0, every=0.1, why=lambda: f"{role} {index} should take the word {word!r}")

    async def tell_worker(self, node: int, word: str, role: str = "trainer") -> None:
        """Say a word to the worker of a node of an elastic role, once it listens."""
        site = self.site
        if not isinstance(site, ClusterSite):
            _write(Path(site.env()["GATE"]), f"{role}-{node}", word)  # one worker on each node
            return

        async def said() -> Any:
            for pod in await site.living(f"{self.job.name}-{role}", "node"):
                if pod["metadata"]["labels"]["rallypoint.dev/node"] == str(node):
                    path = site.path("pods", f"{pod['metadata']['name']}:{self._ports[role]}", f"proxy/{word}")
                    with contextlib.suppress(BackendError):
                        await site.ask_text(path)
                        return True
            return False

        await eventually_async(said, timeout=30.0, every=0.1, why=lambda: f"node {node} of {role} should take {word!r}")

    async def machines(self, role: str) -> dict[str, str]:
        """Return the machine of each node or group of a role by its number."""
        site = self.site
        if isinstance(site, LocalSite):  # one machine for all
            nodes = {} if role in self._simple else await self.nodes(role)
            lives = [name.rpartition("-")[2] for name in await self.lives() if name.rpartition("-")[0] == role]
            return dict.fromkeys((*lives, *map(str, nodes)), socket.gethostname())
        if not isinstance(site, ClusterSite):
            return await site.machines(self.job.name, role)
        pods = [*await site.living(self.job.name, "unit"), *await site.living(f"{self.job.name}-{role}", "node")]
        found = {}
        for pod in pods:
            containers = {one["name"].rpartition("-")[0] for one in pod["spec"]["containers"]}
            if pod["metadata"]["labels"]["rallypoint.dev/job"] != self.job.name or role in containers:
                found[pod["metadata"]["labels"]["rallypoint.dev/node"]] = pod["spec"]["nodeName"]
        return found

    async def round(self, number: int, role: str = "trainer") -> None:
        """Wait until an elastic role is in a round."""
        told: list[JobStatus | None] = [None]

        async def there() -> Any:
            status = told[0] = await self.job.eyes.units(self.job.name).jobs.status(f"{self.job.name}-{role}")
            return status is not None and status.fence.round >= number and status.state is JobState.RUNNING

        await eventually_async(there, timeout=60.0, every=0.1, why=lambda: f"{role} should be in round {number}: {told[0]}")

    async def until_steps(self, number: int) -> None:
        """Wait until the conductor has answered so many failures."""

        async def there() -> Any:
            return len(await self.steps()) >= number

        await eventually_async(there, timeout=30.0, every=0.1, why=f"{number} failures should be answered")

    async def lose_pod(self, instance: str, *, grace: int = 0) -> None:
        """Remove the pod or host of an instance from outside."""
        site = self.site
        if not isinstance(site, ClusterSite):
            await (site.drain_host if grace else site.lose_host)(self.job.name, instance)
            return
        for pod in await site.living(self.job.name, "unit"):
            if any(one["name"] == instance for one in pod["spec"]["containers"]):
                await site.ask("DELETE", site.path("pods", pod["metadata"]["name"]), {"gracePeriodSeconds": grace})

    async def incarnation(self, instance: str) -> str:
        """Return the incarnation that the process of an instance was told, once it has said so in its log."""
        if not isinstance(self.site, ClusterSite):
            pid = (await self.lives())[instance]
            lines = (await asyncio.to_thread(Path(f"/proc/{pid}/environ").read_text, errors="replace")).split("\0")
            return next(line.partition("=")[2] for line in lines if line.startswith("RALLYPOINT_INCARNATION="))
        found: list[str] = []

        async def said() -> Any:
            found[:] = re.findall(r"life \d+\.(\d+)\n", await self._log(instance))
            return found

        await eventually_async(said, timeout=30.0, every=0.1, why=f"{instance} should say which life it is")
        return found[-1]

    async def _log(self, instance: str) -> str:
        site = self.site
        assert isinstance(site, ClusterSite)
        for pod in await site.living(self.job.name, "unit"):
            if any(one["name"] == instance for one in pod["spec"]["containers"]):
                return await site.ask_text(site.path("pods", pod["metadata"]["name"], "log"), container=instance)
        return ""

    async def left(self) -> list[str]:
        """Return what there is of the job of which `site.left` does not know: objects of the jobs of its roles."""
        site = self.site
        if not isinstance(site, ClusterSite):
            return list(await asyncio.to_thread(_instances, site.env()["GATE"]))
        every = [(kind, await site.listed(kind, f"{PARENT}={self.job.name}")) for kind in ("configmaps", "secrets", "pods")]
        return [f"{kind}/{one['metadata']['name']}" for kind, items in every for one in items]


def _write(gate: Path, name: str, word: str) -> None:
    partial = gate / f".{name}"
    partial.write_text(word)
    partial.replace(gate / name)


def _instances(gate: str) -> dict[str, str]:
    """Return the processes of this machine that take words from a folder, by `role-rank`."""
    found = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            lines = (entry / "environ").read_bytes().decode(errors="replace").split("\0")
            known = dict(line.split("=", 1) for line in lines if "=" in line)
            if known.get("GATE") == gate and b"begins, pid" in (entry / "cmdline").read_bytes():
                found[f"{known['RALLYPOINT_ROLE']}-{known['RANK']}"] = entry.name
    return found


@contextlib.asynccontextmanager
async def roles_job(
    site: Site, roles: dict[str, dict[str, Any]], *, supervised: bool = True, **fields: Any
) -> AsyncIterator[RolesJob]:
    """Submit a job with roles and supervise it; in the end it is deleted, and nothing of it may be left."""
    ports = {name: _PORT + _PORTS * number for number, name in enumerate(roles)}
    document = _document(site, roles, **fields)
    base = site.folder if site.where.on_this_machine else None
    spec: ElasticJob = load_job(document, based=site.where.on_this_machine, base=base)
    async with submitted(site, spec, supervised=supervised) as job:
        made = RolesJob(job, ports, frozenset(name for name, role in roles.items() if role["launch"] == "simple"))
        yield made
    left: list[str] = []

    async def gone() -> Any:
        left[:] = await made.left()
        return not left

    await eventually_async(gone, timeout=30.0, every=0.2, why=lambda: f"there is left: {left}")
