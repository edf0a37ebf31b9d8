"""Nodes of the local backend on real processes: a job whose attempt 1 may run, and what is true of its processes."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import glob
from pathlib import Path

from rallypoint.backends.contract import Stored
from rallypoint.backends.local.node import NodeFolder
from rallypoint.backends.local.proc import marked
from rallypoint.supervision.actions import CreateNode, RemoveNode
from rallypoint.supervision.observation import NodeState
from rallypoint.supervision.record import Phase
from tests.backends.stage import LocalStage
from tests.waiting import eventually_async

__all__ = ["CREATE", "FORCE", "REMOVE", "Deployed", "cgroups", "deploy", "deployed"]

CREATE = CreateNode(attempt=1, node=0, incarnation=1)
REMOVE = RemoveNode(attempt=1, node=0, incarnation=1)
FORCE = RemoveNode(attempt=1, node=0, incarnation=1, force=True)


@dataclasses.dataclass
class Deployed:
    """Node 0 of attempt 1 of the job `digits`."""

    stage: LocalStage
    stored: Stored

    @property
    def node(self) -> NodeFolder:
        return self.stage.folder_of("digits").node(0, 1, 1)

    @property
    def mark(self) -> str:
        return f"{self.stored.record.uid}/1/0/1"

    def started(self) -> list[int]:
        """The process numbers of all that was ever started for this node."""
        path = self.node.path / "started"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    async def processes(self) -> set[int]:
        """What runs of this node, its shim among them."""
        return set(await asyncio.to_thread(marked, self.mark))

    async def shim(self):
        """What `shim.json` says."""
        return await asyncio.to_thread(self.node.shim)

    async def nobody(self):
        """Nothing of the node runs."""
        return not await self.processes()

    async def force(self) -> None:
        """Kill what runs of the node, again for as long as it takes, as a supervisor does."""

        async def gone():
            await self.act(FORCE)
            return await self.nobody() and not cgroups(self.stored.record.uid)

        await eventually_async(gone)

    async def act(self, *actions) -> None:
        for action in actions:
            await self.stage.backend.act(self.stored.record, self.stored.plan, action)

    async def look(self):
        """The node as another process sees it."""
        nodes = (await self.stage.another().observe(self.stored.record)).nodes
        return nodes[0] if nodes else None

    async def look_lost(self):
        """The node, if it is lost."""
        seen = await self.look()
        return seen if seen.state is NodeState.LOST else None

    async def ended(self):
        """The node once nothing of it is left."""

        async def gone():
            seen = await self.look()
            return seen if seen is not None and not seen.present else None

        return await eventually_async(gone)

    async def running(self) -> int:
        """The number of the stand-in's process, once it is ready."""
        (pid,) = await eventually_async(self.started)
        return pid


async def deploy(stage: LocalStage, **fields) -> Deployed:
    stored = await stage.backend.submit(stage.backend.plan(stage.job(**fields)), owner="ann")
    record = dataclasses.replace(stored.record, attempt=1, term=1, phase=Phase.RUNNING)
    return Deployed(stage, await stage.backend.save(record, version=stored.version))


def cgroups(uid: str) -> list[Path]:
    """The cgroups of a job, wherever this machine has them."""
    found = glob.glob(f"/sys/fs/cgroup/**/rallypoint-{uid}*", recursive=True)  # noqa: PTH207 - Path.glob fails where others vanish
    return [Path(path) for path in found]


@contextlib.asynccontextmanager
async def deployed(stage: LocalStage, **fields):
    """A job with its node running; whatever is left of it at the end is removed."""
    job = await deploy(stage, **fields)
    await job.act(CREATE)
    try:
        yield job
    finally:
        await job.force()
