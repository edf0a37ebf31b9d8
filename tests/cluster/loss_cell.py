"""One cell of the loss matrix: a machine dies at a moment of a job; it trains again or ends well, and nothing of it is left."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rallypoint.backends.contract import Backend, BackendError
from rallypoint.backends.requests import delete, request_resize, submit_or_adopt
from rallypoint.cli.document import JobDocument
from rallypoint.cli.explain import Case, explanation
from rallypoint.cli.lookup import look
from rallypoint.cli.view import view_of
from rallypoint.job import ElasticJob
from rallypoint.supervision.record import JobRecord
from rallypoint.wire.incident import Rung
from rallypoint.wire.node_range import Size
from rallypoint.wire.status import JobState
from tests.cluster.loss_hands import OWNER, Machines, World, supervised, worlds
from tests.cluster.sites import ClusterSite

__all__ = ["LIMIT", "MOMENTS", "SUPERVISORS", "Cell", "Result", "Run"]

SUPERVISORS = ("pod", "process", "trigger")

#: What the job does when the machine dies; `full`: it trains on all machines, so that it waits for the return of one.
MOMENTS = ("submission", "first-round", "training", "recovery", "resize", "replacement", "last-step", "deletion", "full")

#: Seconds within which training goes on, or the job has its verdict.
LIMIT = 30.0

#: Seconds that a machine is away in the cells in which nobody can take its place.
_AWAY = 25.0

#: Seconds for which `status` may call a job training while it makes no step, unless it says since when nothing was heard.
_STALE = 5.0

#: Seconds for what is not measured: to begin, and to come to rest.
_BEGIN, _REST = 180.0, 150.0

_SCRIPT = Path(__file__).with_name("loss_script.py").read_text()


@dataclass(frozen=True, kw_only=True)
class Cell:
    """Which machine dies when, and who supervises."""

    machine: str
    moment: str
    supervisor: str

    @property
    def name(self) -> str:
        """As it is asked for by `--cells`."""
        return f"{self.machine}/{self.moment}/{self.supervisor}"


@dataclass
class Result:
    """How a cell went.

    Attributes:
        seconds: from the loss (in `full` cells: the return) until every rank had made five steps, or the verdict was there.
        what: what was reached: `trains`, `succeeded` or `gone`.
        wrong: what must not be.
        events: what happened, with seconds since the cell began.
    """

    cell: str
    seconds: float | None = None
    what: str = ""
    wrong: list[str] = field(default_factory=list)
    events: list[tuple[float, str]] = field(default_factory=list)


class MissedError(Exception):
    """Something did not come in time."""


class Run:
    """A cell at work."""

    def __init__(
        self, cell: Cell, site: ClusterSite, machines: Machines, names: tuple[str, ...], folder: Path, *, patience: float = 1.0
    ) -> None:
        self._limit, self._stale = patience * LIMIT, patience * _STALE
        self.cell, self.site, self.machines, self.names, self.folder = cell, site, machines, names, folder
        self.trail = folder / "trail"
        self.result = Result(cell=cell.name)
        self.eyes: Backend = site.open()
        self.job = "lost"
        self._began = time.monotonic()
        self._told: set[str] = set()
        self._over = False
        self._round = 0
        self._fresh = dict.fromkeys(("status", "explain"), time.time())

    @property
    def target(self) -> str:
        """The machine that dies."""
        return self.names["abc".index(self.cell.machine)]

    def note(self, text: str) -> None:
        """Keep an event for the story of a cell that fails."""
        self.result.events.append((time.monotonic() - self._began, text))

    # --- The course

    async def run(self) -> Result:
        """Run the cell to its end; what went wrong is in the result."""
        try:
            await self._course()
        except (MissedError, BackendError, OSError, RuntimeError) as error:
            self.result.wrong.append(f"{type(error).__name__}: {error}")
        finally:
            await self.eyes.close()
        return self.result

    async def _course(self) -> None:
        await self._prepare()
        await submit_or_adopt(self.eyes, self.eyes.plan(self._spec()), owner=OWNER)
        self.note("submitted")
        async with self.eyes.changes(self.job), supervised(self.site, self.job, self.cell.supervisor, self.folder):
            watching = asyncio.create_task(self._watch())
            try:
                if self.cell.moment == "deletion":
                    await self._deleted()
                else:
                    await self._lost()
            finally:
                self._over = True
                await watching
        await self._nothing_left()
        self._judge()

    async def _lost(self) -> None:
        await self._until_moment()
        at = await self._kill()
        if self.cell.moment == "full":
            await asyncio.sleep(_AWAY)
            at = await self._return()
        await self._recovered(at)
        if self.cell.moment != "full":
            await self._return()
        if self.result.what == "trains":
            await self._at_rest()
            self._finish(beyond=10)
        await self._succeeded()
        await self._delete()

    async def _deleted(self) -> None:
        await self._trains(2)
        deleting = asyncio.create_task(self._delete())
        await self._until("its deletion is asked for", self._deletion_asked)
        at = await self._kill()
        await deleting
        await self._nothing_left()
        self.result.seconds, self.result.what = time.time() - at, "gone"
        await self._return()

    # --- The job

    def _spec(self) -> ElasticJob:
        nodes = {"full": "3", "resize": "2:3"}.get(self.cell.moment, "2")
        return self.site.job(
            name=self.job,
            nodes=nodes,
            entrypoint={"command": [self.site.python, "-c", _SCRIPT]},
            resources={"cpu": "3", "cpu_limit": "4"},
            rendezvous={"last_call_timeout": "1s" if nodes == "2:3" else "10m"},
            recovery={"max_restarts": 10, "node_replacements": 10},
            fault_tolerance={"retry_limit": 3, "failure_grace_period": "10m"},
            health={"report_interval": "500ms"},
        )

    async def _prepare(self) -> None:
        self.trail.mkdir(parents=True, exist_ok=True)
        if self.cell.moment != "full":
            # So that all of the job is on two machines, and the third one is free.
            await self._cordon(self.names[2], cordoned=True)

    async def _cordon(self, name: str, *, cordoned: bool) -> None:
        await self.site.ask("PATCH", f"/api/v1/nodes/{name}", {"spec": {"unschedulable": cordoned or None}})

    # --- The moments

    async def _until_moment(self) -> None:
        moment = self.cell.moment
        if moment == "resize":
            await request_resize(self.eyes, self.job, Size(min_nodes=2, max_nodes=2))
        await self._until("its pods have machines", self._bound)
        if moment != "full":
            await self._cordon(self.names[2], cordoned=False)
        if moment == "submission":
            return
        if moment == "first-round":
            await self._until("an agent runs", self._agent_runs)
            return
        await self._trains(3 if moment == "full" else 2)
        await asyncio.sleep(2.0)
        if moment == "recovery":
            await self._break_worker()
        if moment == "resize":
            await request_resize(self.eyes, self.job, Size(min_nodes=2, max_nodes=3))
            await self._until("a third node is made", lambda: self._pods_made(3))
        if moment == "replacement":
            await self._replace_node()
        if moment == "last-step":
            last = self._finish(beyond=5)
            await self._until("the last step is near", lambda: _true(self._step() >= last - 1), every=0.01)

    async def _bound(self) -> bool:
        wanted = 4 if self.cell.moment == "full" else 3
        pods = await self._pods()
        return sum(1 for pod in pods if _part(pod) in ("node", "coordinator") and pod["spec"].get("nodeName")) >= wanted

    async def _agent_runs(self) -> bool:
        return any(_part(pod) == "node" and pod["status"].get("phase") == "Running" for pod in await self._pods())

    async def _pods_made(self, count: int) -> bool:
        return sum(1 for pod in await self._pods() if _part(pod) == "node") >= count

    async def _break_worker(self) -> None:
        """Kill a worker of a node that stays, and let the machine die while its successor starts."""
        before = len(worlds(self.trail)[0])
        (self.trail / "die").write_text("1")
        await self._until("a worker has ended", lambda: _true(not (self.trail / "die").exists()), every=0.02)
        await asyncio.sleep(0.3)
        self.note(f"a worker was killed in world {before}")

    async def _replace_node(self) -> None:
        """Delete the pod of a node; the machine dies once another one was made in its place."""
        pods = [pod for pod in await self._pods() if _part(pod) == "node"]
        pod = next((p for p in pods if p["spec"]["nodeName"] != self.target), pods[0])["metadata"]
        await self.site.remove(pod["name"])
        self.note(f"deleted pod {pod['name']}")

        async def made() -> bool:
            known = {p["metadata"]["uid"] for p in pods}
            return any(_part(p) == "node" and p["metadata"]["uid"] not in known for p in await self._pods())

        await self._until("its successor is made", made)

    def _finish(self, *, beyond: int) -> int:
        """Let training end so many steps from now; return the last step."""
        last = self._step() + beyond
        (self.trail / ".finish").write_text(str(last))
        (self.trail / ".finish").replace(self.trail / "finish")
        return last

    def _step(self) -> int:
        try:
            return int((self.trail / "step").read_text())
        except (OSError, ValueError):
            return 0

    # --- The machine

    async def _kill(self) -> float:
        there = sorted(_short(pod) for pod in await self._pods() if pod["spec"].get("nodeName") == self.target)
        self.note(f"killing machine {self.target}: {', '.join(there) or 'nothing is on it'}")
        await self.machines.kill(self.target)
        self.note("killed")
        return time.time()

    async def _return(self) -> float:
        await self.machines.restore(self.target)
        self.note(f"machine {self.target} is back")
        return time.time()

    # --- What is waited for

    async def _trains(self, size: int) -> None:
        def so() -> bool:
            made, _ = worlds(self.trail)
            return bool(made) and made[-1].size == size and made[-1].steps_after(0.0, 5) is not None

        await self._until(f"{size} ranks train", lambda: _true(so()))

    async def _recovered(self, at: float) -> None:
        """Wait until training goes on after `at`, or the job has succeeded."""

        async def so() -> bool:
            made, _ = worlds(self.trail)
            found = [when for when in (world.steps_after(at, 5) for world in made if world.size >= 2) if when is not None]
            if found:
                self.result.what, self.result.seconds = "trains", min(found) - at
                return True
            record = await self._record()
            if record is not None and record.phase.value == "Succeeded":
                self.result.what, self.result.seconds = "succeeded", time.time() - at
            return bool(self.result.what)

        await self._until("training goes on", so)
        self.note(f"{self.result.what} after {self.result.seconds:.1f} s")

    async def _at_rest(self) -> None:
        """Wait until the coordinator of the last term leads a world of all wanted nodes that makes steps."""

        async def so() -> bool:
            record, status = await self._record(), await self.eyes.status(self.job)
            if record is None or status is None or status.state is not JobState.RUNNING:
                return False
            world = {(member.node, member.incarnation) for member in status.world}
            wanted = {(slot.node, slot.incarnation) for slot in record.slots}
            made, _ = worlds(self.trail)
            moves = made[-1].round == status.fence.round and time.time() - made[-1].last < 2.0
            return status.fence.term == record.term and world == wanted and moves

        await self._until("the job is whole again", so, timeout=_REST)
        self.note("whole again")

    async def _succeeded(self) -> None:
        async def so() -> bool:
            record = await self._record()
            return record is not None and record.phase.value in ("Succeeded", "Failed")

        await self._until("the job ends", so, timeout=_REST)
        record = await self._record()
        assert record is not None
        self._judge_record(record)

    async def _delete(self) -> None:
        async with _patient(self.site) as backend:
            await delete(backend, self.job, holder=OWNER, timeout=_REST)
        self.note("delete returned")

    async def _deletion_asked(self) -> bool:
        record = await self._record()
        return record is None or record.deletion

    async def _nothing_left(self) -> None:
        async def so() -> bool:
            return not await self.site.left(self.job)

        await self._until("nothing is left", so, timeout=_REST, why=self._left)

    async def _left(self) -> str:
        return ", ".join(await self.site.left(self.job))

    async def _until(
        self,
        what: str,
        so: Callable[[], Awaitable[bool]],
        *,
        timeout: float = _BEGIN,
        every: float = 0.1,
        why: Callable[[], Awaitable[str]] | None = None,
    ) -> None:
        until = time.monotonic() + timeout
        while time.monotonic() < until:
            with contextlib.suppress(BackendError):
                if await so():
                    return
            await asyncio.sleep(every)
        more = "" if why is None else f": {await why()}"
        raise MissedError(f"{what}: not so after {timeout:g} s{more}")

    # --- What is looked at

    async def _pods(self) -> list[dict[str, Any]]:
        return await self.site.listed("pods", f"rallypoint.dev/job={self.job}")

    async def _record(self) -> JobRecord | None:
        stored = await self.eyes.load(self.job)
        return None if stored is None else stored.record

    async def _watch(self) -> None:
        """Ask `status` and `explain` each second; note what is new."""
        seen = 0
        while not self._over:
            with contextlib.suppress(BackendError):
                seen = await self._ask(seen)
            await self._note_pods()
            await asyncio.sleep(1.0)

    async def _ask(self, seen: int) -> int:
        stored = await self.eyes.load(self.job)
        if stored is None:
            return seen
        asked = time.time()
        document = await look(self.eyes, self.job)
        shown = view_of(document, time.time())
        said = "; ".join((shown.summary, *(f"{fact.label} {fact.text}" for fact in shown.details)))
        story = "\n".join(explanation(await self._case(document)))
        made, _ = worlds(self.trail)
        trains, last = shown.summary.partition("then: ")[2] or shown.summary, max((world.last for world in made), default=0.0)
        if document.status is not None and document.status.fence.round != self._round:
            # Its workers are starting: what is said of them is as old as the round.
            self._round, self._fresh = document.status.fence.round, dict.fromkeys(self._fresh, time.time())
        for who, text in (("status", said), ("explain", story.partition("Timeline")[0])):
            if not trains.startswith("training") or any(word in text for word in _AGES):
                self._fresh[who] = time.time()
            still = asked - max(self._fresh[who], last)
            if still > self._stale:
                self.result.wrong.append(f"{who} says nothing of age {still:.0f} s after the last step: {text!r}")
        if shown.summary not in self._told:
            self._told.add(shown.summary)
            self.note(f"status: {said}")
        for line in document.record.history[seen:]:
            self.note(f"record: {line.kind}: {line.detail}")
        if "Traceback" in story:
            self.result.wrong.append("explain shows a traceback")
        return len(document.record.history)

    async def _case(self, document: JobDocument) -> Case:
        seen = await self.eyes.observe(document.record)
        status, age = document.status, document.status_age
        return Case(
            record=document.record, plan=document.plan, status=status, seen=seen, now=time.time(), holder="", status_age=age
        )

    async def _note_pods(self) -> None:
        with contextlib.suppress(BackendError):
            for pod in await self._pods():
                line = f"pod {_short(pod)} on {pod['spec'].get('nodeName') or 'no machine'}: {pod['status'].get('phase')}"
                line += ", deleting" if "deletionTimestamp" in pod["metadata"] else ""
                if line not in self._told:
                    self._told.add(line)
                    self.note(line)

    # --- The verdict

    def _judge_record(self, record: JobRecord) -> None:
        if record.phase.value != "Succeeded":
            self.result.wrong.append(f"the job ended as {record.phase.value}: {record.attempts[-1].message}")
        if record.attempt != 1 or record.retries:
            self.result.wrong.append(f"a reset that was not due: attempt {record.attempt}, {record.retries} retries")
        self.result.wrong += [f"incident {i.reason} led to a reset" for i in record.incidents if i.rung is Rung.RESET]

    def _judge(self) -> None:
        made, wrong = worlds(self.trail)
        self.result.wrong += wrong
        self.note(f"worlds: {', '.join(map(_worded, made)) or 'none'}")
        if self.result.seconds is None or self.result.seconds > self._limit:
            took = f"{self.result.what or 'nothing'} after {self.result.seconds} s"
            self.result.wrong.append(f"{took}, more than {self._limit:g} s")


#: Words by which a status tells how old it is.
_AGES = ("last report", "last sign of life")


async def _true(value: bool) -> bool:
    return value


@contextlib.asynccontextmanager
async def _patient(site: ClusterSite) -> Any:
    backend = site.open()
    try:
        yield backend
    finally:
        await backend.close()


def _part(pod: dict[str, Any]) -> str:
    return str(pod["metadata"]["labels"].get("rallypoint.dev/part"))


def _short(pod: dict[str, Any]) -> str:
    its = pod["metadata"]["labels"]
    number = f" {its['rallypoint.dev/node']}" if its.get("rallypoint.dev/part") == "node" else ""
    return f"{_part(pod)}{number} ({its.get('rallypoint.dev/incarnation', '1')})"


def _worded(world: World) -> str:
    return f"round {world.round} of {world.size}"
