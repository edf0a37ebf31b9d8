"""A rank that is slower than the others, as it is told."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Straggler"]


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
