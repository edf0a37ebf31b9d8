"""The tuned batch: what the nodes of a world measure, and what the coordinator makes of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rallypoint.wire.bounds import WHOLE
from rallypoint.wire.sections import Section

__all__ = [
    "AssignmentSection",
    "NodeTuning",
    "PlanSection",
    "ReplySection",
    "ReportSection",
    "Seen",
    "StatusSection",
    "Tuned",
    "Tuning",
]


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """What workers are to use: samples that each takes per step. Of two the higher `version` is newer."""

    version: int
    batch: int


@dataclass(frozen=True, kw_only=True)
class Seen:
    """At a batch of so many samples the worker with the most used so many bytes."""

    limits: ClassVar = {"memory": WHOLE}

    batch: int
    memory: int


@dataclass(frozen=True, kw_only=True)
class NodeTuning:
    """What one node measures.

    Attributes:
        version: of the `Tuned` that it has heard of; 0 before the first.
        batch: that its workers use; 0 while no script has said so.
        memory: bytes, the most that a worker of it used with that batch; 0 until enough steps were taken.
        limit: bytes that a worker of it may use.
    """

    limits: ClassVar = {"memory": WHOLE, "limit": WHOLE}

    version: int = 0
    batch: int = 0
    memory: int = 0
    limit: int = 0


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """How far it is.

    Attributes:
        version, batch: as in `Tuned`; version 0 is what the script began with.
        seen: what was measured, the oldest first.
        limit: bytes that a worker may use on every node.
        ceiling: no batch that is larger is tried: memory ran out beyond it. 0 while none is known.
        settled: why the batch stays as it is, for people; "" while it may still change.
    """

    limits: ClassVar = {"limit": WHOLE, "ceiling": WHOLE}

    version: int = 0
    batch: int = 0
    seen: tuple[Seen, ...] = ()
    limit: int = 0
    ceiling: int = 0
    settled: str = ""


# --- Sections ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class PlanSection(Section, record="Plan", capability="tuned_batch"):
    """Settings.

    Attributes:
        auto_tuning: the workers' batch grows to what their memory holds, as it is measured.
        tuning_memory: bytes that a worker may use for that; 0 is what its device has.
    """

    limits: ClassVar = {"tuning_memory": WHOLE}

    auto_tuning: bool = False
    tuning_memory: int = 0


@dataclass(frozen=True, kw_only=True)
class ReportSection(Section, record="AgentReport", capability="tuned_batch"):
    """What the workers' batch costs, where the plan has it tuned."""

    tuning: NodeTuning | None = None


@dataclass(frozen=True, kw_only=True)
class ReplySection(Section, record="Continue", capability="tuned_batch"):
    """The batch that workers are to use, repeated until a report names its version."""

    tuned: Tuned | None = None


@dataclass(frozen=True, kw_only=True)
class AssignmentSection(Section, record="Assignment", capability="tuned_batch"):
    """The batch to begin with, None for the script's own."""

    tuned: Tuned | None = None


@dataclass(frozen=True, kw_only=True)
class StatusSection(Section, record="JobStatus", capability="tuned_batch"):
    """How far the tuned batch is, None where none is measured; it outlives the attempt (version 2)."""

    tuning: Tuning | None = None
