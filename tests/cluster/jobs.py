"""A job of a site, submitted and supervised while a test looks on."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from rallypoint.backends.contract import Backend, BackendError
from rallypoint.backends.requests import delete, submit_or_adopt
from rallypoint.backends.supervise import supervise
from rallypoint.job import ElasticJob
from rallypoint.supervision.record import JobRecord
from rallypoint.wire.status import JobState, JobStatus, RankStatus
from tests.cluster.sites import Site
from tests.waiting import PATIENCE, eventually_async

__all__ = ["Job", "submitted"]


@dataclass
class Job:
    """A job, and the eyes of somebody who does not supervise it."""

    site: Site
    name: str
    eyes: Backend
    supervisor: asyncio.Task[JobRecord | None] | None = None
    _opened: list[Backend] = field(default_factory=list)

    def supervise(self) -> None:
        """Begin to supervise, as another process would."""
        backend = self.site.open()
        self._opened.append(backend)
        self.supervisor = asyncio.create_task(supervise(backend, self.name, holder="test"))

    @contextlib.asynccontextmanager
    async def supervised_by_a_process(self) -> AsyncIterator[Process]:
        """Have `rallypoint supervise` at work until the context ends; then it is killed."""
        words = (sys.executable, "-m", "rallypoint.cli.main", "supervise", self.name, *self.site.where.options())
        nowhere = asyncio.subprocess.DEVNULL
        process = await asyncio.create_subprocess_exec(*words, stdout=nowhere, stderr=nowhere)
        try:
            await self.until(lambda record: record.holder is not None and record.holder.pid == process.pid)
            yield process
        finally:
            process.kill()
            await process.wait()

    async def abandon(self) -> None:
        """Supervise no more."""
        if self.supervisor is not None:
            self.supervisor.cancel()
            await asyncio.wait([self.supervisor])
        self.supervisor = None

    async def record(self) -> JobRecord:
        stored = await self.eyes.load(self.name)
        assert stored is not None, f"job '{self.name} any more' not found"
        return stored.record

    async def hosts(self) -> dict[int, str]:
        """Return the machine of each node, by its name as the backend sees it."""
        seen = await self.eyes.observe(await self.record())
        return {node.node: node.host for node in seen.nodes}

    async def until(self, so: Callable[[JobRecord], bool], timeout: float = 60.0) -> JobRecord:
        """Return the record once it is so."""
        told: list[JobRecord] = []

        async def look() -> Any:
            with contextlib.suppress(BackendError):
                told[:] = [await self.record()]
            return bool(told) and so(told[0])

        await eventually_async(look, timeout=timeout, every=0.1, why=lambda: _story(told))
        return told[0]

    async def trains(self, *, ranks: int, round_: int = 1, attempt: int = 1, beyond: int = 0) -> JobStatus:
        """Return the status once a round from `round_` on runs with `ranks` ranks, each past the step `beyond`."""
        told: list[JobStatus | None] = [None]

        async def look() -> Any:
            status = told[0] = await self.eyes.status(self.name)
            if status is None or status.state is not JobState.RUNNING:
                return False
            if status.fence.attempt < attempt or status.fence.round < round_ or status.world_size != ranks:
                return False
            return sum(1 for r in status.ranks if r.step is not None and r.step > beyond) == ranks

        def why() -> str:
            return f"{ranks} ranks should train in round {round_} of attempt {attempt}: {told[0]}"

        await eventually_async(look, timeout=60.0, every=0.1, why=why)
        assert told[0] is not None
        return told[0]

    async def joined(self, node: int, *, incarnation: int) -> JobStatus:
        """Return the status once that incarnation of a node is a member of the world."""
        told: list[JobStatus | None] = [None]

        async def look() -> Any:
            status = told[0] = await self.eyes.status(self.name)
            return status is not None and (node, incarnation) in {(m.node, m.incarnation) for m in status.world}

        await eventually_async(look, timeout=60.0, every=0.1, why=lambda: f"incarnation {incarnation} of {node}: {told[0]}")
        assert told[0] is not None
        return told[0]

    async def kill(self, rank: int) -> None:
        """End a worker by SIGKILL, once the status has it: what a worker prints is read before its agent reports it."""
        told: list[RankStatus] = []

        async def look() -> Any:
            status = await self.eyes.status(self.name)
            told[:] = [] if status is None else [worker for worker in status.ranks if worker.rank == rank]
            return told

        await eventually_async(look, every=0.1, why=f"the status should have rank {rank} of {self.name}")
        await self.site.tell(self.name, told[0], "die")

    async def ends(self) -> JobRecord:
        """Tell everybody to end, and return the final record once the supervisor is done."""
        assert self.supervisor is not None
        until = time.monotonic() + 60 * PATIENCE
        while not self.supervisor.done() and time.monotonic() < until:
            with contextlib.suppress(BackendError):
                # Read each time: a status from before all ranks were reported names too few of them.
                status = await self.eyes.status(self.name)
                for worker in () if status is None else status.ranks:
                    await self.site.tell(self.name, worker, "end")
            await asyncio.wait([self.supervisor], timeout=0.5)
        return await self.over()

    async def over(self) -> JobRecord:
        """Return the final record, once the supervisor is done."""
        assert self.supervisor is not None
        try:
            record = await asyncio.wait_for(self.supervisor, 60 * PATIENCE)
        except asyncio.TimeoutError:
            raise AssertionError(_story([await self.record()])) from None
        assert record is not None
        return record

    async def close(self) -> None:
        """Delete the job, wherever it is, and let go of it."""
        await self.abandon()
        if await self.eyes.load(self.name) is not None:
            await delete(self.eyes, self.name, holder="test", timeout=60 * PATIENCE)
        for backend in (*self._opened, self.eyes):
            await backend.close()


@contextlib.asynccontextmanager
async def submitted(site: Site, spec: ElasticJob, *, supervised: bool = True) -> AsyncIterator[Job]:
    """Submit a job and supervise it while the context lasts; in the end it is deleted, and nothing of it may be left."""
    eyes = site.open()
    await submit_or_adopt(eyes, eyes.plan(spec), owner="test")
    job = Job(site, spec.name, eyes)
    if supervised:
        job.supervise()
    try:
        async with _woken(job):
            yield job
    finally:
        await job.close()
    await nothing_left(site, spec.name)


@contextlib.asynccontextmanager
async def _woken(job: Job) -> AsyncIterator[None]:
    """Follow the job with the eyes, too: where its state is watched it need not be asked for."""
    async with job.eyes.changes(job.name):
        yield


async def nothing_left(site: Site, name: str) -> None:
    """Wait until nothing of a job is there any more."""
    left: list[str] = []

    async def look() -> Any:
        left[:] = await site.left(name)
        return not left

    await eventually_async(look, timeout=30.0, every=0.2, why=lambda: f"of {name} there is left: {', '.join(left)}")


def _story(told: list[JobRecord]) -> str:
    if not told:
        return "nothing could be read of the job"
    lines = "\n".join(f"  {line.kind}: {line.detail}" for line in told[0].history)
    return f"job {told[0].name} is {told[0].phase.value}:\n{lines}"
