"""One observation of a job, and the state that a sensor keeps between observations. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from rallypoint.provider.sensing.finding import Finding, Found
from rallypoint.supervision.record import JobRecord, Phase
from rallypoint.wire import codec
from rallypoint.wire.status import JobStatus

__all__ = ["GAP", "Memory", "Seen", "job_values", "not_yet"]

#: Maximum seconds between two observations that count as waiting time.
GAP = 120.0

_OVER = (Phase.SUCCEEDED, Phase.FAILED, Phase.TERMINATING)


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One observation of a job.

    Attributes:
        record: the job's, None when there is no such job.
        status: the coordinator's last word, whatever job and attempt it is of; None before the first.
        max_nodes: nodes that the job would have, 0 where that is not known.
        now: seconds on a clock of the one who looks; only differences of it matter.
        gap: longest time since the last look that counts, in seconds.
        role: the role that is asked about, "" for the whole job.
        roles: those of a job with several, by name: whether each is elastic. None where no job was seen.
    """

    record: JobRecord | None
    status: JobStatus | None = None
    max_nodes: int = 0
    now: float = 0.0
    gap: float = GAP
    role: str = ""
    roles: Mapping[str, bool] | None = None


@dataclass(frozen=True, kw_only=True)
class Memory:
    """State that is kept between two observations.

    Attributes:
        uid: of the job that was seen, "" before one was.
        mark: what has to stay as it is, in the condition's own words; "" while it is not so.
        spent: seconds for which it has stayed, as of `at` on the clock of the looks.
    """

    reported: ClassVar[bool] = True

    uid: str = ""
    mark: str = ""
    spent: float = 0.0
    at: float = 0.0

    def marked(self, mark: str, seen: Seen) -> Memory:
        """Return the memory after a look that found `mark`: a new mark is counted from now on, "" is not counted."""
        if not mark or mark != self.mark:
            return dataclasses.replace(self, mark=mark, spent=0.0, at=seen.now)
        passed = min(max(0.0, seen.now - self.at), seen.gap)
        return dataclasses.replace(self, spent=self.spent + passed, at=seen.now)

    def to_json(self) -> dict[str, Any]:
        """Return what a sensor that is rescheduled keeps."""
        kept: dict[str, Any] = codec.to_json(self)
        return kept

    @classmethod
    def from_json(cls, kept: Any) -> Memory:
        """Read it; raises `WireError`."""
        return codec.from_json(cls, kept, path="memory")


def job_values(record: JobRecord, status: JobStatus | None) -> dict[str, Any]:
    """Return the values about the job that each finding contains."""
    world = {"round": 0, "nodes": 0, "world_size": 0}
    if status is not None:
        world = {"round": status.fence.round, "nodes": len(status.world), "world_size": status.world_size}
    return {"job": record.name, "uid": record.uid, "phase": record.phase.value, **world}


def not_yet(what: str, record: JobRecord, values: dict[str, Any], *, wake: float | None = None, so_far: str = "") -> Finding:
    """Return a finding for a condition that is not true yet; after the end of the job it is impossible."""
    if record.phase in _OVER:
        failed = record.verdict is not None and record.phase is Phase.FAILED
        verdict = f": {record.verdict.message}" if record.verdict is not None and failed else ""
        text = f"job {record.name} is {record.phase.value}, so {what} is no longer possible{verdict}"
        return Finding(found=Found.IMPOSSIBLE, text=text, values=values)
    text = so_far or f"job {record.name} is {record.phase.value or 'submitted'}"
    return Finding(found=Found.WAITING, text=text, values=values, wake=wake)
