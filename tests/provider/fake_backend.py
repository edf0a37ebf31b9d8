"""The backends' fake for tasks that wait in real time: attempts run by themselves, and a test says how they end."""

from __future__ import annotations

from rallypoint.backends.contract import Blueprint, LogLine, Stored
from rallypoint.supervision.actions import CreateNode
from rallypoint.supervision.observation import Observation
from rallypoint.supervision.record import JobRecord
from rallypoint.wire.fence import Fence
from rallypoint.wire.plan import Plan
from rallypoint.wire.status import JobState, JobStatus, Member, Outcome, Progress, Verdict
from tests.backends import fake

__all__ = ["SUCCESS", "FakeBackend"]

SUCCESS = Verdict(outcome=Outcome.SUCCEEDED, reason="Completed", message="all workers ended with 0")


class FakeBackend(fake.FakeBackend):
    """All nodes of an attempt train at once, and end well as soon as there is a verdict.

    Attributes:
        verdict: what every attempt ends with, as soon as it runs; None lets attempts run on.
        lines: what the ranks of every job write, from its submission on.
        submitted: blueprints, in order.
        broken: raised by `load`.
        closed: how often it was closed.
    """

    def __init__(self, *, verdict: Verdict | None = None) -> None:
        super().__init__(fake.World(pause=0.005))
        self.verdict = verdict
        self.lines: tuple[LogLine, ...] = ()
        self.submitted: list[Blueprint] = []
        self.broken: Exception | None = None
        self.closed = 0

    @property
    def started(self) -> list[tuple[int, int]]:
        """(attempt, node) of every node that was ever asked for."""
        return [(action.attempt, action.node) for action in self.world.done if isinstance(action, CreateNode)]

    def record(self, name: str) -> JobRecord:
        """Return the record of a job that must be there."""
        return self.world.record(name)

    async def submit(self, blueprint: Blueprint, *, owner: str) -> Stored:
        stored = await super().submit(blueprint, owner=owner)
        self.submitted.append(blueprint)
        self.world.jobs[stored.record.name].logs[:] = self.lines
        return stored

    async def load(self, name: str) -> Stored | None:
        if self.broken is not None:
            raise self.broken
        return await super().load(name)

    async def observe(self, record: JobRecord) -> Observation:
        job = self.world.jobs.get(record.name)
        if job is not None and record.attempt:
            job.status = _says(record, job.blueprint.plan, self.verdict)
            for key in self.world.alive(record.name) if self.verdict is not None else ():
                self.world.end(record.name, key, 0)
        return await super().observe(record)

    async def close(self) -> None:
        self.closed += 1


def _says(record: JobRecord, plan: Plan, verdict: Verdict | None) -> JobStatus:
    """What the coordinator of a job says whose nodes are all there."""
    state = JobState.RUNNING
    if verdict is not None:
        state = JobState.SUCCEEDED if verdict.outcome is Outcome.SUCCEEDED else JobState.FAILED
    return JobStatus(
        job=record.name,
        uid=record.uid,
        fence=Fence(attempt=record.attempt, term=record.term, round=1),
        state=state,
        world=tuple(
            Member(node=node, incarnation=1, agent=f"a{node}", host="here", local_world_size=plan.nproc_per_node)
            for node in range(plan.max_nodes)
        ),
        progress=Progress(step=300, metrics={"accuracy": 0.97}, checkpoint="/ckpt/step-300"),
        verdict=verdict,
    )
