"""What sensors wait for, decided from what is seen of a job. Pure."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any

from rallypoint.provider.errors import OptionError
from rallypoint.supervision.record import JobRecord, Phase
from rallypoint.wire import codec
from rallypoint.wire.status import JobState, JobStatus

__all__ = ["ENDED", "PHASES", "Condition", "Finding", "Found", "judge"]

#: Stands for any end of a job.
ENDED = "Ended"

#: What `Condition.phase` may be.
PHASES = (Phase.RESUMING.value, Phase.RUNNING.value, Phase.RESETTING.value, Phase.SUCCEEDED.value, Phase.FAILED.value, ENDED)

_OVER = (Phase.SUCCEEDED, Phase.FAILED, Phase.TERMINATING)


class Found(str, enum.Enum):
    """What a look at a job says."""

    WAITING = "waiting"
    MET = "met"
    IMPOSSIBLE = "impossible"


@dataclass(frozen=True, kw_only=True)
class Condition:
    """Where a job is expected. Exactly one of the two is asked for.

    Attributes:
        phase: one of `PHASES`; "" when a rendezvous is asked for.
        min_nodes: a round with at least so many nodes trains; 0 when a phase is asked for.
    """

    phase: str = ""
    min_nodes: int = 0

    def __post_init__(self) -> None:
        if self.phase and self.phase not in PHASES:
            raise OptionError("phase", self.phase, f"one of {', '.join(PHASES)}")
        if bool(self.phase) is bool(self.min_nodes):
            raise OptionError("min_nodes", self.min_nodes, "1 or more, or a phase, but not both")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What a look found, in one word, in one sentence, and as values for XCom."""

    found: Found
    text: str
    values: dict[str, Any] = field(default_factory=dict)

    def to_event(self) -> dict[str, Any]:
        """Return the payload of a trigger's event."""
        event: dict[str, Any] = codec.to_json(self)
        return event

    @classmethod
    def from_event(cls, event: Any) -> Finding:
        """Read a payload; raises `WireError`."""
        return codec.from_json(cls, event, path="event")


def judge(condition: Condition, record: JobRecord, status: JobStatus | None) -> Finding:
    """Say whether a job is where it is expected, may still come there, or cannot any more."""
    mine = status if status is not None and status.uid == record.uid and status.fence.attempt == record.attempt else None
    values = {"job": record.name, "uid": record.uid, "phase": record.phase.value, **_world(mine)}
    if condition.phase:
        return _judge_phase(condition.phase, record, values)
    return _judge_round(condition.min_nodes, record, mine, values)


def _judge_phase(phase: str, record: JobRecord, values: dict[str, Any]) -> Finding:
    now = record.phase
    # Who waits for a job to run is late, and not wrong, when it has succeeded meanwhile.
    passed = phase == Phase.RUNNING.value and now is Phase.SUCCEEDED
    if phase == now.value or passed or (phase == ENDED and record.finished):
        return Finding(found=Found.MET, text=f"job {record.name} is {now.value}", values=values)
    return _not_yet(f"{phase}", record, values)


def _judge_round(min_nodes: int, record: JobRecord, status: JobStatus | None, values: dict[str, Any]) -> Finding:
    if status is not None and status.state is JobState.RUNNING and len(status.world) >= min_nodes:
        text = f"job {record.name}: round {status.fence.round} trains on {len(status.world)} nodes, {status.world_size} ranks"
        return Finding(found=Found.MET, text=text, values=values)
    return _not_yet(f"a round of at least {min_nodes} nodes", record, values)


def _not_yet(what: str, record: JobRecord, values: dict[str, Any]) -> Finding:
    if record.phase in _OVER:
        verdict = f": {record.verdict.message}" if record.verdict is not None and record.phase is Phase.FAILED else ""
        text = f"job {record.name} is {record.phase.value}, so {what} will not come{verdict}"
        return Finding(found=Found.IMPOSSIBLE, text=text, values=values)
    return Finding(found=Found.WAITING, text=f"job {record.name} is {record.phase.value or 'submitted'}", values=values)


def _world(status: JobStatus | None) -> dict[str, Any]:
    if status is None:
        return {"round": 0, "nodes": 0, "world_size": 0}
    return {"round": status.fence.round, "nodes": len(status.world), "world_size": status.world_size}
