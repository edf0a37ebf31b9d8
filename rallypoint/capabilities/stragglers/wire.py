"""Stragglers in the published status."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from rallypoint.wire.sections import Section

__all__ = ["StatusSection", "Straggler"]


@dataclass(frozen=True, kw_only=True)
class Straggler:
    """A rank that has been slow for a while.

    Attributes:
        rank, node, host: which one, and where.
        score: how many times as long as the others it takes for what is its own part of a step.
        own, usual: seconds of a step that it takes itself, and the median of the others.
        step: seconds of a whole step.
        since: when it was first found slow: seconds since the epoch, coordinator's clock.
    """

    rank: int
    node: int
    host: str
    score: float
    own: float
    usual: float
    step: float
    since: float


@dataclass(frozen=True, kw_only=True)
class StatusSection(Section, record="JobStatus", capability="stragglers"):
    """Ranks of the running round that are slower than the others, the slowest first (version 2)."""

    stragglers: tuple[Straggler, ...] = ()

    def steady(self) -> StatusSection:
        """Return which ranks are slow; how slow is measured anew with each of their steps."""
        slow = (dataclasses.replace(one, score=0.0, own=0.0, usual=0.0, step=0.0) for one in self.stragglers)
        return StatusSection(stragglers=tuple(sorted(slow, key=lambda one: one.rank)))
