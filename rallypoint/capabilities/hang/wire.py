"""Hang detection in plan, reports, replies and status."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from rallypoint.wire.hang import Evidence, Hang
from rallypoint.wire.pulse import Learned
from rallypoint.wire.sections import Section

__all__ = ["PlanSection", "ReplySection", "ReportSection", "StatusSection"]


@dataclass(frozen=True, kw_only=True)
class PlanSection(Section, record="Plan", capability="hang"):
    """Settings.

    Attributes:
        hang_downtime: seconds without a sign of life of any rank that are a hang; 0 is off.
        hang_detection: action on a hang: 0 a log line, 1 an incident, 2 a restart of the workers.
        hang_learning: the durations of the job's phases are learned, and limit silences, too.
    """

    hang_downtime: float = 1800.0
    hang_detection: int = 1
    hang_learning: bool = True


@dataclass(frozen=True, kw_only=True)
class ReportSection(Section, record="AgentReport", capability="hang"):
    """Observations of a node.

    Attributes:
        evidence: evidence of its workers, while the coordinator requests it.
        learned: durations of the phases of its workers so far in this round.
    """

    evidence: Evidence | None = None
    learned: tuple[Learned, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ReplySection(Section, record="Continue", capability="hang"):
    """Number of a request for evidence of the running round, repeated until a report has it; 0 requests nothing."""

    evidence: int = 0


@dataclass(frozen=True, kw_only=True)
class StatusSection(Section, record="JobStatus", capability="hang"):
    """The state of training (version 2).

    Attributes:
        hang: a suspected or confirmed hang; None while training makes progress.
        learned: durations of the phases of the job, renewed from time to time; the next attempt begins with them.
        lively_at: time of the last sign of life of the running round, or of its beginning; 0 before any.
    """

    hang: Hang | None = None
    learned: tuple[Learned, ...] = ()
    lively_at: float = 0.0

    def steady(self) -> StatusSection:
        """Return the section without the time of the last sign of life."""
        return dataclasses.replace(self, lively_at=0.0)
