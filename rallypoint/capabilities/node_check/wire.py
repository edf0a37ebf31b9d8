"""The node check in plan, reports, replies and status."""

from __future__ import annotations

from dataclasses import dataclass

from rallypoint.wire.check import CheckReport, CheckTask, NodeCheck
from rallypoint.wire.sections import Section

__all__ = ["PlanSection", "ReplySection", "ReportSection", "StatusSection"]


@dataclass(frozen=True, kw_only=True)
class PlanSection(Section, record="Plan", capability="node_check"):
    """Settings.

    Attributes:
        check_level: nodes are checked before they train: 0 no check, 1 in pairs, 2 in pairs and then all nodes together.
        check_timeout: seconds for each round of the check.
        check_all_pairs: every pair of nodes is tested, for a complete matrix of bandwidths.
        check_only: the job is only the check, and its result is the result of the check.
        check_program: a probe of the user, as words; empty is `rallypoint.capabilities.node_check.probe`.
        exclude_straggler: a node that is slow in the check is replaced, as a node that fails is.
    """

    check_level: int = 0
    check_timeout: float = 300.0
    check_all_pairs: bool = False
    check_only: bool = False
    check_program: tuple[str, ...] = ()
    exclude_straggler: bool = False


@dataclass(frozen=True, kw_only=True)
class ReportSection(Section, record="AgentReport", capability="node_check"):
    """State of the node's probe; None if the plan has no node check."""

    check: CheckReport | None = None


@dataclass(frozen=True, kw_only=True)
class ReplySection(Section, record="Continue", capability="node_check"):
    """The task for the probe of a waiting agent, repeated until a report says that it has begun."""

    check: CheckTask | None = None


@dataclass(frozen=True, kw_only=True)
class StatusSection(Section, record="JobStatus", capability="node_check"):
    """The last check of the nodes, which may still run; None before the first (version 2)."""

    check: NodeCheck | None = None
