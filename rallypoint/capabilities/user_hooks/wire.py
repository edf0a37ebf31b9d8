"""Pre-check operators in plan and status."""

from __future__ import annotations

from dataclasses import dataclass

from rallypoint.wire.pre_check import PreCheck, PreCheckOp
from rallypoint.wire.sections import Section

__all__ = ["PlanSection", "StatusSection"]


@dataclass(frozen=True, kw_only=True)
class PlanSection(Section, record="Plan", capability="user_hooks"):
    """Classes that the coordinator calls before the first round of an attempt."""

    pre_check_ops: tuple[PreCheckOp, ...] = ()


@dataclass(frozen=True, kw_only=True)
class StatusSection(Section, record="JobStatus", capability="user_hooks"):
    """Results of the operators before training, in the order of `pre_check_ops` (version 2)."""

    pre_checks: tuple[PreCheck, ...] = ()
