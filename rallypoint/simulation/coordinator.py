"""The simulated coordinator: it publishes the status that follows from the running pods, or the one that the trace sets."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rallypoint.simulation.trace import Step
from rallypoint.supervision.observation import NodeSeen, NodeState
from rallypoint.supervision.record import JobRecord
from rallypoint.wire import codec
from rallypoint.wire.codec import WireError
from rallypoint.wire.fence import Fence
from rallypoint.wire.incident import Cause, Incident, IncidentId, Rung
from rallypoint.wire.status import JobState, JobStatus, Member, Outcome, Progress, Verdict

__all__ = ["SimulatedCoordinator", "read_incident", "read_verdict"]

_VERDICTS = {
    "succeeded": Verdict(outcome=Outcome.SUCCEEDED, reason="Completed", message="all ranks succeeded"),
    "failed": Verdict(outcome=Outcome.FAILED, reason="WorkersFailed", message="the workers failed"),
}


@dataclass
class SimulatedCoordinator:
    """A stand-in for the coordinator of the current attempt.

    Attributes:
        word: `auto`, `silent`, `forming` or `running`.
        attempt: which everything below belongs to; the next attempt begins with nothing.
        last: the last status; it stays readable when the coordinator is gone.
    """

    word: str = "auto"
    attempt: int = 0
    round: int = 0
    world: tuple[Member, ...] = ()
    progress: Progress = Progress()
    verdict: Verdict | None = None
    incidents: tuple[Incident, ...] = ()
    last: JobStatus | None = None

    def apply(self, step: Step, record: JobRecord, path: str) -> None:
        """Apply a step of the trace; `path` names the step in errors."""
        self._follow(record)
        self.word = step.status or self.word
        if step.step is not None or step.checkpoint is not None:
            number = self.progress.step if step.step is None else step.step
            checkpoint = self.progress.checkpoint if step.checkpoint is None else step.checkpoint
            self.progress = Progress(step=number, checkpoint=checkpoint, at=step.at)
        if step.verdict is not None:
            self.verdict = read_verdict(step.verdict, f"{path}.verdict")
        for index, told in enumerate(step.incidents):
            incident = read_incident(told, f"{path}.incidents[{index}]", self._next_id(record, told), at=step.at)
            self.incidents = (*self.incidents, incident)

    def _next_id(self, record: JobRecord, told: Mapping[str, Any]) -> IncidentId:
        node, local_rank = told.get("node", -1), told.get("local_rank", -1)
        return IncidentId(
            attempt=record.attempt, round=max(1, self.round), node=node, local_rank=local_rank, sequence=len(self.incidents) + 1
        )

    def report(self, record: JobRecord, nodes: tuple[NodeSeen, ...], *, min_nodes: int, speaks: bool) -> JobStatus | None:
        """Return the coordinator's last status; a new one if it `speaks` now."""
        self._follow(record)
        told = self.word != "auto" or self.verdict is not None or self.incidents or self.progress.step is not None
        if self.word == "silent" or not (speaks or told) or not record.attempt:
            return self.last
        state = self._state(record, nodes, min_nodes)
        self.last = JobStatus(
            job=record.name,
            uid=record.uid,
            fence=Fence(attempt=record.attempt, term=record.term, round=self.round),
            state=state,
            world=self.world,
            progress=self.progress,
            incidents=self.incidents,
            verdict=self.verdict,
        )
        return self.last

    def _follow(self, record: JobRecord) -> None:
        if record.attempt != self.attempt:
            self.attempt, self.round, self.world = record.attempt, 0, ()
            self.progress, self.verdict, self.incidents = Progress(), None, ()

    def _state(self, record: JobRecord, nodes: tuple[NodeSeen, ...], min_nodes: int) -> JobState:
        mine = tuple(n for n in nodes if _wanted(n, record))
        running = tuple(n for n in mine if n.state is NodeState.RUNNING and not n.deleting)
        if self.verdict is None and len(mine) >= min_nodes and all(n.state is NodeState.SUCCEEDED for n in mine):
            # An agent ends only when its job's verdict is durable: all well means that it was told.
            self.verdict = _VERDICTS["succeeded"]
        if self.verdict is not None:
            return JobState.SUCCEEDED if self.verdict.outcome is Outcome.SUCCEEDED else JobState.FAILED
        trains = self.word == "running" or (self.word == "auto" and len(running) >= min_nodes)
        if not trains:
            return JobState.FORMING
        self._close_round(running)
        return JobState.RUNNING

    def _close_round(self, running: tuple[NodeSeen, ...]) -> None:
        world = tuple(
            Member(
                node=n.node,
                incarnation=n.incarnation,
                agent=f"agent-{n.node}.{n.incarnation}",
                host=n.host,
                local_world_size=1,
                group_rank=rank,
                first_rank=rank,
            )
            for rank, n in enumerate(sorted(running, key=lambda n: n.node))
        )
        if world != self.world:
            self.round, self.world = self.round + 1, world


def read_verdict(value: Any, path: str) -> Verdict:
    """Read `succeeded`, `failed` or an object; raises `WireError`."""
    if isinstance(value, str):
        if value not in _VERDICTS:
            raise WireError(path, value, f"{', '.join(_VERDICTS)}, or an object with outcome, reason and message")
        return _VERDICTS[value]
    return codec.from_json(Verdict, value, path=path)


def read_incident(value: Mapping[str, Any], path: str, identity: IncidentId, *, at: float) -> Incident:
    """Read an incident as a trace tells it: the wire's, without its id, and with what goes without saying left out."""
    for name in ("node", "local_rank"):
        if not isinstance(value.get(name, -1), int):
            raise WireError(f"{path}.{name}", value[name], "a value of type int")
    plain = {
        "cause": Cause.PROCESS.value,
        "rung": Rung.RESTART_WORKERS.value,
        "reason": "set by the trace",
        "detected_at": at,
        **{name: item for name, item in value.items() if name not in ("node", "local_rank")},
        "id": dataclasses.asdict(identity),
    }
    return codec.from_json(Incident, plain, path=path)


def _wanted(node: NodeSeen, record: JobRecord) -> bool:
    if node.attempt != record.attempt:
        return False
    return not record.slots or any((s.node, s.incarnation) == (node.node, node.incarnation) for s in record.slots)
