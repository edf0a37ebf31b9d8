"""A place for commands: the backends' fake, a supervisor that is none, and a script of what happens while somebody looks on."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rallypoint.backends.contract import Backend, Blueprint, Changes, LogLine, SubmitError
from rallypoint.backends.kubernetes.dryrun import Refusal
from rallypoint.backends.site import Site
from rallypoint.cli.services import Services
from rallypoint.job import ElasticJob, compile_plan, load_job
from rallypoint.supervision.observation import NodeSeen, NodeState
from rallypoint.supervision.record import Holder, JobRecord
from rallypoint.wire.plan import OrphanPolicy
from rallypoint.wire.status import JobStatus
from tests.backends.fake import FakeBackend, World
from tests.cli.samples import begun

Step = Callable[["Place"], None]


@dataclass
class Place:
    """Where jobs run that commands are tried on.

    Attributes:
        script: what happens next, a step whenever somebody waits for a change.
        supervisor_pid: the process that submissions leave behind, if `takes_on` at work from the first moment.
        spawned, pods, sites: what the services were opened with.
        objects: what a blueprint has, if it is not that of this machine.
        refusal: why no pod may supervise; `trouble` why one does not.
    """

    world: World = field(default_factory=World)
    script: list[Step] = field(default_factory=list)
    supervisor_pid: int = field(default_factory=os.getpid)
    takes_on: bool = True
    spawned: list[tuple[str, Site]] = field(default_factory=list)
    pods: list[tuple[str, ...]] = field(default_factory=list)
    sites: list[Site] = field(default_factory=list)
    objects: tuple[dict[str, Any], ...] = ()
    refusal: str = ""
    trouble: str = ""

    @property
    def services(self) -> Services:
        """Services that lead here."""
        return Services(
            open_backend=self._open,
            spawn_supervisor=self._spawn,
            supervisor_log=lambda name, _: Path(f"/jobs/{name}/supervisor.log"),
            refusals=self._refuse,
            supervisor_pods=lambda site, image, account: _Pods(self, site, image, account),  # type: ignore[arg-type, return-value]
        )

    def _open(self, site: Site) -> Backend:
        self.sites.append(site)
        return _ScriptedBackend(self)

    def _spawn(self, name: str, site: Site) -> int:
        self.spawned.append((name, site))
        self.take_on(name)
        return self.supervisor_pid

    async def _refuse(self, _: Site, blueprint: Blueprint) -> tuple[Refusal, ...]:
        name = blueprint.plan.name
        return (Refusal(kind="Pod", name=f"{name}-0", reason=self.refusal),) if self.refusal else ()

    def take_on(self, name: str) -> None:
        """Let a supervisor begin, if `takes_on`."""
        if self.takes_on:
            old, fresh = self.world.record(name), begun()
            attempt = dataclasses.replace(fresh.attempts[0], number=old.attempt + 1)
            self.put(dataclasses.replace(old, phase=fresh.phase, attempt=attempt.number, attempts=(*old.attempts, attempt)))

    def put(
        self, record: JobRecord, status: JobStatus | None = None, *, nodes: int = 0, lines: tuple[LogLine, ...] = ()
    ) -> Place:
        """Let a job be so; with as many nodes of its first attempt, and a coordinator, as are said to run."""
        backend = FakeBackend(self.world)
        if record.name not in self.world.jobs:
            job = load_job(name=record.name, entrypoint="train.py", nodes="1:2", nproc_per_node=2)
            asyncio.run(backend.submit(backend.plan(job), owner=record.owner))
        held = self.world.jobs[record.name]
        held.record, held.status = record.to_json(), status or held.status
        held.logs.extend(lines)
        for node in range(-1 if nodes else 0, nodes):
            held.nodes[1, node, 1] = NodeSeen(
                attempt=1, node=node, incarnation=1, state=NodeState.RUNNING, present=True, host="ada"
            )
        self.world.changed += 1
        return self

    def beat(self, holder: Holder) -> None:
        """Let the heart of a supervising process beat."""
        self.world.hearts[holder.id] = 1

    def hold(self, name: str, holder: str) -> None:
        """Let another process supervise a job."""
        self.world.holders[name] = holder


class _Pods:
    """Supervisors in pods; see `SupervisorPods`."""

    def __init__(self, place: Place, site: Site, image: str, account: str) -> None:
        self._place, self._words = place, (site.namespace, image, account)

    async def check(self, blueprint: Blueprint) -> None:
        if self._place.refusal:
            raise SubmitError(self._place.refusal)

    async def leave(self, name: str) -> str:
        self._place.pods.append((name, *self._words))
        self._place.take_on(name)
        return f"{name}-s"

    async def lost(self, pod: str) -> str:
        if not self._place.trouble:
            await asyncio.Event().wait()
        return self._place.trouble


class _ScriptedChanges(Changes):
    def __init__(self, place: Place) -> None:
        self._place = place

    async def wait(self, timeout: float) -> None:
        await asyncio.sleep(0)
        if self._place.script:
            self._place.script.pop(0)(self._place)


class _ScriptedBackend(FakeBackend):
    def __init__(self, place: Place) -> None:
        super().__init__(place.world)
        self._place = place

    def plan(self, job: ElasticJob, *, orphan_policy: OrphanPolicy = OrphanPolicy.CONTINUE) -> Blueprint:
        (plan,) = compile_plan(job, orphan_policy=orphan_policy)
        objects = (
            {"kind": "folder", "path": f"/jobs/{plan.name}"},
            {"kind": "process", "name": "node 0", "log": "/jobs/agent.log", "command": ["agent", "a b"]},
        )
        return Blueprint(job=job, plan=plan, objects=self._place.objects or objects, notes=("image: not used here",))

    @contextlib.asynccontextmanager
    async def changes(self, name: str) -> AsyncIterator[Changes]:
        yield _ScriptedChanges(self._place)


def log_lines(*lines: tuple[int, str, str]) -> tuple[LogLine, ...]:
    """Return lines of (rank, stream, text)."""
    return tuple(LogLine(rank=rank, stream=stream, text=text, cursor="") for rank, stream, text in lines)


def becomes(record: JobRecord, status: JobStatus | None = None) -> Step:
    """Return a step of a script: the job is so now."""

    def step(place: Place) -> None:
        # Inside of an event loop: the job is there already, so nothing is submitted, and it stays the same job.
        uid = JobRecord.from_json(place.world.jobs[record.name].record).uid
        place.put(dataclasses.replace(record, uid=uid), status and dataclasses.replace(status, uid=uid))

    return step
