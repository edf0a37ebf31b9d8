"""Worker commands on their way to the workers, and the answers."""

from __future__ import annotations

from dataclasses import dataclass

from rallypoint.wire.sections import Section
from rallypoint.wire.wish import NodeAnswer, Wish, WishStatus

__all__ = ["ReplySection", "ReportSection", "StatusSection"]


@dataclass(frozen=True, kw_only=True)
class ReportSection(Section, record="AgentReport", capability="commands"):
    """Answers of a node's workers to the last command that the agent received; None before the first."""

    wish: NodeAnswer | None = None


@dataclass(frozen=True, kw_only=True)
class ReplySection(Section, record="Continue", capability="commands"):
    """The last command, repeated until a report names its number."""

    wish: Wish | None = None


@dataclass(frozen=True, kw_only=True)
class StatusSection(Section, record="JobStatus", capability="commands"):
    """The last command with the answers of all ranks, None before the first (version 2)."""

    wish: WishStatus | None = None
