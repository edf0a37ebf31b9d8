"""What stands in for the rest of the house in tests of one room."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from rallypoint.agent.errors import UnreachableError
from rallypoint.agent.rendezvous import core as rendezvous
from rallypoint.agent.rendezvous.capabilities import Registered
from rallypoint.agent.rendezvous.core import Settings, State
from rallypoint.agent.workers.reaper import Ended, Reaper
from rallypoint.agent.workers.spawner import Command, Spawner
from rallypoint.wire.endpoint import Endpoint
from rallypoint.wire.fence import Fence
from rallypoint.wire.messages import AgentReport, AgentState, Reply
from rallypoint.wire.sections import build
from rallypoint.wire.status import JobStatus

TOKEN = "a secret"

#: Two nodes, no last call, and a lease that no test outlives.
TWO = Settings(min_nodes=2, max_nodes=2, last_call=0.0, node_lease=1000.0)


def new_state(settings: Settings = TWO, *, now: float, term: int = 1, registered: Registered = ()) -> State:
    return rendezvous.new(settings, job="digits", uid="u1", attempt=1, term=term, now=now, registered=registered)


def report(node: int = 0, state: AgentState = AgentState.WAITING, **more: object) -> AgentReport:
    fields: dict[str, object] = {
        "job": "digits",
        "fence": Fence(attempt=1),
        "node": node,
        "incarnation": 1,
        "agent": f"agent-{node}",
        "host": "127.0.0.1",
        "local_world_size": 1,
        "store": f"127.0.0.1:{1000 + node}",
        "state": state,
        "hold": 10.0,
    }
    return build(AgentReport, **{**fields, **more})


class GatedSink:
    """Publishes when the gate is open; `broken` lets it fail."""

    def __init__(self, *, open_: bool = True) -> None:
        self.trouble = ""
        self.gate = asyncio.Event()
        self.published: list[JobStatus] = []
        self.broken = 0
        if open_:
            self.gate.set()

    async def publish(self, status: JobStatus) -> None:
        await self.gate.wait()
        if self.broken:
            self.broken -= 1
            raise OSError(28, "No space left on device")
        self.published.append(status)


class MemorySink:
    """Remembers what was published last."""

    trouble = ""

    def __init__(self) -> None:
        self.last: JobStatus | None = None

    async def publish(self, status: JobStatus) -> None:
        self.last = status


class ScriptedExchange:
    """Answers by address; an address without answers is unreachable."""

    def __init__(self, **answers: Reply) -> None:
        self.answers: dict[str, Reply] = dict(answers)
        self.asked: list[tuple[str, int]] = []
        self.reports: list[AgentReport] = []

    async def exchange(self, endpoint: Endpoint, report: AgentReport, *, timeout: float) -> Reply:
        self.asked.append((endpoint.host, endpoint.term))
        self.reports.append(report)
        await asyncio.sleep(0)
        if endpoint.host not in self.answers:
            raise UnreachableError(f"{endpoint.address}: refused")
        return self.answers[endpoint.host]

    async def close(self) -> None:
        self.asked.append(("closed", 0))


class ListedEndpoints:
    """Gives one endpoint after another, the last for ever."""

    def __init__(self, *endpoints: Endpoint | None) -> None:
        self.left = list(endpoints)

    async def read(self) -> Endpoint | None:
        return self.left.pop(0) if len(self.left) > 1 else self.left[0]

    async def news(self) -> None:
        await asyncio.get_running_loop().create_future()


class StuckSpawner(Spawner):
    """Starts nothing: it fails with `error`, or without one it never comes to an end."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    async def spawn(self, command: Command, ended: Ended) -> int:
        if self.error is not None:
            raise self.error
        await asyncio.Event().wait()
        return 0


class ReadySpawner(Spawner):
    """Starts nothing either, and says so of a process that cannot be: its number is above all that the kernel gives."""

    def __init__(self) -> None:
        self.ended: Ended = lambda _: None

    async def spawn(self, command: Command, ended: Ended) -> int:
        self.ended = ended
        return 1 << 22


class DeafReaper(Reaper):
    """Reaps nothing, and takes every process for one that is watched: none of them is an orphan to be killed."""

    def __init__(self) -> None:
        self.listeners: list[Callable[[], None]] = []

    def listen(self, changed: Callable[[], None]) -> None:
        self.listeners.append(changed)

    def unlisten(self, changed: Callable[[], None]) -> None:
        self.listeners.remove(changed)

    def watched(self, pid: int) -> bool:
        return True
